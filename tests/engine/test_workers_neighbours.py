"""The pod workers and their neighbours: what raises stops nobody, bad input is refused, and what they are told."""

import asyncio

import pytest

from podkeeper.model.errors import BadInput, TryLater
from podkeeper.model.k8s.core import PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.states import Finished, Terminating
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.rules.worker.workers import KnownPod, Stage
from podkeeper.testing.virtual_time import simulate
from tests.engine.worker_house import (
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
    house,
    kill,
    kill_orphan,
    lasting,
    never,
    pod,
    static,
)

# Faults.


@pytest.mark.parametrize("neighbours", [{"enqueue"}, {"record"}, {"left"}, {"note"}, {"enqueue", "left", "note"}])
def test_a_neighbour_that_raises_stops_nobody(neighbours: set[str]) -> None:
    async def scenario() -> None:
        async with house() as home:
            home.faults.raising = neighbours
            home.cache.behaviour = failing(TryLater("cannot look"))
            home.workers.update_pod(create(static("s1")))
            await calm()
            home.cache.behaviour = None
            home.workers.update_pod(kill(static("s1")))
            home.workers.update_pod(create(pod("web")))
            await calm()
            assert isinstance(home.workers.state(PodUID("s1")), Finished)
            assert home.syncer.of("web") == ["sync_pod"]
            assert home.running is not None
            assert not home.running.done()

    simulate(scenario())


@pytest.mark.parametrize("error", BUGS.values(), ids=BUGS.keys())
@pytest.mark.parametrize("function", [*ALL_THE_WAY, "get_newer_than"])
def test_a_pass_that_raises_anything_is_a_failed_pass(function: str, error: Exception) -> None:
    async def scenario() -> None:
        async with house() as home:
            if function == "get_newer_than":
                home.cache.behaviour = failing(error)
            home.syncer.behave(function, "web", failing(error))
            for name in ("web", "db"):
                home.workers.update_pod(create(pod(name)))
            await calm()
            home.workers.update_pod(kill(pod("web")))
            await calm()
            home.cache.behaviour = None
            home.syncer.behaviours.clear()
            for name in ("web", "db"):
                home.workers.update_pod(kill(pod(name)))
            await calm()
            assert isinstance(home.workers.state(WEB), Finished)
            assert isinstance(home.workers.state(DB), Finished)

    simulate(scenario())


@pytest.mark.parametrize("from_the_first", [True, False])
@pytest.mark.parametrize("moment", ["moved", "pass begun", "pass ended", "next pass"])
def test_a_neighbour_that_calls_back_finds_the_workers_in_order(moment: str, from_the_first: bool) -> None:
    """Whenever it hears of one pod, it shortens the grace of both: when they begin, or in the sweep that ends them."""

    async def scenario() -> None:
        async with house() as home:
            graces = iter(range(100, 0, -1))
            begun, done = [], []

            def shorten(uid: PodUID, what: str, detail: str) -> None:
                if what == moment and uid == WEB and (grace := next(graces, None)) is not None:
                    begun.append(grace)
                    for name in ("web", "db"):
                        home.workers.update_pod(kill(pod(name, grace=1000), KillOptions(grace_override_seconds=grace)))
                    done.append(grace)

            if from_the_first:
                home.on_note = shorten
            for name in ("db", "web"):
                home.workers.update_pod(create(pod(name, grace=1000)))
            await calm()
            home.on_note = shorten
            home.workers.sync_known_pods([])
            await calm()
            assert home.workers.should_pod_be_finished(WEB)
            assert home.workers.should_pod_be_finished(DB)
            assert home.syncer.overlaps == []
            assert begun
            assert sorted(done) == sorted(begun)  # none of them raised

    simulate(scenario())


def test_a_waiter_that_raises_keeps_no_other_waiter_waiting() -> None:
    class Broken:
        def set(self) -> None:
            raise RuntimeError("broken waiter")

    async def scenario() -> None:
        async with house() as home:
            stopped = asyncio.Event()
            home.workers.update_pod(create(pod("web")))
            await calm()
            home.workers.update_pod(kill(pod("web"), KillOptions(completed=Broken())))
            home.workers.update_pod(kill(pod("web"), KillOptions(completed=stopped)))
            await calm()
            assert stopped.is_set()
            assert isinstance(home.workers.state(WEB), Finished)

    simulate(scenario())


def test_a_status_function_that_raises_fails_its_pass_and_a_better_one_replaces_it() -> None:
    def broken(status: PodStatus) -> PodStatus:
        raise RuntimeError("broken status function")

    async def scenario() -> None:
        async with house() as home:
            home.workers.update_pod(create(pod("web")))
            await calm()
            home.workers.update_pod(kill(pod("web"), KillOptions(status_function=broken)))
            await calm()
            assert isinstance(home.workers.state(WEB), Terminating)
            home.workers.update_pod(kill(pod("web"), KillOptions(status_function=lambda status: status)))
            await calm()
            assert isinstance(home.workers.state(WEB), Finished)

    simulate(scenario())


@pytest.mark.parametrize("error", [TryLater("cannot tell"), KeyError("oops")])
def test_a_cache_that_cannot_tell_what_runs_makes_no_pod_look_ended(error: Exception) -> None:
    async def scenario() -> None:
        async with house() as home:
            home.cache.error = error
            home.workers.update_pod(create(pod("web", phase="Succeeded")))
            home.cache.error = None
            home.workers.update_pod(create(pod("db", phase="Succeeded")))
            await calm()
            assert home.syncer.of("web") == ["sync_terminating_pod", "sync_terminated_pod"]
            assert home.syncer.of("db") == ["sync_terminated_pod"]

    simulate(scenario())


def with_type(update: Update, update_type: str) -> Update:
    return Update(type=update_type, pod=update.pod)  # type: ignore[arg-type]  # the point


REFUSED: dict[str, tuple[Update, str]] = {
    "a pod without a UID": (create(pod("web", uid="")), "web_ns.*UID"),
    "a runtime pod without a UID": (kill_orphan(PodRecord(uid="", name="lost", namespace="ns")), "lost_ns.*UID"),
    "an unknown type": (with_type(create(pod("web")), "reboot"), "reboot.*create, update, sync, kill"),
    "a type that is only text": (with_type(create(pod("web")), "kill"), "right would be"),
    "nobody": (Update(type=UpdateType.SYNC), "whom"),
}


@pytest.mark.parametrize("update, says", REFUSED.values(), ids=REFUSED.keys())
def test_an_update_is_refused_that_is_about(update: Update, says: str) -> None:
    async def scenario() -> None:
        async with house() as home:
            with pytest.raises(BadInput, match=says):
                home.workers.update_pod(update)
            assert home.workers.sync_known_pods([]) == {}
            home.workers.update_pod(create(pod("db")))
            await calm()
            assert home.syncer.of("db") == ["sync_pod"]

    simulate(scenario())


# What others are told.


def test_the_history_tells_each_move_each_pass_and_the_next_one() -> None:
    async def scenario() -> None:
        async with house() as home:
            home.workers.update_pod(create(pod("web")))
            await calm()
            home.syncer.behave("sync_pod", "web", failing(TryLater("cannot pull")))
            home.workers.update_pod(again(pod("web")))
            await calm()
            home.syncer.behave("sync_pod", "web", never)
            home.workers.update_pod(again(pod("web")))
            await calm()
            home.workers.update_pod(kill(pod("web", deleted=True)))
            await calm()
            told = [(what, "in s" if what == "next pass" else detail) for uid, what, detail in home.notes]
            assert told == [
                ("moved", "unknown -> syncing"),
                ("pass begun", "sync (create)"),
                ("pass ended", "done"),
                ("next pass", "in s"),
                ("pass begun", "sync (sync)"),
                ("pass ended", "failed: cannot pull"),
                ("next pass", "in s"),
                ("pass begun", "sync (sync)"),
                ("moved", "syncing -> termination requested (deleted)"),
                ("pass ended", "cut short"),
                ("next pass", "in s"),
                ("pass begun", "terminating (kill)"),
                ("moved", "termination requested (deleted) -> terminating (deleted)"),
                ("pass ended", "done"),
                ("moved", "terminating (deleted) -> terminated (deleted)"),
                ("next pass", "in s"),
                ("pass begun", "terminated (sync)"),
                ("pass ended", "done"),
                ("moved", "terminated (deleted) -> finished (deleted)"),
            ]
            home.notes.clear()
            home.workers.sync_known_pods([])
            assert home.notes == [(WEB, "moved", "finished (deleted) -> unknown")]

    simulate(scenario())


@pytest.mark.parametrize("broken", [False, True])
def test_the_observer_sees_how_long_news_waits_and_passes_take(broken: bool) -> None:
    async def scenario() -> None:
        observer = FakeObserver(broken=broken)

        async with house(observer) as home:
            home.syncer.behave("sync_pod", "web", lasting(2))
            await asyncio.sleep(1)
            home.workers.update_pod(create(pod("web"), start_time=0.5))
            await asyncio.sleep(1)
            home.workers.update_pod(change(pod("web"), start_time=2.0))
            await asyncio.sleep(0.5)
            home.workers.update_pod(change(pod("web"), start_time=2.5))  # waits with the time of the one it replaced
            await asyncio.sleep(3)
            home.workers.update_pod(kill(pod("web")))  # nobody's news
            await asyncio.sleep(1)
            home.workers.sync_known_pods([WEB])
        finished = KnownPod(Stage.TERMINATED, orphan=False, has_config=True, static=False)
        assert observer.seen == [
            ("started", "web", 1),
            ("begun", "create", 0.5),
            ("ended", "create", 2.5),
            ("begun", "update", 1.0),
            ("ended", "update", 3.0),
            ("working", {WEB: finished}),
        ]

    simulate(scenario())


def test_the_very_end_counts_as_an_operation_of_its_own() -> None:
    async def scenario() -> None:
        observer = FakeObserver()
        async with house(observer) as home:
            home.workers.update_pod(create(pod("web")))
            await calm()
            home.syncer.behave("sync_terminated_pod", "web", failing(TryLater("cannot")))
            home.workers.update_pod(kill(pod("web")))
            await calm()
            home.syncer.behaviours.clear()
            home.workers.update_pod(change(pod("web"), start_time=0.0))
            await calm()
        assert [seen[1] for seen in observer.seen if seen[0] == "ended"] == ["terminated"]

    simulate(scenario())
