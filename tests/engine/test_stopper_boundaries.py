"""Stopping at its boundaries: whole calls and events, graces that are just not shorter, and what is kept."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer, Lifecycle, LifecycleHandler, Pod, Probe
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord, SandboxRecord
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.plan import ContainerToKill
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.execution_house import UID, command, container, pod

T = TypeVar("T")
RUNNING = ContainerState.RUNNING
HOOK = command("drain")


def running(*names: str, state: ContainerState = RUNNING) -> tuple[ContainerRecord, ...]:
    return tuple(ContainerRecord(id=f"{name}-1", name=name, state=state) for name in names)


def record(*containers: ContainerRecord, boxes: tuple[str, ...] = (), ips: tuple[str, ...] = ()) -> PodRecord:
    sandboxes = tuple(SandboxRecord(id=box, ready=True) for box in boxes)
    return PodRecord(uid=UID, name="web", namespace="default", ips=ips, sandboxes=sandboxes, containers=containers)


class Desk:
    """A stopper among fakes that note whole calls. What has no script ends well and at once."""

    def __init__(self) -> None:
        self.stops: list[tuple[float, str, float]] = []
        self.boxes: list[tuple[float, str]] = []
        self.hooks: list[tuple[float, tuple[object, ...]]] = []
        self.events: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.scripts: dict[str, Callable[[], Awaitable[None]]] = {}  # by container or sandbox; "hook": all hooks
        self.hook_failure: str | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.stopper = PodStopper(
            runtime=self, hooks=stand_in(HookRunner, self), clock=VirtualClock(), record=self.record, spawn=self.spawn
        )

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        self.stops.append((now(), container_id, grace_seconds))
        await self._play(container_id)

    async def stop_sandbox(self, sandbox_id: str) -> None:
        self.boxes.append((now(), sandbox_id))
        await self._play(sandbox_id)

    async def execute(
        self,
        hook: LifecycleHandler,
        pod: Pod,
        container: Container | EphemeralContainer,
        container_id: str,
        pod_ip: str,
        timeout_seconds: float,
    ) -> str | None:
        self.hooks.append((now(), (hook, pod, container, container_id, pod_ip, timeout_seconds)))
        await self._play("hook")
        return self.hook_failure

    async def _play(self, name: str) -> None:
        if name in self.scripts:
            await self.scripts[name]()

    def record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.events.append((event, about))

    def spawn(self, work: Coroutine[Any, Any, T], /) -> asyncio.Future[T]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task


def now() -> float:
    return asyncio.get_running_loop().time()


def lasting(seconds: float, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
    async def last() -> None:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error

    return last


def in_turn(*scripts: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    left = list(scripts)
    return lambda: left.pop(0)()


def played(scenario: Callable[[Desk], Awaitable[None]]) -> Desk:
    async def play() -> Desk:
        desk = Desk()
        await scenario(desk)
        return desk

    return simulate(play())[0]


WEB = pod(container("web", pre_stop=HOOK), grace=30)


# Whole calls.


@pytest.mark.parametrize("ips, ip", [((), ""), (("10.0.0.1", "fd00::1"), "10.0.0.1")])
def test_a_kill_runs_the_hook_stops_the_container_then_the_sandboxes(ips: tuple[str, ...], ip: str) -> None:
    found = record(*running("web"), boxes=("box-1", "box-2"), ips=ips)

    async def scenario(desk: Desk) -> None:
        desk.scripts = {"hook": lasting(4), "web-1": lasting(3), "box-1": lasting(2)}
        assert await desk.stopper.kill_pod(WEB, found, None) == ()

    desk = played(scenario)
    assert desk.hooks == [(0.0, (HOOK, WEB, WEB.spec.containers[0], "web-1", ip, 30))]
    assert desk.stops == [(4.0, "web-1", 26)]
    assert desk.boxes == [(7.0, "box-1"), (9.0, "box-2")]
    event = PodEvent(EventType.NORMAL, "Killing", "Stopping container web", UID, "spec.containers{web}")
    assert desk.events == [(event, WEB)]


def test_only_containers_that_run_or_may_run_are_stopped() -> None:
    spec = pod(*(container(state.name.lower()) for state in ContainerState))
    found = record(*(each for state in ContainerState for each in running(state.name.lower(), state=state)))

    async def scenario(desk: Desk) -> None:
        assert await desk.stopper.kill_pod(spec, found, 5) == ()

    assert played(scenario).stops == [(0.0, "running-1", 5), (0.0, "unknown-1", 5)]


@pytest.mark.parametrize("override, seconds", [(None, 2), (0, 2), (2, 2), (3, 3), (7, 7)])
def test_without_a_spec_the_caller_sets_the_grace_and_no_hook_runs(override: int | None, seconds: int) -> None:
    found = record(*running("web"), boxes=("box",))

    async def scenario(desk: Desk) -> None:
        assert await desk.stopper.kill_pod(None, found, override) == ()

    desk = played(scenario)
    assert (desk.hooks, desk.stops, desk.boxes) == ([], [(0.0, "web-1", seconds)], [(0.0, "box")])
    event = PodEvent(EventType.NORMAL, "Killing", "Stopping container web", "", "implicitly required container web")
    assert desk.events == [(event, found)]


def test_a_pod_without_containers_only_loses_its_sandboxes() -> None:
    async def scenario(desk: Desk) -> None:
        assert await desk.stopper.kill_pod(WEB, record(boxes=("box",)), 5) == ()
        assert await desk.stopper.kill_containers(WEB, record(), ()) == ()

    desk = played(scenario)
    assert (desk.stops, desk.boxes, desk.events) == ([], [(0.0, "box")], [])


DEBUG = EphemeralContainer(name="debug", lifecycle=Lifecycle(pre_stop=HOOK))
PROBED = replace(
    container("web"),
    liveness_probe=Probe(termination_grace_period_seconds=3),
    startup_probe=Probe(termination_grace_period_seconds=4),
)
EVERYONE = pod(PROBED, init=(container("mesh", sidecar=True, pre_stop=HOOK),), debug=(DEBUG,), grace=30)
KILLS: dict[str, tuple[ContainerToKill, int | None, tuple[str, float], str, int]] = {
    "a changed spec": (
        ContainerToKill("web-1", "web", "it changed", KillReason.SPEC_CHANGED), None, ("web-1", 30), "it changed", 0,
    ),
    "a liveness probe has its own grace": (
        ContainerToKill("web-1", "web", "", KillReason.LIVENESS_PROBE), None, ("web-1", 3), "Stopping container web", 0,
    ),
    "so has a startup probe": (
        ContainerToKill("web-1", "web", "", KillReason.STARTUP_PROBE), None, ("web-1", 4), "Stopping container web", 0,
    ),
    "an override goes before all": (
        ContainerToKill("web-1", "web", "", KillReason.LIVENESS_PROBE), 9, ("web-1", 9), "Stopping container web", 0,
    ),
    "a message names no id": (
        ContainerToKill("web-1", "web", "web-1 failed", KillReason.UNKNOWN), 9, ("web-1", 9), "web failed", 0,
    ),
    "a container that was not found is stopped too": (
        ContainerToKill("web-0", "web", "", KillReason.UNKNOWN), None, ("web-0", 30), "Stopping container web", 0,
    ),
    "a container that is not in the spec is stopped too": (
        ContainerToKill("old-1", "old", "", KillReason.UNKNOWN), None, ("old-1", 30), "Stopping container old", 0,
    ),
    "a container that is not in the spec has no probe": (
        ContainerToKill("old-1", "old", "gone", KillReason.LIVENESS_PROBE), None, ("old-1", 30), "gone", 0,
    ),
    "a sidecar has its hook": (
        ContainerToKill("mesh-1", "mesh", "", KillReason.UNKNOWN), None, ("mesh-1", 30), "Stopping container mesh", 1,
    ),
    "an ephemeral container has its hook": (
        ContainerToKill("debug-1", "debug", "", KillReason.UNKNOWN), None, ("debug-1", 30), "Stopping container debug",
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kill, override, stop, text, hooks", KILLS.values(), ids=KILLS.keys())
def test_one_container_is_stopped(
    kill: ContainerToKill, override: int | None, stop: tuple[str, float], text: str, hooks: int
) -> None:
    found = record(*running("web", "mesh", "debug"), boxes=("box",))

    async def scenario(desk: Desk) -> None:
        if override is None:
            assert await desk.stopper.kill_containers(EVERYONE, found, (kill,)) == ()
        else:
            assert await desk.stopper.kill_containers(EVERYONE, found, (kill,), override) == ()

    desk = played(scenario)
    assert desk.stops == [(0.0, *stop)]
    assert (desk.boxes, len(desk.hooks)) == ([], hooks)
    ((event, about),) = desk.events
    assert (event.reason, event.message, about) == ("Killing", text, EVERYONE)


def test_several_containers_are_stopped_at_the_same_time_whatever_their_order_in_the_pod() -> None:
    found = record(*running("web", "mesh"))
    kills = [ContainerToKill(f"{name}-1", name, "", KillReason.UNKNOWN) for name in ("web", "mesh")]

    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = lasting(5)
        assert await desk.stopper.kill_containers(EVERYONE, found, kills) == ()
        assert now() == 5

    assert played(scenario).stops == [(0.0, "web-1", 30), (0.0, "mesh-1", 30)]


def test_a_sidecar_waits_for_all_that_go_first() -> None:
    spec = pod(container("a"), container("b"), init=(container("mesh", sidecar=True),), grace=30)

    async def scenario(desk: Desk) -> None:
        desk.scripts = {"a-1": lasting(2), "b-1": lasting(6)}
        assert await desk.stopper.kill_pod(spec, record(*running("mesh", "a", "b")), None) == ()

    assert played(scenario).stops == [(0.0, "a-1", 30), (0.0, "b-1", 30), (6.0, "mesh-1", 24)]


def test_a_sidecar_is_stopped_at_the_end_of_its_grace_although_others_still_run() -> None:
    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = lasting(50)
        assert await desk.stopper.kill_pod(EVERYONE, record(*running("web", "mesh")), 30) == ()
        assert now() == 50

    assert played(scenario).stops == [(0.0, "web-1", 30), (30.0, "mesh-1", 2)]


def test_a_shorter_grace_ends_the_wait_of_a_sidecar_sooner() -> None:
    found = record(*running("web", "mesh"))

    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = lasting(50)
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.stopper.kill_pod(EVERYONE, found, 30))
            await asyncio.sleep(9)
            group.create_task(desk.stopper.kill_pod(EVERYONE, found, 4))

    assert played(scenario).stops == [(0.0, "web-1", 30), (9.0, "web-1", 4), (13.0, "mesh-1", 2)]


# Hooks.

GRACES = {0: 0, 1: 1, 2: 1}


@pytest.mark.parametrize("grace, hooks", GRACES.items())
def test_a_hook_runs_if_there_is_any_time_for_it(grace: int, hooks: int) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.stopper.kill_pod(WEB, record(*running("web")), grace)

    assert len(played(scenario).hooks) == hooks


HOOK_ENDS: dict[str, tuple[float, str | None, list[str]]] = {
    "it succeeds": (5, None, ["Killing"]),
    "it fails": (5, "exit status 1", ["Killing", "FailedPreStopHook"]),
    "it fails without a word": (5, "", ["Killing", "FailedPreStopHook"]),
    "it takes too long": (31, None, ["Killing", "FailedPreStopHook"]),
}


@pytest.mark.parametrize("seconds, failure, reasons", HOOK_ENDS.values(), ids=HOOK_ENDS.keys())
def test_only_a_hook_that_failed_is_recorded_and_never_with_its_output(
    seconds: float, failure: str | None, reasons: list[str]
) -> None:
    async def scenario(desk: Desk) -> None:
        desk.scripts["hook"], desk.hook_failure = lasting(seconds), failure
        assert await desk.stopper.kill_pod(WEB, record(*running("web")), None) == ()

    desk = played(scenario)
    assert [event.reason for event, _ in desk.events] == reasons
    assert desk.events[1:] in (
        [],
        [(PodEvent(EventType.WARNING, "FailedPreStopHook", "PreStopHook failed", UID, "spec.containers{web}"), WEB)],
    )
    assert [at for at, _, _ in desk.stops] == [min(seconds, 30)]


# Shorter graces.


@pytest.mark.parametrize(
    "grace, stops",
    [(21, [(0.0, "web-1", 30)]), (20, [(0.0, "web-1", 30)]), (19, [(0.0, "web-1", 30), (10.0, "web-1", 19)])],
)
def test_a_stop_is_sent_again_only_if_the_new_grace_ends_sooner(
    grace: int, stops: list[tuple[float, str, float]]
) -> None:
    spec, found = pod(container("web"), grace=30), record(*running("web"))

    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = lasting(15)
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.stopper.kill_pod(spec, found, None))
            await asyncio.sleep(10)
            group.create_task(desk.stopper.kill_pod(spec, found, grace))
        assert now() == 15

    desk = played(scenario)
    assert (desk.stops, len(desk.events)) == (stops, 1)


def test_of_several_shorter_graces_at_the_same_instant_the_shortest_counts() -> None:
    found = record(*running("web"))

    async def scenario(desk: Desk) -> None:
        desk.scripts.update({"hook": lasting(5), "web-1": lasting(50)})
        async with asyncio.TaskGroup() as group:
            for grace, at in ((600, 0), (300, 9), (200, 9), (400, 9), (100, 20)):
                await asyncio.sleep(at - now())
                group.create_task(desk.stopper.kill_pod(WEB, found, grace))

    desk = played(scenario)
    assert desk.stops == [(5.0, "web-1", 595), (9.0, "web-1", 200), (20.0, "web-1", 100)]
    assert (len(desk.hooks), len(desk.events)) == (1, 1)


@pytest.mark.parametrize("which", [0, 1])
def test_of_two_stops_that_end_together_the_one_that_succeeded_counts(which: int) -> None:
    found = record(*running("web"))
    error = RuntimeRefused("cannot stop")
    scripts = [lasting(20), lasting(11)]
    scripts[which] = lasting(20 - 9 * which, error)

    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = in_turn(*scripts)
        async with asyncio.TaskGroup() as group:
            kills = [group.create_task(desk.stopper.kill_pod(pod(container("web")), found, 600))]
            await asyncio.sleep(9)
            kills.append(group.create_task(desk.stopper.kill_pod(pod(container("web")), found, 60)))
        assert [kill.result() for kill in kills] == [(), ()]
        assert now() == 20

    played(scenario)


def test_the_first_of_two_stops_to_end_ends_the_wait() -> None:
    found = record(*running("web"))

    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = in_turn(lasting(500), lasting(2, RuntimeRefused("cannot stop")))
        async with asyncio.TaskGroup() as group:
            kills = [group.create_task(desk.stopper.kill_pod(pod(container("web")), found, 600))]
            await asyncio.sleep(9)
            kills.append(group.create_task(desk.stopper.kill_pod(pod(container("web")), found, 60)))
        assert [[type(error) for error in kill.result()] for kill in kills] == [[RuntimeRefused]] * 2
        assert now() == 11

    played(scenario)


# Failures.


def test_every_error_is_returned_containers_first_and_every_sandbox_is_tried() -> None:
    errors = {name: RuntimeRefused(name) for name in ("a-1", "b-1", "box-1", "box-2")}
    spec = pod(container("a"), container("b"), container("c"))

    async def scenario(desk: Desk) -> None:
        desk.scripts = {name: lasting(1, error) for name, error in errors.items()}
        found = record(*running("a", "b", "c"), boxes=("box-1", "box-2", "box-3"))
        assert await desk.stopper.kill_pod(spec, found, None) == tuple(errors.values())
        kills = [ContainerToKill(f"{name}-1", name, "", KillReason.UNKNOWN) for name in "ba"]
        assert await desk.stopper.kill_containers(spec, found, kills) == (errors["b-1"], errors["a-1"])

    assert [box for _, box in played(scenario).boxes] == ["box-1", "box-2", "box-3"]


@pytest.mark.parametrize("name", ["web-1", "box"])
def test_an_unexpected_error_is_raised(name: str) -> None:
    bug = ValueError("a bug")

    async def scenario(desk: Desk) -> None:
        desk.scripts[name] = lasting(1, bug)
        with pytest.raises(ValueError) as caught:
            await desk.stopper.kill_pod(WEB, record(*running("web"), boxes=("box",)), None)
        assert caught.value is bug

    played(scenario)


def test_when_the_agent_stops_a_kill_is_cancelled() -> None:
    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = lasting(100)
        kill = asyncio.ensure_future(desk.stopper.kill_pod(WEB, record(*running("web"), boxes=("box",)), None))
        await asyncio.sleep(1)
        for task in desk.tasks:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await kill
        assert desk.boxes == []

    played(scenario)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_container_that_could_not_be_stopped_keeps_what_was_spent_unless_it_is_forgotten(forgotten: bool) -> None:
    spec = pod(container("web", pre_stop=HOOK), container("quick"), grace=30)
    found = record(*running("web", "quick"))

    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = in_turn(lasting(4, TryLater("cannot")), lasting(0))
        await desk.stopper.kill_pod(spec, found, None)
        await asyncio.sleep(2)
        if forgotten:
            desk.stopper.forget(UID)
        await desk.stopper.kill_pod(spec, record(*running("web")), None)

    desk = played(scenario)
    assert desk.stops[2:] == [(6.0, "web-1", 30 if forgotten else 24)]
    assert (len(desk.hooks), len(desk.events)) == ((2, 3) if forgotten else (1, 2))


def test_a_container_that_was_stopped_has_its_full_grace_and_its_hook_if_it_is_killed_again() -> None:
    async def scenario(desk: Desk) -> None:
        for _ in range(2):
            await desk.stopper.kill_pod(WEB, record(*running("web")), None)
            await asyncio.sleep(5)

    desk = played(scenario)
    assert desk.stops == [(0.0, "web-1", 30), (5.0, "web-1", 30)]
    assert (len(desk.hooks), len(desk.events)) == (2, 2)


def test_a_pod_may_be_forgotten_twice_and_an_unknown_one_as_well() -> None:
    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = lasting(1, TryLater("cannot"))
        await desk.stopper.kill_pod(WEB, record(*running("web")), None)
        for uid in (UID, UID, PodUID("unknown")):
            desk.stopper.forget(uid)
        await desk.stopper.kill_pod(WEB, record(*running("web")), None)

    assert played(scenario).stops == [(0.0, "web-1", 30), (1.0, "web-1", 30)]


def test_a_pod_that_is_forgotten_while_its_container_stops_is_not_remembered_afterwards() -> None:
    async def scenario(desk: Desk) -> None:
        desk.scripts["web-1"] = in_turn(lasting(10), lasting(10, TryLater("cannot")), lasting(1))
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.stopper.kill_pod(WEB, record(*running("web")), 30))
            await asyncio.sleep(5)
            desk.stopper.forget(UID)
            group.create_task(desk.stopper.kill_pod(WEB, record(*running("web")), 40))
        await desk.stopper.kill_pod(WEB, record(*running("web")), 40)  # goes on with the second one

    desk = played(scenario)
    assert desk.stops == [(0.0, "web-1", 30), (5.0, "web-1", 40), (15.0, "web-1", 30)]


class TrackedUID(str):
    """A UID to which a weak reference can point."""


def test_nothing_is_kept_of_a_pod_whose_containers_are_gone() -> None:
    async def scenario(desk: Desk) -> None:
        uid = TrackedUID("tracked")
        kept = weakref.ref(uid)
        await desk.stopper.kill_pod(pod(container("web")), replace(record(*running("web")), uid=uid), None)
        desk.tasks.clear()
        desk.events.clear()
        del uid
        gc.collect()
        assert kept() is None

    played(scenario)
