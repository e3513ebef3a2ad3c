"""Single steps of the status manager: offers to the sender, unsent statuses, and forgotten pods."""

import asyncio
from dataclasses import dataclass, field
from dataclasses import replace as changed
from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from podkeeper.engine.manager import PodManager, Translations
from podkeeper.model.errors import ApiUnavailable, BadInput
from podkeeper.model.k8s.core import ContainerState, ContainerStateWaiting, Pod, PodCondition, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.rules.status.publish import CachedStatus, aligned_with, snapshot_of
from podkeeper.testing import build
from podkeeper.testing.virtual_time import BEGINNING, simulate
from tests.engine.recording_sender import RecordingSender
from tests.engine.test_status import Hooks, StatusHarness, StatusJournal, container_status, pod, status

WEB, DB = pod("web"), pod("db")
MIRROR, NEXT_MIRROR = pod("dns", uid="m-1", mirror="hash"), pod("dns", uid="m-2", mirror="hash")
STATIC = pod("dns", uid="hash", source="file", hashed="hash")
REJECTED = PodStatus(phase="Failed", reason="OutOfcpu", message="2")
EXITED = replace(status(2), container_statuses=(container_status(exit_code=3),))
RUNNING = replace(status(1, ready=True), container_statuses=(container_status(),))

Sender = RecordingSender[PodUID]


# Offers to the sender.


def test_changes_are_offered_in_order_with_the_name_of_their_object_as_target() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, DB, sender=(sender := Sender()))
        node.manager.set_pod_status(DB, status(1))
        node.manager.set_pod_status(WEB, status(1, ready=True))
        assert node.manager.has_changes
        async with node.running():
            await asyncio.sleep(1)
        assert sender.offers == [
            ("uid-db", ("ns", "db"), False, False),
            ("uid-web", ("ns", "web"), True, False),
        ]
        assert not node.manager.has_changes

    simulate(scenario())


def test_a_change_stays_urgent_until_it_is_offered() -> None:
    async def scenario() -> None:
        node = StatusHarness(STATIC, MIRROR, WEB, sender=(sender := Sender()))
        node.manager.set_pod_status(STATIC, status(1, ready=True))
        node.manager.mirror_changed(uid_of(STATIC))
        node.manager.set_pod_status(WEB, status(1, ready=True))
        node.manager.set_pod_status(WEB, status(2, ready=True))
        async with node.running():
            await asyncio.sleep(1)
            node.manager.set_pod_status(WEB, status(3, ready=True))
            node.manager.mirror_changed(uid_of(STATIC))
            await asyncio.sleep(1)
        assert [(uid, urgent) for uid, _, urgent, _ in sender.offers] == [
            ("hash", True),
            ("uid-web", True),
            ("uid-web", False),
            ("hash", False),
        ]

    simulate(scenario())


def test_sync_batch_offers_due_statuses_at_once_with_their_urgency() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, DB, STATIC, sender=(sender := Sender()))
        node.manager.set_pod_status(STATIC, status(1))  # it has no mirror pod yet
        node.manager.set_pod_status(WEB, status(1))
        node.manager.set_pod_status(DB, status(1, ready=True))
        assert await node.manager.sync_batch(every=False) == 2
        assert sender.offers == [("uid-web", ("ns", "web"), False, True), ("uid-db", ("ns", "db"), True, True)]
        assert sender.drained == ["uid-web", "uid-db"]
        assert not node.manager.has_changes
        assert node.manager.sent_versions == {"uid-web": 1, "uid-db": 1}
        assert await node.manager.sync_batch(every=False) == 0

    simulate(scenario())


def test_sync_batch_offers_a_status_that_was_offered_before_as_not_urgent() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, sender=(sender := Sender()))
        node.manager.set_pod_status(WEB, status(1, ready=True))
        async with node.running():
            await asyncio.sleep(1)
            await node.manager.sync_batch(every=False)
        assert [offer[2:] for offer in sender.offers] == [(True, False), (False, True)]

    simulate(scenario())


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_status_is_offered_only_after_it_is_durable(in_batch: bool) -> None:
    async def scenario() -> list[tuple[float, str]]:
        offers: list[tuple[float, str]] = []
        sender = Sender(offered=lambda: offers.append((node.at, sender.offers[-1][0])))
        node = StatusHarness(WEB, DB, journal=StatusJournal(seconds=0.5), sender=sender)
        node.manager.set_pod_status(WEB, status(1))
        if in_batch:
            async with asyncio.TaskGroup() as group:
                batch = group.create_task(node.manager.sync_batch(every=False))
                await asyncio.sleep(0.25)
                node.manager.set_pod_status(DB, status(1))
            assert batch.result() == 1  # later changes are left for the next batch
            assert node.manager.has_changes
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
        node = StatusHarness(WEB, api=False, sender=(sender := Sender()))
        node.manager.set_pod_status(WEB, status(1))
        async with node.running():
            await asyncio.sleep(25)
        assert sender.offers == []

    simulate(scenario())


@pytest.mark.parametrize("api", [False, True], ids=["without an API", "for a forgotten pod"])
def test_a_call_of_the_sender_does_nothing(api: bool) -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, api=api, sender=(sender := Sender()))
        node.manager.set_pod_status(WEB, status(1))
        if api:
            node.manager.remove_orphaned_statuses(())
        before = dict(node.manager.cached)
        async with node.running():
            await asyncio.sleep(1)
            assert sender.send is not None
            await sender.send(uid_of(WEB))
        assert (node.api.calls, dict(node.manager.cached)) == ([], before)

    simulate(scenario())


def test_a_call_waits_for_the_checkpoint_of_its_pod() -> None:
    async def scenario() -> list[float]:
        node = StatusHarness(WEB, journal=StatusJournal(seconds=0.5), sender=(sender := Sender()))
        async with node.running():
            await asyncio.sleep(1)
            node.manager.set_pod_status(WEB, status(1))
            assert sender.send is not None
            await sender.send(uid_of(WEB))
        return [at for at, _, _ in node.api.calls]

    assert simulate(scenario())[0] == [1.5, 1.5]


def test_a_status_is_compared_until_the_watch_delivers_the_sent_one() -> None:
    async def scenario() -> list[float]:
        node = StatusHarness(WEB)
        async with node.running():
            node.manager.set_pod_status(WEB, status(1))
            await asyncio.sleep(1)
            node.watch("web")
            await asyncio.sleep(14)  # the batch at 10 finds the status equal
            node.manager.set_pod_status(WEB, status(2))
            await asyncio.sleep(20)  # the batches at 20 and 30 still see the first status
            node.watch("web")
            await asyncio.sleep(10)
            node.api.put(replace(node.api.pods["web"], status=status(666)))
            node.watch("web")
            await asyncio.sleep(20)  # the batch at 50 restores it, the one at 60 does not see this yet
        return [at for at, verb, _ in node.api.calls if verb == "get"]

    assert simulate(scenario())[0] == [0, 15, 20, 30, 50, 60]


def test_batches_skip_a_static_pod_whose_mirror_pod_has_its_status() -> None:
    async def scenario() -> None:
        node = StatusHarness(STATIC, MIRROR)
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


def test_only_a_full_batch_drops_the_versions_of_removed_pods() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, STATIC, MIRROR)
        for each in (WEB, STATIC):
            node.manager.set_pod_status(each, status(1))
        await node.manager.sync_batch(every=False)
        node.manager.remove_orphaned_statuses([uid_of(STATIC)])
        await node.manager.sync_batch(every=False)
        assert node.manager.sent_versions == {"uid-web": 1, "m-1": 1}
        await node.manager.sync_batch(every=True)
        assert node.manager.sent_versions == {"m-1": 1}

    simulate(scenario())


def test_a_batch_yields_after_five_hundred_pods() -> None:
    async def scenario() -> None:
        pods = [pod(f"p{index}") for index in range(502)]
        turns: list[int] = []
        turn = 0

        def count_turn() -> None:
            nonlocal turn
            turn += 1

        def offered() -> None:
            if node.at >= 10 and not turns:  # a pod is forgotten during the batch
                node.manager.remove_orphaned_statuses([uid_of(each) for each in pods if each is not pods[500]])
            turns.append(turn)
            asyncio.get_running_loop().call_soon(count_turn)

        node = StatusHarness(*pods, sender=(sender := Sender(offered=offered)))
        node.set_all(pods, 1)
        async with node.running():
            await asyncio.sleep(9)
            sender.offers.clear()
            turns.clear()
            await asyncio.sleep(1.5)
        del pods[500]
        assert sender.offers == [(uid_of(each), ("ns", each.metadata.name), False, False) for each in pods]
        assert [turns.index(each) for each in sorted(set(turns))] == [0, 500]

    simulate(scenario())


@pytest.mark.parametrize(
    "pods, uid", [((WEB,), "uid-web"), ((STATIC, MIRROR), "unknown")], ids=["without an API", "for an unknown pod"]
)
def test_a_changed_mirror_pod_is_ignored(pods: tuple[Pod, ...], uid: str) -> None:
    async def scenario() -> bool:
        node = StatusHarness(*pods, api=uid == "unknown")
        if uid != "unknown":
            node.manager.set_pod_status(WEB, status(1))
        node.manager.mirror_changed(PodUID(uid))
        return node.manager.has_changes

    assert not simulate(scenario())[0]


def test_a_changed_mirror_pod_loads_the_checkpoint_of_its_pod() -> None:
    async def scenario() -> None:
        before = StatusHarness(STATIC, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(STATIC, status(1))
        after = StatusHarness(STATIC, MIRROR, journal=journal)
        after.manager.mirror_changed(uid_of(STATIC))
        assert after.manager.has_changes

    simulate(scenario())


# Failures in a batch.


class FailingPods(PodManager):
    """A pod manager with a bug that occurs `broken` times."""

    broken = 0

    def translations(self) -> Translations:
        if self.broken:
            self.broken -= 1
            raise ZeroDivisionError
        return super().translations()


def test_the_next_batch_runs_after_an_unexpected_error() -> None:
    async def scenario() -> None:
        node = StatusHarness(known=(known := FailingPods()), sender=(sender := Sender()))
        known.update(WEB)
        node.manager.set_pod_status(WEB, status(1))
        async with node.running():
            await asyncio.sleep(1)
            assert len(sender.offers) == 1
            known.broken = 1
            await asyncio.sleep(10)
            assert (known.broken, len(sender.offers)) == (0, 1)
            await asyncio.sleep(10)
            assert len(sender.offers) == 2

    simulate(scenario())


def test_a_hung_disk_does_not_delay_the_batch() -> None:
    async def scenario() -> list[float]:
        node = StatusHarness(WEB, journal=StatusJournal(seconds=1e6))
        node.api.pods.clear()
        node.manager.set_pod_status(WEB, status(1))
        async with node.running():
            await asyncio.sleep(35)
        return [at for at, _, _ in node.api.calls]

    assert simulate(scenario())[0] == [1.0, 10.0, 21.0, 32.0]  # each batch retries the disk for one second


def test_without_an_api_a_failed_checkpoint_is_written_by_the_next_batch() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, api=False, journal=(journal := StatusJournal(failures=1)))
        node.manager.set_pod_status(WEB, status(1))
        async with node.running():
            await asyncio.sleep(9.5)
            assert (list(journal.durable), await node.manager.is_saved(uid_of(WEB))) == ([], False)
            await asyncio.sleep(1)
            assert (list(journal.durable), await node.manager.is_saved(uid_of(WEB))) == (["status/uid-web"], True)

    simulate(scenario())


# Unsent statuses, which keep their time of change.


@dataclass
class Case:
    """A status that is due, and the API object under its name."""

    pods: tuple[Pod, ...]
    of: Pod
    in_api: Pod | None
    hooks: Hooks = field(default_factory=Hooks)
    kept: bool = True
    new: PodStatus = field(default_factory=lambda: status(1))


OTHER = pod("web", uid="uid-other")
PLAIN = pod("dns", uid="uid-plain")
UNSENT = {
    "the API does not have the pod": Case((WEB,), WEB, None),
    "another pod has the name": Case((WEB,), WEB, OTHER, kept=False),
    "another pod has the name while the status is needed": Case(
        (WEB,), WEB, OTHER, {"is_needed": lambda uid: uid == "uid-web"}
    ),
    "another pod has the name of an unknown pod": Case((), WEB, OTHER, kept=False),
    "a mirror pod has the name of an API pod": Case(
        (pod("dns", uid="uid-dns", hashed="hash"),), pod("dns", uid="uid-dns", hashed="hash"), MIRROR, kept=False
    ),
    "another pod has the name, and only its status is needed": Case(
        (WEB,), WEB, OTHER, {"is_needed": lambda uid: uid != "uid-web"}, kept=False
    ),
    "an API pod has the name of a static pod": Case((STATIC, MIRROR), STATIC, PLAIN),
    "the mirror pod is outdated": Case((STATIC, MIRROR), STATIC, MIRROR, {"is_outdated": lambda mirror, static: True}),
    "the status would revive a finished pod": Case((WEB,), WEB, WEB, {"would_revive": lambda in_api, ours: True}),
}


@pytest.mark.parametrize("case", UNSENT.values(), ids=UNSENT.keys())
def test_nothing_is_sent_if(case: Case) -> None:
    async def scenario() -> None:
        node = StatusHarness(*case.pods, hooks=case.hooks, sender=Sender())
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
    "the hooks apply to other pods": (
        Case(
            (WEB,),
            WEB,
            WEB,
            {
                "is_outdated": lambda mirror, static: True,  # ignored, because only a static pod has a mirror pod
                "is_needed": lambda uid: True,
                "would_revive": lambda in_api, ours: ours.message != "1" or in_api is not WEB,
            },
        ),
        "uid-web",
    ),
    "the mirror pod is known": (
        Case(
            (STATIC, MIRROR),
            STATIC,
            MIRROR,
            {"is_outdated": lambda mirror, static: (mirror, static) != (MIRROR, STATIC)},
        ),
        "m-1",
    ),
    "the mirror pod is newer than the known one": (Case((STATIC, MIRROR), STATIC, NEXT_MIRROR), "m-2"),
    "the source has removed the pod": (Case((), WEB, WEB), "uid-web"),
    "the object has no UID": (Case((WEB,), WEB, replace(WEB, metadata=replace(WEB.metadata, uid=None))), ""),
    "the API shows progress, but the status is not restored": (
        Case((WEB,), WEB, replace(WEB, status=EXITED), new=RUNNING),
        "uid-web",
    ),
}


@pytest.mark.parametrize("case, api_uid", SENT.values(), ids=SENT.keys())
def test_a_status_is_sent_if(case: Case, api_uid: str) -> None:
    async def scenario() -> None:
        node = StatusHarness(*case.pods, hooks=case.hooks, sender=Sender())
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


def test_a_mirror_pod_of_the_next_static_pod_gets_no_old_status() -> None:
    """Two static pods have the same name for some time. The mirror pod belongs to the newer one."""

    async def scenario() -> None:
        successor = replace(STATIC, metadata=replace(STATIC.metadata, uid="successor"))
        node = StatusHarness(STATIC, MIRROR, successor)
        node.manager.set_pod_status(STATIC, status(1))
        async with node.running():
            await asyncio.sleep(1)
        assert [verb for _, verb, _ in node.api.calls] == ["get"]
        assert uid_of(STATIC) in node.manager.cached  # the pod is still desired

    simulate(scenario())


def test_the_status_of_a_pod_forgotten_during_the_get_is_not_sent() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, sender=Sender())
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(WEB, status(1))
        async with asyncio.TaskGroup() as group:
            group.create_task(node.manager.sync_batch(every=False))
            await asyncio.sleep(0.5)
            node.manager.remove_orphaned_statuses(())
        assert [verb for _, verb, _ in node.api.calls] == ["get"]
        assert (node.lags, dict(node.manager.cached), dict(node.manager.sent_versions)) == ([], {}, {})

    simulate(scenario())


def test_the_lag_starts_at_the_oldest_unsent_change() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB)
        node.api.fail_before = away
        for number in (1, 2):
            node.manager.set_pod_status(WEB, status(number))
            await node.manager.sync_batch(every=False)
            assert node.manager.cached[uid_of(WEB)].changed_at == BEGINNING
            await asyncio.sleep(5)
        node.api.fail_before = lambda verb, name: None
        await node.manager.sync_batch(every=False)
        assert node.lags == [10.0]
        assert node.manager.cached[uid_of(WEB)].changed_at is None
        node.manager.set_pod_status(WEB, status(3))
        assert node.manager.cached[uid_of(WEB)].changed_at == BEGINNING + timedelta(seconds=10)

    simulate(scenario())


def away(verb: str, name: str) -> None:
    raise ApiUnavailable("cannot reach the API")


def test_a_failed_restore_does_not_change_the_time_of_a_newer_change() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, sender=Sender())
        node.manager.set_pod_status(WEB, status(1))
        await node.manager.sync_batch(every=True)
        node.api.put(replace(node.api.pods["web"], status=status(666)))
        node.watch("web")
        node.api.seconds = lambda verb, name: 1.0
        node.api.fail_before = away

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


def test_a_failed_deletion_is_retried_and_the_status_counts_as_sent() -> None:
    async def scenario() -> None:
        deleted = pod("web", deleted=True)
        node = StatusHarness(deleted, sender=Sender())
        node.manager.set_pod_status(deleted, status(1, phase="Succeeded"))
        node.manager.terminate_pod(deleted)
        node.api.fail_before = lambda verb, name: away(verb, name) if verb == "delete" else None
        with pytest.raises(ApiUnavailable):
            await node.manager.sync_batch(every=True)
        assert (list(node.manager.cached), dict(node.manager.sent_versions)) == (["uid-web"], {"uid-web": 2})
        node.api.fail_before = lambda verb, name: None
        node.watch("web")
        assert await node.manager.sync_batch(every=True) == 1
        assert (node.api.deletions, dict(node.manager.cached)) == ([("web", 0, "uid-web")], {})

    simulate(scenario())


def test_the_time_of_a_disruption_is_that_of_the_terminal_phase() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB)
        disrupted = PodCondition(type="DisruptionTarget", status="True")
        node.manager.set_pod_status(WEB, PodStatus(phase="Failed", conditions=(disrupted,)))
        await asyncio.sleep(5)
        await node.manager.sync_batch(every=False)
        for shown in (node.api.pods["web"].status, node.manager.cached[uid_of(WEB)].status):
            (condition,) = (each for each in shown.conditions or () if each.type == "DisruptionTarget")
            assert condition.last_transition_time == "2026-01-01T00:00:05Z"

    simulate(scenario())


def test_the_lag_is_not_negative_if_the_wall_clock_is_set_back() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB)
        node.manager.set_pod_status(WEB, status(1))
        node.clock.jump(-100)
        await node.manager.sync_batch(every=False)
        assert node.lags == [0.0]

    simulate(scenario())


def test_could_run_gets_the_uid_of_the_api_object() -> None:
    async def scenario() -> list[str | None]:
        node = StatusHarness(STATIC, MIRROR)
        node.could_run.add("m-1")
        node.manager.set_pod_status(STATIC, status(1, phase="Failed"))
        await node.manager.sync_batch(every=False)
        shown = [node.api.pods["dns"].status.phase]
        node.could_run.clear()
        node.manager.set_pod_status(STATIC, status(2, phase="Failed"))
        await node.manager.sync_batch(every=False)
        return [*shown, node.api.pods["dns"].status.phase]

    assert simulate(scenario())[0] == [None, "Failed"]


# Forgotten pods.


@pytest.mark.parametrize(
    "of, new, forgotten",
    [
        (STATIC, REJECTED, True),
        (STATIC, status(1), False),
        (STATIC, replace(REJECTED, container_statuses=(container_status(exit_code=1),)), False),
        (STATIC, None, False),
        (WEB, REJECTED, False),
    ],
    ids=["rejected", "running", "failed after a run", "without a status", "not static"],
)
@pytest.mark.parametrize("restarted", [False, True], ids=["by this agent", "before a restart"])
def test_forget_rejection(of: Pod, new: PodStatus | None, forgotten: bool, restarted: bool) -> None:
    async def scenario() -> None:
        node = StatusHarness(of, journal=(journal := StatusJournal()))
        if new is not None:
            node.manager.set_pod_status(of, new)
        if restarted:
            node = StatusHarness(of, journal=journal)
        assert node.manager.forget_rejection(of) is forgotten
        assert (node.manager.get_pod_status(uid_of(of)) is None) is (forgotten or new is None)
        assert (journal.values == {}) is (forgotten or new is None)

    simulate(scenario())


def test_the_rejection_of_a_pod_without_a_uid_cannot_be_forgotten() -> None:
    async def scenario() -> None:
        with pytest.raises(BadInput, match=r"metadata\.uid: Required value: cannot store the status of pod ns/dns"):
            StatusHarness().manager.forget_rejection(build.pod("dns", namespace="ns", uid=""))

    simulate(scenario())


def test_a_forgotten_pod_leaves_nothing_and_starts_from_version_one_again() -> None:
    async def scenario() -> None:
        node = StatusHarness(STATIC, MIRROR, journal=(journal := StatusJournal()), sender=(sender := Sender()))
        for number in (1, 2):
            node.manager.set_pod_status(STATIC, replace(REJECTED, message=str(number)))
        assert node.manager.cached[uid_of(STATIC)].version == 2
        node.manager.forget_rejection(STATIC)
        assert (dict(node.manager.cached), dict(node.manager.phases()), journal.values) == ({}, {}, {})
        assert sender.forgotten == ["hash"]
        node.manager.set_pod_status(STATIC, status(3))
        assert node.manager.cached[uid_of(STATIC)].version == 1
        assert dict(node.manager.phases()) == {"hash": "Running"}

    simulate(scenario())


def test_needed_statuses_of_orphans_are_kept_including_checkpoints() -> None:
    async def scenario() -> None:
        pods = [pod(name) for name in ("kept", "ending", "gone")]
        ending: Hooks = {"is_needed": lambda uid: uid == "uid-ending"}
        first = StatusHarness(*pods, journal=(journal := StatusJournal()), hooks=ending)
        first.set_all(pods, 1)
        first.manager.remove_orphaned_statuses([uid_of(pods[0])])
        assert list(first.manager.cached) == ["uid-kept", "uid-ending"]
        assert list(journal.values) == ["status/uid-kept", "status/uid-ending"]
        second = StatusHarness(*pods, journal=journal, hooks=ending)
        second.manager.remove_orphaned_statuses(())
        assert list(journal.values) == ["status/uid-ending"]

    simulate(scenario())


# Accepted statuses.


def test_subscribers_and_the_checkpoint_get_the_cached_status() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, journal=(journal := StatusJournal()))
        received: list[tuple[PodUID, PodStatus]] = []
        node.manager.subscribe(lambda uid, accepted: received.append((uid, accepted)))
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
        stored = msgspec.json.decode(journal.values["status/uid-web"], type=CachedStatus)
        assert stored == changed(cached, shown=snapshot_of(WEB))
        assert received == [("uid-web", cached.status)]
        assert dict(node.manager.phases()) == {"uid-web": ""}  # no phase was published yet
        node.manager.terminate_pod(WEB)
        last = node.manager.cached[uid_of(WEB)]
        assert (last.version, last.finished) == (2, True)
        assert received[1:] == [("uid-web", last.status)]
        assert dict(node.manager.phases()) == {"uid-web": last.status.phase}

    simulate(scenario())


@pytest.mark.parametrize("api", [True, False])
def test_a_restored_and_confirmed_status_is_sent_once(api: bool) -> None:
    async def scenario() -> None:
        before = StatusHarness(WEB, api=False, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(WEB, status(1))
        after = StatusHarness(WEB, api=api, journal=journal)
        assert not after.manager.has_changes
        assert not after.manager.set_pod_status(WEB, status(1))
        assert after.manager.has_changes
        async with after.running():
            await asyncio.sleep(1)
            assert [number for _, _, number in after.api.patched] == ["1"] * api
            assert not after.manager.has_changes
            after.watch("web")
            assert not after.manager.set_pod_status(WEB, status(1))
            assert not after.manager.has_changes

    simulate(scenario())


def test_a_restored_phase_is_published_when_it_is_loaded() -> None:
    async def scenario() -> None:
        before = StatusHarness(WEB, DB, api=False, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(WEB, status(1))
        before.manager.set_pod_status(DB, PodStatus(message="1"))
        after = StatusHarness(WEB, DB, api=False, journal=journal)
        for uid in ("uid-web", "uid-db", "uid-web"):
            after.manager.get_pod_status(PodUID(uid))
        assert dict(after.manager.phases()) == {"uid-web": "Running", "uid-db": ""}
        assert dict(after.manager.cached) == dict(before.manager.cached)

    simulate(scenario())


@pytest.mark.parametrize(
    "restarted, shown, kept", [(True, EXITED, False), (True, RUNNING, True), (False, EXITED, True)]
)
def test_only_a_restored_status_behind_the_api_is_dropped(restarted: bool, shown: PodStatus, kept: bool) -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, journal=(journal := StatusJournal()))
        node.manager.set_pod_status(WEB, RUNNING)
        if restarted:
            node = StatusHarness(WEB, journal=journal)
        node.manager.restore([DB, replace(WEB, status=shown)])
        assert (list(node.manager.cached), list(journal.values)) == (
            (["uid-web"], ["status/uid-web"]) if kept else ([], [])
        )

    simulate(scenario())


def test_restoring_a_mirror_pod_loads_the_checkpoint_of_its_static_pod() -> None:
    async def scenario() -> None:
        before = StatusHarness(STATIC, api=False, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(STATIC, status(1))
        after = StatusHarness(STATIC, MIRROR, journal=journal)
        after.manager.restore([MIRROR])
        assert list(after.manager.cached) == ["hash"]

    simulate(scenario())


STARTING = replace(container_status(), started=False)
RESTARTED = replace(
    RUNNING, container_statuses=(replace(container_status(), container_id="fake://other", restart_count=1),)
)


@pytest.mark.parametrize(
    ("shown", "kept"),
    [(EXITED, True), (RUNNING, True), (RESTARTED, False), (replace(EXITED, phase="Failed"), False)],
    ids=["the container exited", "no change", "another container", "the pod is finished"],
)
@pytest.mark.parametrize("sent", [False, True], ids=["when the mirror pod is restored", "by the first call"])
def test_a_checkpoint_behind_the_mirror_pod_is_replaced_by_the_status_of_the_mirror_pod(
    shown: PodStatus, kept: bool, sent: bool
) -> None:
    async def scenario() -> None:
        before = StatusHarness(STATIC, api=False, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(STATIC, RUNNING)
        after = StatusHarness(STATIC, mirror := replace(MIRROR, status=shown), journal=journal)
        if sent:
            after.manager.get_pod_status(uid_of(STATIC))
            await after.manager.sync_batch(every=False)
        else:
            after.manager.restore([mirror])
        published = after.manager.get_pod_status(uid_of(STATIC))
        if not kept:
            assert (published, dict(after.manager.phases()), journal.values) == (None, {}, {})
            return
        assert published is not None
        assert published.container_statuses == shown.container_statuses
        assert dict(after.manager.phases()) == {"hash": shown.phase}
        again = StatusHarness(STATIC, mirror, journal=journal)  # the checkpoint is as new as the mirror pod
        restored = again.manager.get_pod_status(uid_of(STATIC))
        assert restored is not None
        assert restored.container_statuses == shown.container_statuses

    simulate(scenario())


def test_the_status_of_a_mirror_pod_from_an_old_list_is_replaced_by_the_current_one() -> None:
    async def scenario() -> None:
        before = StatusHarness(STATIC, api=False, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(STATIC, replace(RUNNING, container_statuses=(STARTING,)))
        after = StatusHarness(STATIC, replace(MIRROR, status=EXITED), journal=journal)
        listed = replace(RUNNING, container_statuses=(replace(STARTING, started=True),))
        after.manager.restore([replace(MIRROR, status=listed)])
        assert after.manager.get_pod_status(uid_of(STATIC)) == listed
        await after.manager.sync_batch(every=False)
        assert after.manager.get_pod_status(uid_of(STATIC)) == EXITED
        assert after.api.pods["dns"].status == EXITED

    simulate(scenario())


def _counted(restarts: int, message: str = "1") -> PodStatus:
    return PodStatus(
        phase="Running", message=message, container_statuses=(replace(container_status(), restart_count=restarts),)
    )


def _count_in_api(node: StatusHarness) -> int:
    (found,) = node.api.pods["web"].status.container_statuses or ()
    return found.restart_count


@pytest.mark.parametrize(
    ("hooks", "stored", "expected"),
    [
        (Hooks(align=aligned_with), False, 2),
        (Hooks(align=aligned_with), True, 2),
        (Hooks(), False, 1),  # as the kubelet does
    ],
)
def test_the_first_sent_status_keeps_the_restart_counts_of_the_api(hooks: Hooks, stored: bool, expected: int) -> None:
    async def scenario() -> None:
        journal = StatusJournal()
        if stored:
            StatusHarness(WEB, api=False, journal=journal).manager.set_pod_status(WEB, _counted(1))
        node = StatusHarness(WEB, journal=journal, hooks=hooks)
        node.api.put(replace(WEB, status=_counted(2)))
        node.manager.set_pod_status(WEB, _counted(1, "2"))
        await node.manager.sync_batch(every=False)
        (kept,) = node.manager.cached[uid_of(WEB)].status.container_statuses or ()
        assert (_count_in_api(node), kept.restart_count) == (expected, expected)

    simulate(scenario())


def test_a_restart_count_that_is_overwritten_later_is_restored() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, hooks=Hooks(align=aligned_with))
        node.manager.set_pod_status(WEB, _counted(1))
        await node.manager.sync_batch(every=False)
        node.api.put(replace(node.api.pods["web"], status=_counted(7)))
        node.watch("web")
        await node.manager.sync_batch(every=True)
        assert _count_in_api(node) == 1

    simulate(scenario())


def test_a_status_accepted_during_the_first_call_keeps_the_restart_counts_of_the_api() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, hooks=Hooks(align=aligned_with))
        node.api.put(replace(WEB, status=_counted(2)))
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(WEB, _counted(1))
        async with node.running():
            await asyncio.sleep(0.5)  # during the GET
            node.manager.set_pod_status(WEB, _counted(1, "2"))
            await asyncio.sleep(10)
        assert (node.shown("web"), _count_in_api(node)) == ("2", 2)

    simulate(scenario())


def test_the_status_of_a_static_pod_is_saved_if_its_mirror_pod_has_it() -> None:
    async def scenario() -> None:
        node = StatusHarness(STATIC, MIRROR, journal=(journal := StatusJournal()))
        journal.failures = 1000
        node.manager.set_pod_status(STATIC, status(1))
        assert not await node.manager.is_saved(uid_of(STATIC))
        await node.manager.sync_batch(every=True)
        assert await node.manager.is_saved(uid_of(STATIC))
        node.known.remove(MIRROR)
        node.known.update(NEXT_MIRROR)
        assert not await node.manager.is_saved(uid_of(STATIC))  # the new mirror pod does not have it

    simulate(scenario())


def test_the_merged_status_does_not_replace_a_version_accepted_during_the_call() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB)
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


@pytest.mark.parametrize("changed", [False, True], ids=["the same status", "a new status"])
def test_a_checkpoint_behind_the_api_is_dropped_before_it_is_sent_unless_there_is_a_new_status(changed: bool) -> None:
    async def scenario() -> None:
        before = StatusHarness(WEB, api=False, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(WEB, RUNNING)
        after = StatusHarness(replace(WEB, status=EXITED), journal=journal, sender=Sender())
        after.manager.get_pod_status(uid_of(WEB))
        if changed:
            after.manager.set_pod_status(WEB, replace(RUNNING, message="3"))
        assert await after.manager.sync_batch(every=False) == 1
        if changed:
            assert (after.shown("web"), len(after.lags)) == ("3", 1)
        else:
            assert (after.shown("web"), after.lags, dict(after.manager.cached), journal.values) == ("2", [], {}, {})

    simulate(scenario())


def test_a_confirmed_status_is_not_urgent() -> None:
    async def scenario() -> None:
        before = StatusHarness(WEB, api=False, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(WEB, status(1, ready=True))
        after = StatusHarness(WEB, journal=journal, sender=(sender := Sender()))
        after.manager.set_pod_status(WEB, status(1, ready=True))
        async with after.running():
            await asyncio.sleep(1)
        assert sender.offers == [("uid-web", ("ns", "web"), False, False)]

    simulate(scenario())


def test_a_probe_result_is_a_new_version_once() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB)
        node.manager.set_pod_status(WEB, replace(status(1), container_statuses=(container_status(ready=False),)))
        for take in (node.manager.set_container_readiness, node.manager.set_container_startup):
            assert [take(uid_of(WEB), "fake://app", True) for _ in range(2)] == [True, False]
        assert node.manager.cached[uid_of(WEB)].version == 3

    simulate(scenario())


@pytest.mark.parametrize("only_running", [True, False])
@pytest.mark.parametrize("ready", [True, False])
def test_a_terminated_container_does_not_become_ready(ready: bool, only_running: bool) -> None:
    """Simulation seed 92: the result of a readiness probe was processed after its pod had finished."""

    async def scenario() -> None:
        node = StatusHarness(WEB, hooks={"only_running_is_ready": only_running})
        ended = replace(container_status(exit_code=0), ready=not ready)
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
        node = StatusHarness(WEB, hooks={"only_running_is_ready": True})
        waiting = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
        crashed = replace(container_status(ready=False), state=waiting, last_state=container_status(exit_code=1).state)
        node.manager.set_pod_status(WEB, replace(status(1), container_statuses=(crashed,)))
        assert not node.manager.set_container_readiness(uid_of(WEB), "fake://app", True)
        assert node.manager.cached[uid_of(WEB)].version == 1

    simulate(scenario())


def test_a_probe_result_for_a_removed_pod_changes_nothing() -> None:
    async def scenario() -> None:
        node = StatusHarness()
        node.manager.set_pod_status(WEB, replace(status(1), container_statuses=(container_status(ready=False),)))
        for take in (node.manager.set_container_readiness, node.manager.set_container_startup):
            assert not take(uid_of(WEB), "fake://app", True)
        assert node.manager.cached[uid_of(WEB)].version == 1

    simulate(scenario())


@pytest.mark.parametrize("cached", [False, True], ids=["of the source", "as published"])
def test_the_last_status_is_the_newest_one_with_all_containers_terminated(cached: bool) -> None:
    async def scenario() -> None:
        shown = replace(status(1, phase="Succeeded"), container_statuses=(container_status(exit_code=7),))
        node = StatusHarness(of := replace(WEB, status=shown))
        if cached:
            node.manager.set_pod_status(
                of, replace(status(2, phase="Failed"), container_statuses=(container_status(exit_code=8),))
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
