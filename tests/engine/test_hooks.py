"""Hooks: what is executed, what counts as a failure, and in which words."""

import asyncio

from podkeeper.engine.hooks import HookRunner
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import ContainerPort, HTTPGetAction, HTTPHeader, LifecycleHandler, TCPSocketAction
from podkeeper.model.messages import PodEvent
from podkeeper.model.probing import HttpAnswer, HttpEnd, HttpRequest, NoAnswer
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
