"""Laws of the pod workers over random histories.

The first compares the real workers with the pure state machine, step by step, with the two drivers that also run
the recorded scripts. The others run everything concurrently: no two calls for a pod overlap, nothing starts after
the pod has terminated, and every killed pod terminates.
"""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.model.errors import TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import Finished, NeverStarted
from podkeeper.rules.worker.updates import KillOptions
from podkeeper.testing.virtual_time import simulate
from tests.engine.worker_harness import (
    WorkersHarness,
    again,
    change,
    create,
    failing,
    kill,
    lasting,
    pod,
    running_workers,
    static,
)
from tests.oracle.podworkers_async import PodWorkersDriver
from tests.oracle.podworkers_world import DirectDriver, Driver, World, do_step

Step = dict[str, Any]

API_UIDS, STATIC_UIDS, LOST = ("uid-a", "uid-b"), ("uid-s1", "uid-s2"), "uid-o"
UIDS = (*API_UIDS, *STATIC_UIDS, LOST)

uids = st.sampled_from(UIDS)
graces = st.none() | st.integers(0, 40)


@st.composite
def updates(draw: st.DrawFn) -> Step:
    uid = draw(uids)
    step: Step = {"op": "update", "type": draw(st.sampled_from(["create", "update", "sync", "kill"]))}
    if uid == LOST:
        return step | {"type": "kill", "running_pod": {"uid": uid, "name": "lost", "namespace": "ns"}}
    if draw(st.booleans()) and step["type"] == "kill":
        step["kill_options"] = {
            "evict": draw(st.booleans()),
            "grace_override": draw(graces),
            "completed": draw(st.none() | st.sampled_from(["alice", "bob"])),
            "status_fn": draw(st.none() | st.sampled_from(["evicted", "preempted"])),
        }
    return step | {
        "pod": {
            "uid": uid,
            "name": "static" if uid in STATIC_UIDS else uid,
            "namespace": "ns",
            "version": draw(st.integers(0, 9)),
            "source": "file" if uid in STATIC_UIDS else "api",
            "deletion_timestamp": draw(st.integers(0, 5)) == 0,
            "deletion_grace_period_seconds": draw(graces),
            "termination_grace_period_seconds": draw(graces),
            "phase": draw(st.sampled_from(["", "Running", "Running", "Succeeded"])),
        }
    }


RESULTS = ["ok", "ok", "terminal", "error", "canceled", "network_not_ready", "backoff_error"]


def finishes(result: str) -> st.SearchStrategy[Step]:
    return st.builds(lambda uid: {"op": "finish", "uid": uid, "result": result, "backoff_seconds": 25}, uids)


steps = st.one_of(
    updates(),
    st.sampled_from(RESULTS).flatmap(finishes),
    finishes("ok"),
    st.builds(lambda desired: {"op": "known", "desired": desired}, st.lists(uids, unique=True)),
    st.builds(lambda seconds: {"op": "advance", "seconds": seconds}, st.integers(1, 90)),
    st.builds(lambda uid: {"op": "cache_error", "uid": uid}, uids),
    st.builds(lambda uid: {"op": "runtime", "uid": uid, "running_containers": 1, "ready_sandboxes": 1}, uids),
)


@settings(max_examples=75)
@given(st.lists(steps, min_size=5, max_size=40))
def test_the_workers_follow_the_state_machine(history: list[Step]) -> None:
    async def scenario() -> None:
        worlds = World(), World()
        drivers: tuple[Driver, Driver] = DirectDriver(worlds[0]), PodWorkersDriver(worlds[1])
        for step in history:
            if step["op"] == "finish" and step["result"] == "terminal":
                call = worlds[0].running.get(PodUID(step["uid"]))
                if call is not None and call.function != "sync_pod":
                    continue  # only a sync can find that the pod has ended
            decided, done = [await do_step(world, driver, step) for world, driver in zip(worlds, drivers, strict=True)]
            assert decided == done
            for uid in map(PodUID, UIDS):
                assert drivers[0].state(uid) == drivers[1].state(uid)
                assert drivers[0].answers(uid) == drivers[1].answers(uid)
        await drivers[1].close()

    simulate(scenario())


# Everything at once.

FUNCTIONS = ("sync_pod", "sync_terminating_pod", "sync_terminated_pod")
NAMES = ("a", "b", "c")

outcomes = st.one_of(
    st.sampled_from([0.0, 1.0, 5.0, 1000.0]).map(lasting), st.just(failing(TryLater("cannot"))), st.none()
)
acts = st.tuples(
    st.sampled_from([0.0, 0.0, 0.0, 0.5, 3.0]),  # how long to wait before it
    st.sampled_from(NAMES),
    st.sampled_from(["create", "change", "again", "kill", "shorten", "orphan"]),
)


async def act(harness: WorkersHarness, name: str, what: str, waiters: list[asyncio.Event]) -> None:
    match what:
        case "create":
            harness.workers.update_pod(create(pod(name)))
        case "change":
            harness.workers.update_pod(change(pod(name, labels={"version": "1"})))
        case "again":
            harness.workers.update_pod(again(pod(name)))
        case "kill":
            if not harness.workers.should_pod_be_finished(PodUID(name)):  # the finished never fire
                waiters.append(asyncio.Event())
                harness.workers.update_pod(kill(pod(name), KillOptions(completed=waiters[-1])))
        case "shorten":
            harness.workers.update_pod(kill(pod(name), KillOptions(grace_override_seconds=3)))
        case "orphan":
            if harness.workers.is_pod_known_terminated(PodUID(name)):
                harness.workers.sync_known_pods([PodUID(other) for other in NAMES if other != name])


@settings(max_examples=75)
@given(
    st.dictionaries(st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from(NAMES)), outcomes),
    st.lists(acts, max_size=30),
)
def test_syncs_never_overlap_and_killed_pods_end(behaviours: Any, history: Any) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            waiters: list[asyncio.Event] = []
            for (function, name), behaviour in behaviours.items():
                if behaviour is not None:
                    harness.syncer.behave(function, name, behaviour)
            for pause_seconds, name, what in history:
                if pause_seconds:
                    await asyncio.sleep(pause_seconds)
                await act(harness, name, what, waiters)
            harness.syncer.behaviours.clear()
            for name in NAMES:
                harness.workers.update_pod(kill(pod(name), KillOptions(grace_override_seconds=1)))
            await asyncio.sleep(3000)
            for name in NAMES:  # the loop retries a sync that failed before the faults ended
                harness.workers.update_pod(again(pod(name)))
            await asyncio.sleep(1)
            assert harness.syncer.overlaps == []
            assert all(waiter.is_set() for waiter in waiters)
            for name in NAMES:
                assert isinstance(harness.workers.state(PodUID(name)), Finished)
            assert len(asyncio.all_tasks()) == 2

    simulate(scenario())


@given(st.lists(st.tuples(st.sampled_from(["s1", "s2", "s3"]), st.booleans(), st.sampled_from([0.0, 1.0, 4.0]))))
def test_static_pods_of_one_name_never_overlap_and_all_run(history: Any) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            for function in FUNCTIONS:
                harness.syncer.behave(function, "static", lasting(2))  # overlaps are counted by name

            def wake(full_name: str) -> None:
                uid = harness.workers.next_in_line(full_name)
                if uid is not None:
                    harness.workers.update_pod(again(static(uid=uid)))

            harness.on_left = wake
            for uid, desired, pause_seconds in history:
                harness.workers.update_pod(create(static(uid=uid)) if desired else kill(static(uid=uid)))
                if pause_seconds:
                    await asyncio.sleep(pause_seconds)
            for uid in ("s1", "s2", "s3"):
                harness.workers.update_pod(kill(static(uid=uid)))
                await asyncio.sleep(10)
            assert harness.syncer.overlaps == []
            for uid in ("s1", "s2", "s3"):
                assert isinstance(harness.workers.state(PodUID(uid)), Finished | NeverStarted)

    simulate(scenario())


@given(st.lists(st.sampled_from(["orphan", "sweep"]), max_size=6))
def test_a_runtime_pod_killed_again_and_again_is_killed_once_at_a_time(history: list[str]) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.behave("sync_terminating_runtime_pod", "lost", lasting(1))
            for what in history:
                if what == "sweep":
                    harness.workers.sync_known_pods([])
                else:
                    harness.workers.update_pod(kill(PodRecord(uid="lost", name="lost")))
                await asyncio.sleep(0.4)
            await asyncio.sleep(10)
            assert harness.syncer.overlaps == []
            assert harness.workers.sync_known_pods([]) == {}

    simulate(scenario())
