"""Hooks: what is executed, what counts as a failure, and in which words."""

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
from podkeeper.model.probing import CommandEnd, Exited, HttpAnswer, HttpEnd, HttpRequest, NoAnswer
from podkeeper.runtimes.fake import Behaviour, ExecStep, Operation
from podkeeper.testing.fakes import FakeProber, HttpScript
from podkeeper.testing.virtual_time import simulate
from tests.engine.execution_house import UID, command, container, house, pod, sleep

WEB = container("web")
POD = pod(WEB)


def outcome(hook: LifecycleHandler, exec_step: ExecStep | None = None, timeout: float = 10) -> tuple[str | None, float]:
    """What a hook of a running container says, and how long it took."""

    async def scenario() -> str | None:
        async with house() as home:
            home.fake.behave("web", "web", Behaviour(exec=(exec_step or ExecStep(),)))
            await home.sync(POD)
            record = await home.look()
            hooks = HookRunner(commands=home.guard, prober=home.prober, record=lambda *_: None, version="1.36")
            return await hooks.execute(hook, POD, WEB, record.containers[0].id, "10.0.0.9", timeout)

    return simulate(scenario())


def test_a_command_that_succeeds_is_well() -> None:
    assert outcome(command("true"), ExecStep(takes_seconds=4)) == (None, 4.0)


def test_a_command_that_fails_says_how_and_what_it_printed() -> None:
    failure, _ = outcome(command("sh", "-c", "echo bad; exit 9"), ExecStep(exit_code=9, output="bad\n"))
    assert failure == (
        'Exec lifecycle hook ([sh -c echo bad; exit 9]) for Container "web" in Pod "web_default(uid-web)" failed - '
        "error: command 'sh -c echo bad; exit 9' exited with 9: , message: \"bad\\n\""
    )


def test_a_command_out_of_time_has_failed() -> None:
    failure, seconds = outcome(command("drain"), ExecStep(takes_seconds=99), timeout=3)
    assert failure is not None
    assert "did not end within 3 s" in failure
    assert seconds == 3.0


def test_a_runtime_that_cannot_be_reached_is_a_failure_of_the_hook() -> None:
    async def scenario() -> str | None:
        async with house() as home:
            await home.sync(POD)
            record = await home.look()
            home.fake.faults.fail(Operation.EXEC_SYNC, UID, error=RuntimeUnavailable)
            hooks = HookRunner(commands=home.guard, prober=home.prober, record=lambda *_: None, version="1.36")
            return await hooks.execute(command("true"), POD, WEB, record.containers[0].id, "10.0.0.9", 10)

    assert "cannot exec_sync web" in (simulate(scenario())[0] or "")


def test_sleeping_takes_its_time() -> None:
    assert outcome(sleep(7)) == (None, 7.0)


def test_a_hook_that_asks_for_nothing_we_know_has_failed() -> None:
    failure, _ = outcome(LifecycleHandler(tcp_socket=TCPSocketAction(port=80)))
    assert failure is not None
    assert failure.startswith("Cannot run handler")


# Requests.


def requested(
    action: HTTPGetAction, script: HttpScript | None = None, pod_ip: str = "10.0.0.9"
) -> tuple[str | None, list[HttpRequest], list[PodEvent]]:
    prober, told = FakeProber(http=script), list[PodEvent]()
    web = container("web")
    named = type(web)(name="web", ports=(ContainerPort(name="admin", container_port=8443),))

    async def scenario() -> str | None:
        async with house() as home:
            hooks = HookRunner(
                commands=home.guard, prober=prober, record=lambda event, _: told.append(event), version="1.36"
            )
            return await hooks.execute(LifecycleHandler(http_get=action), POD, named, "id", pod_ip, 10)

    failure, _ = simulate(scenario())
    return failure, [request for request in prober.requests if isinstance(request, HttpRequest)], told


def test_a_request_goes_to_the_pod_and_says_who_asks() -> None:
    failure, (request,), _ = requested(HTTPGetAction(path="/stop", port="admin"))
    assert failure is None
    assert request.url == "http://10.0.0.9:8443/stop"
    assert request.headers["User-Agent"] == ("kube-lifecycle/1.36",)


def test_any_answer_is_a_success() -> None:
    assert requested(HTTPGetAction(path="/", port=80), lambda _: HttpAnswer(500))[0] is None


def test_no_answer_is_a_failure() -> None:
    failure, _, _ = requested(HTTPGetAction(path="/stop", port=80), lambda _: NoAnswer("connection refused"))
    assert failure == (
        'HTTP lifecycle hook (/stop) for Container "web" in Pod "web_default(uid-web)" failed - '
        "error: connection refused"
    )


def test_a_port_nobody_knows_is_a_failure() -> None:
    failure, requests, _ = requested(HTTPGetAction(path="/", port="nosuch"))
    assert failure is not None
    assert 'parsing "nosuch"' in failure
    assert requests == []


def test_a_pod_without_an_address_cannot_be_asked() -> None:
    failure, requests, _ = requested(HTTPGetAction(path="/", port=80), pod_ip="")
    assert failure is not None
    assert "no address" in failure
    assert requests == []


def plain_only(request: HttpRequest) -> HttpEnd:
    if request.url.startswith("https:"):
        return NoAnswer("http: server gave HTTP response to HTTPS client")
    return HttpAnswer(200)


def test_a_server_that_speaks_plain_http_is_asked_so_without_credentials() -> None:
    action = HTTPGetAction(
        path="/stop", port=8443, scheme="HTTPS", http_headers=(HTTPHeader(name="Authorization", value="secret"),)
    )
    failure, requests, told = requested(action, plain_only)
    assert failure is None
    assert [request.url for request in requests] == ["https://10.0.0.9:8443/stop", "http://10.0.0.9:8443/stop"]
    assert ["Authorization" in request.headers for request in requests] == [True, False]
    assert [(event.reason, event.message) for event in told] == [
        (
            "LifecycleHTTPFallback",
            "request to HTTPS lifecycle hook 10.0.0.9:8443 got HTTP response, retry with HTTP succeeded",
        )
    ]


def test_a_retry_with_http_that_fails_too_is_not_called_a_success() -> None:
    def broken(request: HttpRequest) -> HttpEnd:
        return plain_only(request) if request.url.startswith("https:") else NoAnswer("connection refused")

    failure, requests, told = requested(HTTPGetAction(path="/stop", port=8443, scheme="HTTPS"), broken)
    assert failure is not None
    assert len(requests) == 2
    assert told == []


class Network(FakeProber):
    """A prober that notes how long each request may take."""

    def __init__(self, http: HttpScript | None = None) -> None:
        super().__init__(http=http)
        self.timeouts: list[float] = []

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        self.timeouts.append(timeout_seconds)
        return await super().http(request, timeout_seconds)


class Shell:
    """A runtime that notes the commands it is given, and has none of them fail."""

    def __init__(self) -> None:
        self.given: list[tuple[str, tuple[str, ...], float]] = []

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        self.given.append((container_id, tuple(command), timeout_seconds))
        return Exited(0, b"")


def executed(
    hook: LifecycleHandler,
    *,
    of: Pod = POD,
    what: Container | EphemeralContainer = WEB,
    pod_ip: str = "10.0.0.9",
    script: HttpScript | None = None,
) -> tuple[str | None, Shell, Network, list[tuple[PodEvent, object]]]:
    """The failure of a hook, the calls of the runtime and the network, and the events with their subjects."""
    shell, network, told = Shell(), Network(script), list[tuple[PodEvent, object]]()
    hooks = HookRunner(commands=shell, prober=network, record=lambda *event: told.append(event), version="1.36")
    failure, _ = simulate(hooks.execute(hook, of, what, "c1", pod_ip, 7))
    return failure, shell, network, told


COMMANDS = {
    "a command": (ExecAction(command=("drain", "now")), ("drain", "now")),
    "no command at all": (ExecAction(), ()),
}


@pytest.mark.parametrize("action, expected", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_runs_in_the_container_within_the_timeout(action: ExecAction, expected: tuple[str, ...]) -> None:
    failure, shell, network, told = executed(LifecycleHandler(exec=action))
    assert (failure, shell.given) == (None, [("c1", expected, 7)])
    assert (network.requests, told) == ([], [])


def test_of_several_actions_the_command_goes_before_the_request_and_that_before_the_sleep() -> None:
    both = LifecycleHandler(http_get=HTTPGetAction(path="/", port=80), sleep=SleepAction(seconds=1))
    _, shell, network, _ = executed(replace(both, exec=ExecAction(command=("drain",))))
    assert (len(shell.given), len(network.requests)) == (1, 0)
    _, shell, network, _ = executed(both)
    assert (len(shell.given), len(network.requests)) == (0, 1)


DEBUGGER = EphemeralContainer(name="debug", ports=(ContainerPort(name="admin", container_port=9000),))
REQUESTS: dict[str, tuple[HTTPGetAction, Container | EphemeralContainer, str, str]] = {
    "to the pod": (HTTPGetAction(path="/stop", port=80), WEB, "10.0.0.9", "http://10.0.0.9:80/stop"),
    "to a host of its own": (HTTPGetAction(path="/", port=80, host="h.example"), WEB, "10.0.0.9", "http://h.example:80/"),
    "to a host of its own, from a pod without an address": (
        HTTPGetAction(path="/", port=80, host="h.example"), WEB, "", "http://h.example:80/",
    ),
    "without a path": (HTTPGetAction(port=80), WEB, "10.0.0.9", "http://10.0.0.9:80"),
    "to a named port of an ephemeral container": (
        HTTPGetAction(path="/", port="admin"), DEBUGGER, "10.0.0.9", "http://10.0.0.9:9000/",
    ),
}  # fmt: skip


@pytest.mark.parametrize("action, what, pod_ip, url", REQUESTS.values(), ids=REQUESTS.keys())
def test_a_request_goes(action: HTTPGetAction, what: Container | EphemeralContainer, pod_ip: str, url: str) -> None:
    failure, shell, network, told = executed(LifecycleHandler(http_get=action), what=what, pod_ip=pod_ip)
    assert (failure, shell.given, told) == (None, [], [])
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
    failure, _, _, told = executed(
        LifecycleHandler(http_get=action), pod_ip=pod_ip, script=lambda _: NoAnswer("connection refused")
    )
    assert (failure, told) == (expected, [])


@pytest.mark.parametrize("uid", ["uid-web", None])
def test_the_fallback_to_http_is_recorded_for_the_pod(uid: str | None) -> None:
    web = replace(POD, metadata=replace(POD.metadata, uid=uid))
    hook = LifecycleHandler(http_get=HTTPGetAction(path="/stop", port=8443, scheme="HTTPS"))
    failure, _, network, told = executed(hook, of=web, script=plain_only)
    text = "request to HTTPS lifecycle hook 10.0.0.9:8443 got HTTP response, retry with HTTP succeeded"
    assert (failure, network.timeouts) == (None, [7, 7])
    assert told == [(PodEvent(EventType.WARNING, "LifecycleHTTPFallback", text, uid or ""), web)]


def test_a_cancelled_hook_ends_at_once() -> None:
    async def scenario() -> float:
        async with house() as home:
            home.fake.behave("web", "web", Behaviour(exec=(ExecStep(takes_seconds=999),)))
            await home.sync(POD)
            record = await home.look()
            hooks = HookRunner(commands=home.guard, prober=home.prober, record=lambda *_: None, version="1.36")
            async with asyncio.TaskGroup() as group:
                hook = group.create_task(
                    hooks.execute(command("drain"), POD, WEB, record.containers[0].id, "10.0.0.9", 999)
                )
                await asyncio.sleep(2)
                hook.cancel()
            return home.clock.monotonic()

    assert simulate(scenario())[0] == 2.0
