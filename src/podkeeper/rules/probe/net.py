"""TCP and gRPC probes, and the port that a probe or hook means.

Comes in: a port by number or by name; how a connection or a health call ended. Goes out: the port number;
a `Report`. Whatever goes wrong on the network is a failure of the container and never an error of ours:
only so does a timeout count.

The Go ancestors are pkg/probe/util.go, pkg/probe/tcp and pkg/probe/grpc; texts that users may know
(`strconv.Atoi: parsing "x": invalid syntax`) are the reference's.
"""

import re

from podkeeper.model.durations import NANOSECONDS_PER_SECOND, format_duration
from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import Container, GRPCAction, TCPSocketAction
from podkeeper.model.probing import Answered, CallFailed, Endpoint, GrpcEnd, NotConnected
from podkeeper.model.wire import IntOrString
from podkeeper.rules.probe.report import Outcome, Report

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
    """The number of a port that is given by number, by name, or by a number in quotes."""
    if isinstance(port, str):
        named = next((known.container_port for known in container.ports or () if (known.name or "") == port), None)
        number = _atoi(port) if named is None else named
    else:
        number = port
    if not 0 < number < 65536:
        raise BadInput(Problem(f"invalid port number: {number}", field="port"))
    return number


def tcp_endpoint(action: TCPSocketAction, container: Container, pod_ip: str) -> Endpoint:
    """Where a TCP probe connects to."""
    return Endpoint(action.host or pod_ip, resolve_port(action.port, container))


def grpc_endpoint(action: GRPCAction, pod_ip: str) -> Endpoint:
    """Where a gRPC probe connects to."""
    return Endpoint(pod_ip, action.port)


def judge_tcp(error: str | None) -> Report:
    """A connection is all a TCP probe asks for."""
    return Report(Outcome.SUCCESS) if error is None else Report(Outcome.FAILURE, error)


def judge_grpc(endpoint: Endpoint, timeout_seconds: int, end: GrpcEnd) -> Report:
    """What the end of a health call says about its container."""
    within = format_duration(timeout_seconds * NANOSECONDS_PER_SECOND)
    match end:
        case Answered(serving_status=status) if status == _GRPC_SERVING:
            return Report(Outcome.SUCCESS, "service healthy")
        case Answered(serving_status=status):
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
    return Report(Outcome.FAILURE, output)


def quoted(text: str) -> str:
    """Text in double quotes with Go's escapes (`%q`)."""
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
    """A whole number of 64 bits; of a text that is too long, only what overflows is read."""
    sign, digits, rest = _NUMBER.fullmatch(text).groups()  # type: ignore[union-attr]  # it matches everything
    significant = digits.lstrip("0")
    magnitude = int(significant[:21] or "0")  # 21 digits overflow whatever they are
    if magnitude >= 2**64:
        raise _bad_number(text, "value out of range")
    if not digits or rest:
        raise _bad_number(text, "invalid syntax")
    if magnitude > (2**63 if sign == "-" else 2**63 - 1):
        raise _bad_number(text, "value out of range")
    return -magnitude if sign == "-" else magnitude


def _bad_number(text: str, trouble: str) -> BadInput:
    return BadInput(Problem(f"strconv.Atoi: parsing {quoted(text)}: {trouble}", field="port"))
