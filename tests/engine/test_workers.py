"""The pod workers in virtual time: passes, cancellation, static pods in line, faults, the agent's own end."""

import asyncio
from datetime import timedelta

import pytest

from podkeeper.model.errors import AgentError, BadInput, InBackoff, NetworkNotReady, TryLater
from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import (
    Cause,
    Finished,
    NeverStarted,
    Syncing,
    Terminated,
    TerminationRequested,
    Unknown,
)
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import KnownPod, Stage
from podkeeper.testing.virtual_time import BEGINNING, simulate
from tests.engine.worker_house import (
    ALL_THE_WAY,
    DB,
    WEB,
    Called,
    House,
    again,
    calm,
    change,
    create,
    failing,
    house,
    kill,
    kill_orphan,
    lasting,
    never,
    pod,
    static,
)

# One pod's life.


def test_a_pod_lives_from_its_creation_to_its_end() -> None:
    async def scenario() -> None:
        async with house() as home:
            stopped = asyncio.Event()
            home.workers.update_pod(create(pod("web", grace=30)))
            assert isinstance(home.workers.state(WEB), Syncing)  # before anything was awaited
            await calm()
            assert home.syncer.of("web") == ["sync_pod"]
            assert not home.workers.is_pod_termination_requested(WEB)
            home.workers.update_pod(kill(pod("web", grace=30), KillOptions(completed=stopped)))
            assert home.workers.is_pod_termination_requested(WEB)
            await calm()
            assert stopped.is_set()
            assert home.syncer.of("web") == ALL_THE_WAY
            assert home.syncer.calls[1].said == 30
            assert home.workers.should_pod_be_finished(WEB)
            assert home.workers.sync_known_pods([]) == {}
            assert home.workers.state(WEB) == Unknown()

    simulate(scenario())


def test_a_pod_that_ends_by_itself_is_cleaned_up_at_once() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.syncer.ending.add("job")
            home.workers.update_pod(create(pod("job")))
            await calm()
            assert home.syncer.of("job") == ALL_THE_WAY
            state = home.workers.state(PodUID("job"))
            assert isinstance(state, Finished)
            assert state.cause is Cause.COMPLETED

    simulate(scenario())


def test_each_pass_gets_what_was_read_for_it_and_reads_something_newer_than_the_last_pass() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.workers.update_pod(create(pod("web")))
            await asyncio.sleep(10)
            home.workers.update_pod(again(pod("web")))
            await calm()
            assert home.cache.asked == [(WEB, None), (WEB, 0.0)]
            assert [record.name for record in home.syncer.records] == ["look 1", "look 2"]

    simulate(scenario())


def test_a_pod_only_the_runtime_knows_is_killed_without_a_look_and_forgotten() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.workers.update_pod(kill_orphan(PodRecord(uid="lost", name="lost", namespace="ns")))
            await calm()
            assert home.syncer.of("lost") == ["sync_terminating_runtime_pod"]
            assert home.cache.asked == []
            assert home.workers.state(PodUID("lost")) == Unknown()

    simulate(scenario())


def test_an_orphan_is_ended_by_the_sweep_and_the_finished_are_forgotten() -> None:
    async def scenario() -> None:
        async with house() as home:
            for name in ("web", "db"):
                home.workers.update_pod(create(pod(name)))
            await calm()
            known = home.workers.sync_known_pods([WEB])
            assert known == {
                WEB: KnownPod(Stage.SYNC, orphan=False, has_config=True, static=False),
                DB: KnownPod(Stage.TERMINATING, orphan=True, has_config=True, static=False),
            }
            await calm()
            assert home.syncer.of("db") == ALL_THE_WAY
            assert home.workers.sync_known_pods([WEB]).keys() == {WEB}

    simulate(scenario())


def test_told_since_sweep_counts_from_the_last_sweep() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.workers.update_pod(create(pod("web")))
            assert home.workers.told_since_sweep() == {WEB}
            home.workers.sync_known_pods([WEB])
            assert home.workers.told_since_sweep() == frozenset()
            home.workers.update_pod(kill(pod("db")))
            with pytest.raises(BadInput):
                home.workers.update_pod(kill(pod("anonymous", uid="")))
            assert home.workers.told_since_sweep() == {DB}

    simulate(scenario())


# Retries.


def test_delays_are_stretched_by_up_to_half_and_no_delay_stays_none() -> None:
    async def scenario() -> list[float]:
        async with house() as home:
            for _ in range(200):
                home.workers.update_pod(again(pod("web")))
                await calm()
            home.syncer.ending.add("job")
            home.workers.update_pod(create(pod("job")))
            await calm()
            assert {delay for uid, delay in home.queued if uid == "job"} == {0}
            return [delay for uid, delay in home.queued if uid == "web"]

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
def test_a_failed_pass_is_tried_again_after(error: Exception, nominal_seconds: float) -> None:
    async def scenario() -> None:
        async with house() as home:
            home.syncer.behave("sync_pod", "web", failing(error))
            home.workers.update_pod(create(pod("web")))
            await calm()
            ((_, delay),) = home.queued
            assert nominal_seconds <= delay <= 1.5 * nominal_seconds
            assert home.syncer.of("web") == ["sync_pod"]

    simulate(scenario())


def test_an_unreadable_status_is_recorded_and_tried_again() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.cache.behaviour = failing(TryLater("cannot look"))
            home.workers.update_pod(create(pod("web")))
            await calm()
            assert home.syncer.calls == []
            assert home.recorded == [("FailedSync", pod("web"))]
            home.cache.behaviour = None
            home.workers.update_pod(again(pod("web")))
            await calm()
            assert home.syncer.of("web") == ["sync_pod"]

    simulate(scenario())


# Nobody waits for anybody else.


def test_one_pod_that_hangs_delays_no_other() -> None:
    async def scenario() -> None:
        async with house() as home:
            pods = [pod(f"pod-{number}") for number in range(100)]
            home.syncer.behave("sync_pod", "pod-0", never)
            for each in pods:
                home.workers.update_pod(create(each))
            await calm()
            assert {call.name for call in home.syncer.calls} == {each.metadata.name for each in pods}
            for each in pods[1:]:
                home.workers.update_pod(kill(each))
            await calm()
            for each in pods[1:]:
                assert home.syncer.of(each.metadata.name or "") == ALL_THE_WAY
            assert all(call.at < 1e-3 for call in home.syncer.calls)
            assert home.workers.could_have_running_containers(PodUID("pod-0"))

    simulate(scenario())


def test_a_pod_whose_status_never_comes_delays_no_other_and_can_be_killed() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.cache.behaviour = never
            home.workers.update_pod(create(pod("web")))
            await calm()
            home.cache.behaviour = None
            home.workers.update_pod(create(pod("db")))
            await calm()
            assert home.syncer.of("db") == ["sync_pod"]
            home.workers.update_pod(kill(pod("web")))
            await calm()
            assert home.syncer.of("web") == ["sync_terminating_pod", "sync_terminated_pod"]

    simulate(scenario())


def test_idle_pods_hold_no_tasks() -> None:
    async def scenario() -> int:
        async with house() as home:
            for number in range(10_000):
                home.workers.update_pod(create(pod(f"pod-{number}")))
            await calm()
            assert len(home.syncer.calls) == 10_000
            return len(asyncio.all_tasks())

    assert simulate(scenario())[0] == 2  # this one, and the workers' own


def test_of_a_storm_of_updates_only_the_latest_counts() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        async with house() as home:
            home.syncer.behave("sync_pod", "web", wait)
            home.workers.update_pod(create(pod("web")))
            for version in range(1, 1001):
                home.workers.update_pod(change(pod("web", version=version)))
                await asyncio.sleep(0)
            assert len(home.syncer.calls) == 1
            gate.set()
            await calm()
            assert [call.said for call in home.syncer.calls] == ["create 0", "update 1000"]

    simulate(scenario())


# Cutting a pass short.


def test_a_kill_cuts_the_sync_short_once_and_waits_until_it_has_ended() -> None:
    async def scenario() -> None:
        cuts: list[float] = []

        async def finish_what_is_in_flight() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                cuts.append(asyncio.get_running_loop().time())
                await asyncio.sleep(2)
                raise

        async with house() as home:
            home.syncer.behave("sync_pod", "web", finish_what_is_in_flight)
            home.workers.update_pod(create(pod("web", grace=30)))
            await asyncio.sleep(1)
            for _ in range(3):  # the later ones change nothing
                home.workers.update_pod(kill(pod("web", grace=30)))
            assert isinstance(home.workers.state(WEB), TerminationRequested)
            assert not home.workers.should_pod_containers_be_terminating(WEB)  # not while that sync may go on
            await asyncio.sleep(1.5)
            assert home.syncer.of("web") == ["sync_pod"]
            await asyncio.sleep(1)
            assert cuts == [1]
            assert home.syncer.calls[1] == Called(3, "sync_terminating_pod", "web", 30)
            assert isinstance(home.workers.state(WEB), Finished)

    simulate(scenario())


def test_each_new_grace_cuts_the_pass_once_more() -> None:
    async def scenario() -> None:
        cuts: list[float] = []

        async def stubborn() -> None:
            for _ in range(2):
                try:
                    await never()
                except asyncio.CancelledError:
                    cuts.append(asyncio.get_running_loop().time())

        async with house() as home:
            home.syncer.behave("sync_terminating_pod", "web", stubborn)
            home.workers.update_pod(create(pod("web")))
            await calm()
            for grace in (600, 60, 60, 6):
                home.workers.update_pod(kill(pod("web"), KillOptions(grace_override_seconds=grace)))
                await asyncio.sleep(1)
            assert len(cuts) == 2
            assert home.syncer.of("web") == [*ALL_THE_WAY[:2], "sync_terminated_pod"]  # it ended well although cut

    simulate(scenario())


def test_a_pass_may_end_well_although_it_was_cut_short() -> None:
    async def scenario() -> None:
        async def end_anyway() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                return

        async with house() as home:
            home.syncer.ending.add("web")
            home.syncer.behave("sync_pod", "web", end_anyway)
            home.workers.update_pod(create(pod("web")))
            await calm()
            home.workers.update_pod(kill(pod("web"), KillOptions(evict=True)))
            await calm()
            state = home.workers.state(WEB)
            assert isinstance(state, Finished)
            assert state.cause is Cause.EVICTED
            assert (WEB, 0) in home.queued  # it moved on, it did not fail

    simulate(scenario())


def test_a_pass_that_raises_cancelled_by_itself_has_failed() -> None:
    async def scenario() -> None:
        async def give_up() -> None:
            raise asyncio.CancelledError

        async with house() as home:
            home.syncer.behave("sync_pod", "web", give_up)
            home.workers.update_pod(create(pod("web")))
            home.workers.update_pod(create(pod("db")))
            await calm()
            assert [uid for uid, delay in home.queued if delay < 20] == [WEB]
            assert home.syncer.of("db") == ["sync_pod"]
            assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]  # there is a task

    simulate(scenario())


def test_a_pod_killed_before_its_pass_took_a_step_is_never_synced() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.workers.update_pod(create(pod("web")))
            home.workers.update_pod(kill(pod("web")))
            await calm()
            assert home.syncer.of("web") == ["sync_terminating_pod", "sync_terminated_pod"]

    simulate(scenario())


def test_a_cache_that_takes_a_cancelling_for_an_answer_starts_nothing() -> None:
    async def scenario() -> None:
        async def swallow() -> None:
            try:
                await never()
            except asyncio.CancelledError:
                home.cache.behaviour = None

        async with house() as home:
            home.cache.behaviour = swallow
            home.workers.update_pod(create(pod("web")))
            await calm()
            home.workers.update_pod(kill(pod("web")))
            await calm()
            assert home.syncer.of("web") == ["sync_terminating_pod", "sync_terminated_pod"]

    simulate(scenario())


def test_a_grace_that_already_runs_is_shortened() -> None:
    async def scenario() -> float:
        async with house() as home:
            stopped = asyncio.Event()

            async def stubborn() -> None:
                grace = home.syncer.calls[-1].said
                assert isinstance(grace, int)
                await asyncio.sleep(grace)

            home.syncer.behave("sync_terminating_pod", "web", stubborn)
            home.workers.update_pod(create(pod("web")))
            await asyncio.sleep(1)
            home.workers.update_pod(kill(pod("web"), KillOptions(grace_override_seconds=600)))
            await asyncio.sleep(9)
            home.workers.update_pod(kill(pod("web"), KillOptions(grace_override_seconds=2, completed=stopped)))
            await stopped.wait()
            return asyncio.get_running_loop().time()

    assert simulate(scenario())[0] == 12.0


def test_a_pass_may_ask_for_its_own_pods_end() -> None:
    async def scenario() -> None:
        async with house() as home:

            async def evict_myself() -> None:
                home.workers.update_pod(kill(pod("web"), KillOptions(evict=True)))
                await never()

            home.syncer.behave("sync_pod", "web", evict_myself)
            home.workers.update_pod(create(pod("web")))
            await calm()
            assert home.syncer.of("web") == ALL_THE_WAY

    simulate(scenario())


def test_a_pass_whose_last_act_cuts_itself_short_has_ended_well() -> None:
    async def scenario() -> None:
        async with house() as home:

            async def shorten_own_grace() -> None:
                home.workers.update_pod(kill(pod("web"), KillOptions(grace_override_seconds=2)))

            home.syncer.behave("sync_terminating_pod", "web", shorten_own_grace)
            home.workers.update_pod(create(pod("web", grace=30)))
            await calm()
            home.workers.update_pod(kill(pod("web", grace=30)))
            await calm()
            assert home.syncer.of("web") == ALL_THE_WAY

    simulate(scenario())


def test_a_waiter_that_calls_back_finds_the_workers_in_order() -> None:
    """The signal fires between the orders of one decision, and cuts short the very pass that is ordered next."""

    async def scenario() -> None:
        async with house() as home:

            class Caller:
                def set(self) -> None:
                    home.workers.update_pod(kill(pod("web"), KillOptions(evict=True)))

            home.workers.update_pod(create(pod("web")))
            await calm()
            useless_kill = KillOptions(completed=Caller())  # kill options without a kill complete at once
            home.workers.update_pod(Update(type=UpdateType.UPDATE, pod=pod("web"), kill=useless_kill))
            await calm()
            state = home.workers.state(WEB)
            assert isinstance(state, Finished)
            assert state.cause is Cause.EVICTED
            assert home.syncer.of("web") == ALL_THE_WAY

    simulate(scenario())


# Static pods in line.


def test_static_pods_of_one_name_take_turns_and_the_next_is_named_at_once() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.syncer.behave("sync_terminated_pod", "static", lasting(5))
            for uid in ("s1", "s2", "s3"):
                home.workers.update_pod(create(static(uid)))
            await calm()
            assert home.workers.waiting("static_ns") == ("s2", "s3")
            assert home.workers.next_in_line("static_ns") is None
            assert len(home.syncer.calls) == 1
            assert {uid: delay >= 10 for uid, delay in home.queued} == {"s1": True, "s2": True, "s3": True}
            home.workers.update_pod(kill(static("s1")))
            assert home.workers.is_pod_for_mirror_pod_terminating("static_ns")
            await asyncio.sleep(6)
            ((at, name),) = home.left
            assert name == "static_ns"
            assert at == pytest.approx(5, abs=1e-3)
            assert home.workers.next_in_line("static_ns") == "s2"
            home.workers.update_pod(again(static("s2")))
            assert home.workers.next_in_line("static_ns") is None
            assert home.workers.waiting("static_ns") == ("s3",)
            await calm()
            assert home.syncer.calls[-1].function == "sync_pod"
            home.workers.sync_known_pods([PodUID("s2"), PodUID("s3")])
            assert home.workers.state(PodUID("s1")) == Unknown()
            assert len(home.left) == 1  # forgetting who had left before is no news

    simulate(scenario())


def test_a_successor_can_start_in_the_very_moment_its_predecessor_leaves() -> None:
    async def scenario() -> None:
        async with house() as home:
            started: list[float] = []

            def wake(full_name: str) -> None:
                uid = home.workers.next_in_line(full_name)
                if uid is not None:
                    started.append(asyncio.get_running_loop().time())
                    home.workers.update_pod(again(static(uid)))

            home.on_left = wake
            for uid in ("s1", "s2"):
                home.workers.update_pod(create(static(uid)))
            await asyncio.sleep(7)
            home.workers.update_pod(kill(static("s1")))
            await calm()
            assert started == [7]
            assert isinstance(home.workers.state(PodUID("s2")), Syncing)

    simulate(scenario())


def test_an_update_from_inside_a_sweep_counts_as_told_since_that_sweep() -> None:
    async def scenario() -> None:
        async with house() as home:
            for uid in ("s1", "s2", "s3"):
                home.workers.update_pod(create(static(uid)))
            home.on_left = lambda _: home.workers.update_pod(create(pod("web")))
            known = home.workers.sync_known_pods([PodUID("s1"), PodUID("s2")])  # s3 leaves the line
            assert WEB not in known
            assert home.workers.told_since_sweep() == {WEB}

    simulate(scenario())


def test_who_leaves_the_line_is_told_of_too_and_api_pods_are_not() -> None:
    async def scenario() -> None:
        async with house() as home:
            for uid in ("s1", "s2", "s3"):
                home.workers.update_pod(create(static(uid)))
            home.workers.update_pod(kill(static("s2")))
            assert home.workers.state(PodUID("s2")) == NeverStarted(Cause.KILLED)
            assert len(home.left) == 1
            home.workers.sync_known_pods([PodUID("s1")])
            assert isinstance(home.workers.state(PodUID("s3")), Unknown)
            assert len(home.left) == 2  # forgetting s2, which had left before, is no news
            home.workers.update_pod(create(pod("web")))
            home.workers.update_pod(kill(pod("web")))
            await calm()
            assert home.workers.should_pod_be_finished(WEB)
            assert len(home.left) == 2

    simulate(scenario())


# The agent's own beginning and end.


def test_what_is_told_before_the_agent_runs_is_done_once_it_does() -> None:
    async def scenario() -> None:
        home = House()
        for name in ("web", "db", "gone"):
            home.workers.update_pod(create(pod(name)))
        home.workers.update_pod(kill(pod("gone")))
        home.workers.update_pod(kill_orphan(PodRecord(uid="lost", name="lost")))
        await asyncio.sleep(5)
        assert home.syncer.calls == []
        assert isinstance(home.workers.state(WEB), Syncing)
        home.start()
        await calm()
        assert home.syncer.of("web") == home.syncer.of("db") == ["sync_pod"]
        assert home.syncer.of("gone") == ["sync_terminating_pod", "sync_terminated_pod"]
        assert home.syncer.of("lost") == ["sync_terminating_runtime_pod"]
        await home.stop()

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

        home = House()
        home.start()
        home.syncer.behave("sync_pod", "web", finish_what_is_in_flight)
        home.syncer.behave("sync_terminating_pod", "db", end_well)
        for name in ("web", "db", "idle"):
            home.workers.update_pod(create(pod(name)))
        await calm()
        home.workers.update_pod(kill(pod("db")))
        await calm()
        before = [home.workers.state(uid) for uid in (WEB, DB, PodUID("idle"))]
        said = len(home.queued), len(home.recorded), len(home.syncer.calls)
        await home.stop()
        assert asyncio.get_running_loop().time() == pytest.approx(3, abs=1e-3)  # what was in flight is done
        assert home.running is not None
        assert home.running.cancelled()
        assert [home.workers.state(uid) for uid in (WEB, DB, PodUID("idle"))] == before
        assert (len(home.queued), len(home.recorded), len(home.syncer.calls)) == said
        with pytest.raises(TryLater, match="cannot update pod web_ns: the agent is stopping"):
            home.workers.update_pod(kill(pod("web")))
        with pytest.raises(TryLater, match="stopping"):
            home.workers.sync_known_pods([])
        with pytest.raises(TryLater, match="stopping"):
            await home.workers.kill_pod(pod("web"))
        with pytest.raises(RuntimeError, match="twice"):
            await home.workers.run()

    simulate(scenario())


def test_the_workers_run_once() -> None:
    async def scenario() -> None:
        async with house() as home:
            with pytest.raises(RuntimeError, match="twice"):
                await home.workers.run()
            home.workers.update_pod(create(pod("web")))
            await calm()
            assert home.syncer.of("web") == ["sync_pod"]

    simulate(scenario())


# Killing and waiting.


def test_who_kills_waits_until_no_container_runs() -> None:
    async def scenario() -> float:
        async with house() as home:
            home.syncer.behave("sync_terminating_pod", "web", lasting(4))
            home.syncer.behave("sync_terminated_pod", "web", never)
            home.workers.update_pod(create(pod("web", grace=30)))
            await asyncio.sleep(1)
            touched: list[PodStatus] = []

            def last_touch(status: PodStatus) -> PodStatus:
                touched.append(status)
                return status

            await home.workers.kill_pod(
                pod("web", grace=30), evict=True, grace_override_seconds=5, status_function=last_touch
            )
            assert home.syncer.calls[1].said == 5
            assert touched == [PodStatus()]
            state = home.workers.state(WEB)
            assert isinstance(state, Terminated)
            assert state.cause is Cause.EVICTED
            return asyncio.get_running_loop().time()

    assert simulate(scenario())[0] == 5.0


def test_who_kills_what_does_not_run_need_not_wait() -> None:
    async def scenario() -> None:
        async with house() as home:
            for uid in ("s1", "s2"):
                home.workers.update_pod(create(static(uid)))
            await home.workers.kill_pod(static("s2"))  # before its turn came
            await home.workers.kill_pod(static("s1"))
            await calm()
            await home.workers.kill_pod(static("s1"))  # finished by now
            assert isinstance(home.workers.state(PodUID("s2")), NeverStarted)
            assert home.recorded == []

    assert simulate(scenario())[1] < 1


def test_who_kills_in_vain_is_told_so_in_time() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.syncer.behave("sync_terminating_pod", "web", never)
            home.workers.update_pod(create(pod("web", grace=30)))
            await calm()
            before = asyncio.get_running_loop().time()
            with pytest.raises(TryLater, match="web_ns"):
                await home.workers.kill_pod(pod("web", grace=30))
            assert asyncio.get_running_loop().time() - before == pytest.approx(45)
            assert home.recorded == [("ExceededGracePeriod", pod("web", grace=30))]
            home.faults.raising = {"record"}
            with pytest.raises(AgentError):
                await home.workers.kill_pod(pod("web", grace=30))

    simulate(scenario())
