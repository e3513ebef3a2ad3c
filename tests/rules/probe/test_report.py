"""Reports of exec, TCP and gRPC probes, the conclusions from them, and ports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import (
    Container,
    ContainerPort,
    EnvVar,
    EnvVarSource,
    ExecAction,
    GRPCAction,
    TCPSocketAction,
)
from podkeeper.model.messages import EventType, PodEvent, ProbeKind, ProbeResult
from podkeeper.model.probing import (
    CallFailed,
    CommandEnd,
    CommandExited,
    Endpoint,
    GrpcEnd,
    HealthAnswer,
    NotConnected,
    NotRun,
    TimedOut,
)
from podkeeper.model.wire import IntOrString
from podkeeper.rules.probe.exec import exec_command, exec_report
from podkeeper.rules.probe.net import (
    grpc_endpoint,
    grpc_report,
    quoted,
    resolve_port,
    tcp_endpoint,
    tcp_report,
)
from podkeeper.rules.probe.report import (
    MAX_EXECUTIONS,
    MAX_OUTPUT_BYTES,
    ProbeConclusion,
    ProbeOutcome,
    Report,
    Retry,
    conclude,
)


def warning(reason: str, message: str) -> PodEvent:
    return PodEvent(EventType.WARNING, reason, message)


VERDICTS = {
    "a success is a success": (Report(ProbeOutcome.SUCCESS, "fine"), ProbeConclusion(ProbeResult.SUCCESS)),
    "a warning is a success with an event":
        (Report(ProbeOutcome.WARNING, "moved"),
         ProbeConclusion(ProbeResult.SUCCESS, warning("ProbeWarning", "Liveness probe warning: moved"))),
    "a failure has an event":
        (Report(ProbeOutcome.FAILURE, "no"),
         ProbeConclusion(ProbeResult.FAILURE, warning("Unhealthy", "Liveness probe failed: no"))),
    "an unknown outcome is a failure": (Report(ProbeOutcome.UNKNOWN), ProbeConclusion(ProbeResult.FAILURE)),
    "an unknown value is read as unknown": (Report(ProbeOutcome("strange")), ProbeConclusion(ProbeResult.FAILURE)),
}  # fmt: skip


@pytest.mark.parametrize("report, expected", VERDICTS.values(), ids=VERDICTS.keys())
def test_conclude(report: Report, expected: ProbeConclusion) -> None:
    assert conclude(ProbeKind.LIVENESS, report, 1) == expected


def test_an_error_is_retried_and_after_the_last_attempt_recorded_but_not_counted() -> None:
    report = Report(ProbeOutcome.UNKNOWN, error="no such container")
    conclusions = [conclude(ProbeKind.STARTUP, report, executions) for executions in range(1, MAX_EXECUTIONS + 1)]
    message = "Startup probe errored and resulted in unknown state: no such container"
    assert conclusions == [Retry.NOW, Retry.NOW, ProbeConclusion(None, warning("Unhealthy", message))]


COMMANDS = {
    "exit 0 is a success": (CommandExited(0, b"fine"), Report(ProbeOutcome.SUCCESS, "fine")),
    "any other exit is a failure": (CommandExited(137, b"no"), Report(ProbeOutcome.FAILURE, "no")),
    "a timeout is a failure": (TimedOut("after 1s"), Report(ProbeOutcome.FAILURE, "after 1s")),
    "a command that cannot run is an error": (NotRun("gone"), Report(ProbeOutcome.UNKNOWN, "", "gone")),
}


@pytest.mark.parametrize("end, expected", COMMANDS.values(), ids=COMMANDS.keys())
def test_exec_report(end: CommandEnd, expected: Report) -> None:
    assert exec_report(end) == expected


@given(st.binary(max_size=20), st.integers(0, 2 * MAX_OUTPUT_BYTES), st.integers(0, 1))
def test_the_output_of_a_command_is_limited_to_ten_kilobytes(start: bytes, more: int, code: int) -> None:
    assert len(exec_report(CommandExited(code, start + b"x" * more)).output) <= MAX_OUTPUT_BYTES


@pytest.mark.parametrize(
    "written, expanded",
    [
        ("$(A)", "one"),
        ("x$(A)$(B)y", "xonetwo wordsy"),
        ("$$(A)", "$(A)"),
        ("$(MISSING)", "$(MISSING)"),
        ("$(SECRET)", ""),
        ("$(A", "$(A"),
        ("$A $", "$A $"),
        ("$($(A)", "$($(A)"),
    ],
)
def test_a_command_is_expanded_with_values_of_the_spec_only(written: str, expanded: str) -> None:
    env = (
        EnvVar(name="A", value="one"),
        EnvVar(name="B", value="two words"),
        EnvVar(name="SECRET", value_from=EnvVarSource()),
    )
    assert exec_command(ExecAction(command=("sh", written)), Container(env=env)) == ("sh", expanded)


PORTS = Container(
    ports=(
        ContainerPort(container_port=7),
        ContainerPort(name="http", container_port=80),
        ContainerPort(name="8080", container_port=81),
        ContainerPort(name="wild", container_port=70000),
    )
)


@pytest.mark.parametrize(
    "port, number",
    [(443, 443), (1, 1), (65535, 65535), ("http", 80), ("443", 443), ("+443", 443), ("8080", 81), ("", 7)],
)
def test_a_port_is_a_number_or_a_name_or_a_number_in_quotes(port: IntOrString, number: int) -> None:
    assert resolve_port(port, PORTS) == number


@pytest.mark.parametrize(
    "port, message",
    [
        (0, "invalid port number: 0"),
        (-1, "invalid port number: -1"),
        (65536, "invalid port number: 65536"),
        ("wild", "invalid port number: 70000"),
        ("-5", "invalid port number: -5"),
        ("nope", 'strconv.Atoi: parsing "nope": invalid syntax'),
        (" 80", 'strconv.Atoi: parsing " 80": invalid syntax'),
        ("8_0", 'strconv.Atoi: parsing "8_0": invalid syntax'),
        ("+", 'strconv.Atoi: parsing "+": invalid syntax'),
        ("٣", 'strconv.Atoi: parsing "٣": invalid syntax'),
        ('a"\n', 'strconv.Atoi: parsing "a\\"\\n": invalid syntax'),
        ("9223372036854775808", 'strconv.Atoi: parsing "9223372036854775808": value out of range'),
        ("-9223372036854775808", "invalid port number: -9223372036854775808"),
        ("-9223372036854775809", 'strconv.Atoi: parsing "-9223372036854775809": value out of range'),
        ("9223372036854775807", "invalid port number: 9223372036854775807"),
        ("18446744073709551615x", 'strconv.Atoi: parsing "18446744073709551615x": invalid syntax'),
        ("18446744073709551616x", 'strconv.Atoi: parsing "18446744073709551616x": value out of range'),
    ],
)
def test_an_invalid_port_is_rejected_with_the_message_of_the_kubelet(port: IntOrString, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        resolve_port(port, PORTS)
    assert refusal.value.problems[0].message == message


def test_a_very_long_number_is_rejected() -> None:
    with pytest.raises(BadInput, match="value out of range"):
        resolve_port("9" * 10_000, PORTS)
    assert resolve_port("0" * 10_000 + "80", PORTS) == 80


def test_go_quotes() -> None:
    assert quoted('a"\\\t\x00\x7f\u200b\U000e0001é') == r'"a\"\\\t\x00\x7f\u200b\U000e0001é"'


def test_go_quotes_with_all_its_short_escapes() -> None:
    assert quoted('\a\b\f\n\r\t\v\\"') == r'"\a\b\f\n\r\t\v\\\""'
    assert quoted("\x1f ~\x7f\x80\uffff\U00010000") == r'"\x1f ~\x7f\u0080\uffff𐀀"'


def test_a_tcp_probe_succeeds_if_it_connects() -> None:
    assert tcp_report(None) == Report(ProbeOutcome.SUCCESS)
    assert tcp_report("connection refused") == Report(ProbeOutcome.FAILURE, "connection refused")


def test_tcp_and_grpc_probes_connect_to_the_pod_unless_a_host_is_set() -> None:
    assert tcp_endpoint(TCPSocketAction(port="http"), PORTS, "10.1.0.5") == Endpoint("10.1.0.5", 80)
    assert tcp_endpoint(TCPSocketAction(port=5, host="db"), PORTS, "10.1.0.5") == Endpoint("db", 5)
    assert str(grpc_endpoint(GRPCAction(port=9), "fd00::1")) == "[fd00::1]:9"


HEALTH = {
    "serving is healthy": (HealthAnswer(1), Report(ProbeOutcome.SUCCESS, "service healthy")),
    "not serving is unhealthy": (HealthAnswer(2), 'service unhealthy (responded with "NOT_SERVING")'),
    "an unknown status is shown as a number": (HealthAnswer(9), 'service unhealthy (responded with "9")'),
    "connection timeout":
        (NotConnected("context deadline exceeded", timed_out=True),
         'timeout: failed to connect service "10.1.0.5:9" within 1m1s: context deadline exceeded'),
    "no connection": (NotConnected("refused"), 'error: failed to connect service at "10.1.0.5:9": refused'),
    "no health service":
        (CallFailed(12, "unknown service"),
         "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service"),
    "call timeout": (CallFailed(4, "late"), "timeout: health rpc did not complete within 1m1s"),
    "another status":
        (CallFailed(14, "gone"), "error: health rpc probe failed: rpc error: code = Unavailable desc = gone"),
    "an unknown code": (CallFailed(77, "x"), "error: health rpc probe failed: rpc error: code = Code(77) desc = x"),
}  # fmt: skip


@pytest.mark.parametrize("end, expected", HEALTH.values(), ids=HEALTH.keys())
def test_grpc_report(end: GrpcEnd, expected: Report | str) -> None:
    report = Report(ProbeOutcome.FAILURE, expected) if isinstance(expected, str) else expected
    assert grpc_report(Endpoint("10.1.0.5", 9), 61, end) == report


CODES = (
    "OK Canceled Unknown InvalidArgument DeadlineExceeded NotFound AlreadyExists PermissionDenied ResourceExhausted "
    "FailedPrecondition Aborted OutOfRange Unimplemented Internal Unavailable DataLoss Unauthenticated Code(17)"
)


def test_every_grpc_code_has_its_name() -> None:
    for code, name in enumerate(CODES.split()):
        if name not in ("DeadlineExceeded", "Unimplemented"):
            output = f"error: health rpc probe failed: rpc error: code = {name} desc = m"
            assert grpc_report(Endpoint("h", 9), 1, CallFailed(code, "m")) == Report(ProbeOutcome.FAILURE, output)


def test_every_health_status_has_its_name() -> None:
    for status, name in ((0, "UNKNOWN"), (2, "NOT_SERVING"), (3, "SERVICE_UNKNOWN"), (4, "4"), (-1, "-1")):
        output = f'service unhealthy (responded with "{name}")'
        assert grpc_report(Endpoint("h", 9), 1, HealthAnswer(status)) == Report(ProbeOutcome.FAILURE, output)
