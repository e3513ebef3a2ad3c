"""`BoundedRuntime` in virtual time: changes are completed, calls have deadlines, slots are fair, slow calls named."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import pytest

from podkeeper.engine.bounded_runtime import BoundedRuntime, CallLimits, SlowCall
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.k8s.core import Container
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, CommandExited
from podkeeper.model.runtime import ContainerRecord, ImageFsUsage, ImageRecord, PodRecord, RecordState
from podkeeper.model.runtime_calls import (
    ContainerConfig,
    RuntimeEvent,
    RuntimeEventType,
    RuntimeHealth,
    SandboxConfig,
)
from podkeeper.ports.runtime import Runtime
from podkeeper.testing import build
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate

FOR_EVER = 1e9


class Slow:
    """A runtime whose calls only take time: `seconds` by operation, or by operation and first argument."""

    name = "slow"

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.errors: dict[str, Exception] = {}
        self.begun: list[tuple[float, str]] = []
        self.ended: list[tuple[float, str]] = []
        self.records: dict[str, PodRecord] = {}

    async def _do(self, operation: str, about: str = "") -> None:
        call = f"{operation} {about}".strip()
        self.begun.append((now(), call))
        await asyncio.sleep(self.seconds.get(call, self.seconds.get(operation, 0)))
        self.ended.append((now(), call))
        if operation in self.errors:
            raise self.errors[operation]

    async def run_sandbox(self, config: SandboxConfig) -> str:
        await self._do("run_sandbox", config.pod.metadata.name or "")
        return f"box-{config.pod.metadata.name}"

    async def stop_sandbox(self, sandbox_id: str) -> None:
        await self._do("stop_sandbox", sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        await self._do("remove_sandbox", sandbox_id)

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        await self._do("create_container", config.pod.metadata.name or "")
        return f"app-{config.pod.metadata.name}"

    async def start_container(self, container_id: str) -> None:
        await self._do("start_container", container_id)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        await self._do("stop_container", container_id)

    async def remove_container(self, container_id: str) -> None:
        await self._do("remove_container", container_id)

    async def image(self, reference: str) -> ImageRecord | None:
        await self._do("image", reference)
        return None

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        await self._do("pull_image", reference)
        return ImageRecord(id=reference, tags=tuple(secrets))

    async def list_images(self) -> Sequence[ImageRecord]:
        await self._do("list_images")
        return [ImageRecord(id="one")]

    async def remove_image(self, reference: str) -> None:
        await self._do("remove_image", reference)

    async def image_usage(self) -> ImageFsUsage | None:
        await self._do("image_usage")
        return None

    async def list_pods(self) -> Sequence[PodRecord]:
        await self._do("list_pods")
        return list(self.records.values())

    async def pod_record(self, uid: PodUID) -> PodRecord:
        await self._do("pod_record", uid)
        return self.records.get(uid, PodRecord(uid=uid))

    async def events(self) -> AsyncIterator[RuntimeEvent]:
        yield RuntimeEvent(PodUID("web"), "app-web", RuntimeEventType.STARTED, BEGINNING)

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> CommandEnd:
        await self._do("exec_sync", container_id)
        return CommandExited(0, " ".join(command).encode())

    async def reopen_log(self, container_id: str) -> None:
        await self._do("reopen_log", container_id)

    async def health(self) -> RuntimeHealth:
        await self._do("health")
        return RuntimeHealth(message="fine")


def now() -> float:
    return asyncio.get_running_loop().time()


pod = partial(build.pod, namespace="ns")


def sandbox(name: str) -> SandboxConfig:
    return SandboxConfig(pod=pod(name), attempt=0)


def container_config(name: str) -> ContainerConfig:
    return ContainerConfig(pod=pod(name), container=Container(name="app"), attempt=0, image="i", spec_hash="h")


class Harness(Observer):
    """A bounded slow runtime and the calls that it reported to `observe`."""

    def __init__(self, limits: CallLimits) -> None:
        self.runtime = Slow()
        self.observed: list[tuple[str, float, bool]] = []
        self.at_end: Callable[[], object] = lambda: None
        self.bounded = BoundedRuntime(self.runtime, clock=VirtualClock(), limits=limits, observer=self)

    def runtime_call(self, operation: str, seconds: float, *, failed: bool) -> None:
        self.observed.append((operation, seconds, failed))
        self.at_end()


def run_scenario(scenario: Callable[[Harness], Awaitable[None]], limits: CallLimits | None = None) -> Harness:
    """Run a scenario with a running bounded runtime in virtual time."""

    async def main() -> Harness:
        harness = Harness(limits or CallLimits())
        running = asyncio.ensure_future(harness.bounded.run())
        await scenario(harness)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert harness.bounded.slow_calls() == ()
        return harness

    return simulate(main())[0]


async def raised_by(call: Awaitable[object]) -> BaseException:
    """Return the error that a call raises."""
    with pytest.raises(BaseException) as caught:
        await call
    return caught.value


CALLS: dict[str, tuple[Callable[[Runtime], Awaitable[object]], str, object]] = {
    "run_sandbox": (lambda runtime: runtime.run_sandbox(sandbox("web")), "run_podsandbox", "box-web"),
    "stop_sandbox": (lambda runtime: runtime.stop_sandbox("box"), "stop_podsandbox", None),
    "remove_sandbox": (lambda runtime: runtime.remove_sandbox("box"), "remove_podsandbox", None),
    "create_container": (
        lambda runtime: runtime.create_container("b", container_config("web")),
        "create_container",
        "app-web",
    ),
    "start_container": (lambda runtime: runtime.start_container("app"), "start_container", None),
    "stop_container": (lambda runtime: runtime.stop_container("app", 30), "stop_container", None),
    "remove_container": (lambda runtime: runtime.remove_container("app"), "remove_container", None),
    "image": (lambda runtime: runtime.image("i"), "image_status", None),
    "pull_image": (lambda runtime: runtime.pull_image("i", ["s"]), "pull_image", ImageRecord(id="i", tags=("s",))),
    "list_images": (lambda runtime: runtime.list_images(), "list_images", [ImageRecord(id="one")]),
    "remove_image": (lambda runtime: runtime.remove_image("i"), "remove_image", None),
    "image_usage": (lambda runtime: runtime.image_usage(), "image_fs_info", None),
    "list_pods": (lambda runtime: runtime.list_pods(), "list_podsandbox", []),
    "pod_record": (lambda runtime: runtime.pod_record(PodUID("u")), "podsandbox_status", PodRecord(uid="u")),
    "exec_sync": (lambda runtime: runtime.exec_sync("app", ["a", "b"], 1), "exec_sync", CommandExited(0, b"a b")),
    "reopen_log": (lambda runtime: runtime.reopen_log("app"), "reopen_container_log", None),
    "health": (lambda runtime: runtime.health(), "status", RuntimeHealth(message="fine")),
}
READS = {"image", "list_images", "image_usage", "list_pods", "pod_record", "exec_sync", "reopen_log", "health"}
CHANGES = [name for name in CALLS if name not in READS]


@pytest.mark.parametrize("operation", CALLS)
def test_a_call_returns_and_raises_what_the_runtime_does(operation: str) -> None:
    call, shown, expected = CALLS[operation]
    refusals = [RuntimeRefused("cannot"), TimeoutError("its own"), ValueError("a bug")]

    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds[operation] = 2
        assert await call(harness.bounded) == expected
        for error in refusals:
            harness.runtime.errors[operation] = error
            assert await raised_by(call(harness.bounded)) is error

    assert run_scenario(scenario).observed == [(shown, 2.0, False), *[(shown, 2.0, True)] * 3]


@pytest.mark.parametrize("operation", CHANGES)
def test_a_change_is_completed_before_its_cancelled_caller_ends(operation: str) -> None:
    call = CALLS[operation][0]

    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds[operation] = 20
        caller = asyncio.ensure_future(call(harness.bounded))
        for _ in range(3):
            await asyncio.sleep(1)
            caller.cancel("enough")
        error = await raised_by(caller)
        assert isinstance(error, asyncio.CancelledError)
        assert (now(), error.args) == (20.0, ("enough",))

    harness = run_scenario(scenario)
    assert [at for at, _ in harness.runtime.ended] == [20.0]


def test_a_callers_timeout_is_raised_when_the_change_has_ended() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container"] = 20
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await harness.bounded.start_container("app")
        assert now() == 20

    run_scenario(scenario)


def test_a_cancelled_caller_gets_the_cancellation_even_if_the_change_fails() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container"] = 20
        harness.runtime.errors["start_container"] = RuntimeRefused("cannot")
        caller = asyncio.ensure_future(harness.bounded.start_container("app"))
        await asyncio.sleep(1)
        caller.cancel()
        assert isinstance(await raised_by(caller), asyncio.CancelledError)

    run_scenario(scenario)


@pytest.mark.parametrize("operation", sorted(READS))
def test_a_read_ends_at_once_when_its_caller_is_cancelled(operation: str) -> None:
    call, shown, _ = CALLS[operation]

    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds[operation] = 20
        caller = asyncio.ensure_future(call(harness.bounded))
        await asyncio.sleep(1)
        caller.cancel()
        assert isinstance(await raised_by(caller), asyncio.CancelledError)
        assert now() == 1

    harness = run_scenario(scenario)
    assert (harness.runtime.ended, harness.observed) == ([], [(shown, 1.0, False)])


DEADLINES = {
    "run_sandbox": 120.0, "stop_sandbox": 120.0, "remove_sandbox": 120.0, "create_container": 120.0,
    "start_container": 120.0, "stop_container": 150.0, "remove_container": 120.0, "image": 120.0,
    "pull_image": 1800.0, "list_images": 120.0, "remove_image": 120.0, "list_pods": 120.0, "pod_record": 120.0,
    "exec_sync": 121.0, "reopen_log": 120.0, "health": 120.0, "image_usage": 120.0,
}  # fmt: skip


ABOUT = {
    "run_sandbox": "ns/web", "stop_sandbox": "box", "remove_sandbox": "box", "create_container": "ns/web",
    "start_container": "app", "stop_container": "app", "remove_container": "app", "image": "i", "pull_image": "i",
    "remove_image": "i", "pod_record": "u", "exec_sync": "app", "reopen_log": "app",
}  # fmt: skip


@pytest.mark.parametrize("operation", CALLS)
def test_a_hung_call_fails_at_its_deadline_and_the_error_names_its_subject(operation: str) -> None:
    call, shown, _ = CALLS[operation]

    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds[operation] = FOR_EVER
        what = f"{shown} for {ABOUT[operation]}" if operation in ABOUT else shown
        error = await raised_by(call(harness.bounded))
        assert isinstance(error, CallTimedOut)
        assert now() == DEADLINES[operation]
        assert str(error) == (
            f"cannot complete {what}: no answer within {DEADLINES[operation]:g} s; it may have taken effect"
        )

    assert run_scenario(scenario).observed == [(shown, DEADLINES[operation], True)]


def test_a_cancelled_caller_waits_at_most_until_the_deadline() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container"] = FOR_EVER
        caller = asyncio.ensure_future(harness.bounded.start_container("app"))
        await asyncio.sleep(1)
        caller.cancel()
        assert isinstance(await raised_by(caller), asyncio.CancelledError)
        assert now() == 120

    run_scenario(scenario)


def test_a_change_past_its_deadline_keeps_running_and_is_listed_as_slow() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container"] = 200
        assert isinstance(await raised_by(harness.bounded.start_container("app")), CallTimedOut)
        await asyncio.sleep(30)
        assert harness.bounded.slow_calls() == (SlowCall("start_container", "app", 150.0),)
        await asyncio.sleep(60)
        assert harness.bounded.slow_calls() == ()

    harness = run_scenario(scenario)
    assert harness.runtime.ended == [(200.0, "start_container app")]
    assert harness.observed == [("start_container", 120.0, True)]


# Slots.


def started(harness: Harness, operation: str = "run_sandbox") -> list[tuple[float, str]]:
    return [(at, call.split()[-1]) for at, call in harness.runtime.begun if call.startswith(operation)]


def test_eight_pods_start_at_a_time_in_the_order_they_came() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["run_sandbox"] = 2
        async with asyncio.TaskGroup() as group:
            for index in range(20):
                group.create_task(harness.bounded.run_sandbox(sandbox(f"p{index}")))

    harness = run_scenario(scenario)
    assert started(harness) == [(2.0 * (index // 8), f"p{index}") for index in range(20)]


def test_eight_hung_starts_delay_the_ninth_only_for_the_lease() -> None:
    async def scenario(harness: Harness) -> None:
        for index in range(8):
            harness.runtime.seconds[f"run_sandbox hung{index}"] = FOR_EVER
        async with asyncio.TaskGroup() as group:
            hung = [group.create_task(raised_by(harness.bounded.run_sandbox(sandbox(f"hung{i}")))) for i in range(8)]
            await asyncio.sleep(1)
            await harness.bounded.run_sandbox(sandbox("web"))
            assert now() == 10
            assert [call.subject for call in harness.bounded.slow_calls()] == [f"ns/hung{index}" for index in range(8)]
            assert {call.seconds for call in harness.bounded.slow_calls()} == {10.0}
            await harness.bounded.run_sandbox(sandbox("db"))
            assert now() == 10
        assert all(isinstance(task.result(), CallTimedOut) for task in hung)

    run_scenario(scenario)


def test_starts_stops_and_pulls_do_not_wait_for_each_other() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds = {"run_sandbox": 5, "pull_image": 5, "stop_sandbox": 5}
        async with asyncio.TaskGroup() as group:
            for index in range(20):
                group.create_task(harness.bounded.run_sandbox(sandbox(f"p{index}")))
                group.create_task(harness.bounded.pull_image(f"i{index}"))
                group.create_task(harness.bounded.stop_sandbox(f"s{index}"))
            await asyncio.sleep(0)
            await harness.bounded.pod_record(PodUID("web"))
            assert now() == 0

    harness = run_scenario(scenario)
    assert [sum(at == 0 for at, _ in started(harness, name)) for name in ("run_", "stop_", "pull_")] == [8, 16, 4]


def test_containers_that_take_long_to_exit_do_not_block_other_stops() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["stop_container"] = 30
        async with asyncio.TaskGroup() as group:
            for index in range(160):
                group.create_task(harness.bounded.stop_container(f"c{index}", 30))
            await asyncio.sleep(15)
            assert harness.bounded.slow_calls() == ()
        assert now() < 31

    run_scenario(scenario)


def test_a_started_pod_is_served_before_later_pods() -> None:
    async def start(harness: Harness, name: str) -> None:
        box = await harness.bounded.run_sandbox(sandbox(name))
        await harness.bounded.start_container(await harness.bounded.create_container(box, container_config(name)))

    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds = {"run_sandbox": 1, "create_container": 1, "start_container": 1}
        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(start(harness, name))

    harness = run_scenario(scenario, CallLimits(start_slots=2))
    ends = [(at, call[-1]) for at, call in harness.runtime.ended if call.startswith("start_container")]
    # A slot is never kept free for a pod between two of its calls, so four pods are in progress.
    assert ends == [(5.0, "a"), (5.0, "b"), (6.0, "c"), (6.0, "d"), (9.0, "e"), (9.0, "f")]


def test_a_ticket_does_not_expire_during_a_call() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container"] = 8
        async with asyncio.TaskGroup() as group:
            for name in ("old", "busy", "new"):
                group.create_task(harness.bounded.start_container(name))
            await asyncio.sleep(11)
            group.create_task(harness.bounded.start_container("old"))

    harness = run_scenario(scenario, CallLimits(start_slots=1))
    assert [name for _, name in started(harness, "start_container")] == ["old", "busy", "old", "new"]


def test_a_ticket_does_not_expire_during_a_call_that_waited_long() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container"] = 8
        async with asyncio.TaskGroup() as group:
            for name in ("first", "second", "patient"):
                group.create_task(harness.bounded.start_container(name))
            await asyncio.sleep(12)  # longer than an unused ticket lasts
            group.create_task(harness.bounded.start_container("new"))
            await asyncio.sleep(6)  # during the call that waited
            group.create_task(harness.bounded.start_container("patient"))

    harness = run_scenario(scenario, CallLimits(start_slots=1, ticket_seconds=10))
    order = [name for _, name in started(harness, "start_container")]
    assert order == ["first", "second", "patient", "patient", "new"]


def test_a_ticket_does_not_expire_while_its_pod_waits() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds.update(run_sandbox=4, start_container=4)

        async def begin(name: str) -> None:
            await harness.bounded.run_sandbox(sandbox(name))
            await harness.bounded.start_container(f"box-{name}")

        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(begin(name))

    harness = run_scenario(scenario, CallLimits(start_slots=1, ticket_seconds=10))
    ends = [call[-1] for _, call in harness.runtime.ended if call.startswith("start_container")]
    made = [call[-1] for _, call in harness.runtime.ended if call.startswith("run_sandbox")]
    assert (ends, made) == (list("abcdef"), list("abcdef"))
    # The third pod runs before the last one begins.
    order = [call for _, call in harness.runtime.ended]
    assert order.index("start_container box-c") < order.index("run_sandbox f")


def test_a_caller_cancelled_in_the_queue_ends_at_once_and_makes_no_call() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["run_sandbox"] = 5
        async with asyncio.TaskGroup() as group:
            group.create_task(harness.bounded.run_sandbox(sandbox("first")))
            waiting = group.create_task(harness.bounded.run_sandbox(sandbox("waiting")))
            group.create_task(harness.bounded.run_sandbox(sandbox("last")))
            await asyncio.sleep(1)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert now() == 1

    harness = run_scenario(scenario, CallLimits(start_slots=1))
    assert started(harness) == [(0.0, "first"), (5.0, "last")]


def test_a_slot_granted_together_with_a_cancellation_goes_to_the_next_caller() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["run_sandbox"] = 5
        async with asyncio.TaskGroup() as group:
            group.create_task(harness.bounded.run_sandbox(sandbox("first")))
            waiting = group.create_task(harness.bounded.run_sandbox(sandbox("waiting")))
            group.create_task(harness.bounded.run_sandbox(sandbox("last")))
            harness.at_end = waiting.cancel

    harness = run_scenario(scenario, CallLimits(start_slots=1))
    assert started(harness) == [(0.0, "first"), (5.0, "last")]


# Names, begin and end.


def test_a_slow_call_is_listed_with_the_name_of_its_pod() -> None:
    async def scenario(harness: Harness) -> None:
        runtime, bounded = harness.runtime, harness.bounded
        found = ContainerRecord(id="found-1", name="app", state=RecordState.RUNNING)
        runtime.records["u"] = PodRecord(uid="u", name="found", namespace="other", containers=(found,))
        box = await bounded.run_sandbox(sandbox("web"))
        app = await bounded.create_container(box, container_config("web"))
        await bounded.pod_record(PodUID("u"))
        runtime.seconds = dict.fromkeys(
            ["stop_sandbox", "stop_container", "pod_record", "exec_sync", "pull_image"], 100
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(bounded.stop_sandbox(box))
            group.create_task(bounded.stop_container(app, 2))
            group.create_task(bounded.exec_sync("found-1", [], 5))
            group.create_task(bounded.pod_record(PodUID("uid-web")))
            group.create_task(bounded.stop_sandbox("unknown"))
            group.create_task(bounded.pull_image("nginx"))
            await asyncio.sleep(10)
            assert {call.operation for call in bounded.slow_calls()} == {"stop_podsandbox", "podsandbox_status"}
            await asyncio.sleep(60)
            slow = {(call.operation, call.subject) for call in bounded.slow_calls()}
        assert slow == {
            ("stop_podsandbox", "ns/web"), ("stop_container", "ns/web"), ("exec_sync", "other/found"),
            ("podsandbox_status", "ns/web"), ("stop_podsandbox", "unknown"), ("pull_image", "nginx"),
        }  # fmt: skip

    run_scenario(scenario)


def test_events_and_name_come_from_the_runtime() -> None:
    async def scenario(harness: Harness) -> None:
        assert harness.bounded.name == "slow"
        assert [event.container_id async for event in harness.bounded.events()] == ["app-web"]

    run_scenario(scenario)


def test_a_change_waits_until_the_bounded_runtime_runs() -> None:
    async def scenario() -> str:
        harness = Harness(CallLimits())
        async with asyncio.TaskGroup() as group:
            early = group.create_task(harness.bounded.run_sandbox(sandbox("web")))
            await asyncio.sleep(3)
            running = group.create_task(harness.bounded.run())
            await asyncio.wait({early})
            running.cancel()
        return early.result()

    assert simulate(scenario()) == ("box-web", 3.0)


def test_when_the_agent_stops_calls_in_flight_are_abandoned_and_none_begins() -> None:
    async def scenario() -> list[BaseException]:
        harness = Harness(CallLimits(start_slots=1))
        harness.runtime.seconds["start_container"] = FOR_EVER
        running = asyncio.ensure_future(harness.bounded.run())
        calls = [asyncio.ensure_future(raised_by(harness.bounded.start_container(name))) for name in "abc"]
        await asyncio.sleep(1)
        newest = asyncio.ensure_future(raised_by(harness.bounded.stop_container("d", 1)))
        running.cancel()  # after the last call has begun, but before the first step of its task
        await asyncio.wait({running})
        late = raised_by(harness.bounded.stop_sandbox("box"))
        return [await call for call in (*calls, newest, late)]

    errors, seconds = simulate(scenario())
    assert [type(error) for error in errors] == [RuntimeUnavailable] * 5
    assert seconds == 1.0
