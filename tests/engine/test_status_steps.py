"""The status manager step by step: what it offers for sending, what it refuses to send, and what it forgets."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from podkeeper.engine.manager import PodManager, Translations
from podkeeper.model.errors import ApiUnavailable, BadInput
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.rules.status.publish import CachedStatus
from podkeeper.testing.virtual_time import BEGINNING, simulate
from tests.engine.test_status import FakeJournal, Hooks, Node, container, pod, status, uid_of

WEB, DB = pod("web"), pod("db")
MIRROR, NEXT_MIRROR = pod("dns", "m-1", mirror=True), pod("dns", "m-2", mirror=True)
STATIC = pod("dns", "hash", source="file", hashed="hash")
REJECTED = PodStatus(phase="Failed", reason="OutOfcpu", message="2")


@dataclass
class FakePostman:
    """Keeps what it is asked for, and delivers only what is drained."""

    offers: list[tuple[PodUID, Hashable, bool, bool]] = field(default_factory=list)  # the flags: urgent, at once
    forgotten: list[PodUID] = field(default_factory=list)
    drained: list[PodUID] = field(default_factory=list)
    offered: Callable[[], None] = lambda: None

    def offer(self, key: PodUID, target: Hashable, *, urgent: bool = False, at_once: bool = False) -> None:
        self.offers.append((key, target, urgent, at_once))
        self.offered()

    def forget(self, key: PodUID) -> None:
        self.forgotten.append(key)

    async def run(self, send: Callable[[PodUID], Awaitable[None]]) -> None:
        await asyncio.Event().wait()

    async def drain(self, keys: Iterable[PodUID], send: Callable[[PodUID], Awaitable[None]]) -> None:
        self.drained = list(keys)
        for key in self.drained:
            await send(key)


# What is offered for sending.


def test_changes_are_offered_in_order_under_the_name_of_their_object() -> None:
    async def scenario() -> None:
        node = Node(WEB, DB, postman=(post := FakePostman()))
        node.manager.set_pod_status(DB, status(1))
        node.manager.set_pod_status(WEB, status(1, ready=True))
        assert node.manager.has_news
        async with node.running():
            await asyncio.sleep(1)
        assert post.offers == [
            ("uid-db", ("ns", "db"), False, False),
            ("uid-web", ("ns", "web"), True, False),
        ]
        assert not node.manager.has_news

    simulate(scenario())


def test_a_change_stays_urgent_whatever_comes_before_it_is_offered() -> None:
    async def scenario() -> None:
        node = Node(STATIC, MIRROR, WEB, postman=(post := FakePostman()))
        node.manager.set_pod_status(STATIC, status(1, ready=True))
        node.manager.mirror_changed(uid_of(STATIC))
        node.manager.set_pod_status(WEB, status(1, ready=True))
        node.manager.set_pod_status(WEB, status(2, ready=True))
        async with node.running():
            await asyncio.sleep(1)
            node.manager.set_pod_status(WEB, status(3, ready=True))
            node.manager.mirror_changed(uid_of(STATIC))
            await asyncio.sleep(1)
        assert [(uid, urgent) for uid, _, urgent, _ in post.offers] == [
            ("hash", True),
            ("uid-web", True),
            ("uid-web", False),
            ("hash", False),
        ]

    simulate(scenario())


def test_a_pass_by_hand_offers_what_is_due_at_once_and_as_urgent_as_it_is() -> None:
    async def scenario() -> None:
        node = Node(WEB, DB, STATIC, postman=(post := FakePostman()))
        node.manager.set_pod_status(WEB, status(1))
        node.manager.set_pod_status(DB, status(1, ready=True))
        node.manager.set_pod_status(STATIC, status(1))  # it has no mirror yet
        assert await node.manager.sync_batch(every=False) == 2
        assert post.offers == [("uid-web", ("ns", "web"), False, True), ("uid-db", ("ns", "db"), True, True)]
        assert post.drained == ["uid-web", "uid-db"]
        assert not node.manager.has_news
        assert node.manager.sent_versions == {"uid-web": 1, "uid-db": 1}
        assert await node.manager.sync_batch(every=False) == 0

    simulate(scenario())


def test_only_a_pass_over_everything_forgets_the_versions_of_pods_that_are_gone() -> None:
    async def scenario() -> None:
        node = Node(WEB, STATIC, MIRROR)
        for each in (WEB, STATIC):
            node.manager.set_pod_status(each, status(1))
        await node.manager.sync_batch(every=False)
        node.manager.remove_orphaned_statuses([uid_of(STATIC)])
        await node.manager.sync_batch(every=False)
        assert node.manager.sent_versions == {"uid-web": 1, "m-1": 1}
        await node.manager.sync_batch(every=True)
        assert node.manager.sent_versions == {"m-1": 1}

    simulate(scenario())


def test_a_batch_looks_at_five_hundred_pods_and_then_lets_others_go_on() -> None:
    async def scenario() -> None:
        pods = [pod(f"p{index}") for index in range(501)]
        turns: list[int] = []
        turn = 0

        def count_turn() -> None:
            nonlocal turn
            turn += 1

        def offered() -> None:
            turns.append(turn)
            asyncio.get_running_loop().call_soon(count_turn)

        node = Node(*pods, postman=(post := FakePostman(offered=offered)))
        node.set_all(pods, 1)
        async with node.running():
            await asyncio.sleep(9)
            post.offers.clear()
            turns.clear()
            await asyncio.sleep(1.5)
        assert post.offers == [(uid_of(each), ("ns", each.metadata.name), False, False) for each in pods]
        assert [turns.index(each) for each in sorted(set(turns))] == [0, 500]

    simulate(scenario())


@pytest.mark.parametrize(
    "pods, uid", [((WEB,), "uid-web"), ((STATIC, MIRROR), "nobody")], ids=["without an API", "of an unknown pod"]
)
def test_a_mirror_is_no_news(pods: tuple[Pod, ...], uid: str) -> None:
    async def scenario() -> bool:
        node = Node(*pods, api=uid == "nobody")
        if uid != "nobody":
            node.manager.set_pod_status(WEB, status(1))
        node.manager.mirror_changed(PodUID(uid))
        return node.manager.has_news

    assert not simulate(scenario())[0]


def test_the_mirror_of_a_pod_that_was_noted_before_a_restart_is_news() -> None:
    async def scenario() -> None:
        before = Node(STATIC, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(STATIC, status(1))
        after = Node(STATIC, MIRROR, journal=journal)
        after.manager.mirror_changed(uid_of(STATIC))
        assert after.manager.has_news

    simulate(scenario())


# Batches in trouble.


class FailingPods(PodManager):
    """A pod manager with a bug that comes and goes."""

    broken = 0

    def translations(self) -> Translations:
        if self.broken:
            self.broken -= 1
            raise ZeroDivisionError
        return super().translations()


def test_a_batch_that_fails_unexpectedly_is_made_up_by_the_next() -> None:
    async def scenario() -> None:
        node = Node(known=(known := FailingPods()), postman=(post := FakePostman()))
        known.update(WEB)
        node.manager.set_pod_status(WEB, status(1))
        async with node.running():
            await asyncio.sleep(1)
            assert len(post.offers) == 1
            known.broken = 1
            await asyncio.sleep(10)
            assert (known.broken, len(post.offers)) == (0, 1)
            await asyncio.sleep(10)
            assert len(post.offers) == 2

    simulate(scenario())


def test_a_hung_disk_does_not_delay_the_batch() -> None:
    async def scenario() -> list[float]:
        node = Node(WEB, journal=FakeJournal(seconds=1e6))
        node.api.pods.clear()
        node.manager.set_pod_status(WEB, status(1))
        async with node.running():
            await asyncio.sleep(35)
        return [at for at, _, _ in node.api.calls]

    assert simulate(scenario())[0] == [1.0, 10.0, 21.0, 32.0]  # the disk is tried again after each batch, for a second


def test_without_an_api_a_refused_note_is_written_by_the_next_batch() -> None:
    async def scenario() -> None:
        node = Node(WEB, api=False, journal=(journal := FakeJournal(refusals=1)))
        node.manager.set_pod_status(WEB, status(1))
        async with node.running():
            await asyncio.sleep(9.5)
            assert (list(journal.durable), await node.manager.is_saved(uid_of(WEB))) == ([], False)
            await asyncio.sleep(1)
            assert (list(journal.durable), await node.manager.is_saved(uid_of(WEB))) == (["status/uid-web"], True)

    simulate(scenario())


# What is not sent, and keeps its time of change.


@dataclass
class Case:
    """A status that is due, and why the API is not told it."""

    pods: tuple[Pod, ...]
    of: Pod
    in_api: Pod | None
    hooks: Hooks = field(default_factory=Hooks)
    kept: bool = True
    new: PodStatus = field(default_factory=lambda: status(1))


OTHER = pod("web", "uid-other")
PLAIN = pod("dns", "uid-plain")
UNSENT = {
    "the API has no such pod": Case((WEB,), WEB, None),
    "the name is another pod's": Case((WEB,), WEB, OTHER, kept=False),
    "the name is another pod's while this one ends": Case(
        (WEB,), WEB, OTHER, {"still_ends": lambda uid: uid == "uid-web"}
    ),
    "another pod ends": Case((WEB,), WEB, OTHER, {"still_ends": lambda uid: uid != "uid-web"}, kept=False),
    "a plain pod has a static pod's name": Case((STATIC, MIRROR), STATIC, PLAIN),
    "the mirror is outdated": Case((STATIC, MIRROR), STATIC, MIRROR, {"is_outdated": lambda mirror, static: True}),
    "the API shows the end of the pod": Case((WEB,), WEB, WEB, {"takes_back": lambda in_api, ours: True}),
}


@pytest.mark.parametrize("case", UNSENT.values(), ids=UNSENT.keys())
def test_nothing_is_sent_if(case: Case) -> None:
    async def scenario() -> None:
        node = Node(*case.pods, hooks=case.hooks)
        node.api.pods.clear()
        if case.in_api is not None:
            node.api.put(case.in_api)
        node.manager.set_pod_status(case.of, case.new)
        before = dict(node.manager.cached)
        await asyncio.sleep(1)
        assert await node.manager.sync_batch(every=False) == 1
        assert [verb for _, verb, _ in node.api.calls] == ["get"]
        assert (node.lags, dict(node.manager.sent_versions)) == ([], {})
        assert dict(node.manager.cached) == (before if case.kept else {})
        assert dict(node.manager.phases()) == ({uid_of(case.of): "Running"} if case.kept else {})

    simulate(scenario())


SENT = {
    "the hooks are about others": (
        Case(
            (WEB,),
            WEB,
            WEB,
            {
                "is_outdated": lambda mirror, static: True,  # only a static pod has a mirror
                "still_ends": lambda uid: True,
                "takes_back": lambda in_api, ours: ours.message != "1" or in_api is not WEB,
            },
        ),
        "uid-web",
    ),
    "the mirror is the one we know": (
        Case(
            (STATIC, MIRROR),
            STATIC,
            MIRROR,
            {"is_outdated": lambda mirror, static: (mirror, static) != (MIRROR, STATIC)},
        ),
        "m-1",
    ),
    "the mirror is newer than the one we know": (Case((STATIC, MIRROR), STATIC, NEXT_MIRROR), "m-2"),
}


@pytest.mark.parametrize("case, api_uid", SENT.values(), ids=SENT.keys())
def test_a_status_is_sent_if(case: Case, api_uid: str) -> None:
    async def scenario() -> None:
        node = Node(*case.pods, hooks=case.hooks)
        assert case.in_api is not None
        hook = case.hooks.get("is_outdated")
        if hook is not None and case.of is STATIC:
            assert not hook(MIRROR, STATIC)
        node.api.put(case.in_api)
        node.manager.set_pod_status(case.of, case.new)
        await asyncio.sleep(1)
        assert await node.manager.sync_batch(every=False) == 1
        assert [verb for _, verb, _ in node.api.calls] == ["get", "patch"]
        assert (node.lags, dict(node.manager.sent_versions)) == ([1.0], {api_uid: 1})
        assert node.manager.cached[uid_of(case.of)].changed_at is None

    simulate(scenario())


def test_a_mirror_that_belongs_to_a_successor_is_not_touched() -> None:
    """Two static pods have one name for a while. A mirror of both is the later one's."""

    async def scenario() -> None:
        successor = replace(STATIC, metadata=replace(STATIC.metadata, uid="successor"))
        node = Node(STATIC, MIRROR, successor)
        node.manager.set_pod_status(STATIC, status(1))
        await node.manager.sync_batch(every=False)
        assert node.api.told == []
        assert uid_of(STATIC) in node.manager.cached  # it is still desired

    simulate(scenario())


def test_a_status_of_a_pod_that_is_forgotten_while_the_api_is_asked_is_not_sent() -> None:
    async def scenario() -> None:
        node = Node(WEB)
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(WEB, status(1))
        async with asyncio.TaskGroup() as group:
            group.create_task(node.manager.sync_batch(every=False))
            await asyncio.sleep(0.5)
            node.manager.remove_orphaned_statuses(())
        assert [verb for _, verb, _ in node.api.calls] == ["get"]
        assert (node.lags, dict(node.manager.cached), dict(node.manager.sent_versions)) == ([], {}, {})

    simulate(scenario())


def test_the_lag_counts_from_the_oldest_change_that_was_not_sent() -> None:
    async def scenario() -> None:
        node = Node(WEB)

        def away(verb: str, name: str) -> None:
            raise ApiUnavailable("cannot reach the API")

        node.api.trouble = away
        for number in (1, 2):
            node.manager.set_pod_status(WEB, status(number))
            await node.manager.sync_batch(every=False)
            assert node.manager.cached[uid_of(WEB)].changed_at == BEGINNING
            await asyncio.sleep(5)
        node.api.trouble = lambda verb, name: None
        await node.manager.sync_batch(every=False)
        assert node.lags == [10.0]
        assert node.manager.cached[uid_of(WEB)].changed_at is None
        node.manager.set_pod_status(WEB, status(3))
        assert node.manager.cached[uid_of(WEB)].changed_at == BEGINNING + timedelta(seconds=10)

    simulate(scenario())


def test_a_wall_clock_that_is_set_back_makes_no_lag_negative() -> None:
    async def scenario() -> None:
        node = Node(WEB)
        node.manager.set_pod_status(WEB, status(1))
        node.clock.jump(-100)
        await node.manager.sync_batch(every=False)
        assert node.lags == [0.0]

    simulate(scenario())


def test_whether_containers_could_run_is_asked_for_the_object_in_the_api() -> None:
    async def scenario() -> list[str | None]:
        node = Node(STATIC, MIRROR)
        node.could_run.add("m-1")
        node.manager.set_pod_status(STATIC, status(1, phase="Failed"))
        await node.manager.sync_batch(every=False)
        shown = [node.api.pods["dns"].status.phase]
        node.could_run.clear()
        node.manager.set_pod_status(STATIC, status(2, phase="Failed"))
        await node.manager.sync_batch(every=False)
        return [*shown, node.api.pods["dns"].status.phase]

    assert simulate(scenario())[0] == [None, "Failed"]


# What is forgotten.


@pytest.mark.parametrize(
    "of, new, asked",
    [
        (STATIC, REJECTED, True),
        (STATIC, status(1), False),
        (STATIC, replace(REJECTED, container_statuses=(container(exit_code=1),)), False),
        (STATIC, None, False),
        (WEB, REJECTED, False),
    ],
    ids=["rejected", "running", "failed after it ran", "without a status", "not static"],
)
@pytest.mark.parametrize("restarted", [False, True], ids=["in this life", "before a restart"])
def test_a_rejection_is_forgotten_if_a_static_pod_asks_again(
    of: Pod, new: PodStatus | None, asked: bool, restarted: bool
) -> None:
    async def scenario() -> None:
        node = Node(of, journal=(journal := FakeJournal()))
        if new is not None:
            node.manager.set_pod_status(of, new)
        if restarted:
            node = Node(of, journal=journal)
        assert node.manager.ask_anew(of) is asked
        assert (node.manager.get_pod_status(uid_of(of)) is None) is (asked or new is None)
        assert (journal.notes == {}) is (asked or new is None)

    simulate(scenario())


def test_a_pod_without_a_uid_cannot_ask_again() -> None:
    async def scenario() -> None:
        with pytest.raises(BadInput, match=r"metadata.uid: cannot keep a status for pod ns/dns: .* right"):
            Node().manager.ask_anew(Pod(metadata=ObjectMeta(name="dns", namespace="ns")))

    simulate(scenario())


def test_a_pod_that_is_forgotten_is_forgotten_everywhere_and_counts_from_one_again() -> None:
    async def scenario() -> None:
        node = Node(STATIC, MIRROR, journal=(journal := FakeJournal()), postman=(post := FakePostman()))
        for number in (1, 2):
            node.manager.set_pod_status(STATIC, replace(REJECTED, message=str(number)))
        assert node.manager.cached[uid_of(STATIC)].version == 2
        node.manager.ask_anew(STATIC)
        assert (dict(node.manager.cached), dict(node.manager.phases()), journal.notes) == ({}, {}, {})
        assert post.forgotten == ["hash"]
        node.manager.set_pod_status(STATIC, status(3))
        assert node.manager.cached[uid_of(STATIC)].version == 1
        assert dict(node.manager.phases()) == {"hash": "Running"}

    simulate(scenario())


def test_orphans_that_still_end_keep_their_status_also_if_it_is_only_noted() -> None:
    async def scenario() -> None:
        pods = [pod(name) for name in ("kept", "ending", "gone")]
        ending: Hooks = {"still_ends": lambda uid: uid == "uid-ending"}
        first = Node(*pods, journal=(journal := FakeJournal()), hooks=ending)
        first.set_all(pods, 1)
        first.manager.remove_orphaned_statuses([uid_of(pods[0])])
        assert list(first.manager.cached) == ["uid-kept", "uid-ending"]
        assert list(journal.notes) == ["status/uid-kept", "status/uid-ending"]
        second = Node(*pods, journal=journal, hooks=ending)
        second.manager.remove_orphaned_statuses(())
        assert list(journal.notes) == ["status/uid-ending"]

    simulate(scenario())


# What is accepted.


def test_an_accepted_status_is_noted_and_told_as_it_is_cached() -> None:
    async def scenario() -> None:
        node = Node(WEB, journal=(journal := FakeJournal()))
        told: list[tuple[PodUID, PodStatus]] = []
        node.manager.subscribe(lambda uid, accepted: told.append((uid, accepted)))
        node.manager.set_pod_status(WEB, PodStatus(message="1"))
        cached = node.manager.cached[uid_of(WEB)]
        assert cached == CachedStatus(
            version=1,
            name="web",
            namespace="ns",
            status=cached.status,
            finished=False,
            changed_at=BEGINNING,
        )
        assert msgspec.json.decode(journal.notes["status/uid-web"], type=CachedStatus) == cached
        assert told == [("uid-web", cached.status)]
        assert dict(node.manager.phases()) == {"uid-web": ""}  # none was published yet
        node.manager.terminate_pod(WEB)
        last = node.manager.cached[uid_of(WEB)]
        assert (last.version, last.finished) == (2, True)
        assert told[1:] == [("uid-web", last.status)]
        assert dict(node.manager.phases()) == {"uid-web": last.status.phase}

    simulate(scenario())


@pytest.mark.parametrize("api", [True, False])
def test_a_status_from_before_a_restart_that_is_confirmed_is_sent_once(api: bool) -> None:
    async def scenario() -> None:
        before = Node(WEB, api=False, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(WEB, status(1))
        after = Node(WEB, api=api, journal=journal)
        assert not after.manager.has_news
        assert not after.manager.set_pod_status(WEB, status(1))
        assert after.manager.has_news
        async with after.running():
            await asyncio.sleep(1)
            assert [number for _, _, number in after.api.told] == ["1"] * api
            after.watch("web")
            assert not after.manager.set_pod_status(WEB, status(1))
            assert not after.manager.has_news

    simulate(scenario())


def test_a_phase_noted_before_a_restart_is_known_once_it_is_asked_for() -> None:
    async def scenario() -> None:
        before = Node(WEB, DB, api=False, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(WEB, status(1))
        before.manager.set_pod_status(DB, PodStatus(message="1"))
        after = Node(WEB, DB, api=False, journal=journal)
        for uid in ("uid-web", "uid-db", "uid-web"):
            after.manager.get_pod_status(PodUID(uid))
        assert dict(after.manager.phases()) == {"uid-web": "Running", "uid-db": ""}
        assert dict(after.manager.cached) == dict(before.manager.cached)

    simulate(scenario())


EXITED = replace(status(2), container_statuses=(container(exit_code=3),))
RUNNING = replace(status(1, ready=True), container_statuses=(container(),))


@pytest.mark.parametrize(
    "restarted, shown, kept", [(True, EXITED, False), (True, RUNNING, True), (False, EXITED, True)]
)
def test_only_a_note_of_a_former_life_that_is_behind_the_api_is_dropped(
    restarted: bool, shown: PodStatus, kept: bool
) -> None:
    async def scenario() -> None:
        node = Node(WEB, journal=(journal := FakeJournal()))
        node.manager.set_pod_status(WEB, RUNNING)
        if restarted:
            node = Node(WEB, journal=journal)
        node.manager.restore([DB, replace(WEB, status=shown)])
        assert (list(node.manager.cached), list(journal.notes)) == (
            (["uid-web"], ["status/uid-web"]) if kept else ([], [])
        )

    simulate(scenario())


def test_a_static_pods_note_is_taken_up_by_its_mirror() -> None:
    async def scenario() -> None:
        before = Node(STATIC, api=False, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(STATIC, status(1))
        after = Node(STATIC, MIRROR, journal=journal)
        after.manager.restore([MIRROR])
        assert list(after.manager.cached) == ["hash"]

    simulate(scenario())


def test_a_static_pods_status_is_saved_once_its_mirror_has_it() -> None:
    async def scenario() -> None:
        node = Node(STATIC, MIRROR, journal=(journal := FakeJournal()))
        journal.refusals = 1000
        node.manager.set_pod_status(STATIC, status(1))
        assert not await node.manager.is_saved(uid_of(STATIC))
        await node.manager.sync_batch(every=True)
        assert await node.manager.is_saved(uid_of(STATIC))
        node.known.remove(MIRROR)
        node.known.update(NEXT_MIRROR)
        assert not await node.manager.is_saved(uid_of(STATIC))  # this one has not

    simulate(scenario())


def test_what_a_sending_learns_does_not_replace_a_version_that_came_meanwhile() -> None:
    async def scenario() -> None:
        node = Node(WEB)
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(WEB, status(1))
        async with asyncio.TaskGroup() as group:
            group.create_task(node.manager.sync_batch(every=False))
            await asyncio.sleep(0.5)
            node.manager.set_pod_status(WEB, status(2))
        cached = node.manager.cached[uid_of(WEB)]
        assert (cached.version, cached.status.message) == (2, "2")
        assert cached.changed_at == BEGINNING + timedelta(seconds=0.5)
        assert (node.shown("web"), node.lags) == ("1", [2.0])

    simulate(scenario())
