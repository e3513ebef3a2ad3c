"""The pod workers in virtual time: syncs, cancellation, order of static pods, faults, the end of the agent."""

import asyncio
from datetime import timedelta

import pytest

from podkeeper.model.errors import AgentError, BadInput, InBackoff, NetworkNotReady, TryLater
from podkeeper.model.history import Cause
from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import (
    Finished,
    NeverStarted,
    Syncing,
    Terminated,
    TerminationRequested,
    Unknown,
)
from podkeeper.rules.worker.updates import KillOptions, UpdateType
from podkeeper.rules.worker.workers import PodWorkerState, PodWorkerSync
from podkeeper.testing import build
from podkeeper.testing.virtual_time import BEGINNING, simulate
from tests.engine.worker_harness import (
    ALL_THE_WAY,
    DB,
    WEB,
    Called,
    WorkersHarness,
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

# One pod.


def test_a_pod_runs_through_all_states() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            stopped = asyncio.Event()
            harness.workers.update_pod(create(pod("web", grace=30)))
            assert isinstance(harness.workers.state(WEB), Syncing)  # before anything was awaited
            await calm()
            assert harness.syncer.of("web") == ["sync_pod"]
            assert not harness.workers.is_pod_termination_requested(WEB)
            harness.workers.update_pod(kill(pod("web", grace=30), KillOptions(completed=stopped)))
            assert harness.workers.is_pod_termination_requested(WEB)
            await calm()
            assert stopped.is_set()
            assert harness.syncer.of("web") == ALL_THE_WAY
            assert harness.syncer.calls[1].argument == 30
            assert harness.workers.should_pod_be_finished(WEB)
            assert harness.workers.sync_known_pods([]) == {}
            assert harness.workers.state(WEB) == Unknown()

    simulate(scenario())


def test_a_pod_that_ends_by_itself_is_cleaned_up_at_once() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.ending.add("job")
            harness.workers.update_pod(create(pod("job")))
            await calm()
            assert harness.syncer.of("job") == ALL_THE_WAY
            state = harness.workers.state(PodUID("job"))
            assert isinstance(state, Finished)
            assert state.cause is Cause.COMPLETED

    simulate(scenario())


def test_each_sync_gets_a_record_newer_than_the_last_sync() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.workers.update_pod(create(pod("web")))
            await asyncio.sleep(10)
            harness.workers.update_pod(again(pod("web")))
            await calm()
            assert harness.cache.requests == [(WEB, None), (WEB, 0.0)]
            assert [record.name for record in harness.syncer.records] == ["record 1", "record 2"]

    simulate(scenario())


def test_a_runtime_only_pod_is_killed_without_an_inspection_and_dropped() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.workers.update_pod(kill(PodRecord(uid="lost", name="lost", namespace="ns")))
            await calm()
            assert harness.syncer.of("lost") == ["sync_terminating_runtime_pod"]
            assert harness.cache.requests == []
            assert harness.workers.state(PodUID("lost")) == Unknown()

    simulate(scenario())


def test_housekeeping_kills_an_orphan_and_drops_finished_pods() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            for name in ("web", "db"):
                harness.workers.update_pod(create(pod(name)))
            await calm()
            known = harness.workers.sync_known_pods([WEB])
            assert known == {
                WEB: PodWorkerSync(PodWorkerState.SYNC, orphan=False, has_config=True, static=False),
                DB: PodWorkerSync(PodWorkerState.TERMINATING, orphan=True, has_config=True, static=False),
            }
            await calm()
            assert harness.syncer.of("db") == ALL_THE_WAY
            assert harness.workers.sync_known_pods([WEB]).keys() == {WEB}

    simulate(scenario())


def test_updated_since_sweep_counts_from_the_last_sweep() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.workers.update_pod(create(pod("web")))
            assert harness.workers.updated_since_housekeeping() == {WEB}
            harness.workers.sync_known_pods([WEB])
            assert harness.workers.updated_since_housekeeping() == frozenset()
            harness.workers.update_pod(kill(pod("db")))
            with pytest.raises(BadInput):
                harness.workers.update_pod(kill(pod("anonymous", uid="")))
            assert harness.workers.updated_since_housekeeping() == {DB}

    simulate(scenario())


# Retries.


def test_delays_have_up_to_50_percent_jitter() -> None:
    async def scenario() -> list[float]:
        async with running_workers() as harness:
            for _ in range(200):
                harness.workers.update_pod(again(pod("web")))
                await calm()
            harness.syncer.ending.add("job")
            harness.workers.update_pod(create(pod("job")))
            await calm()
            assert {delay for uid, delay in harness.queued if uid == "job"} == {0}
            return [delay for uid, delay in harness.queued if uid == "web"]

    delays, _ = simulate(scenario())
    assert len(delays) == 200
    assert 60 <= min(delays) < 65
    assert 85 < max(delays) < 90


PAUSES: dict[str, tuple[Exception, float]] = {
    "an ordinary failure": (TryLater("cannot"), 10),
    "a bug": (KeyError("oops"), 10),
    "the network is not ready": (NetworkNotReady("cannot"), 1),
    "a backoff": (InBackoff("cannot", BEGINNING + timedelta(seconds=25)), 25),
    "a backoff that is over": (InBackoff("cannot", BEGINNING), 0),
    "a backoff longer than the resync": (InBackoff("cannot", BEGINNING + timedelta(hours=1)), 60),
    "several backoffs": (
        ExceptionGroup("", [InBackoff("x", BEGINNING + timedelta(seconds=s)) for s in (40, 7, 30)]),
        7,
    ),
}


@pytest.mark.parametrize("error, nominal_seconds", PAUSES.values(), ids=PAUSES.keys())
def test_a_failed_sync_is_retried_after(error: Exception, nominal_seconds: float) -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.behave("sync_pod", "web", failing(error))
            harness.workers.update_pod(create(pod("web")))
            await calm()
            ((_, delay),) = harness.queued
            assert nominal_seconds <= delay <= 1.5 * nominal_seconds
            assert harness.syncer.of("web") == ["sync_pod"]

    simulate(scenario())


def test_a_failed_read_of_the_record_is_recorded_and_retried() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.cache.behaviour = failing(TryLater("cannot inspect"))
            harness.workers.update_pod(create(pod("web")))
            await calm()
            assert harness.syncer.calls == []
            assert harness.recorded == [("FailedSync", pod("web"))]
            harness.cache.behaviour = None
            harness.workers.update_pod(again(pod("web")))
            await calm()
            assert harness.syncer.of("web") == ["sync_pod"]

    simulate(scenario())


# Pods do not delay each other.


def test_one_pod_that_hangs_delays_no_other() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            pods = [pod(f"pod-{number}") for number in range(100)]
            harness.syncer.behave("sync_pod", "pod-0", never)
            for each in pods:
                harness.workers.update_pod(create(each))
            await calm()
            assert {call.name for call in harness.syncer.calls} == {each.metadata.name for each in pods}
            for each in pods[1:]:
                harness.workers.update_pod(kill(each))
            await calm()
            for each in pods[1:]:
                assert harness.syncer.of(each.metadata.name or "") == ALL_THE_WAY
            assert all(call.at < 1e-3 for call in harness.syncer.calls)
            assert harness.workers.could_have_running_containers(PodUID("pod-0"))

    simulate(scenario())


def test_a_pod_without_a_record_delays_no_other_and_can_be_killed() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.cache.behaviour = never
            harness.workers.update_pod(create(pod("web")))
            await calm()
            harness.cache.behaviour = None
            harness.workers.update_pod(create(pod("db")))
            await calm()
            assert harness.syncer.of("db") == ["sync_pod"]
            harness.workers.update_pod(kill(pod("web")))
            await calm()
            assert harness.syncer.of("web") == ["sync_terminating_pod", "sync_terminated_pod"]

    simulate(scenario())


def test_idle_pods_hold_no_tasks() -> None:
    async def scenario() -> int:
        async with running_workers() as harness:
            for number in range(10_000):
                harness.workers.update_pod(create(pod(f"pod-{number}")))
            await calm()
            assert len(harness.syncer.calls) == 10_000
            return len(asyncio.all_tasks())

    assert simulate(scenario())[0] == 2  # this one, and the workers' own


def test_only_the_latest_of_many_updates_is_synced() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        async with running_workers() as harness:
            harness.syncer.behave("sync_pod", "web", wait)
            harness.workers.update_pod(create(pod("web")))
            for version in range(1, 1001):
                harness.workers.update_pod(change(pod("web", labels={"version": str(version)})))
                await asyncio.sleep(0)
            assert len(harness.syncer.calls) == 1
            gate.set()
            await calm()
            assert [call.argument for call in harness.syncer.calls] == ["create 0", "update 1000"]

    simulate(scenario())


# Cancelled syncs.


def test_a_kill_cancels_the_sync_once_and_waits_for_its_end() -> None:
    async def scenario() -> None:
        cuts: list[float] = []

        async def finish_what_is_in_flight() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                cuts.append(asyncio.get_running_loop().time())
                await asyncio.sleep(2)
                raise

        async with running_workers() as harness:
            harness.syncer.behave("sync_pod", "web", finish_what_is_in_flight)
            harness.workers.update_pod(create(pod("web", grace=30)))
            await asyncio.sleep(1)
            for _ in range(3):  # the later ones change nothing
                harness.workers.update_pod(kill(pod("web", grace=30)))
            assert isinstance(harness.workers.state(WEB), TerminationRequested)
            assert not harness.workers.should_pod_containers_be_terminating(WEB)  # not while that sync may go on
            await asyncio.sleep(1.5)
            assert harness.syncer.of("web") == ["sync_pod"]
            await asyncio.sleep(1)
            assert cuts == [1]
            assert harness.syncer.calls[1] == Called(3, "sync_terminating_pod", "web", 30)
            assert isinstance(harness.workers.state(WEB), Finished)

    simulate(scenario())


def test_each_shorter_grace_period_cancels_the_sync_again() -> None:
    async def scenario() -> None:
        cuts: list[float] = []

        async def stubborn() -> None:
            for _ in range(2):
                try:
                    await never()
                except asyncio.CancelledError:
                    cuts.append(asyncio.get_running_loop().time())

        async with running_workers() as harness:
            harness.syncer.behave("sync_terminating_pod", "web", stubborn)
            harness.workers.update_pod(create(pod("web")))
            await calm()
            for grace in (600, 60, 60, 6):
                harness.workers.update_pod(kill(pod("web"), KillOptions(grace_override_seconds=grace)))
                await asyncio.sleep(1)
            assert len(cuts) == 2
            assert harness.syncer.of("web") == [
                *ALL_THE_WAY[:2],
                "sync_terminated_pod",
            ]  # it succeeded although it was cancelled

    simulate(scenario())


def test_a_cancelled_sync_may_still_succeed() -> None:
    async def scenario() -> None:
        async def end_anyway() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                return

        async with running_workers() as harness:
            harness.syncer.ending.add("web")
            harness.syncer.behave("sync_pod", "web", end_anyway)
            harness.workers.update_pod(create(pod("web")))
            await calm()
            harness.workers.update_pod(kill(pod("web"), KillOptions(evict=True)))
            await calm()
            state = harness.workers.state(WEB)
            assert isinstance(state, Finished)
            assert state.cause is Cause.EVICTED
            assert (WEB, 0) in harness.queued  # it moved on, it did not fail

    simulate(scenario())


def test_a_sync_that_raises_cancelled_by_itself_has_failed() -> None:
    async def scenario() -> None:
        async def give_up() -> None:
            raise asyncio.CancelledError

        async with running_workers() as harness:
            harness.syncer.behave("sync_pod", "web", give_up)
            harness.workers.update_pod(create(pod("web")))
            harness.workers.update_pod(create(pod("db")))
            await calm()
            assert [uid for uid, delay in harness.queued if delay < 20] == [WEB]
            assert harness.syncer.of("db") == ["sync_pod"]
            assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]  # there is a task

    simulate(scenario())


def test_a_pod_killed_before_the_first_step_of_its_sync_is_never_synced() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.workers.update_pod(create(pod("web")))
            harness.workers.update_pod(kill(pod("web")))
            await calm()
            assert harness.syncer.of("web") == ["sync_terminating_pod", "sync_terminated_pod"]

    simulate(scenario())


def test_a_cache_that_swallows_a_cancellation_starts_nothing() -> None:
    async def scenario() -> None:
        async def swallow() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                harness.cache.behaviour = None

        async with running_workers() as harness:
            harness.cache.behaviour = swallow
            harness.workers.update_pod(create(pod("web")))
            await calm()
            harness.workers.update_pod(kill(pod("web")))
            await calm()
            assert harness.syncer.of("web") == ["sync_terminating_pod", "sync_terminated_pod"]

    simulate(scenario())


def test_a_running_grace_period_is_shortened() -> None:
    async def scenario() -> float:
        async with running_workers() as harness:
            stopped = asyncio.Event()

            async def stubborn() -> None:
                grace = harness.syncer.calls[-1].argument
                assert isinstance(grace, int)
                await asyncio.sleep(grace)

            harness.syncer.behave("sync_terminating_pod", "web", stubborn)
            harness.workers.update_pod(create(pod("web")))
            await asyncio.sleep(1)
            harness.workers.update_pod(kill(pod("web"), KillOptions(grace_override_seconds=600)))
            await asyncio.sleep(9)
            harness.workers.update_pod(kill(pod("web"), KillOptions(grace_override_seconds=2, completed=stopped)))
            await stopped.wait()
            return asyncio.get_running_loop().time()

    assert simulate(scenario())[0] == 12.0


def test_a_sync_may_kill_its_own_pod() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:

            async def evict_myself() -> None:
                harness.workers.update_pod(kill(pod("web"), KillOptions(evict=True)))
                await never()

            harness.syncer.behave("sync_pod", "web", evict_myself)
            harness.workers.update_pod(create(pod("web")))
            await calm()
            assert harness.syncer.of("web") == ALL_THE_WAY

    simulate(scenario())


def test_a_sync_that_cancels_itself_in_its_last_step_has_succeeded() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:

            async def shorten_own_grace() -> None:
                harness.workers.update_pod(kill(pod("web"), KillOptions(grace_override_seconds=2)))

            harness.syncer.behave("sync_terminating_pod", "web", shorten_own_grace)
            harness.workers.update_pod(create(pod("web", grace=30)))
            await calm()
            harness.workers.update_pod(kill(pod("web", grace=30)))
            await calm()
            assert harness.syncer.of("web") == ALL_THE_WAY

    simulate(scenario())


def test_a_callback_sees_consistent_workers() -> None:
    """The signal fires between the orders of one decision, and cancels the sync that is ordered next."""

    async def scenario() -> None:
        async with running_workers() as harness:

            class Caller:
                def set(self) -> None:
                    harness.workers.update_pod(kill(pod("web"), KillOptions(evict=True)))

            harness.workers.update_pod(create(pod("web")))
            await calm()
            useless_kill = KillOptions(completed=Caller())  # kill options without a kill complete at once
            harness.workers.update_pod(build.update(UpdateType.UPDATE, pod("web"), kill=useless_kill))
            await calm()
            state = harness.workers.state(WEB)
            assert isinstance(state, Finished)
            assert state.cause is Cause.EVICTED
            assert harness.syncer.of("web") == ALL_THE_WAY

    simulate(scenario())


# Static pods in line.


def test_static_pods_of_one_name_run_in_order_and_the_next_is_reported_at_once() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.behave("sync_terminated_pod", "static", lasting(5))
            for uid in ("s1", "s2", "s3"):
                harness.workers.update_pod(create(static(uid=uid)))
            await calm()
            assert harness.workers.waiting("static_ns") == ("s2", "s3")
            assert harness.workers.next_in_line("static_ns") is None
            assert len(harness.syncer.calls) == 1
            assert {uid: delay >= 10 for uid, delay in harness.queued} == {"s1": True, "s2": True, "s3": True}
            harness.workers.update_pod(kill(static(uid="s1")))
            assert harness.workers.is_pod_for_mirror_pod_terminating("static_ns")
            await asyncio.sleep(6)
            ((at, name),) = harness.left
            assert name == "static_ns"
            assert at == pytest.approx(5, abs=1e-3)
            assert harness.workers.next_in_line("static_ns") == "s2"
            harness.workers.update_pod(again(static(uid="s2")))
            assert harness.workers.next_in_line("static_ns") is None
            assert harness.workers.waiting("static_ns") == ("s3",)
            await calm()
            assert harness.syncer.calls[-1].function == "sync_pod"
            harness.workers.sync_known_pods([PodUID("s2"), PodUID("s3")])
            assert harness.workers.state(PodUID("s1")) == Unknown()
            assert len(harness.left) == 1  # forgetting a pod that has ended is not reported

    simulate(scenario())


def test_a_successor_starts_when_its_predecessor_finishes() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            started: list[float] = []

            def wake(full_name: str) -> None:
                uid = harness.workers.next_in_line(full_name)
                if uid is not None:
                    started.append(asyncio.get_running_loop().time())
                    harness.workers.update_pod(again(static(uid=uid)))

            harness.on_left = wake
            for uid in ("s1", "s2"):
                harness.workers.update_pod(create(static(uid=uid)))
            await asyncio.sleep(7)
            harness.workers.update_pod(kill(static(uid="s1")))
            await calm()
            assert started == [7]
            assert isinstance(harness.workers.state(PodUID("s2")), Syncing)

    simulate(scenario())


def test_an_update_during_a_sweep_counts_as_since_that_sweep() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            for uid in ("s1", "s2", "s3"):
                harness.workers.update_pod(create(static(uid=uid)))
            harness.on_left = lambda _: harness.workers.update_pod(create(pod("web")))
            known = harness.workers.sync_known_pods([PodUID("s1"), PodUID("s2")])  # s3 leaves the line
            assert WEB not in known
            assert harness.workers.updated_since_housekeeping() == {WEB}

    simulate(scenario())


def test_the_end_of_a_static_pod_is_reported_and_of_an_api_pod_is_not() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            for uid in ("s1", "s2", "s3"):
                harness.workers.update_pod(create(static(uid=uid)))
            harness.workers.update_pod(kill(static(uid="s2")))
            assert harness.workers.state(PodUID("s2")) == NeverStarted(Cause.KILLED)
            assert len(harness.left) == 1
            harness.workers.sync_known_pods([PodUID("s1")])
            assert isinstance(harness.workers.state(PodUID("s3")), Unknown)
            assert len(harness.left) == 2  # forgetting s2, which has ended, is not reported
            harness.workers.update_pod(create(pod("web")))
            harness.workers.update_pod(kill(pod("web")))
            await calm()
            assert harness.workers.should_pod_be_finished(WEB)
            assert len(harness.left) == 2

    simulate(scenario())


# The agent's own beginning and end.


def test_updates_before_the_agent_runs_are_executed_when_it_runs() -> None:
    async def scenario() -> None:
        harness = WorkersHarness()
        for name in ("web", "db", "gone"):
            harness.workers.update_pod(create(pod(name)))
        harness.workers.update_pod(kill(pod("gone")))
        harness.workers.update_pod(kill(PodRecord(uid="lost", name="lost")))
        await asyncio.sleep(5)
        assert harness.syncer.calls == []
        assert isinstance(harness.workers.state(WEB), Syncing)
        harness.start()
        await calm()
        assert harness.syncer.of("web") == harness.syncer.of("db") == ["sync_pod"]
        assert harness.syncer.of("gone") == ["sync_terminating_pod", "sync_terminated_pod"]
        assert harness.syncer.of("lost") == ["sync_terminating_runtime_pod"]
        await harness.stop()

    simulate(scenario())


def test_stopping_the_agent_stops_no_pod() -> None:
    async def scenario() -> None:
        async def finish_what_is_in_flight() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                await asyncio.sleep(3)
                raise

        async def end_well() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                return

        harness = WorkersHarness()
        harness.start()
        harness.syncer.behave("sync_pod", "web", finish_what_is_in_flight)
        harness.syncer.behave("sync_terminating_pod", "db", end_well)
        for name in ("web", "db", "idle"):
            harness.workers.update_pod(create(pod(name)))
        await calm()
        harness.workers.update_pod(kill(pod("db")))
        await calm()
        before = [harness.workers.state(uid) for uid in (WEB, DB, PodUID("idle"))]
        argument = len(harness.queued), len(harness.recorded), len(harness.syncer.calls)
        await harness.stop()
        assert asyncio.get_running_loop().time() == pytest.approx(3, abs=1e-3)  # what was in flight is done
        assert harness.running is not None
        assert harness.running.cancelled()
        assert [harness.workers.state(uid) for uid in (WEB, DB, PodUID("idle"))] == before
        assert (len(harness.queued), len(harness.recorded), len(harness.syncer.calls)) == argument
        with pytest.raises(TryLater, match="cannot update pod web_ns: the agent is stopping"):
            harness.workers.update_pod(kill(pod("web")))
        with pytest.raises(TryLater, match="stopping"):
            harness.workers.sync_known_pods([])
        with pytest.raises(TryLater, match="stopping"):
            await harness.workers.kill_pod(pod("web"))
        with pytest.raises(RuntimeError, match="twice"):
            await harness.workers.run()

    simulate(scenario())


def test_the_workers_run_once() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            with pytest.raises(RuntimeError, match="twice"):
                await harness.workers.run()
            harness.workers.update_pod(create(pod("web")))
            await calm()
            assert harness.syncer.of("web") == ["sync_pod"]

    simulate(scenario())


# Killing and waiting.


def test_a_kill_waits_until_no_container_runs() -> None:
    async def scenario() -> float:
        async with running_workers() as harness:
            harness.syncer.behave("sync_terminating_pod", "web", lasting(4))
            harness.syncer.behave("sync_terminated_pod", "web", never)
            harness.workers.update_pod(create(pod("web", grace=30)))
            await asyncio.sleep(1)
            touched: list[PodStatus] = []

            def last_touch(status: PodStatus) -> PodStatus:
                touched.append(status)
                return status

            await harness.workers.kill_pod(
                pod("web", grace=30), evict=True, grace_override_seconds=5, status_function=last_touch
            )
            assert harness.syncer.calls[1].argument == 5
            assert touched == [PodStatus()]
            state = harness.workers.state(WEB)
            assert isinstance(state, Terminated)
            assert state.cause is Cause.EVICTED
            return asyncio.get_running_loop().time()

    assert simulate(scenario())[0] == 5.0


def test_a_kill_of_a_pod_that_does_not_run_does_not_wait() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            for uid in ("s1", "s2"):
                harness.workers.update_pod(create(static(uid=uid)))
            await harness.workers.kill_pod(static(uid="s2"))  # before it may start
            await harness.workers.kill_pod(static(uid="s1"))
            await calm()
            await harness.workers.kill_pod(static(uid="s1"))  # finished by now
            assert isinstance(harness.workers.state(PodUID("s2")), NeverStarted)
            assert harness.recorded == []

    assert simulate(scenario())[1] < 1


def test_a_kill_that_stops_nothing_times_out() -> None:
    async def scenario() -> None:
        async with running_workers() as harness:
            harness.syncer.behave("sync_terminating_pod", "web", never)
            harness.workers.update_pod(create(pod("web", grace=30)))
            await calm()
            before = asyncio.get_running_loop().time()
            with pytest.raises(TryLater, match="web_ns"):
                await harness.workers.kill_pod(pod("web", grace=30))
            assert asyncio.get_running_loop().time() - before == pytest.approx(45)
            assert harness.recorded == [("ExceededGracePeriod", pod("web", grace=30))]
            harness.faults.raising = {"record"}
            with pytest.raises(AgentError):
                await harness.workers.kill_pod(pod("web", grace=30))

    simulate(scenario())
