"""The pod workers at their boundaries: the predicates in every state, log levels, and which pods are counted."""

import asyncio
import gc
import logging
import weakref

import pytest

from podkeeper.engine.cache import PodCache
from podkeeper.engine.syncer import PodSyncer
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import GiveUp, TryLater
from podkeeper.model.history import Cause, HistoryEvent, RetryScheduled, SyncEnded, SyncError, SyncResult, SyncStarted
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import Terminated
from podkeeper.rules.worker.updates import KillOptions
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync, WorkerTable
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.worker_harness import (
    ALL_THE_WAY,
    BUGS,
    DB,
    WEB,
    FakeObserver,
    ScriptedCache,
    ScriptedSyncer,
    WorkersHarness,
    again,
    calm,
    create,
    failing,
    kill,
    lasting,
    never,
    pod,
    running_workers,
    static,
)

# Questions.

QUESTIONS = (
    "is_pod_known_terminated",
    "could_have_running_containers",
    "is_pod_termination_requested",
    "should_pod_containers_be_terminating",
    "should_pod_runtime_be_removed",
    "should_pod_content_be_removed",
    "should_pod_be_finished",
)
MAY_RUN = {"could_have_running_containers"}
ENDS = {"is_pod_termination_requested", "should_pod_content_be_removed"}
STOPS = ENDS | {"should_pod_containers_be_terminating"}
STOPPED = STOPS | {"is_pod_known_terminated", "should_pod_runtime_be_removed"}
GONE = {
    "should_pod_containers_be_terminating",
    "should_pod_runtime_be_removed",
    "should_pod_content_be_removed",
    "should_pod_be_finished",
}


def yes(workers: PodWorkers, uid: PodUID) -> set[str]:
    """The questions about a pod to which the answer is yes."""
    return {question for question in QUESTIONS if getattr(workers, question)(uid)}


def test_the_predicates_of_an_evicted_pod_in_each_state() -> None:
    async def reluctant() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            raise

    async def scenario() -> None:
        async with running_workers() as harness:
            workers = harness.workers
            harness.syncer.behave("sync_pod", "web", reluctant)
            for function in ALL_THE_WAY[1:]:
                harness.syncer.behave(function, "web", lasting(1))
            assert yes(workers, WEB) == MAY_RUN
            workers.update_pod(create(pod("web")))
            await calm()
            assert yes(workers, WEB) == MAY_RUN
            workers.update_pod(kill(pod("web"), KillOptions(evict=True)))
            assert yes(workers, WEB) == MAY_RUN | ENDS
            await asyncio.sleep(1.5)
            assert yes(workers, WEB) == MAY_RUN | STOPS
            await asyncio.sleep(1)
            assert yes(workers, WEB) == STOPPED
            await asyncio.sleep(1)
            assert yes(workers, WEB) == STOPPED | {"should_pod_be_finished"}
            assert yes(workers, DB) == MAY_RUN
            workers.sync_known_pods([])
            assert yes(workers, WEB) == yes(workers, DB) == GONE

    simulate(scenario())


def test_predicates_of_static_pods_with_one_name() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            workers, name = harness.workers, "static_ns"

            def line() -> tuple[bool, PodUID | None, tuple[PodUID, ...]]:
                terminating = workers.is_pod_for_mirror_pod_terminating(name)
                return terminating, workers.next_in_line(name), workers.waiting(name)

            assert line() == (False, None, ())
            harness.syncer.behave("sync_terminating_pod", "static", lasting(1))
            for uid in ("s1", "s2", "s3"):
                workers.update_pod(create(static(uid=uid)))
            await calm()
            assert line() == (False, None, ("s2", "s3"))
            workers.update_pod(kill(static(uid="s1")))
            await calm()
            assert line() == (True, None, ("s2", "s3"))
            await asyncio.sleep(2)
            assert line() == (False, "s2", ("s2", "s3"))
            assert [full_name for _, full_name in harness.left] == [name]
            workers.update_pod(again(static(uid="s2")))
            workers.sync_known_pods([PodUID("s2")])  # s1 has finished, and s3 has never started
            await calm()
            assert line() == (False, None, ())
            assert [full_name for _, full_name in harness.left] == [name, name]

    simulate(scenario())


# Kills.


@pytest.mark.parametrize("evict, cause", [(None, Cause.KILLED), (False, Cause.KILLED), (True, Cause.EVICTED)])
def test_a_kill_is_an_eviction_only_if_the_caller_requests_it(evict: bool | None, cause: Cause) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.behave("sync_terminated_pod", "web", never)
            harness.workers.update_pod(create(pod("web", grace=7)))
            await calm()
            if evict is None:
                await harness.workers.kill_pod(pod("web", grace=7))
            else:
                await harness.workers.kill_pod(pod("web", grace=7), evict=evict)
            state = harness.workers.state(WEB)
            assert isinstance(state, Terminated)
            assert state.cause is cause
            assert [call.argument for call in harness.syncer.calls[1:2]] == [7]

    simulate(scenario())


@pytest.mark.parametrize("override, seconds", [(None, 45), (100, 150), (2, 10)])
def test_a_kill_timeout_is_1_5_times_the_grace_period(override: int | None, seconds: float) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.behave("sync_terminating_pod", "web", never)
            harness.workers.update_pod(create(pod("web", grace=30)))
            await calm()
            began = asyncio.get_running_loop().time()
            with pytest.raises(TryLater):
                await harness.workers.kill_pod(pod("web", grace=30), grace_override_seconds=override)
            assert asyncio.get_running_loop().time() - began == pytest.approx(seconds)

    simulate(scenario())


# Failed syncs.

FAILURES: dict[str, tuple[Exception, str]] = {
    "a plain bug": (BUGS["a plain bug"], "'oops'"),
    "one whose text cannot be read": (BUGS["an exception whose text cannot be read"], "NoMessage"),
    "one without a text": (BUGS["an exception without a text"], "RuntimeError"),
    "a group of bugs": (BUGS["a group of bugs"], "cannot; 'oops'"),
    "a backoff without a time zone": (BUGS["a backoff without a time zone"], "cannot"),
    "a nested group that repeats itself": (
        ExceptionGroup("", [TryLater("one"), ExceptionGroup("", [TryLater("two"), TryLater("one")])]),
        "one; two; one",
    ),
    "a group of equal errors": (ExceptionGroup("", [TryLater("one"), TryLater("two"), TryLater("one")]), "one; two"),
}


@pytest.mark.parametrize("error, text", FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("reading", [False, True], ids=["in the sync", "while its status is read"])
def test_the_history_has_the_reason_of_a_failed_sync_and_the_time_of_the_next(
    error: Exception, text: str, reading: bool
) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            if reading:
                harness.cache.behaviour = failing(error)
            else:
                harness.syncer.behave("sync_pod", "web", failing(error))
            harness.workers.update_pod(create(pod("web")))
            await calm()
            assert [entry for entry in harness.history if isinstance(entry[1], SyncError)] == [(WEB, SyncError(text))]
            ((uid, delay),) = harness.queued
            assert uid == WEB
            assert 10 <= delay <= 15
            assert harness.history[-1] == (WEB, RetryScheduled(delay))

    simulate(scenario())


@pytest.mark.parametrize("ends, result", [(False, SyncResult.DONE), (True, SyncResult.POD_ENDED)])
def test_the_history_shows_whether_a_pod_has_ended_by_itself(ends: bool, result: SyncResult) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.ending = {"web"} if ends else set()
            harness.workers.update_pod(create(pod("web")))
            await calm()
            ended = next(entry for entry in harness.history if isinstance(entry[1], SyncEnded))
            assert ended == (WEB, SyncEnded(result))

    simulate(scenario())


LEVELS: dict[str, tuple[Exception, list[int]]] = {
    "an error of the agent": (TryLater("cannot"), [logging.WARNING]),
    "a group of such errors": (ExceptionGroup("", [TryLater("a"), GiveUp("b", "reason")]), [logging.WARNING]),
    "a nested group of such errors": (
        ExceptionGroup("", [TryLater("a"), ExceptionGroup("", [GiveUp("b", "reason")])]),
        [logging.WARNING],
    ),
    "a bug": (KeyError("oops"), [logging.ERROR]),
    "a group with a bug in it": (ExceptionGroup("", [TryLater("a"), KeyError("oops")]), [logging.ERROR]),
    "a backoff without a time zone": (BUGS["a backoff without a time zone"], [logging.ERROR, logging.WARNING]),
}


@pytest.mark.parametrize("error, levels", LEVELS.values(), ids=LEVELS.keys())
def test_only_an_unexpected_error_is_logged_with_its_traceback(
    error: Exception, levels: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.behave("sync_pod", "web", failing(error))
            harness.workers.update_pod(create(pod("web")))
            await calm()

    with caplog.at_level(logging.WARNING, "podkeeper.engine.workers"):
        simulate(scenario())
    logged = [(entry.levelno, entry.exc_info is not None) for entry in caplog.records]
    assert logged == [(level, level == logging.ERROR) for level in levels]


def test_without_errors_no_observer_is_needed_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        syncer, queued = ScriptedSyncer(), list[tuple[PodUID, float]]()
        workers = PodWorkers(
            syncer=stand_in(PodSyncer, syncer),
            cache=stand_in(PodCache, ScriptedCache()),
            enqueue=lambda uid, delay: queued.append((uid, delay)),
            record_event=lambda *_: None,
            clock=VirtualClock(),
            inspection_clock=asyncio.get_running_loop().time,
            states=WorkerTable(),
        )
        running = asyncio.ensure_future(workers.run())
        await calm()
        workers.update_pod(create(static(uid="s1"), start_time=0.0))
        await calm()
        workers.update_pod(kill(static(uid="s1")))
        await calm()
        assert workers.sync_known_pods([]) == {}
        assert syncer.of("static") == ALL_THE_WAY
        assert [uid for uid, _ in queued] == ["s1", "s1"]
        running.cancel()
        await asyncio.wait({running})

    with caplog.at_level(logging.WARNING):
        simulate(scenario())
    assert caplog.records == []


@pytest.mark.parametrize("error, count", [(TryLater("connection lost"), 0), (KeyError("oops"), 1)])
def test_only_an_unexpected_error_of_the_cache_is_logged(
    error: Exception, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.cache.error = error
            harness.workers.update_pod(create(pod("web")))
            harness.cache.error = None
            await calm()

    with caplog.at_level(logging.ERROR, "podkeeper.engine.workers"):
        simulate(scenario())
    assert len(caplog.records) == count


# Counts.


def test_each_pod_is_counted_when_it_starts_and_those_without_configuration_never() -> None:
    async def scenario() -> None:
        observer = FakeObserver()
        async with running_workers(observer) as harness:
            for uid in ("s1", "s2"):
                harness.workers.update_pod(create(static(uid=uid)))
            harness.workers.update_pod(create(pod("web")))
            harness.workers.update_pod(kill(PodRecord(uid="lost", name="lost", namespace="ns")))
            await calm()
            assert observer.seen == [("started", "s1", 1), ("started", "web", 1)]
            harness.workers.update_pod(kill(static(uid="s1")))
            await calm()
            harness.workers.update_pod(again(static(uid="s2")))
            harness.workers.update_pod(again(pod("web")))
            await calm()
            assert observer.seen[2:] == [("started", "s2", 1)]
            harness.workers.sync_known_pods([WEB, PodUID("s2")])
            running = {"orphan": False, "has_config": True}
            assert observer.seen[3:] == [
                (
                    "working",
                    {
                        "s2": PodWorkerSync(PodWorkerState.SYNC, static=True, **running),
                        "web": PodWorkerSync(PodWorkerState.SYNC, static=False, **running),
                    },
                )
            ]

    simulate(scenario())


def test_the_end_of_an_orphan_releases_no_name() -> None:
    async def scenario() -> None:
        bugs: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, bug: bugs.append(bug))
        async with running_workers() as harness:
            harness.workers.update_pod(kill(PodRecord(uid="lost", name="static", namespace="ns")))
            await calm()
            assert [call.function for call in harness.syncer.calls] == ["sync_terminating_runtime_pod"]
            assert (harness.left, bugs) == ([], [])

    simulate(scenario())


# Begin and end.


def test_a_module_may_add_a_pod_while_the_first_syncs_begin() -> None:
    async def scenario() -> None:
        harness = WorkersHarness()

        def add(uid: PodUID, event: HistoryEvent) -> None:
            if uid == WEB and isinstance(event, SyncStarted):
                harness.workers.update_pod(create(pod("db")))

        harness.on_history = add
        harness.workers.update_pod(create(pod("web")))
        harness.workers.update_pod(create(pod("cron")))
        harness.start()
        await calm()
        assert sorted(call.name for call in harness.syncer.calls) == ["cron", "db", "web"]
        assert harness.running is not None
        assert not harness.running.done()
        await harness.stop()

    simulate(scenario())


def test_a_pod_killed_before_the_agent_runs_is_stopped_once_it_does() -> None:
    async def scenario() -> None:
        harness = WorkersHarness()
        harness.workers.update_pod(create(pod("web")))
        harness.workers.update_pod(kill(pod("web")))
        await calm()
        assert harness.syncer.calls == []
        harness.start()
        await calm()
        assert [call.function for call in harness.syncer.calls] == ALL_THE_WAY[1:]
        await harness.stop()

    simulate(scenario())


def test_stopped_workers_refuse_every_update_and_sweep() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.behave("sync_pod", "web", never)
            harness.workers.update_pod(create(pod("web")))
            await calm()
        history = list(harness.history)
        for update in (again(pod("web")), kill(PodRecord(uid="lost", name="lost", namespace="ns"))):
            with pytest.raises(TryLater, match=r"(web|lost)_ns"):
                harness.workers.update_pod(update)
        with pytest.raises(TryLater):
            harness.workers.sync_known_pods([])
        assert harness.workers.updated_since_housekeeping() == {WEB}
        assert (harness.history, harness.queued) == (history, [])

    simulate(scenario())


def test_nothing_is_kept_of_a_sync_that_has_ended() -> None:
    async def scenario() -> None:
        tasks: list[weakref.ref[object]] = []

        async def note() -> None:
            tasks.append(weakref.ref(asyncio.current_task()))

        async with running_workers() as harness:
            harness.syncer.behave("sync_terminating_runtime_pod", "lost", note)
            harness.workers.update_pod(kill(PodRecord(uid="lost", name="lost", namespace="ns")))
            await calm()
            gc.collect()
            assert [task() for task in tasks] == [None]

    simulate(scenario())
