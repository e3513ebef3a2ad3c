"""Lifecycle hooks: what is executed, what counts as a failure, and its message."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from podkeeper.engine.hooks import HookRunner
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import (
    Container,
    ContainerPort,
    EphemeralContainer,
    ExecAction,
    HTTPGetAction,
    HTTPHeader,
    LifecycleHandler,
    Pod,
    SleepAction,
    TCPSocketAction,
)
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.probing import CommandEnd, CommandExited, HttpAnswer, HttpEnd, HttpRequest, NoHttpAnswer
from podkeeper.runtimes.fake import Behaviour, ExecStep, Operation
from podkeeper.testing.build import exec_hook, pod
from podkeeper.testing.fakes import FakeProber, HttpScript
from podkeeper.testing.virtual_time import simulate
from tests.engine.execution_harness import UID, container, running_harness, sleep

WEB = container("web")
POD = pod("web", WEB)


def outcome(hook: LifecycleHandler, exec_step: ExecStep | None = None, timeout: float = 10) -> tuple[str | None, float]:
    """Return the failure of a hook of a running container, and its duration."""

    async def scenario() -> str | None:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", Behaviour(exec=(exec_step or ExecStep(),)))
            await harness.sync(POD)
            record = await harness.inspect()
            hooks = HookRunner(
                commands=harness.bounded, prober=harness.prober, record_event=lambda *_: None, version="1.36"
            )
            return await hooks.execute(hook, POD, WEB, record.containers[0].id, "10.0.0.9", timeout)

    return simulate(scenario())


def test_a_successful_command_has_no_failure() -> None:
    assert outcome(exec_hook("true"), ExecStep(takes_seconds=4)) == (None, 4.0)


def test_a_failed_command_reports_its_exit_code_and_output() -> None:
    failure, _ = outcome(exec_hook("sh", "-c", "echo bad; exit 9"), ExecStep(exit_code=9, output="bad\n"))
    assert failure == (
        'Exec lifecycle hook ([sh -c echo bad; exit 9]) for Container "web" in Pod "web_default(uid-web)" failed - '
        "error: command 'sh -c echo bad; exit 9' exited with 9: , message: \"bad\\n\""
    )


def test_a_command_that_exceeds_its_timeout_fails() -> None:
    failure, seconds = outcome(exec_hook("drain"), ExecStep(takes_seconds=99), timeout=3)
    assert failure is not None
    assert "did not end within 3 s" in failure
    assert seconds == 3.0


def test_an_unreachable_runtime_fails_the_hook() -> None:
    async def scenario() -> str | None:
        async with running_harness() as harness:
            await harness.sync(POD)
            record = await harness.inspect()
            harness.fake.faults.fail(Operation.EXEC_SYNC, UID, error=RuntimeUnavailable)
            hooks = HookRunner(
                commands=harness.bounded, prober=harness.prober, record_event=lambda *_: None, version="1.36"
            )
            return await hooks.execute(exec_hook("true"), POD, WEB, record.containers[0].id, "10.0.0.9", 10)

    assert "cannot exec_sync web" in (simulate(scenario())[0] or "")


def test_a_sleep_hook_takes_its_seconds() -> None:
    assert outcome(sleep(7)) == (None, 7.0)


def test_a_hook_with_an_unsupported_handler_fails() -> None:
    failure, _ = outcome(LifecycleHandler(tcp_socket=TCPSocketAction(port=80)))
    assert failure is not None
    assert failure.startswith("Cannot run handler")


# Requests.


def requested(
    action: HTTPGetAction, script: HttpScript | None = None, pod_ip: str = "10.0.0.9"
) -> tuple[str | None, list[HttpRequest], list[PodEvent]]:
    prober, recorded = FakeProber(http=script), list[PodEvent]()
    web = container("web")
    named = type(web)(name="web", ports=(ContainerPort(name="admin", container_port=8443),))

    async def scenario() -> str | None:
        async with running_harness() as harness:
            hooks = HookRunner(
                commands=harness.bounded,
                prober=prober,
                record_event=lambda event, _: recorded.append(event),
                version="1.36",
            )
            return await hooks.execute(LifecycleHandler(http_get=action), POD, named, "id", pod_ip, 10)

    failure, _ = simulate(scenario())
    return failure, [request for request in prober.requests if isinstance(request, HttpRequest)], recorded


def test_a_request_goes_to_the_pod_with_the_user_agent() -> None:
    failure, (request,), _ = requested(HTTPGetAction(path="/stop", port="admin"))
    assert failure is None
    assert request.url == "http://10.0.0.9:8443/stop"
    assert request.headers["User-Agent"] == ("kube-lifecycle/1.36",)


def test_any_http_response_is_a_success() -> None:
    assert requested(HTTPGetAction(path="/", port=80), lambda _: HttpAnswer(500))[0] is None


def test_a_request_without_a_response_fails() -> None:
    failure, _, _ = requested(HTTPGetAction(path="/stop", port=80), lambda _: NoHttpAnswer("connection refused"))
    assert failure == (
        'HTTP lifecycle hook (/stop) for Container "web" in Pod "web_default(uid-web)" failed - '
        "error: connection refused"
    )


def test_an_unknown_port_name_fails_the_hook() -> None:
    failure, requests, _ = requested(HTTPGetAction(path="/", port="nosuch"))
    assert failure is not None
    assert 'parsing "nosuch"' in failure
    assert requests == []


def test_a_request_to_a_pod_without_an_ip_fails() -> None:
    failure, requests, _ = requested(HTTPGetAction(path="/", port=80), pod_ip="")
    assert failure is not None
    assert "no address" in failure
    assert requests == []


def plain_only(request: HttpRequest) -> HttpEnd:
    if request.url.startswith("https:"):
        return NoHttpAnswer("http: server gave HTTP response to HTTPS client")
    return HttpAnswer(200)


def test_the_fallback_to_http_drops_the_credentials() -> None:
    action = HTTPGetAction(
        path="/stop", port=8443, scheme="HTTPS", http_headers=(HTTPHeader(name="Authorization", value="secret"),)
    )
    failure, requests, recorded = requested(action, plain_only)
    assert failure is None
    assert [request.url for request in requests] == ["https://10.0.0.9:8443/stop", "http://10.0.0.9:8443/stop"]
    assert ["Authorization" in request.headers for request in requests] == [True, False]
    assert [(event.reason, event.message) for event in recorded] == [
        (
            "LifecycleHTTPFallback",
            "request to HTTPS lifecycle hook 10.0.0.9:8443 got HTTP response, retry with HTTP succeeded",
        )
    ]


def test_a_failed_fallback_to_http_is_a_failure() -> None:
    def broken(request: HttpRequest) -> HttpEnd:
        return plain_only(request) if request.url.startswith("https:") else NoHttpAnswer("connection refused")

    failure, requests, recorded = requested(HTTPGetAction(path="/stop", port=8443, scheme="HTTPS"), broken)
    assert failure is not None
    assert len(requests) == 2
    assert recorded == []


class Network(FakeProber):
    """A prober that records the timeout of each request."""

    def __init__(self, http: HttpScript | None = None) -> None:
        super().__init__(http=http)
        self.timeouts: list[float] = []

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        self.timeouts.append(timeout_seconds)
        return await super().http(request, timeout_seconds)


class Shell:
    """A runtime that records commands. All succeed."""

    def __init__(self) -> None:
        self.given: list[tuple[str, tuple[str, ...], float]] = []

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        self.given.append((container_id, tuple(command), timeout_seconds))
        return CommandExited(0, b"")


def executed(
    hook: LifecycleHandler,
    *,
    of: Pod = POD,
    what: Container | EphemeralContainer = WEB,
    pod_ip: str = "10.0.0.9",
    script: HttpScript | None = None,
) -> tuple[str | None, Shell, Network, list[tuple[PodEvent, object]]]:
    """Return the failure of a hook, the calls of the runtime and the network, and the events with their subjects."""
    shell, network, recorded = Shell(), Network(script), list[tuple[PodEvent, object]]()
    hooks = HookRunner(
        commands=shell, prober=network, record_event=lambda *event: recorded.append(event), version="1.36"
    )
    failure, _ = simulate(hooks.execute(hook, of, what, "c1", pod_ip, 7))
    return failure, shell, network, recorded


COMMANDS = {
    "a command": (ExecAction(command=("drain", "now")), ("drain", "now")),
    "no command at all": (ExecAction(), ()),
}


@pytest.mark.parametrize("action, expected", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_runs_in_the_container_within_the_timeout(action: ExecAction, expected: tuple[str, ...]) -> None:
    failure, shell, network, recorded = executed(LifecycleHandler(exec=action))
    assert (failure, shell.given) == (None, [("c1", expected, 7)])
    assert (network.requests, recorded) == ([], [])


def test_of_several_handlers_the_first_of_exec_http_sleep_is_used() -> None:
    both = LifecycleHandler(http_get=HTTPGetAction(path="/", port=80), sleep=SleepAction(seconds=1))
    _, shell, network, _ = executed(replace(both, exec=ExecAction(command=("drain",))))
    assert (len(shell.given), len(network.requests)) == (1, 0)
    _, shell, network, _ = executed(both)
    assert (len(shell.given), len(network.requests)) == (0, 1)


DEBUGGER = EphemeralContainer(name="debug", ports=(ContainerPort(name="admin", container_port=9000),))
REQUESTS: dict[str, tuple[HTTPGetAction, Container | EphemeralContainer, str, str]] = {
    "to the pod": (HTTPGetAction(path="/stop", port=80), WEB, "10.0.0.9", "http://10.0.0.9:80/stop"),
    "to the host of the action": (HTTPGetAction(path="/", port=80, host="h.example"), WEB, "10.0.0.9", "http://h.example:80/"),
    "to the host of the action, from a pod without an IP": (
        HTTPGetAction(path="/", port=80, host="h.example"), WEB, "", "http://h.example:80/",
    ),
    "without a path": (HTTPGetAction(port=80), WEB, "10.0.0.9", "http://10.0.0.9:80"),
    "to a named port of an ephemeral container": (
        HTTPGetAction(path="/", port="admin"), DEBUGGER, "10.0.0.9", "http://10.0.0.9:9000/",
    ),
}  # fmt: skip


@pytest.mark.parametrize("action, what, pod_ip, url", REQUESTS.values(), ids=REQUESTS.keys())
def test_a_request_has_the_url_of_its_action(
    action: HTTPGetAction, what: Container | EphemeralContainer, pod_ip: str, url: str
) -> None:
    failure, shell, network, recorded = executed(LifecycleHandler(http_get=action), what=what, pod_ip=pod_ip)
    assert (failure, shell.given, recorded) == (None, [], [])
    assert [request.url for request in network.requests if isinstance(request, HttpRequest)] == [url]
    assert network.timeouts == [7]


FAILED = 'HTTP lifecycle hook ({}) for Container "web" in Pod "web_default(uid-web)" failed - error: '
UNANSWERED = {
    "no address": (
        HTTPGetAction(path="/stop", port=80),
        "",
        FAILED.format("/stop") + "failed to find networking container: the pod has no address",
    ),
    "no address and no path": (
        HTTPGetAction(port=80),
        "",
        FAILED.format("") + "failed to find networking container: the pod has no address",
    ),
    "a port that the container does not have": (
        HTTPGetAction(path="/stop", port="nosuch"),
        "10.0.0.9",
        FAILED.format("/stop") + 'port: strconv.Atoi: parsing "nosuch": invalid syntax',
    ),
    "no answer and no path": (HTTPGetAction(port=80), "10.0.0.9", FAILED.format("") + "connection refused"),
}


@pytest.mark.parametrize("action, pod_ip, expected", UNANSWERED.values(), ids=UNANSWERED.keys())
def test_the_failure_of_a_request_gives_the_reason(action: HTTPGetAction, pod_ip: str, expected: str) -> None:
    failure, _, _, recorded = executed(
        LifecycleHandler(http_get=action), pod_ip=pod_ip, script=lambda _: NoHttpAnswer("connection refused")
    )
    assert (failure, recorded) == (expected, [])


@pytest.mark.parametrize("uid", ["uid-web", None])
def test_the_fallback_to_http_is_recorded_for_the_pod(uid: str | None) -> None:
    web = replace(POD, metadata=replace(POD.metadata, uid=uid))
    hook = LifecycleHandler(http_get=HTTPGetAction(path="/stop", port=8443, scheme="HTTPS"))
    failure, _, network, recorded = executed(hook, of=web, script=plain_only)
    text = "request to HTTPS lifecycle hook 10.0.0.9:8443 got HTTP response, retry with HTTP succeeded"
    assert (failure, network.timeouts) == (None, [7, 7])
    assert recorded == [(PodEvent(EventType.WARNING, "LifecycleHTTPFallback", text, uid or ""), web)]


def test_a_cancelled_hook_ends_at_once() -> None:
    async def scenario() -> float:
        async with running_harness() as harness:
            harness.fake.behave("web", "web", Behaviour(exec=(ExecStep(takes_seconds=999),)))
            await harness.sync(POD)
            record = await harness.inspect()
            hooks = HookRunner(
                commands=harness.bounded, prober=harness.prober, record_event=lambda *_: None, version="1.36"
            )
            async with asyncio.TaskGroup() as group:
                hook = group.create_task(
                    hooks.execute(exec_hook("drain"), POD, WEB, record.containers[0].id, "10.0.0.9", 999)
                )
                await asyncio.sleep(2)
                hook.cancel()
            return harness.clock.monotonic()

    assert simulate(scenario())[0] == 2.0
