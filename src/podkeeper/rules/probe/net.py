"""TCP and gRPC probes, and the port of a probe or hook.

In: a port number or name, then the result of a connection or health call. Out: the port number, then a `Report`. Every
network error is a failure of the container, not of the agent. Otherwise a timeout would not count.

Kubelet counterpart: pkg/probe/util.go, pkg/probe/tcp and pkg/probe/grpc. The messages are those of the kubelet
(`strconv.Atoi: parsing "x": invalid syntax`).
"""

import re

from podkeeper.model.durations import NANOSECONDS_PER_SECOND, format_duration
from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Container, GRPCAction, TCPSocketAction
from podkeeper.model.probing import CallFailed, Endpoint, GrpcEnd, HealthAnswer, NotConnected
from podkeeper.model.wire import IntOrString
from podkeeper.rules.probe.report import ProbeOutcome, Report

_NUMBER = re.compile(r"([+-]?)([0-9]*)(.*)", re.ASCII | re.DOTALL)
_SHORT_ESCAPES = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\", '"': r"\"",
}  # fmt: skip

_GRPC_CODES = (
    "OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
    "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable",
    "DataLoss", "Unauthenticated",
)  # fmt: skip
_GRPC_DEADLINE_EXCEEDED = 4
_GRPC_UNIMPLEMENTED = 12
_GRPC_SERVING = 1
_GRPC_HEALTH = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


def resolve_port(port: IntOrString, container: Container) -> int:
    """Return the number of a port that is given as a number, a name, or a number in quotes."""
    if isinstance(port, str):
        named = next((known.container_port for known in container.ports or () if (known.name or "") == port), None)
        number = _atoi(port) if named is None else named
    else:
        number = port
    if not 0 < number < 65536:
        raise BadInput(Problem(f"invalid port number: {number}", field="port"))
    return number


def tcp_endpoint(action: TCPSocketAction, container: Container, pod_ip: str) -> Endpoint:
    return Endpoint(action.host or pod_ip, resolve_port(action.port, container))


def grpc_endpoint(action: GRPCAction, pod_ip: str) -> Endpoint:
    return Endpoint(pod_ip, action.port)


def tcp_report(error: str | None) -> Report:
    return Report(ProbeOutcome.SUCCESS) if error is None else Report(ProbeOutcome.FAILURE, error)


def grpc_report(endpoint: Endpoint, timeout_seconds: int, end: GrpcEnd) -> Report:
    within = format_duration(timeout_seconds * NANOSECONDS_PER_SECOND)
    match end:
        case HealthAnswer(serving_status=status) if status == _GRPC_SERVING:
            return Report(ProbeOutcome.SUCCESS, "service healthy")
        case HealthAnswer(serving_status=status):
            name = _GRPC_HEALTH[status] if 0 <= status < len(_GRPC_HEALTH) else str(status)
            output = f'service unhealthy (responded with "{name}")'
        case NotConnected(message=message, timed_out=True):
            output = f"timeout: failed to connect service {quoted(str(endpoint))} within {within}: {message}"
        case NotConnected(message=message):
            output = f"error: failed to connect service at {quoted(str(endpoint))}: {message}"
        case CallFailed(code=code, message=message) if code == _GRPC_UNIMPLEMENTED:
            output = (
                f"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            )
        case CallFailed(code=code) if code == _GRPC_DEADLINE_EXCEEDED:
            output = f"timeout: health rpc did not complete within {within}"
        case CallFailed(code=code, message=message):
            name = _GRPC_CODES[code] if 0 <= code < len(_GRPC_CODES) else f"Code({code})"
            output = f"error: health rpc probe failed: rpc error: code = {name} desc = {message}"
    return Report(ProbeOutcome.FAILURE, output)


def quoted(text: str) -> str:
    """Return text in double quotes with Go's escapes (`%q`)."""
    return '"' + "".join(_quoted_character(character) for character in text) + '"'


def _quoted_character(character: str) -> str:
    if short := _SHORT_ESCAPES.get(character):
        return short
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _atoi(text: str) -> int:
    """Parse a 64-bit integer as Go does. Only the first 21 significant digits are parsed, because any more overflow."""
    sign, digits, rest = _NUMBER.fullmatch(text).groups()  # type: ignore[union-attr]  # it matches everything
    significant = digits.lstrip("0")
    magnitude = int(significant[:21] or "0")  # any 21 digits overflow
    if magnitude >= 2**64:
        raise _bad_number(text, "value out of range")
    if not digits or rest:
        raise _bad_number(text, "invalid syntax")
    if magnitude > (2**63 if sign == "-" else 2**63 - 1):
        raise _bad_number(text, "value out of range")
    return -magnitude if sign == "-" else magnitude


def _bad_number(text: str, problem: str) -> BadInput:
    return BadInput(Problem(f"strconv.Atoi: parsing {quoted(text)}: {problem}", field="port"))
