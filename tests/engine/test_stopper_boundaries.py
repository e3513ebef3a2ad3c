"""Boundaries of stopping: exact calls and events, grace periods that are just not shorter, and stored state."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from podkeeper.engine.bounded_runtime import BoundedRuntime
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.errors import RuntimeRefused, TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer, Lifecycle, LifecycleHandler, Pod, Probe
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.plan import ContainerToKill
from podkeeper.testing.build import exec_hook, pod
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.execution_harness import UID, container

T = TypeVar("T")
RUNNING = RecordState.RUNNING
HOOK = exec_hook("drain")


def running(*names: str, state: RecordState = RUNNING) -> tuple[ContainerRecord, ...]:
    return tuple(ContainerRecord(id=f"{name}-1", name=name, state=state) for name in names)


def record(*containers: ContainerRecord, boxes: tuple[str, ...] = (), ips: tuple[str, ...] = ()) -> PodRecord:
    sandboxes = tuple(SandboxRecord(id=box, ready=True) for box in boxes)
    return PodRecord(uid=UID, name="web", namespace="default", ips=ips, sandboxes=sandboxes, containers=containers)


class Harness:
    """A stopper with fakes that record calls. Calls without a script succeed at once."""

    def __init__(self) -> None:
        self.stops: list[tuple[float, str, float]] = []
        self.boxes: list[tuple[float, str]] = []
        self.hooks: list[tuple[float, tuple[object, ...]]] = []
        self.events: list[tuple[PodEvent, Pod | PodRecord | None]] = []
        self.scripts: dict[str, Callable[[], Awaitable[None]]] = {}  # by container or sandbox; "hook": all hooks
        self.hook_failure: str | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.stopper = PodStopper(
            runtime=stand_in(BoundedRuntime, self),
            hooks=stand_in(HookRunner, self),
            clock=VirtualClock(),
            record_event=self.record,
            spawn=self.spawn,
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


def run_scenario(scenario: Callable[[Harness], Awaitable[None]]) -> Harness:
    async def main() -> Harness:
        harness = Harness()
        await scenario(harness)
        return harness

    return simulate(main())[0]


WEB = pod("web", container("web", pre_stop=HOOK), grace=30)


# Complete kills.


@pytest.mark.parametrize("ips, ip", [((), ""), (("10.0.0.1", "fd00::1"), "10.0.0.1")])
def test_a_kill_runs_the_hook_stops_the_container_then_the_sandboxes(ips: tuple[str, ...], ip: str) -> None:
    found = record(*running("web"), boxes=("box-1", "box-2"), ips=ips)

    async def scenario(harness: Harness) -> None:
        harness.scripts = {"hook": lasting(4), "web-1": lasting(3), "box-1": lasting(2)}
        assert await harness.stopper.kill_pod(WEB, found, None) == ()

    harness = run_scenario(scenario)
    assert harness.hooks == [(0.0, (HOOK, WEB, WEB.spec.containers[0], "web-1", ip, 30))]
    assert harness.stops == [(4.0, "web-1", 26)]
    assert harness.boxes == [(7.0, "box-1"), (9.0, "box-2")]
    event = PodEvent(EventType.NORMAL, "Killing", "Stopping container web", UID, "spec.containers{web}")
    assert harness.events == [(event, WEB)]


def test_only_containers_that_run_or_may_run_are_stopped() -> None:
    spec = pod("web", *(container(state.name.lower()) for state in RecordState))
    found = record(*(each for state in RecordState for each in running(state.name.lower(), state=state)))

    async def scenario(harness: Harness) -> None:
        assert await harness.stopper.kill_pod(spec, found, 5) == ()

    assert run_scenario(scenario).stops == [(0.0, "running-1", 5), (0.0, "unknown-1", 5)]


@pytest.mark.parametrize("override, seconds", [(None, 2), (0, 2), (2, 2), (3, 3), (7, 7)])
def test_without_a_pod_the_override_is_the_grace_period_and_no_hook_runs(override: int | None, seconds: int) -> None:
    found = record(*running("web"), boxes=("box",))

    async def scenario(harness: Harness) -> None:
        assert await harness.stopper.kill_pod(None, found, override) == ()

    harness = run_scenario(scenario)
    assert (harness.hooks, harness.stops, harness.boxes) == ([], [(0.0, "web-1", seconds)], [(0.0, "box")])
    event = PodEvent(EventType.NORMAL, "Killing", "Stopping container web", "", "implicitly required container web")
    assert harness.events == [(event, found)]


def test_in_a_pod_without_containers_only_the_sandboxes_are_stopped() -> None:
    async def scenario(harness: Harness) -> None:
        assert await harness.stopper.kill_pod(WEB, record(boxes=("box",)), 5) == ()
        assert await harness.stopper.kill_containers(WEB, record(), ()) == ()

    harness = run_scenario(scenario)
    assert (harness.stops, harness.boxes, harness.events) == ([], [(0.0, "box")], [])


DEBUG = EphemeralContainer(name="debug", lifecycle=Lifecycle(pre_stop=HOOK))
PROBED = replace(
    container("web"),
    liveness_probe=Probe(termination_grace_period_seconds=3),
    startup_probe=Probe(termination_grace_period_seconds=4),
)
FULL = pod("web", PROBED, init=(container("mesh", sidecar=True, pre_stop=HOOK),), debug=(DEBUG,), grace=30)
KILLS: dict[str, tuple[ContainerToKill, int | None, tuple[str, float], str, int]] = {
    "a changed spec": (
        ContainerToKill("web-1", "web", "it changed", KillReason.SPEC_CHANGED), None, ("web-1", 30), "it changed", 0,
    ),
    "a liveness probe has its own grace period": (
        ContainerToKill("web-1", "web", "", KillReason.LIVENESS_PROBE), None, ("web-1", 3), "Stopping container web", 0,
    ),
    "a startup probe has its own grace period": (
        ContainerToKill("web-1", "web", "", KillReason.STARTUP_PROBE), None, ("web-1", 4), "Stopping container web", 0,
    ),
    "an override has precedence": (
        ContainerToKill("web-1", "web", "", KillReason.LIVENESS_PROBE), 9, ("web-1", 9), "Stopping container web", 0,
    ),
    "a message shows the name instead of the ID": (
        ContainerToKill("web-1", "web", "web-1 failed", KillReason.UNKNOWN), 9, ("web-1", 9), "web failed", 0,
    ),
    "a container that is not in the record is stopped": (
        ContainerToKill("web-0", "web", "", KillReason.UNKNOWN), None, ("web-0", 30), "Stopping container web", 0,
    ),
    "a container that is not in the spec is stopped": (
        ContainerToKill("old-1", "old", "", KillReason.UNKNOWN), None, ("old-1", 30), "Stopping container old", 0,
    ),
    "a container that is not in the spec has no probe": (
        ContainerToKill("old-1", "old", "gone", KillReason.LIVENESS_PROBE), None, ("old-1", 30), "gone", 0,
    ),
    "the hook of a sidecar runs": (
        ContainerToKill("mesh-1", "mesh", "", KillReason.UNKNOWN), None, ("mesh-1", 30), "Stopping container mesh", 1,
    ),
    "the hook of an ephemeral container runs": (
        ContainerToKill("debug-1", "debug", "", KillReason.UNKNOWN), None, ("debug-1", 30), "Stopping container debug",
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kill, override, stop, text, hooks", KILLS.values(), ids=KILLS.keys())
def test_one_container_is_stopped(
    kill: ContainerToKill, override: int | None, stop: tuple[str, float], text: str, hooks: int
) -> None:
    found = record(*running("web", "mesh", "debug"), boxes=("box",))

    async def scenario(harness: Harness) -> None:
        if override is None:
            assert await harness.stopper.kill_containers(FULL, found, (kill,)) == ()
        else:
            assert await harness.stopper.kill_containers(FULL, found, (kill,), override) == ()

    harness = run_scenario(scenario)
    assert harness.stops == [(0.0, *stop)]
    assert (harness.boxes, len(harness.hooks)) == ([], hooks)
    ((event, about),) = harness.events
    assert (event.reason, event.message, about) == ("Killing", text, FULL)


def test_several_containers_of_a_running_pod_are_stopped_at_the_same_time() -> None:
    found = record(*running("web", "mesh"))
    kills = [ContainerToKill(f"{name}-1", name, "", KillReason.UNKNOWN) for name in ("web", "mesh")]

    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = lasting(5)
        assert await harness.stopper.kill_containers(FULL, found, kills) == ()
        assert now() == 5

    assert run_scenario(scenario).stops == [(0.0, "web-1", 30), (0.0, "mesh-1", 30)]


def test_a_sidecar_waits_for_all_containers_before_it() -> None:
    spec = pod("web", container("a"), container("b"), init=(container("mesh", sidecar=True),), grace=30)

    async def scenario(harness: Harness) -> None:
        harness.scripts = {"a-1": lasting(2), "b-1": lasting(6)}
        assert await harness.stopper.kill_pod(spec, record(*running("mesh", "a", "b")), None) == ()

    assert run_scenario(scenario).stops == [(0.0, "a-1", 30), (0.0, "b-1", 30), (6.0, "mesh-1", 24)]


def test_a_sidecar_is_stopped_at_the_end_of_its_grace_period_even_if_others_run() -> None:
    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = lasting(50)
        assert await harness.stopper.kill_pod(FULL, record(*running("web", "mesh")), 30) == ()
        assert now() == 50

    assert run_scenario(scenario).stops == [(0.0, "web-1", 30), (30.0, "mesh-1", 2)]


def test_a_shorter_grace_period_makes_a_sidecar_stop_earlier() -> None:
    found = record(*running("web", "mesh"))

    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = lasting(50)
        async with asyncio.TaskGroup() as group:
            group.create_task(harness.stopper.kill_pod(FULL, found, 30))
            await asyncio.sleep(9)
            group.create_task(harness.stopper.kill_pod(FULL, found, 4))

    assert run_scenario(scenario).stops == [(0.0, "web-1", 30), (9.0, "web-1", 4), (13.0, "mesh-1", 2)]


# Hooks.

GRACES = {0: 0, 1: 1, 2: 1}


@pytest.mark.parametrize("grace, hooks", GRACES.items())
def test_a_hook_runs_if_the_grace_period_is_not_zero(grace: int, hooks: int) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.stopper.kill_pod(WEB, record(*running("web")), grace)

    assert len(run_scenario(scenario).hooks) == hooks


HOOK_ENDS: dict[str, tuple[float, str | None, list[str]]] = {
    "it succeeds": (5, None, ["Killing"]),
    "it fails": (5, "exit status 1", ["Killing", "FailedPreStopHook"]),
    "it fails without output": (5, "", ["Killing", "FailedPreStopHook"]),
    "it takes too long": (31, None, ["Killing", "FailedPreStopHook"]),
}


@pytest.mark.parametrize("seconds, failure, reasons", HOOK_ENDS.values(), ids=HOOK_ENDS.keys())
def test_only_a_failed_hook_is_recorded_without_its_output(
    seconds: float, failure: str | None, reasons: list[str]
) -> None:
    async def scenario(harness: Harness) -> None:
        harness.scripts["hook"], harness.hook_failure = lasting(seconds), failure
        assert await harness.stopper.kill_pod(WEB, record(*running("web")), None) == ()

    harness = run_scenario(scenario)
    assert [event.reason for event, _ in harness.events] == reasons
    assert harness.events[1:] in (
        [],
        [(PodEvent(EventType.WARNING, "FailedPreStopHook", "PreStopHook failed", UID, "spec.containers{web}"), WEB)],
    )
    assert [at for at, _, _ in harness.stops] == [min(seconds, 30)]


# Shorter grace periods.


@pytest.mark.parametrize(
    "grace, stops",
    [(21, [(0.0, "web-1", 30)]), (20, [(0.0, "web-1", 30)]), (19, [(0.0, "web-1", 30), (10.0, "web-1", 19)])],
)
def test_a_stop_is_sent_again_only_if_the_new_grace_period_ends_earlier(
    grace: int, stops: list[tuple[float, str, float]]
) -> None:
    spec, found = pod("web", container("web"), grace=30), record(*running("web"))

    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = lasting(15)
        async with asyncio.TaskGroup() as group:
            group.create_task(harness.stopper.kill_pod(spec, found, None))
            await asyncio.sleep(10)
            group.create_task(harness.stopper.kill_pod(spec, found, grace))
        assert now() == 15

    harness = run_scenario(scenario)
    assert (harness.stops, len(harness.events)) == (stops, 1)


def test_of_several_shorter_grace_periods_at_once_the_shortest_applies() -> None:
    found = record(*running("web"))

    async def scenario(harness: Harness) -> None:
        harness.scripts.update({"hook": lasting(5), "web-1": lasting(50)})
        async with asyncio.TaskGroup() as group:
            for grace, at in ((600, 0), (300, 9), (200, 9), (400, 9), (100, 20)):
                await asyncio.sleep(at - now())
                group.create_task(harness.stopper.kill_pod(WEB, found, grace))

    harness = run_scenario(scenario)
    assert harness.stops == [(5.0, "web-1", 595), (9.0, "web-1", 200), (20.0, "web-1", 100)]
    assert (len(harness.hooks), len(harness.events)) == (1, 1)


@pytest.mark.parametrize("which", [0, 1])
def test_of_two_stop_calls_that_end_together_the_successful_one_counts(which: int) -> None:
    found = record(*running("web"))
    error = RuntimeRefused("cannot stop")
    scripts = [lasting(20), lasting(11)]
    scripts[which] = lasting(20 - 9 * which, error)

    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = in_turn(*scripts)
        async with asyncio.TaskGroup() as group:
            kills = [group.create_task(harness.stopper.kill_pod(pod("web", container("web")), found, 600))]
            await asyncio.sleep(9)
            kills.append(group.create_task(harness.stopper.kill_pod(pod("web", container("web")), found, 60)))
        assert [kill.result() for kill in kills] == [(), ()]
        assert now() == 20

    run_scenario(scenario)


def test_the_first_of_two_stop_calls_to_end_ends_the_wait() -> None:
    found = record(*running("web"))

    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = in_turn(lasting(500), lasting(2, RuntimeRefused("cannot stop")))
        async with asyncio.TaskGroup() as group:
            kills = [group.create_task(harness.stopper.kill_pod(pod("web", container("web")), found, 600))]
            await asyncio.sleep(9)
            kills.append(group.create_task(harness.stopper.kill_pod(pod("web", container("web")), found, 60)))
        assert [[type(error) for error in kill.result()] for kill in kills] == [[RuntimeRefused]] * 2
        assert now() == 11

    run_scenario(scenario)


# Failures.


def test_all_errors_are_returned_and_every_sandbox_is_stopped() -> None:
    errors = {name: RuntimeRefused(name) for name in ("a-1", "b-1", "box-1", "box-2")}
    spec = pod("web", container("a"), container("b"), container("c"))

    async def scenario(harness: Harness) -> None:
        harness.scripts = {name: lasting(1, error) for name, error in errors.items()}
        found = record(*running("a", "b", "c"), boxes=("box-1", "box-2", "box-3"))
        assert await harness.stopper.kill_pod(spec, found, None) == tuple(errors.values())
        kills = [ContainerToKill(f"{name}-1", name, "", KillReason.UNKNOWN) for name in "ba"]
        assert await harness.stopper.kill_containers(spec, found, kills) == (errors["b-1"], errors["a-1"])

    assert [box for _, box in run_scenario(scenario).boxes] == ["box-1", "box-2", "box-3"]


@pytest.mark.parametrize("name", ["web-1", "box"])
def test_an_unexpected_error_is_raised(name: str) -> None:
    bug = ValueError("a bug")

    async def scenario(harness: Harness) -> None:
        harness.scripts[name] = lasting(1, bug)
        with pytest.raises(ValueError) as caught:
            await harness.stopper.kill_pod(WEB, record(*running("web"), boxes=("box",)), None)
        assert caught.value is bug

    run_scenario(scenario)


def test_when_the_agent_stops_a_kill_is_cancelled() -> None:
    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = lasting(100)
        kill = asyncio.ensure_future(harness.stopper.kill_pod(WEB, record(*running("web"), boxes=("box",)), None))
        await asyncio.sleep(1)
        for task in harness.tasks:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await kill
        assert harness.boxes == []

    run_scenario(scenario)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_failed_stop_keeps_its_start_time_unless_the_pod_is_forgotten(forgotten: bool) -> None:
    spec = pod("web", container("web", pre_stop=HOOK), container("quick"), grace=30)
    found = record(*running("web", "quick"))

    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = in_turn(lasting(4, TryLater("cannot")), lasting(0))
        await harness.stopper.kill_pod(spec, found, None)
        await asyncio.sleep(2)
        if forgotten:
            harness.stopper.forget(UID)
        await harness.stopper.kill_pod(spec, record(*running("web")), None)

    harness = run_scenario(scenario)
    assert harness.stops[2:] == [(6.0, "web-1", 30 if forgotten else 24)]
    assert (len(harness.hooks), len(harness.events)) == ((2, 3) if forgotten else (1, 2))


def test_a_second_kill_after_a_stop_has_the_full_grace_period_and_the_hook() -> None:
    async def scenario(harness: Harness) -> None:
        for _ in range(2):
            await harness.stopper.kill_pod(WEB, record(*running("web")), None)
            await asyncio.sleep(5)

    harness = run_scenario(scenario)
    assert harness.stops == [(0.0, "web-1", 30), (5.0, "web-1", 30)]
    assert (len(harness.hooks), len(harness.events)) == (2, 2)


def test_forgetting_a_pod_twice_or_an_unknown_pod_is_a_no_op() -> None:
    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = lasting(1, TryLater("cannot"))
        await harness.stopper.kill_pod(WEB, record(*running("web")), None)
        for uid in (UID, UID, PodUID("unknown")):
            harness.stopper.forget(uid)
        await harness.stopper.kill_pod(WEB, record(*running("web")), None)

    assert run_scenario(scenario).stops == [(0.0, "web-1", 30), (1.0, "web-1", 30)]


def test_a_stop_that_ends_after_its_pod_was_forgotten_does_not_touch_the_new_stop() -> None:
    async def scenario(harness: Harness) -> None:
        harness.scripts["web-1"] = in_turn(lasting(10), lasting(10, TryLater("cannot")), lasting(1))
        async with asyncio.TaskGroup() as group:
            group.create_task(harness.stopper.kill_pod(WEB, record(*running("web")), 30))
            await asyncio.sleep(5)
            harness.stopper.forget(UID)
            group.create_task(harness.stopper.kill_pod(WEB, record(*running("web")), 40))
        await harness.stopper.kill_pod(WEB, record(*running("web")), 40)  # joins the second stop

    harness = run_scenario(scenario)
    assert harness.stops == [(0.0, "web-1", 30), (5.0, "web-1", 40), (15.0, "web-1", 30)]


class TrackedUID(str):
    """A UID to which a weak reference can point."""


def test_no_state_is_kept_after_all_containers_have_exited() -> None:
    async def scenario(harness: Harness) -> None:
        uid = TrackedUID("tracked")
        kept = weakref.ref(uid)
        await harness.stopper.kill_pod(pod("web", container("web")), replace(record(*running("web")), uid=uid), None)
        harness.tasks.clear()
        harness.events.clear()
        del uid
        gc.collect()
        assert kept() is None

    run_scenario(scenario)
