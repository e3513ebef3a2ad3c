"""The guarded runtime in virtual time: calls are completed, bounded, fair and named; nothing else is changed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from podkeeper.engine.guard import GuardedRuntime, Limits, SlowCall
from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import CommandEnd, Exited
from podkeeper.model.runtime import ContainerRecord, ContainerState, ImageFsUsage, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import (
    ContainerConfig,
    RuntimeEvent,
    RuntimeEventType,
    RuntimeHealth,
    SandboxConfig,
)
from podkeeper.ports.runtime import Runtime
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate

FOR_EVER = 1e9


class Slow:
    """A runtime that only takes its time: `seconds` by operation, or by operation and its first argument."""

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
        return Exited(0, " ".join(command).encode())

    async def reopen_log(self, container_id: str) -> None:
        await self._do("reopen_log", container_id)

    async def health(self) -> RuntimeHealth:
        await self._do("health")
        return RuntimeHealth(message="fine")


def now() -> float:
    return asyncio.get_running_loop().time()


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"))


def sandbox(name: str) -> SandboxConfig:
    return SandboxConfig(pod=pod(name), attempt=0)


def container(name: str) -> ContainerConfig:
    return ContainerConfig(pod=pod(name), container=Container(name="app"), attempt=0, image="i", spec_hash="h")


class House:
    """A guarded slow runtime, and what it told of its calls."""

    def __init__(self, limits: Limits) -> None:
        self.runtime = Slow()
        self.observed: list[tuple[str, float, bool]] = []
        self.at_end: Callable[[], object] = lambda: None
        self.guard = GuardedRuntime(self.runtime, clock=VirtualClock(), limits=limits, observe=self.observe)

    def observe(self, operation: str, seconds: float, *, failed: bool) -> None:
        self.observed.append((operation, seconds, failed))
        self.at_end()


def live(scenario: Callable[[House], Awaitable[None]], limits: Limits | None = None) -> House:
    """Let a guarded runtime live through a scenario in virtual time."""

    async def life() -> House:
        house = House(limits or Limits())
        running = asyncio.ensure_future(house.guard.run())
        await scenario(house)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert house.guard.slow_calls() == ()
        return house

    return simulate(life())[0]


async def raised_by(call: Awaitable[object]) -> BaseException:
    """The error a call ends with."""
    with pytest.raises(BaseException) as caught:
        await call
    return caught.value


CALLS: dict[str, tuple[Callable[[Runtime], Awaitable[object]], str, object]] = {
    "run_sandbox": (lambda runtime: runtime.run_sandbox(sandbox("web")), "run_podsandbox", "box-web"),
    "stop_sandbox": (lambda runtime: runtime.stop_sandbox("box"), "stop_podsandbox", None),
    "remove_sandbox": (lambda runtime: runtime.remove_sandbox("box"), "remove_podsandbox", None),
    "create_container": (
        lambda runtime: runtime.create_container("b", container("web")),
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
    "exec_sync": (lambda runtime: runtime.exec_sync("app", ["a", "b"], 1), "exec_sync", Exited(0, b"a b")),
    "reopen_log": (lambda runtime: runtime.reopen_log("app"), "reopen_container_log", None),
    "health": (lambda runtime: runtime.health(), "status", RuntimeHealth(message="fine")),
}
READS = {"image", "list_images", "image_usage", "list_pods", "pod_record", "exec_sync", "reopen_log", "health"}
CHANGES = [name for name in CALLS if name not in READS]


@pytest.mark.parametrize("operation", CALLS)
def test_a_call_ends_as_the_runtimes_own(operation: str) -> None:
    call, shown, expected = CALLS[operation]
    refusals = [RuntimeRefused("cannot"), TimeoutError("its own"), ValueError("a bug")]

    async def scenario(house: House) -> None:
        house.runtime.seconds[operation] = 2
        assert await call(house.guard) == expected
        for error in refusals:
            house.runtime.errors[operation] = error
            assert await raised_by(call(house.guard)) is error

    assert live(scenario).observed == [(shown, 2.0, False), *[(shown, 2.0, True)] * 3]


@pytest.mark.parametrize("operation", CHANGES)
def test_a_change_is_completed_before_its_cancelled_caller_goes(operation: str) -> None:
    call = CALLS[operation][0]

    async def scenario(house: House) -> None:
        house.runtime.seconds[operation] = 20
        caller = asyncio.ensure_future(call(house.guard))
        for _ in range(3):
            await asyncio.sleep(1)
            caller.cancel("enough")
        error = await raised_by(caller)
        assert isinstance(error, asyncio.CancelledError)
        assert (now(), error.args) == (20.0, ("enough",))

    house = live(scenario)
    assert [at for at, _ in house.runtime.ended] == [20.0]


def test_a_timeout_of_the_callers_works_through_the_shield() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["start_container"] = 20
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await house.guard.start_container("app")
        assert now() == 20

    live(scenario)


def test_a_change_that_fails_after_its_caller_was_cancelled_still_ends_in_the_cancellation() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["start_container"] = 20
        house.runtime.errors["start_container"] = RuntimeRefused("cannot")
        caller = asyncio.ensure_future(house.guard.start_container("app"))
        await asyncio.sleep(1)
        caller.cancel()
        assert isinstance(await raised_by(caller), asyncio.CancelledError)

    live(scenario)


@pytest.mark.parametrize("operation", sorted(READS))
def test_a_read_ends_at_once_when_its_caller_is_cancelled(operation: str) -> None:
    call, shown, _ = CALLS[operation]

    async def scenario(house: House) -> None:
        house.runtime.seconds[operation] = 20
        caller = asyncio.ensure_future(call(house.guard))
        await asyncio.sleep(1)
        caller.cancel()
        assert isinstance(await raised_by(caller), asyncio.CancelledError)
        assert now() == 1

    house = live(scenario)
    assert (house.runtime.ended, house.observed) == ([], [(shown, 1.0, False)])


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

    async def scenario(house: House) -> None:
        house.runtime.seconds[operation] = FOR_EVER
        what = f"{shown} for {ABOUT[operation]}" if operation in ABOUT else shown
        error = await raised_by(call(house.guard))
        assert isinstance(error, CallTimedOut)
        assert now() == DEADLINES[operation]
        assert str(error) == (
            f"cannot complete {what}: no answer within {DEADLINES[operation]:g} s; it may have taken effect"
        )

    assert live(scenario).observed == [(shown, DEADLINES[operation], True)]


def test_a_cancelled_caller_waits_no_longer_than_until_the_deadline() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["start_container"] = FOR_EVER
        caller = asyncio.ensure_future(house.guard.start_container("app"))
        await asyncio.sleep(1)
        caller.cancel()
        assert isinstance(await raised_by(caller), asyncio.CancelledError)
        assert now() == 120

    live(scenario)


def test_a_change_that_met_its_deadline_is_left_to_end_by_itself_and_tracked() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["start_container"] = 200
        assert isinstance(await raised_by(house.guard.start_container("app")), CallTimedOut)
        await asyncio.sleep(30)
        assert house.guard.slow_calls() == (SlowCall("start_container", "app", 150.0),)
        await asyncio.sleep(60)
        assert house.guard.slow_calls() == ()

    house = live(scenario)
    assert house.runtime.ended == [(200.0, "start_container app")]
    assert house.observed == [("start_container", 120.0, True)]


# Slots.


def started(house: House, operation: str = "run_sandbox") -> list[tuple[float, str]]:
    return [(at, call.split()[-1]) for at, call in house.runtime.begun if call.startswith(operation)]


def test_so_many_start_at_a_time_in_the_order_they_came() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["run_sandbox"] = 2
        async with asyncio.TaskGroup() as group:
            for index in range(20):
                group.create_task(house.guard.run_sandbox(sandbox(f"p{index}")))

    house = live(scenario)
    assert started(house) == [(2.0 * (index // 8), f"p{index}") for index in range(20)]


def test_eight_hung_starts_hold_the_ninth_up_no_longer_than_the_lease() -> None:
    async def scenario(house: House) -> None:
        for index in range(8):
            house.runtime.seconds[f"run_sandbox hung{index}"] = FOR_EVER
        async with asyncio.TaskGroup() as group:
            hung = [group.create_task(raised_by(house.guard.run_sandbox(sandbox(f"hung{i}")))) for i in range(8)]
            await asyncio.sleep(1)
            await house.guard.run_sandbox(sandbox("web"))
            assert now() == 10
            assert [call.about for call in house.guard.slow_calls()] == [f"ns/hung{index}" for index in range(8)]
            assert {call.seconds for call in house.guard.slow_calls()} == {10.0}
            await house.guard.run_sandbox(sandbox("db"))
            assert now() == 10
        assert all(isinstance(task.result(), CallTimedOut) for task in hung)

    live(scenario)


def test_starts_stops_and_pulls_do_not_wait_for_each_other() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds = {"run_sandbox": 5, "pull_image": 5, "stop_sandbox": 5}
        async with asyncio.TaskGroup() as group:
            for index in range(20):
                group.create_task(house.guard.run_sandbox(sandbox(f"p{index}")))
                group.create_task(house.guard.pull_image(f"i{index}"))
                group.create_task(house.guard.stop_sandbox(f"s{index}"))
            await asyncio.sleep(0)
            await house.guard.pod_record(PodUID("web"))
            assert now() == 0

    house = live(scenario)
    assert [sum(at == 0 for at, _ in started(house, name)) for name in ("run_", "stop_", "pull_")] == [8, 16, 4]


def test_waiting_for_containers_to_end_holds_nobody_up() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["stop_container"] = 30
        async with asyncio.TaskGroup() as group:
            for index in range(160):
                group.create_task(house.guard.stop_container(f"c{index}", 30))
            await asyncio.sleep(15)
            assert house.guard.slow_calls() == ()
        assert now() < 31

    live(scenario)


def test_a_pod_that_has_begun_goes_before_those_that_came_later() -> None:
    async def start(house: House, name: str) -> None:
        box = await house.guard.run_sandbox(sandbox(name))
        await house.guard.start_container(await house.guard.create_container(box, container(name)))

    async def scenario(house: House) -> None:
        house.runtime.seconds = {"run_sandbox": 1, "create_container": 1, "start_container": 1}
        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(start(house, name))

    house = live(scenario, Limits(start_slots=2))
    ends = [(at, call[-1]) for at, call in house.runtime.ended if call.startswith("start_container")]
    # A slot never stays free while a pod thinks about its next step, so two times two pods are on their way.
    assert ends == [(5.0, "a"), (5.0, "b"), (6.0, "c"), (6.0, "d"), (9.0, "e"), (9.0, "f")]


def test_a_turn_lasts_while_its_call_does() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["start_container"] = 8
        async with asyncio.TaskGroup() as group:
            for name in ("old", "busy", "new"):
                group.create_task(house.guard.start_container(name))
            await asyncio.sleep(11)
            group.create_task(house.guard.start_container("old"))

    house = live(scenario, Limits(start_slots=1))
    assert [name for _, name in started(house, "start_container")] == ["old", "busy", "old", "new"]


def test_after_a_long_wait_a_turn_lasts_while_its_call_does() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["start_container"] = 8
        async with asyncio.TaskGroup() as group:
            for name in ("first", "second", "patient"):
                group.create_task(house.guard.start_container(name))
            await asyncio.sleep(12)  # longer than a turn lasts without being used
            group.create_task(house.guard.start_container("new"))
            await asyncio.sleep(6)  # in the middle of the call that waited
            group.create_task(house.guard.start_container("patient"))

    house = live(scenario, Limits(start_slots=1, turn_seconds=10))
    order = [name for _, name in started(house, "start_container")]
    assert order == ["first", "second", "patient", "patient", "new"]


def test_who_waits_longer_than_a_turn_lasts_keeps_it() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds.update(run_sandbox=4, start_container=4)

        async def begin(name: str) -> None:
            await house.guard.run_sandbox(sandbox(name))
            await house.guard.start_container(f"box-{name}")

        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(begin(name))

    house = live(scenario, Limits(start_slots=1, turn_seconds=10))
    ends = [call[-1] for _, call in house.runtime.ended if call.startswith("start_container")]
    made = [call[-1] for _, call in house.runtime.ended if call.startswith("run_sandbox")]
    assert (ends, made) == (list("abcdef"), list("abcdef"))
    # A stream: the third pod runs before the last one is even begun.
    order = [call for _, call in house.runtime.ended]
    assert order.index("start_container box-c") < order.index("run_sandbox f")


def test_who_is_cancelled_while_it_queues_goes_at_once_and_begins_nothing() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["run_sandbox"] = 5
        async with asyncio.TaskGroup() as group:
            group.create_task(house.guard.run_sandbox(sandbox("first")))
            waiting = group.create_task(house.guard.run_sandbox(sandbox("waiting")))
            group.create_task(house.guard.run_sandbox(sandbox("last")))
            await asyncio.sleep(1)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert now() == 1

    house = live(scenario, Limits(start_slots=1))
    assert started(house) == [(0.0, "first"), (5.0, "last")]


def test_a_slot_that_comes_together_with_the_cancellation_goes_to_the_next() -> None:
    async def scenario(house: House) -> None:
        house.runtime.seconds["run_sandbox"] = 5
        async with asyncio.TaskGroup() as group:
            group.create_task(house.guard.run_sandbox(sandbox("first")))
            waiting = group.create_task(house.guard.run_sandbox(sandbox("waiting")))
            group.create_task(house.guard.run_sandbox(sandbox("last")))
            house.at_end = waiting.cancel

    house = live(scenario, Limits(start_slots=1))
    assert started(house) == [(0.0, "first"), (5.0, "last")]


# Who is who, begin and end.


def test_the_culprit_is_named_by_its_pod() -> None:
    async def scenario(house: House) -> None:
        runtime, guard = house.runtime, house.guard
        found = ContainerRecord(id="found-1", name="app", state=ContainerState.RUNNING)
        runtime.records["u"] = PodRecord(uid="u", name="found", namespace="other", containers=(found,))
        box = await guard.run_sandbox(sandbox("web"))
        app = await guard.create_container(box, container("web"))
        await guard.pod_record(PodUID("u"))
        runtime.seconds = dict.fromkeys(
            ["stop_sandbox", "stop_container", "pod_record", "exec_sync", "pull_image"], 100
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(guard.stop_sandbox(box))
            group.create_task(guard.stop_container(app, 2))
            group.create_task(guard.exec_sync("found-1", [], 5))
            group.create_task(guard.pod_record(PodUID("uid-web")))
            group.create_task(guard.stop_sandbox("unheard-of"))
            group.create_task(guard.pull_image("nginx"))
            await asyncio.sleep(10)
            assert {call.operation for call in guard.slow_calls()} == {"stop_podsandbox", "podsandbox_status"}
            await asyncio.sleep(60)
            slow = {(call.operation, call.about) for call in guard.slow_calls()}
        assert slow == {
            ("stop_podsandbox", "ns/web"), ("stop_container", "ns/web"), ("exec_sync", "other/found"),
            ("podsandbox_status", "ns/web"), ("stop_podsandbox", "unheard-of"), ("pull_image", "nginx"),
        }  # fmt: skip

    live(scenario)


def test_events_and_name_are_the_runtimes_own() -> None:
    async def scenario(house: House) -> None:
        assert house.guard.name == "slow"
        assert [event.container_id async for event in house.guard.events()] == ["app-web"]

    live(scenario)


def test_a_call_made_before_the_guard_runs_waits_for_it() -> None:
    async def scenario() -> str:
        house = House(Limits())
        async with asyncio.TaskGroup() as group:
            early = group.create_task(house.guard.run_sandbox(sandbox("web")))
            await asyncio.sleep(3)
            running = group.create_task(house.guard.run())
            await asyncio.wait({early})
            running.cancel()
        return early.result()

    assert simulate(scenario()) == ("box-web", 3.0)


def test_when_the_agent_stops_calls_under_way_are_given_up_and_none_begins() -> None:
    async def scenario() -> list[BaseException]:
        house = House(Limits(start_slots=1))
        house.runtime.seconds["start_container"] = FOR_EVER
        running = asyncio.ensure_future(house.guard.run())
        calls = [asyncio.ensure_future(raised_by(house.guard.start_container(name))) for name in "abc"]
        await asyncio.sleep(1)
        young = asyncio.ensure_future(raised_by(house.guard.stop_container("d", 1)))
        running.cancel()  # comes when the young one has begun, but before its task takes a step
        await asyncio.wait({running})
        late = raised_by(house.guard.stop_sandbox("box"))
        return [await call for call in (*calls, young, late)]

    errors, seconds = simulate(scenario())
    assert [type(error) for error in errors] == [RuntimeUnavailable] * 5
    assert seconds == 1.0
