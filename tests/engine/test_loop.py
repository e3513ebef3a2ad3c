"""The sync loop in virtual time: order, an unhealthy runtime, bursts, deadlines, and isolation of pods."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import (
    FILE_SOURCE,
    LifecycleEvent,
    LifecycleEventType,
    Op,
    PodUID,
    ProbeKind,
    ProbeResult,
    ProbeUpdate,
)
from podkeeper.rules.worker.updates import Update
from tests.engine.loop_harness import LoopHarness, never, pod, run_scenario

WEB = PodUID("web")


# Messages.


def test_a_pod_that_is_added_runs_at_once() -> None:
    async def scenario(node: LoopHarness) -> set[str]:
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(0.01)
        return set(node.runtime.running)

    assert run_scenario(scenario) == ({"web"}, 0.01)


def test_additions_are_handled_by_age_and_an_unreadable_time_delays_none() -> None:
    async def scenario(node: LoopHarness) -> list[str]:
        young, old = "2026-01-01T00:00:02Z", "2026-01-01T00:00:01Z"
        node.send_update(Op.ADD, pod("young", created=young), pod("odd", created="yesterday"), pod("old", created=old))
        await asyncio.sleep(0.01)
        return [uid for _, _, uid in node.syncer.log]

    assert run_scenario(scenario)[0] == ["odd", "old", "young"]


def test_a_removed_pod_is_stopped_and_forgotten() -> None:
    async def scenario(node: LoopHarness) -> tuple[set[str], bool]:
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, pod("web"))
        await asyncio.sleep(3)
        return node.runtime.running, node.workers.could_have_running_containers(WEB)

    assert run_scenario(scenario)[0] == (set(), False)


REFUSED = {
    "an op that only sources send": lambda node: node.send_update(Op.SET, pod("bad")),
    "an unknown operation": lambda node: node.send_update("SHRUG", pod("bad")),
    "a pod without a UID": lambda node: node.send_update(Op.ADD, pod("bad", uid="")),
    "an event of a pod that is not desired": lambda node: node.inbox.put(
        LifecycleEvent(PodUID("bad"), LifecycleEventType.CONTAINER_STARTED)
    ),
    "a result of an unknown probe": lambda node: node.inbox.put(
        ProbeUpdate(ProbeKind.LIVENESS, PodUID("bad"), "fake://1", ProbeResult.FAILURE)
    ),
    "the end of a static pod without a successor": lambda node: node.inbox.static_pod_ended("absent_ns"),
}


@pytest.mark.parametrize("send", REFUSED.values(), ids=REFUSED.keys())
def test_invalid_messages_are_ignored_and_the_loop_continues(send: Callable[[LoopHarness], None]) -> None:
    async def scenario(node: LoopHarness) -> set[str]:
        send(node)
        node.send_update(Op.ADD, pod("good"))
        await asyncio.sleep(0.01)
        return set(node.runtime.running)

    assert run_scenario(scenario)[0] == {"good"}


def test_an_exception_of_one_pod_does_not_affect_the_others() -> None:
    async def scenario(node: LoopHarness) -> set[str]:
        update = node.workers.update_pod

        def raising(sent: Update) -> None:
            if sent.uid == "bad":
                raise ZeroDivisionError
            update(sent)

        node.workers.update_pod = raising  # type: ignore[method-assign,assignment]  # fails on purpose
        node.send_update(Op.ADD, pod("first"), pod("bad"), pod("last"))
        node.send_update(Op.ADD, pod("later"))
        await asyncio.sleep(0.01)
        return set(node.runtime.running)

    assert run_scenario(scenario)[0] == {"first", "last", "later"}


def test_readiness_and_startup_results_set_flags_and_a_liveness_failure_syncs() -> None:
    async def scenario(node: LoopHarness) -> tuple[object, int]:
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(0.01)
        before = len(node.syncer.log)
        for kind, result in (
            (ProbeKind.READINESS, ProbeResult.SUCCESS),
            (ProbeKind.STARTUP, ProbeResult.FAILURE),
            (ProbeKind.LIVENESS, ProbeResult.SUCCESS),
            (ProbeKind.LIVENESS, ProbeResult.FAILURE),
        ):
            node.inbox.put(ProbeUpdate(kind, WEB, "fake://1", result))
            await asyncio.sleep(0.01)
        return node.status.flags, len(node.syncer.log) - before

    flags = [("ready", "web", "fake://1", True), ("started", "web", "fake://1", False)]
    assert run_scenario(scenario)[0] == (flags, 3)


def test_a_dead_container_is_collected_with_older_attempts() -> None:
    async def scenario(node: LoopHarness) -> object:
        node.send_update(Op.ADD, pod("web"))
        node.inbox.put(LifecycleEvent(WEB, LifecycleEventType.CONTAINER_DIED, "c1"))
        node.inbox.put(LifecycleEvent(WEB, LifecycleEventType.CONTAINER_REMOVED, "c0"))
        await asyncio.sleep(0.01)
        return node.collected

    assert run_scenario(scenario)[0] == [("web", "c1", False)]


def test_a_new_mirror_gets_the_status_at_once() -> None:
    async def scenario(node: LoopHarness) -> object:
        node.send_update(Op.ADD, pod("dns", uid="static", source=FILE_SOURCE), source=FILE_SOURCE)
        node.send_update(Op.ADD, pod("dns", uid="shadow", mirror="hash"))
        await asyncio.sleep(0.01)
        return node.status.changed_mirrors

    assert run_scenario(scenario)[0] == ["static"]


# Due syncs.


def test_a_pod_is_synced_exactly_when_it_is_due() -> None:
    async def scenario(node: LoopHarness) -> list[float]:
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(0.01)
        for seconds in (7.5, 0.0, 100.0):
            node.inbox.enqueue(WEB, seconds)
            await asyncio.sleep(20)
        await asyncio.sleep(90)
        return node.syncer.did("sync", "web")

    turns, _ = run_scenario(scenario)
    assert turns[1:3] == pytest.approx([0.01 + 7.5, 0.01 + 20], abs=0.002)


def test_an_idle_node_wakes_up_for_its_pods_and_for_nothing_else() -> None:
    async def scenario(node: LoopHarness) -> int:
        node.send_update(Op.ADD, pod("web"))
        await asyncio.sleep(1)
        turns = 0
        get_work = node.inbox.queue.get_work

        def counted() -> list[PodUID]:
            nonlocal turns
            turns += 1
            return get_work()

        node.inbox.queue.get_work = counted  # type: ignore[method-assign]  # counts calls
        await asyncio.sleep(600)
        return turns

    turns, _ = run_scenario(scenario)
    assert turns <= 600 / 60


def test_a_pod_past_its_deadline_is_synced_every_second_until_it_ends() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[float], int]:
        node.send_update(Op.ADD, pod("web", deadline=30, status=PodStatus(start_time="2026-01-01T00:00:00Z")))
        await asyncio.sleep(33.5)
        node.send_update(
            Op.DELETE, pod("web", deadline=30, deleted=True, status=PodStatus(start_time="2026-01-01T00:00:00Z"))
        )
        await asyncio.sleep(0.5)
        seen = len(node.syncer.log)
        await asyncio.sleep(30)
        return node.syncer.did("sync", "web"), len(node.syncer.log) - seen

    assert run_scenario(scenario)[0] == ([0.0, 30.0, 31.0, 32.0, 33.0], 0)


def test_a_deadline_before_all_due_syncs_wakes_the_loop() -> None:
    async def scenario(node: LoopHarness) -> list[float]:
        node.send_update(Op.ADD, *(pod(f"idle-{n}") for n in range(50)))
        await asyncio.sleep(1)
        node.send_update(Op.ADD, pod("web", deadline=30, status=PodStatus(start_time="2026-01-01T00:00:00Z")))
        await asyncio.sleep(29.5)
        return node.syncer.did("sync", "web")

    assert run_scenario(scenario)[0] == [1.0, 30.0]


def test_a_deadline_counts_from_the_start_time_that_is_published_later() -> None:
    async def scenario(node: LoopHarness) -> list[float]:
        node.send_update(Op.ADD, pod("web", deadline=30))
        await asyncio.sleep(8)
        node.status.set_pod_status(pod("web"), PodStatus(start_time="2026-01-01T00:00:08Z"))
        await asyncio.sleep(30.5)
        return node.syncer.did("sync", "web")

    assert run_scenario(scenario)[0] == [0.0, 38.0]


# The runtime as a whole.


async def _down() -> None:
    raise RuntimeUnavailable("cannot reach the runtime")


async def _broken() -> None:
    raise ZeroDivisionError


TROUBLES = {"it does not answer": _down, "it hangs": never, "its client is broken": _broken}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES.keys())
def test_while_the_runtime_is_unhealthy_nothing_starts_and_nothing_is_lost(
    trouble: Callable[[], Awaitable[None]],
) -> None:
    async def scenario(node: LoopHarness) -> tuple[list[object], set[str]]:
        seen: list[object] = []
        node.send_update(Op.ADD, pod("before"))
        await asyncio.sleep(1)
        node.runtime.before_health = trouble
        await asyncio.sleep(20)
        seen.append(node.loop.health() is not None)
        node.send_update(Op.ADD, *(pod(f"pod-{n}") for n in range(100)))
        node.send_update(Op.REMOVE, pod("before"))
        await asyncio.sleep(60)
        seen.append(set(node.runtime.running))
        node.runtime.before_health = None
        await asyncio.sleep(20)
        return [*seen, node.loop.health()], set(node.runtime.running)

    seen, running = run_scenario(scenario)[0]
    assert seen == [True, {"before"}, None]
    assert running == {f"pod-{n}" for n in range(100)}


def test_an_unready_runtime_is_checked_again_with_backoff() -> None:
    async def scenario(node: LoopHarness) -> list[float]:
        checks: list[float] = []

        async def note() -> None:
            checks.append(node.clock.monotonic())

        node.runtime.ready, node.runtime.before_health = False, note
        await asyncio.sleep(30)
        return checks

    checks, _ = run_scenario(scenario)
    pauses = [round(later - sooner, 3) for sooner, later in pairwise(checks)]
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


# Bursts and hangs.


def test_ten_thousand_additions_delay_other_tasks_only_by_a_few_pods() -> None:
    async def scenario(node: LoopHarness) -> int:
        node.send_update(Op.ADD, *(pod(f"pod-{n}") for n in range(10_000)))
        worst = 0
        while len(node.runtime.running) < 10_000:
            before = len(node.admission)
            await asyncio.sleep(0)
            worst = max(worst, len(node.admission) - before)
        return worst

    worst, seconds = run_scenario(scenario)
    assert worst <= 32
    assert seconds == 0.0  # without any pause


def test_one_hung_sync_delays_none_of_a_hundred_pods() -> None:
    async def scenario(node: LoopHarness) -> tuple[int, set[str]]:
        node.syncer.hanging.add("pod-0")
        node.send_update(Op.ADD, *(pod(f"pod-{n}") for n in range(100)))
        await asyncio.sleep(0.01)
        running = len(node.runtime.running)
        node.send_update(Op.REMOVE, *(pod(f"pod-{n}") for n in range(100)))
        await asyncio.sleep(0.01)
        return running, node.runtime.running

    assert run_scenario(scenario)[0] == (99, set())


# Static pods.


def changed(predecessor: Pod, uid: str) -> Pod:
    return replace(predecessor, metadata=replace(predecessor.metadata, uid=uid))


def test_the_successor_of_a_static_pod_starts_as_soon_as_its_predecessor_has_ended() -> None:
    async def scenario(node: LoopHarness) -> tuple[list[float], list[float]]:
        old = pod("dns", uid="old", source=FILE_SOURCE)
        node.syncer.stop_seconds["old"] = 17.25
        node.send_update(Op.ADD, old, source=FILE_SOURCE)
        await asyncio.sleep(1)
        node.send_update(Op.REMOVE, old, source=FILE_SOURCE)
        node.send_update(Op.ADD, changed(old, "new"), source=FILE_SOURCE)
        await asyncio.sleep(30)
        return node.syncer.did("clean up", "old"), node.syncer.did("sync", "new")[:1]

    assert run_scenario(scenario, sources=(FILE_SOURCE,))[0] == ([18.25], [18.25])


def test_of_three_versions_of_a_static_pod_the_last_one_runs() -> None:
    async def scenario(node: LoopHarness) -> tuple[set[str], list[float]]:
        first = pod("dns", uid="1", source=FILE_SOURCE)
        node.syncer.stop_seconds["1"] = 5
        node.send_update(Op.ADD, first, source=FILE_SOURCE)
        await asyncio.sleep(1)
        for old, new in pairwise([first, changed(first, "2"), changed(first, "3")]):
            node.send_update(Op.REMOVE, old, source=FILE_SOURCE)
            node.send_update(Op.ADD, new, source=FILE_SOURCE)
        await asyncio.sleep(20)
        return node.runtime.running, node.syncer.did("sync", "3")[:1]

    assert run_scenario(scenario, sources=(FILE_SOURCE,))[0] == ({"3"}, [6.0])
