"""The status manager step by step: what it offers for sending, what it refuses to send, and what it forgets."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from dataclasses import replace as changed
from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from podkeeper.engine.manager import PodManager, Translations
from podkeeper.model.errors import ApiUnavailable, BadInput
from podkeeper.model.k8s.core import ContainerState, ContainerStateWaiting, Pod, PodCondition, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.rules.status.publish import CachedStatus, aligned_with, as_shown
from podkeeper.testing.virtual_time import BEGINNING, simulate
from tests.engine.test_status import FakeJournal, Hooks, Node, container, pod, status, uid_of

WEB, DB = pod("web"), pod("db")
MIRROR, NEXT_MIRROR = pod("dns", "m-1", mirror=True), pod("dns", "m-2", mirror=True)
STATIC = pod("dns", "hash", source="file", hashed="hash")
REJECTED = PodStatus(phase="Failed", reason="OutOfcpu", message="2")
EXITED = replace(status(2), container_statuses=(container(exit_code=3),))
RUNNING = replace(status(1, ready=True), container_statuses=(container(),))


@dataclass
class FakePostman:
    """Keeps what it is asked for, and delivers only what is drained."""

    offers: list[tuple[PodUID, Hashable, bool, bool]] = field(default_factory=list)  # the flags: urgent, at once
    forgotten: list[PodUID] = field(default_factory=list)
    drained: list[PodUID] = field(default_factory=list)
    offered: Callable[[], None] = lambda: None
    send: Callable[[PodUID], Awaitable[None]] | None = None

    def offer(self, key: PodUID, target: Hashable, *, urgent: bool = False, at_once: bool = False) -> None:
        self.offers.append((key, target, urgent, at_once))
        self.offered()

    def forget(self, key: PodUID) -> None:
        self.forgotten.append(key)

    async def run(self, send: Callable[[PodUID], Awaitable[None]]) -> None:
        self.send = send
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
        node.manager.set_pod_status(STATIC, status(1))  # it has no mirror yet
        node.manager.set_pod_status(WEB, status(1))
        node.manager.set_pod_status(DB, status(1, ready=True))
        assert await node.manager.sync_batch(every=False) == 2
        assert post.offers == [("uid-web", ("ns", "web"), False, True), ("uid-db", ("ns", "db"), True, True)]
        assert post.drained == ["uid-web", "uid-db"]
        assert not node.manager.has_news
        assert node.manager.sent_versions == {"uid-web": 1, "uid-db": 1}
        assert await node.manager.sync_batch(every=False) == 0

    simulate(scenario())


def test_what_was_offered_before_is_not_urgent_in_a_pass_by_hand() -> None:
    async def scenario() -> None:
        node = Node(WEB, postman=(post := FakePostman()))
        node.manager.set_pod_status(WEB, status(1, ready=True))
        async with node.running():
            await asyncio.sleep(1)
            await node.manager.sync_batch(every=False)
        assert [offer[2:] for offer in post.offers] == [(True, False), (False, True)]

    simulate(scenario())


@pytest.mark.parametrize("by_hand", [False, True])
def test_nothing_is_offered_before_it_is_durable(by_hand: bool) -> None:
    async def scenario() -> list[tuple[float, str]]:
        offers: list[tuple[float, str]] = []
        post = FakePostman(offered=lambda: offers.append((node.at, post.offers[-1][0])))
        node = Node(WEB, DB, journal=FakeJournal(seconds=0.5), postman=post)
        node.manager.set_pod_status(WEB, status(1))
        if by_hand:
            async with asyncio.TaskGroup() as group:
                batch = group.create_task(node.manager.sync_batch(every=False))
                await asyncio.sleep(0.25)
                node.manager.set_pod_status(DB, status(1))
            assert batch.result() == 1  # what came later is left for the next pass
            assert node.manager.has_news
            await node.manager.sync_batch(every=False)
        else:
            async with node.running():
                await asyncio.sleep(0.25)
                node.manager.set_pod_status(DB, status(1))
                await asyncio.sleep(5)
        return offers

    assert simulate(scenario())[0] == [(0.5, "uid-web"), (1.0, "uid-db")]


def test_without_an_api_nothing_is_offered() -> None:
    async def scenario() -> None:
        node = Node(WEB, api=False, postman=(post := FakePostman()))
        node.manager.set_pod_status(WEB, status(1))
        async with node.running():
            await asyncio.sleep(25)
        assert post.offers == []

    simulate(scenario())


@pytest.mark.parametrize("api", [False, True], ids=["without an API", "of a pod that was forgotten"])
def test_a_delivery_does_nothing(api: bool) -> None:
    async def scenario() -> None:
        node = Node(WEB, api=api, postman=(post := FakePostman()))
        node.manager.set_pod_status(WEB, status(1))
        if api:
            node.manager.remove_orphaned_statuses(())
        before = dict(node.manager.cached)
        async with node.running():
            await asyncio.sleep(1)
            assert post.send is not None
            await post.send(uid_of(WEB))
        assert (node.api.calls, dict(node.manager.cached)) == ([], before)

    simulate(scenario())


def test_a_delivery_waits_for_the_note_of_its_pod() -> None:
    async def scenario() -> list[float]:
        node = Node(WEB, journal=FakeJournal(seconds=0.5), postman=(post := FakePostman()))
        async with node.running():
            await asyncio.sleep(1)
            node.manager.set_pod_status(WEB, status(1))
            assert post.send is not None
            await post.send(uid_of(WEB))
        return [at for at, _, _ in node.api.calls]

    assert simulate(scenario())[0] == [1.5, 1.5]


def test_a_status_is_compared_with_the_api_until_the_watch_shows_what_was_sent() -> None:
    async def scenario() -> list[float]:
        node = Node(WEB)
        async with node.running():
            node.manager.set_pod_status(WEB, status(1))
            await asyncio.sleep(1)
            node.watch("web")
            await asyncio.sleep(14)  # the batch at 10 agrees
            node.manager.set_pod_status(WEB, status(2))
            await asyncio.sleep(20)  # the batches at 20 and 30 see the first status still
            node.watch("web")
            await asyncio.sleep(10)
            node.api.put(replace(node.api.pods["web"], status=status(666)))
            node.watch("web")
            await asyncio.sleep(20)  # the batch at 50 corrects it, the one at 60 sees no correction yet
        return [at for at, verb, _ in node.api.calls if verb == "get"]

    assert simulate(scenario())[0] == [0, 15, 20, 30, 50, 60]


def test_batches_leave_a_static_pod_alone_whose_mirror_shows_its_status() -> None:
    async def scenario() -> None:
        node = Node(STATIC, MIRROR)
        async with node.running():
            node.manager.set_pod_status(STATIC, status(1))
            await asyncio.sleep(1)
            node.watch("dns")
            await asyncio.sleep(25)
            assert [verb for _, verb, _ in node.api.calls] == ["get", "patch"]
            node.manager.remove_orphaned_statuses(())
            node.known.remove(MIRROR)
            assert dict(node.manager.sent_versions) == {"m-1": 1}
            await asyncio.sleep(10)
            assert dict(node.manager.sent_versions) == {}

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
        pods = [pod(f"p{index}") for index in range(502)]
        turns: list[int] = []
        turn = 0

        def count_turn() -> None:
            nonlocal turn
            turn += 1

        def offered() -> None:
            if node.at >= 10 and not turns:  # a pod is forgotten meanwhile
                node.manager.remove_orphaned_statuses([uid_of(each) for each in pods if each is not pods[500]])
            turns.append(turn)
            asyncio.get_running_loop().call_soon(count_turn)

        node = Node(*pods, postman=(post := FakePostman(offered=offered)))
        node.set_all(pods, 1)
        async with node.running():
            await asyncio.sleep(9)
            post.offers.clear()
            turns.clear()
            await asyncio.sleep(1.5)
        del pods[500]
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
        (WEB,), WEB, OTHER, {"is_needed": lambda uid: uid == "uid-web"}
    ),
    "the name of an unknown pod is another pod's": Case((), WEB, OTHER, kept=False),
    "the name is that of a mirror, and the pod is not static": Case(
        (pod("dns", "uid-dns", hashed="hash"),), pod("dns", "uid-dns", hashed="hash"), MIRROR, kept=False
    ),
    "another pod ends": Case((WEB,), WEB, OTHER, {"is_needed": lambda uid: uid != "uid-web"}, kept=False),
    "a plain pod has a static pod's name": Case((STATIC, MIRROR), STATIC, PLAIN),
    "the mirror is outdated": Case((STATIC, MIRROR), STATIC, MIRROR, {"is_outdated": lambda mirror, static: True}),
    "the API shows the end of the pod": Case((WEB,), WEB, WEB, {"takes_back": lambda in_api, ours: True}),
}


@pytest.mark.parametrize("case", UNSENT.values(), ids=UNSENT.keys())
def test_nothing_is_sent_if(case: Case) -> None:
    async def scenario() -> None:
        node = Node(*case.pods, hooks=case.hooks, postman=FakePostman())
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
                "is_needed": lambda uid: True,
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
    "its source does not name the pod any more": (Case((), WEB, WEB), "uid-web"),
    "the object has no UID": (Case((WEB,), WEB, replace(WEB, metadata=replace(WEB.metadata, uid=None))), ""),
    "the API knows more, but this life has seen the pod itself": (
        Case((WEB,), WEB, replace(WEB, status=EXITED), new=RUNNING),
        "uid-web",
    ),
}


@pytest.mark.parametrize("case, api_uid", SENT.values(), ids=SENT.keys())
def test_a_status_is_sent_if(case: Case, api_uid: str) -> None:
    async def scenario() -> None:
        node = Node(*case.pods, hooks=case.hooks, postman=FakePostman())
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
        async with node.running():
            await asyncio.sleep(1)
        assert [verb for _, verb, _ in node.api.calls] == ["get"]
        assert uid_of(STATIC) in node.manager.cached  # it is still desired

    simulate(scenario())


def test_a_status_of_a_pod_that_is_forgotten_while_the_api_is_asked_is_not_sent() -> None:
    async def scenario() -> None:
        node = Node(WEB, postman=FakePostman())
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


def away(verb: str, name: str) -> None:
    raise ApiUnavailable("cannot reach the API")


def test_a_correction_that_fails_does_not_change_the_time_of_a_newer_change() -> None:
    async def scenario() -> None:
        node = Node(WEB, postman=FakePostman())
        node.manager.set_pod_status(WEB, status(1))
        await node.manager.sync_batch(every=True)
        node.api.put(replace(node.api.pods["web"], status=status(666)))
        node.watch("web")
        node.api.seconds = lambda verb, name: 1.0
        node.api.trouble = away

        async def correct() -> None:
            with pytest.raises(ApiUnavailable):
                await node.manager.sync_batch(every=True)

        async with asyncio.TaskGroup() as group:
            group.create_task(correct())
            await asyncio.sleep(0.5)
            node.manager.set_pod_status(WEB, status(2))
        cached = node.manager.cached[uid_of(WEB)]
        assert (cached.version, cached.changed_at) == (2, BEGINNING + timedelta(seconds=0.5))

    simulate(scenario())


def test_a_deletion_that_fails_is_tried_again_and_the_status_counts_as_sent() -> None:
    async def scenario() -> None:
        deleted = pod("web", deleted=True)
        node = Node(deleted, postman=FakePostman())
        node.manager.set_pod_status(deleted, status(1, phase="Succeeded"))
        node.manager.terminate_pod(deleted)
        node.api.trouble = lambda verb, name: away(verb, name) if verb == "delete" else None
        with pytest.raises(ApiUnavailable):
            await node.manager.sync_batch(every=True)
        assert (list(node.manager.cached), dict(node.manager.sent_versions)) == (["uid-web"], {"uid-web": 2})
        node.api.trouble = lambda verb, name: None
        node.watch("web")
        assert await node.manager.sync_batch(every=True) == 1
        assert (node.api.deletions, dict(node.manager.cached)) == ([("web", 0, "uid-web")], {})

    simulate(scenario())


def test_a_disruption_counts_from_when_the_api_is_told_the_end() -> None:
    async def scenario() -> None:
        node = Node(WEB)
        disrupted = PodCondition(type="DisruptionTarget", status="True")
        node.manager.set_pod_status(WEB, PodStatus(phase="Failed", conditions=(disrupted,)))
        await asyncio.sleep(5)
        await node.manager.sync_batch(every=False)
        for shown in (node.api.pods["web"].status, node.manager.cached[uid_of(WEB)].status):
            (condition,) = (each for each in shown.conditions or () if each.type == "DisruptionTarget")
            assert condition.last_transition_time == "2026-01-01T00:00:05Z"

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
        ending: Hooks = {"is_needed": lambda uid: uid == "uid-ending"}
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
        noted = msgspec.json.decode(journal.notes["status/uid-web"], type=CachedStatus)
        assert noted == changed(cached, shown=as_shown(WEB))
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
            assert not after.manager.has_news
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


STARTING = replace(container(), started=False)
RESTARTED = replace(RUNNING, container_statuses=(replace(container(), container_id="fake://other", restart_count=1),))


@pytest.mark.parametrize(
    ("shown", "kept"),
    [(EXITED, True), (RUNNING, True), (RESTARTED, False), (replace(EXITED, phase="Failed"), False)],
    ids=["it exited", "nothing new", "another container", "the pod is over"],
)
@pytest.mark.parametrize("sent", [False, True], ids=["at its mirror's arrival", "at the first sending"])
def test_a_static_pods_note_behind_its_mirror_is_replaced_by_the_mirrors_status(
    shown: PodStatus, kept: bool, sent: bool
) -> None:
    async def scenario() -> None:
        before = Node(STATIC, api=False, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(STATIC, RUNNING)
        after = Node(STATIC, mirror := replace(MIRROR, status=shown), journal=journal)
        if sent:
            after.manager.get_pod_status(uid_of(STATIC))
            await after.manager.sync_batch(every=False)
        else:
            after.manager.restore([mirror])
        published = after.manager.get_pod_status(uid_of(STATIC))
        if not kept:
            assert (published, dict(after.manager.phases()), journal.notes) == (None, {}, {})
            return
        assert published is not None
        assert published.container_statuses == shown.container_statuses
        assert dict(after.manager.phases()) == {"hash": shown.phase}
        again = Node(STATIC, mirror, journal=journal)  # the note is as new as the mirror
        noted = again.manager.get_pod_status(uid_of(STATIC))
        assert noted is not None
        assert noted.container_statuses == shown.container_statuses

    simulate(scenario())


def test_the_status_of_a_mirror_from_an_old_list_is_replaced_by_that_of_the_mirror() -> None:
    async def scenario() -> None:
        before = Node(STATIC, api=False, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(STATIC, replace(RUNNING, container_statuses=(STARTING,)))
        after = Node(STATIC, replace(MIRROR, status=EXITED), journal=journal)
        listed = replace(RUNNING, container_statuses=(replace(STARTING, started=True),))
        after.manager.restore([replace(MIRROR, status=listed)])
        assert after.manager.get_pod_status(uid_of(STATIC)) == listed
        await after.manager.sync_batch(every=False)
        assert after.manager.get_pod_status(uid_of(STATIC)) == EXITED
        assert after.api.pods["dns"].status == EXITED

    simulate(scenario())


def _counted(restarts: int, message: str = "1") -> PodStatus:
    return PodStatus(
        phase="Running", message=message, container_statuses=(replace(container(), restart_count=restarts),)
    )


def _count_in_api(node: Node) -> int:
    (found,) = node.api.pods["web"].status.container_statuses or ()
    return found.restart_count


@pytest.mark.parametrize(
    ("hooks", "noted", "expected"),
    [
        (Hooks(align=aligned_with), False, 2),
        (Hooks(align=aligned_with), True, 2),
        (Hooks(), False, 1),  # as the kubelet does
    ],
)
def test_the_first_status_that_is_sent_keeps_the_restart_counts_of_the_api(
    hooks: Hooks, noted: bool, expected: int
) -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        if noted:
            Node(WEB, api=False, journal=journal).manager.set_pod_status(WEB, _counted(1))
        node = Node(WEB, journal=journal, hooks=hooks)
        node.api.put(replace(WEB, status=_counted(2)))
        node.manager.set_pod_status(WEB, _counted(1, "2"))
        await node.manager.sync_batch(every=False)
        (kept,) = node.manager.cached[uid_of(WEB)].status.container_statuses or ()
        assert (_count_in_api(node), kept.restart_count) == (expected, expected)

    simulate(scenario())


def test_a_restart_count_that_is_overwritten_later_is_put_right() -> None:
    async def scenario() -> None:
        node = Node(WEB, hooks=Hooks(align=aligned_with))
        node.manager.set_pod_status(WEB, _counted(1))
        await node.manager.sync_batch(every=False)
        node.api.put(replace(node.api.pods["web"], status=_counted(7)))
        node.watch("web")
        await node.manager.sync_batch(every=True)
        assert _count_in_api(node) == 1

    simulate(scenario())


def test_a_status_that_comes_while_the_first_one_is_sent_keeps_the_restart_counts_too() -> None:
    async def scenario() -> None:
        node = Node(WEB, hooks=Hooks(align=aligned_with))
        node.api.put(replace(WEB, status=_counted(2)))
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(WEB, _counted(1))
        async with node.running():
            await asyncio.sleep(0.5)  # the API is being asked
            node.manager.set_pod_status(WEB, _counted(1, "2"))
            await asyncio.sleep(10)
        assert (node.shown("web"), _count_in_api(node)) == ("2", 2)

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


@pytest.mark.parametrize("changed", [False, True], ids=["still as noted", "a new status"])
def test_a_note_behind_the_api_is_dropped_when_it_is_sent_unless_there_is_a_new_status(changed: bool) -> None:
    async def scenario() -> None:
        before = Node(WEB, api=False, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(WEB, RUNNING)
        after = Node(replace(WEB, status=EXITED), journal=journal, postman=FakePostman())
        after.manager.get_pod_status(uid_of(WEB))
        if changed:
            after.manager.set_pod_status(WEB, replace(RUNNING, message="3"))
        assert await after.manager.sync_batch(every=False) == 1
        if changed:
            assert (after.shown("web"), len(after.lags)) == ("3", 1)
        else:
            assert (after.shown("web"), after.lags, dict(after.manager.cached), journal.notes) == ("2", [], {}, {})

    simulate(scenario())


def test_a_confirmed_status_is_not_urgent() -> None:
    async def scenario() -> None:
        before = Node(WEB, api=False, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(WEB, status(1, ready=True))
        after = Node(WEB, journal=journal, postman=(post := FakePostman()))
        after.manager.set_pod_status(WEB, status(1, ready=True))
        async with after.running():
            await asyncio.sleep(1)
        assert post.offers == [("uid-web", ("ns", "web"), False, False)]

    simulate(scenario())


def test_a_probes_word_is_a_new_version_once() -> None:
    async def scenario() -> None:
        node = Node(WEB)
        node.manager.set_pod_status(WEB, replace(status(1), container_statuses=(container(ready=False),)))
        for take in (node.manager.set_container_readiness, node.manager.set_container_startup):
            assert [take(uid_of(WEB), "fake://app", True) for _ in range(2)] == [True, False]
        assert node.manager.cached[uid_of(WEB)].version == 3

    simulate(scenario())


@pytest.mark.parametrize("only_running", [True, False])
@pytest.mark.parametrize("ready", [True, False])
def test_a_container_that_ended_becomes_ready_no_more(ready: bool, only_running: bool) -> None:
    """Seed 92: a readiness probe succeeded just before its pod was over, and the loop took it after that."""

    async def scenario() -> None:
        node = Node(WEB, hooks={"only_running_is_ready": only_running})
        ended = replace(container(exit_code=0), ready=not ready)
        node.manager.set_pod_status(WEB, replace(status(1, phase="Failed"), container_statuses=(ended,)))
        expected = not (ready and only_running)
        assert node.manager.set_container_readiness(uid_of(WEB), "fake://app", ready) is expected
        kept = node.manager.get_pod_status(uid_of(WEB))
        assert kept is not None
        assert kept.container_statuses is not None
        assert kept.container_statuses[0].ready is (ready if expected else not ready)

    simulate(scenario())


def test_a_container_that_waits_after_its_exit_does_not_become_ready() -> None:
    async def scenario() -> None:
        node = Node(WEB, hooks={"only_running_is_ready": True})
        waiting = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
        crashed = replace(container(ready=False), state=waiting, last_state=container(exit_code=1).state)
        node.manager.set_pod_status(WEB, replace(status(1), container_statuses=(crashed,)))
        assert not node.manager.set_container_readiness(uid_of(WEB), "fake://app", True)
        assert node.manager.cached[uid_of(WEB)].version == 1

    simulate(scenario())


def test_a_probes_word_on_a_pod_that_is_not_desired_any_more_changes_nothing() -> None:
    async def scenario() -> None:
        node = Node()
        node.manager.set_pod_status(WEB, replace(status(1), container_statuses=(container(ready=False),)))
        for take in (node.manager.set_container_readiness, node.manager.set_container_startup):
            assert not take(uid_of(WEB), "fake://app", True)
        assert node.manager.cached[uid_of(WEB)].version == 1

    simulate(scenario())


@pytest.mark.parametrize("cached", [False, True], ids=["as its source shows it", "as it was published"])
def test_the_last_status_is_the_newest_one_with_all_containers_ended(cached: bool) -> None:
    async def scenario() -> None:
        shown = replace(status(1, phase="Succeeded"), container_statuses=(container(exit_code=7),))
        node = Node(of := replace(WEB, status=shown))
        if cached:
            node.manager.set_pod_status(
                of, replace(status(2, phase="Failed"), container_statuses=(container(exit_code=8),))
            )
        node.manager.terminate_pod(of)
        last = node.manager.get_pod_status(uid_of(WEB))
        assert last is not None
        terminated = (last.container_statuses or ())[0].state.terminated
        assert terminated is not None
        assert (last.phase, last.message, terminated.exit_code) == (
            ("Failed", "2", 8) if cached else ("Succeeded", "1", 7)
        )

    simulate(scenario())
