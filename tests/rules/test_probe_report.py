"""Commands, connections, health calls and ports: what an execution reports, and what counts of it."""

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
    Answered,
    CallFailed,
    CommandEnd,
    Endpoint,
    Exited,
    GrpcEnd,
    NotConnected,
    NotRun,
    TimedOut,
)
from podkeeper.model.wire import IntOrString
from podkeeper.rules.probe.exec import exec_command, judge_exec
from podkeeper.rules.probe.net import (
    grpc_endpoint,
    judge_grpc,
    judge_tcp,
    quoted,
    resolve_port,
    tcp_endpoint,
)
from podkeeper.rules.probe.report import MAX_EXECUTIONS, MAX_OUTPUT_BYTES, Again, Outcome, Report, Verdict, judge


def warning(reason: str, message: str) -> PodEvent:
    return PodEvent(EventType.WARNING, reason, message)


VERDICTS = {
    "a success is one": (Report(Outcome.SUCCESS, "fine"), Verdict(ProbeResult.SUCCESS)),
    "a warning is a success that is told":
        (Report(Outcome.WARNING, "moved"),
         Verdict(ProbeResult.SUCCESS, warning("ProbeWarning", "Liveness probe warning: moved"))),
    "a failure is told":
        (Report(Outcome.FAILURE, "no"),
         Verdict(ProbeResult.FAILURE, warning("Unhealthy", "Liveness probe failed: no"))),
    "what is unknown is a failure": (Report(Outcome.UNKNOWN), Verdict(ProbeResult.FAILURE)),
    "a word nobody knows is unknown": (Report(Outcome("strange")), Verdict(ProbeResult.FAILURE)),
}  # fmt: skip


@pytest.mark.parametrize("report, expected", VERDICTS.values(), ids=VERDICTS.keys())
def test_judge(report: Report, expected: Verdict) -> None:
    assert judge(ProbeKind.LIVENESS, report, 1) == expected


def test_an_error_is_tried_again_and_after_the_last_try_told_but_not_counted() -> None:
    report = Report(Outcome.UNKNOWN, error="no such container")
    tries = [judge(ProbeKind.STARTUP, report, executions) for executions in range(1, MAX_EXECUTIONS + 1)]
    message = "Startup probe errored and resulted in unknown state: no such container"
    assert tries == [Again.RETRY, Again.RETRY, Verdict(None, warning("Unhealthy", message))]


COMMANDS = {
    "exit 0 is a success": (Exited(0, b"fine"), Report(Outcome.SUCCESS, "fine")),
    "any other exit is a failure": (Exited(137, b"no"), Report(Outcome.FAILURE, "no")),
    "running out of time is a failure": (TimedOut("after 1s"), Report(Outcome.FAILURE, "after 1s")),
    "a command that cannot run is an error": (NotRun("gone"), Report(Outcome.UNKNOWN, "", "gone")),
}


@pytest.mark.parametrize("end, expected", COMMANDS.values(), ids=COMMANDS.keys())
def test_judge_exec(end: CommandEnd, expected: Report) -> None:
    assert judge_exec(end) == expected


@given(st.binary(max_size=20), st.integers(0, 2 * MAX_OUTPUT_BYTES), st.integers(0, 1))
def test_a_command_shows_at_most_ten_kilobytes(start: bytes, more: int, code: int) -> None:
    assert len(judge_exec(Exited(code, start + b"x" * more)).output) <= MAX_OUTPUT_BYTES


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
def test_a_command_knows_only_values_of_the_spec_itself(written: str, expanded: str) -> None:
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
def test_a_wrong_port_is_refused_in_the_references_words(port: IntOrString, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        resolve_port(port, PORTS)
    assert refusal.value.problems[0].message == message


def test_a_number_of_any_length_is_refused() -> None:
    with pytest.raises(BadInput, match="value out of range"):
        resolve_port("9" * 10_000, PORTS)
    assert resolve_port("0" * 10_000 + "80", PORTS) == 80


def test_go_quotes() -> None:
    assert quoted('a"\\\t\x00\x7f\u200b\U000e0001é') == r'"a\"\\\t\x00\x7f\u200b\U000e0001é"'


def test_go_quotes_with_all_its_short_escapes() -> None:
    assert quoted('\a\b\f\n\r\t\v\\"') == r'"\a\b\f\n\r\t\v\\\""'
    assert quoted("\x1f ~\x7f\x80\uffff\U00010000") == r'"\x1f ~\x7f\u0080\uffff𐀀"'


def test_a_connection_is_all_a_tcp_probe_asks_for() -> None:
    assert judge_tcp(None) == Report(Outcome.SUCCESS)
    assert judge_tcp("connection refused") == Report(Outcome.FAILURE, "connection refused")


def test_tcp_and_grpc_probes_go_to_the_pod_unless_told_otherwise() -> None:
    assert tcp_endpoint(TCPSocketAction(port="http"), PORTS, "10.1.0.5") == Endpoint("10.1.0.5", 80)
    assert tcp_endpoint(TCPSocketAction(port=5, host="db"), PORTS, "10.1.0.5") == Endpoint("db", 5)
    assert str(grpc_endpoint(GRPCAction(port=9), "fd00::1")) == "[fd00::1]:9"


HEALTH = {
    "serving is healthy": (Answered(1), Report(Outcome.SUCCESS, "service healthy")),
    "not serving is not": (Answered(2), 'service unhealthy (responded with "NOT_SERVING")'),
    "a status nobody knows is shown as a number": (Answered(9), 'service unhealthy (responded with "9")'),
    "no connection in time":
        (NotConnected("context deadline exceeded", timed_out=True),
         'timeout: failed to connect service "10.1.0.5:9" within 1m1s: context deadline exceeded'),
    "no connection": (NotConnected("refused"), 'error: failed to connect service at "10.1.0.5:9": refused'),
    "no health service there":
        (CallFailed(12, "unknown service"),
         "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service"),
    "no answer in time": (CallFailed(4, "late"), "timeout: health rpc did not complete within 1m1s"),
    "another status":
        (CallFailed(14, "gone"), "error: health rpc probe failed: rpc error: code = Unavailable desc = gone"),
    "a code nobody knows": (CallFailed(77, "x"), "error: health rpc probe failed: rpc error: code = Code(77) desc = x"),
}  # fmt: skip


@pytest.mark.parametrize("end, expected", HEALTH.values(), ids=HEALTH.keys())
def test_judge_grpc(end: GrpcEnd, expected: Report | str) -> None:
    report = Report(Outcome.FAILURE, expected) if isinstance(expected, str) else expected
    assert judge_grpc(Endpoint("10.1.0.5", 9), 61, end) == report


CODES = (
    "OK Canceled Unknown InvalidArgument DeadlineExceeded NotFound AlreadyExists PermissionDenied ResourceExhausted "
    "FailedPrecondition Aborted OutOfRange Unimplemented Internal Unavailable DataLoss Unauthenticated Code(17)"
)


def test_every_code_of_grpc_has_its_name() -> None:
    for code, name in enumerate(CODES.split()):
        if name not in ("DeadlineExceeded", "Unimplemented"):
            output = f"error: health rpc probe failed: rpc error: code = {name} desc = m"
            assert judge_grpc(Endpoint("h", 9), 1, CallFailed(code, "m")) == Report(Outcome.FAILURE, output)


def test_every_answer_of_a_health_service_has_its_name() -> None:
    for status, name in ((0, "UNKNOWN"), (2, "NOT_SERVING"), (3, "SERVICE_UNKNOWN"), (4, "4"), (-1, "-1")):
        output = f'service unhealthy (responded with "{name}")'
        assert judge_grpc(Endpoint("h", 9), 1, Answered(status)) == Report(Outcome.FAILURE, output)
