"""The pod workers and other modules: exceptions affect no pod, bad input is refused, reports are complete."""

import asyncio

import pytest

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.history import (
    Cause,
    HistoryEvent,
    Moved,
    PodState,
    RetryScheduled,
    SyncEnded,
    SyncError,
    SyncKind,
    SyncResult,
    SyncStarted,
    WorkerState,
)
from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import Finished, Terminating
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync
from podkeeper.testing.virtual_time import simulate
from tests.engine.worker_harness import (
    ALL_THE_WAY,
    BUGS,
    DB,
    WEB,
    FakeObserver,
    again,
    calm,
    change,
    create,
    failing,
    kill,
    lasting,
    never,
    pod,
    running_workers,
    static,
)


def deleted(state: WorkerState) -> PodState:
    return PodState(state, Cause.DELETED)


# Faults.


@pytest.mark.parametrize("modules", [{"enqueue"}, {"record"}, {"left"}, {"history"}, {"enqueue", "left", "history"}])
def test_a_module_that_raises_stops_no_pod(modules: set[str]) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.faults.raising = modules
            harness.cache.behaviour = failing(TryLater("cannot inspect"))
            harness.workers.update_pod(create(static(uid="s1")))
            await calm()
            harness.cache.behaviour = None
            harness.workers.update_pod(kill(static(uid="s1")))
            harness.workers.update_pod(create(pod("web")))
            await calm()
            assert isinstance(harness.workers.state(PodUID("s1")), Finished)
            assert harness.syncer.of("web") == ["sync_pod"]
            assert harness.running is not None
            assert not harness.running.done()

    simulate(scenario())


@pytest.mark.parametrize("error", BUGS.values(), ids=BUGS.keys())
@pytest.mark.parametrize("function", [*ALL_THE_WAY, "get_newer_than"])
def test_a_sync_that_raises_anything_has_failed(function: str, error: Exception) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            if function == "get_newer_than":
                harness.cache.behaviour = failing(error)
            harness.syncer.behave(function, "web", failing(error))
            for name in ("web", "db"):
                harness.workers.update_pod(create(pod(name)))
            await calm()
            harness.workers.update_pod(kill(pod("web")))
            await calm()
            harness.cache.behaviour = None
            harness.syncer.behaviours.clear()
            for name in ("web", "db"):
                harness.workers.update_pod(kill(pod(name)))
            await calm()
            assert isinstance(harness.workers.state(WEB), Finished)
            assert isinstance(harness.workers.state(DB), Finished)

    simulate(scenario())


@pytest.mark.parametrize("from_the_first", [True, False])
@pytest.mark.parametrize("moment", [Moved, SyncStarted, SyncEnded, RetryScheduled])
def test_a_module_that_calls_back_finds_consistent_workers(moment: type, from_the_first: bool) -> None:
    """After each report about one pod, it shortens the grace of both: at their begin, or in the sweep."""

    async def scenario() -> None:
        async with running_workers() as harness:
            graces = iter(range(100, 0, -1))
            begun, done = [], []

            def shorten(uid: PodUID, event: HistoryEvent) -> None:
                if isinstance(event, moment) and uid == WEB and (grace := next(graces, None)) is not None:
                    begun.append(grace)
                    for name in ("web", "db"):
                        harness.workers.update_pod(
                            kill(pod(name, grace=1000), KillOptions(grace_override_seconds=grace))
                        )
                    done.append(grace)

            if from_the_first:
                harness.on_history = shorten
            for name in ("db", "web"):
                harness.workers.update_pod(create(pod(name, grace=1000)))
            await calm()
            harness.on_history = shorten
            harness.workers.sync_known_pods([])
            await calm()
            assert harness.workers.should_pod_be_finished(WEB)
            assert harness.workers.should_pod_be_finished(DB)
            assert harness.syncer.overlaps == []
            assert begun
            assert sorted(done) == sorted(begun)  # none of them raised

    simulate(scenario())


def test_a_waiter_that_raises_does_not_affect_other_waiters() -> None:
    class Broken:
        def set(self) -> None:
            raise RuntimeError("broken waiter")

    async def scenario() -> None:
        async with running_workers() as harness:
            stopped = asyncio.Event()
            harness.workers.update_pod(create(pod("web")))
            await calm()
            harness.workers.update_pod(kill(pod("web"), KillOptions(completed=Broken())))
            harness.workers.update_pod(kill(pod("web"), KillOptions(completed=stopped)))
            await calm()
            assert stopped.is_set()
            assert isinstance(harness.workers.state(WEB), Finished)

    simulate(scenario())


def test_a_status_function_that_raises_fails_the_sync_and_another_replaces_it() -> None:
    def broken(status: PodStatus) -> PodStatus:
        raise RuntimeError("broken status function")

    async def scenario() -> None:
        async with running_workers() as harness:
            harness.workers.update_pod(create(pod("web")))
            await calm()
            harness.workers.update_pod(kill(pod("web"), KillOptions(status_function=broken)))
            await calm()
            assert isinstance(harness.workers.state(WEB), Terminating)
            harness.workers.update_pod(kill(pod("web"), KillOptions(status_function=lambda status: status)))
            await calm()
            assert isinstance(harness.workers.state(WEB), Finished)

    simulate(scenario())


@pytest.mark.parametrize("error", [TryLater("connection lost"), KeyError("oops")])
def test_a_pod_has_not_ended_while_the_cache_is_not_sure(error: Exception) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.cache.error = error
            harness.workers.update_pod(create(pod("web", phase="Succeeded")))
            harness.cache.error = None
            harness.workers.update_pod(create(pod("db", phase="Succeeded")))
            await calm()
            assert harness.syncer.of("web") == ["sync_terminating_pod", "sync_terminated_pod"]
            assert harness.syncer.of("db") == ["sync_terminated_pod"]

    simulate(scenario())


def with_type(update: Update, update_type: str) -> Update:
    return Update(type=update_type, pod=update.pod)  # type: ignore[arg-type]  # the point


REFUSED: dict[str, tuple[Update, str]] = {
    "a pod without a UID": (create(pod("web", uid="")), "web_ns.*Required value"),
    "a runtime pod without a UID": (
        kill(PodRecord(uid="", name="lost", namespace="ns")),
        "lost_ns.*Required value",
    ),
    "an unknown type": (with_type(create(pod("web")), "reboot"), 'reboot.*"create", "update", "sync", "kill"'),
    "a type that is only text": (with_type(create(pod("web")), "kill"), "Unsupported value"),
    "no pod": (Update(type=UpdateType.SYNC), "neither a pod"),
}


@pytest.mark.parametrize("update, message", REFUSED.values(), ids=REFUSED.keys())
def test_an_invalid_update_is_refused(update: Update, message: str) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            with pytest.raises(BadInput, match=message):
                harness.workers.update_pod(update)
            assert harness.workers.sync_known_pods([]) == {}
            harness.workers.update_pod(create(pod("db")))
            await calm()
            assert harness.syncer.of("db") == ["sync_pod"]

    simulate(scenario())


# Reports to other modules.


def test_the_history_has_each_state_change_each_sync_and_the_next_one() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.workers.update_pod(create(pod("web")))
            await calm()
            harness.syncer.behave("sync_pod", "web", failing(TryLater("cannot pull")))
            harness.workers.update_pod(again(pod("web")))
            await calm()
            harness.syncer.behave("sync_pod", "web", never)
            harness.workers.update_pod(again(pod("web")))
            await calm()
            harness.workers.update_pod(kill(pod("web", deleted=True)))
            await calm()
            done, retry = SyncEnded(SyncResult.DONE), RetryScheduled(0)
            events = [retry if isinstance(event, RetryScheduled) else event for _, event in harness.history]
            assert events == [
                Moved(PodState(WorkerState.UNKNOWN), PodState(WorkerState.SYNCING)),
                SyncStarted(SyncKind.SYNC, UpdateType.CREATE),
                done,
                retry,
                SyncStarted(SyncKind.SYNC, UpdateType.SYNC),
                SyncError("cannot pull"),
                retry,
                SyncStarted(SyncKind.SYNC, UpdateType.SYNC),
                Moved(PodState(WorkerState.SYNCING), deleted(WorkerState.TERMINATION_REQUESTED)),
                SyncEnded(SyncResult.CANCELLED),
                retry,
                SyncStarted(SyncKind.TERMINATING, UpdateType.KILL),
                Moved(
                    deleted(WorkerState.TERMINATION_REQUESTED),
                    deleted(WorkerState.TERMINATING),
                ),
                done,
                Moved(deleted(WorkerState.TERMINATING), deleted(WorkerState.TERMINATED)),
                retry,
                SyncStarted(SyncKind.TERMINATED, UpdateType.SYNC),
                done,
                Moved(deleted(WorkerState.TERMINATED), deleted(WorkerState.FINISHED)),
            ]
            harness.history.clear()
            harness.workers.sync_known_pods([])
            assert harness.history == [(WEB, Moved(deleted(WorkerState.FINISHED), PodState(WorkerState.UNKNOWN)))]

    simulate(scenario())


@pytest.mark.parametrize("broken", [False, True])
def test_the_observer_gets_waiting_times_and_durations_of_syncs(broken: bool) -> None:
    async def scenario() -> None:
        observer = FakeObserver(broken=broken)

        async with running_workers(observer) as harness:
            harness.syncer.behave("sync_pod", "web", lasting(2))
            await asyncio.sleep(1)
            harness.workers.update_pod(create(pod("web"), start_time=0.5))
            await asyncio.sleep(1)
            harness.workers.update_pod(change(pod("web"), start_time=2.0))
            await asyncio.sleep(0.5)
            harness.workers.update_pod(change(pod("web"), start_time=2.5))  # waits with the time of the one it replaced
            await asyncio.sleep(3)
            harness.workers.update_pod(kill(pod("web")))  # without a start time
            await asyncio.sleep(1)
            harness.workers.sync_known_pods([WEB])
        finished = PodWorkerSync(PodWorkerState.TERMINATED, orphan=False, has_config=True, static=False)
        assert observer.seen == [
            ("started", "web", 1),
            ("begun", "create", 0.5),
            ("ended", "create", 2.5),
            ("begun", "update", 1.0),
            ("ended", "update", 3.0),
            ("working", {WEB: finished}),
        ]

    simulate(scenario())


def test_the_last_sync_is_counted_separately() -> None:
    async def scenario() -> None:
        observer = FakeObserver()
        async with running_workers(observer) as harness:
            harness.workers.update_pod(create(pod("web")))
            await calm()
            harness.syncer.behave("sync_terminated_pod", "web", failing(TryLater("cannot")))
            harness.workers.update_pod(kill(pod("web")))
            await calm()
            harness.syncer.behaviours.clear()
            harness.workers.update_pod(change(pod("web"), start_time=0.0))
            await calm()
        assert [seen[1] for seen in observer.seen if seen[0] == "ended"] == ["terminated"]

    simulate(scenario())
