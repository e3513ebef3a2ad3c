"""Checkpoints of statuses: their API object decides after a restart whether checkpoint or API is newer."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine

import msgspec
import pytest
from msgspec.structs import replace

from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.rules.status.publish import ApiSnapshot, CachedStatus, snapshot_of, status_digest
from podkeeper.testing.virtual_time import simulate
from tests.engine.test_status import StatusHarness, StatusJournal, container_status, pod, status

WEB = pod("web")
MIRROR, STATIC = pod("dns", uid="m-1", mirror="hash"), pod("dns", uid="hash", source="file", hashed="hash")
UNREADY, READY = (replace(status(1), container_statuses=(container_status(ready=ready),)) for ready in (False, True))
EXITED = replace(status(1), container_statuses=(container_status(exit_code=3),))


def versioned(of: Pod, version: int) -> Pod:
    return replace(of, metadata=replace(of.metadata, resource_version=str(version)))


def checkpoint(journal: StatusJournal, uid: str = "uid-web") -> CachedStatus:
    return msgspec.json.decode(journal.values[f"status/{uid}"], type=CachedStatus)


class NumberedStatusHarness(StatusHarness):
    """A node whose API increments the resource version with each answer."""

    def __init__(self, *pods: Pod, journal: StatusJournal, api: bool = True) -> None:
        super().__init__(*(versioned(each, 10) for each in pods), journal=journal, api=api)
        self.version = 10
        self.api.fail_after = self.count

    def count(self, verb: str, name: str) -> None:
        if verb == "patch":
            self.version += 1
            self.api.put(versioned(self.api.pods[name], self.version))


def send(node: NumberedStatusHarness, new: PodStatus) -> Coroutine[object, object, int]:
    node.manager.set_pod_status(versioned(WEB, 10), new)
    return node.manager.sync_batch(every=True)


def snapshot_stored_with(new: PodStatus, node: NumberedStatusHarness, journal: StatusJournal) -> ApiSnapshot:
    """Set a status of WEB. Return the API object in its checkpoint."""
    node.manager.set_pod_status(WEB, new)
    shown = checkpoint(journal).shown
    assert shown is not None
    return shown


def test_the_first_checkpoint_has_the_object_of_the_source() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        pod_of_source = replace(versioned(WEB, 7), status=UNREADY)
        node.manager.set_pod_status(pod_of_source, READY)
        assert checkpoint(journal).shown == snapshot_of(pod_of_source)

    simulate(scenario())


def test_the_checkpoint_of_a_static_pod_has_its_mirror_pod() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(STATIC, MIRROR, journal=(journal := StatusJournal()))
        node.manager.set_pod_status(STATIC, READY)
        assert checkpoint(journal, "hash").shown == snapshot_of(versioned(MIRROR, 10))

    simulate(scenario())


def test_the_checkpoint_of_a_static_pod_without_a_mirror_pod_has_no_api_object() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(STATIC, journal=(journal := StatusJournal()))
        node.manager.set_pod_status(STATIC, READY)
        assert checkpoint(journal, "hash").shown is None

    simulate(scenario())


def test_without_an_api_a_checkpoint_has_no_api_object() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()), api=False)
        node.manager.set_pod_status(WEB, READY)
        assert checkpoint(journal).shown is None

    simulate(scenario())


def test_a_checkpoint_has_the_last_answer_of_the_api() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        await send(node, UNREADY)
        answer = snapshot_of(versioned(node.api.pods["web"], 10))  # the version is incremented after the answer
        node.manager.set_pod_status(WEB, READY)
        assert checkpoint(journal).shown == answer

    simulate(scenario())


def answers_lost_of(verb: str) -> Callable[[str, str], None]:
    """Return an `api.fail_after` that loses the answers of one verb."""

    def lose(called: str, name: str) -> None:
        if called == verb:
            raise ApiUnavailable("the answer is lost")

    return lose


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_checkpoint_written_during_a_call_has_the_status_in_flight(verb: str) -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        node.api.seconds = lambda called, name: 1.0 if called == verb else 0.0
        async with asyncio.TaskGroup() as group:
            group.create_task(send(node, UNREADY))
            await asyncio.sleep(0.5)
            shown = snapshot_stored_with(READY, node, journal)
            assert set(shown.unanswered) == {status_digest(UNREADY)}
        assert checkpoint(journal).shown == shown

    simulate(scenario())


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_checkpoint_has_a_status_that_was_sent_without_an_answer(verb: str) -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        node.api.fail_after = answers_lost_of(verb)
        await send(node, UNREADY)
        shown = snapshot_stored_with(READY, node, journal)
        assert shown.unanswered == ((status_digest(UNREADY),) if verb == "patch" else ())

    simulate(scenario())


def test_a_checkpoint_has_all_statuses_sent_since_the_last_answer() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        node.api.fail_after = answers_lost_of("patch")
        await send(node, UNREADY)
        node.api.seconds = lambda called, name: 1.0 if called == "get" else 0.0
        async with asyncio.TaskGroup() as group:
            group.create_task(send(node, READY))
            await asyncio.sleep(0.5)
            shown = snapshot_stored_with(EXITED, node, journal)
            assert shown.unanswered == (status_digest(UNREADY), status_digest(READY))

    simulate(scenario())


def test_a_checkpoint_written_while_the_previous_one_becomes_durable_has_the_previous_status() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal(seconds=0.8)))
        async with asyncio.TaskGroup() as group:
            group.create_task(send(node, UNREADY))
            await asyncio.sleep(0.4)
            node.manager.set_pod_status(WEB, READY)
            await asyncio.sleep(0.8)  # READY is sent when its checkpoint is durable
            assert node.api.calls == []
            shown = snapshot_stored_with(EXITED, node, journal)
            assert shown.unanswered == (status_digest(READY),)
        assert node.api.pods["web"].status.container_statuses == READY.container_statuses

    simulate(scenario())


def test_the_first_checkpoint_of_a_returning_pod_has_the_source_object() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        await send(node, UNREADY)
        node.manager.remove_orphaned_statuses(())
        node.manager.set_pod_status(versioned(WEB, 30), READY)
        assert checkpoint(journal).shown == snapshot_of(versioned(WEB, 30))

    simulate(scenario())


def test_a_pod_forgotten_during_a_call_leaves_no_checkpoint() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        node.api.seconds = lambda verb, name: 1.0 if verb == "patch" else 0.0
        async with asyncio.TaskGroup() as group:
            group.create_task(send(node, UNREADY))
            await asyncio.sleep(0.5)
            node.manager.remove_orphaned_statuses(())
        node.manager.set_pod_status(versioned(WEB, 30), READY)
        assert checkpoint(journal).shown == snapshot_of(versioned(WEB, 30))

    simulate(scenario())


def test_the_checkpoint_of_a_pod_that_comes_back_during_a_call_has_the_status_in_flight() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        node.api.seconds = lambda verb, name: 1.0
        async with asyncio.TaskGroup() as group:
            group.create_task(send(node, UNREADY))
            await asyncio.sleep(0.5)
            node.manager.remove_orphaned_statuses(())
            assert (dict(node.manager.cached), dict(node.manager.phases())) == ({}, {})
            shown = snapshot_stored_with(READY, node, journal)
            assert shown.unanswered == (status_digest(UNREADY),)

    simulate(scenario())


def test_the_next_checkpoint_has_the_answer_of_a_call_during_which_its_pod_came_back() -> None:
    async def scenario() -> None:
        node = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        node.api.seconds = lambda verb, name: 1.0 if verb == "patch" else 0.0
        async with asyncio.TaskGroup() as group:
            group.create_task(send(node, UNREADY))
            await asyncio.sleep(0.5)
            node.manager.remove_orphaned_statuses(())
            node.manager.set_pod_status(versioned(WEB, 5), READY)
        answer = snapshot_of(versioned(node.api.pods["web"], 10))  # the version is incremented after the answer
        assert snapshot_stored_with(EXITED, node, journal) == answer

    simulate(scenario())


def test_a_restarted_agent_keeps_the_statuses_that_earlier_ones_sent_without_an_answer() -> None:
    async def scenario() -> None:
        before = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        before.api.fail_after = answers_lost_of("patch")
        await send(before, UNREADY)
        before.manager.set_pod_status(WEB, READY)
        after = NumberedStatusHarness(WEB, journal=journal)
        shown = snapshot_stored_with(EXITED, after, journal)
        assert shown.unanswered == (status_digest(UNREADY), status_digest(READY))

    simulate(scenario())


def test_the_api_object_of_a_checkpoint_is_in_the_next_one_until_the_api_answers() -> None:
    async def scenario() -> None:
        before = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        await send(before, UNREADY)
        before.manager.set_pod_status(WEB, READY)
        shown = checkpoint(journal).shown
        assert shown is not None
        after = NumberedStatusHarness(WEB, journal=journal)
        after.manager.set_pod_status(versioned(WEB, 30), UNREADY)
        assert checkpoint(journal).version == 3
        # The last agent process may have sent READY after it had written the checkpoint.
        assert checkpoint(journal).shown == dataclasses.replace(shown, unanswered=(status_digest(READY),))

    simulate(scenario())


def test_a_checkpoint_written_without_the_api_is_not_behind_the_status_of_an_earlier_agent() -> None:
    async def scenario() -> None:
        first = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        await send(first, UNREADY)
        in_api = first.api.pods["web"]
        second = NumberedStatusHarness(WEB, journal=journal)  # its API does not answer
        second.manager.restore([WEB])
        second.manager.set_pod_status(WEB, READY)
        third = NumberedStatusHarness(in_api, journal=journal)
        third.manager.restore([in_api])
        restored = third.manager.get_pod_status(uid_of(WEB))
        assert restored is not None
        assert restored.container_statuses == READY.container_statuses

    simulate(scenario())


LATER: dict[str, tuple[Callable[[NumberedStatusHarness], Pod], bool]] = {
    "the API has a status that was sent without a checkpoint": (lambda node: node.api.pods["web"], True),
    "the list is older": (lambda node: replace(versioned(WEB, 5), status=UNREADY), False),
    "another client changed the pod": (lambda node: replace(versioned(WEB, 50), status=UNREADY), False),
}


@pytest.mark.parametrize(("shown", "dropped"), LATER.values(), ids=LATER.keys())
def test_a_checkpoint_is_dropped_only_if_the_api_shows_a_status_sent_after_it(
    shown: Callable[[NumberedStatusHarness], Pod], dropped: bool
) -> None:
    async def scenario() -> None:
        before = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        await send(before, UNREADY)
        old_values = dict(journal.values)
        await send(before, READY)  # its checkpoint is not written
        journal.values = old_values
        after = NumberedStatusHarness(WEB, journal=journal)
        after.manager.restore([shown(before)])
        assert (list(after.manager.cached) == []) is dropped
        assert (after.manager.get_pod_status(uid_of(WEB)) is None) is dropped

    simulate(scenario())


def test_a_checkpoint_with_more_progress_than_the_api_is_kept() -> None:
    async def scenario() -> None:
        before = NumberedStatusHarness(WEB, journal=(journal := StatusJournal()))
        await send(before, UNREADY)
        before.manager.set_pod_status(WEB, EXITED)
        after = NumberedStatusHarness(WEB, journal=journal)
        after.manager.restore([replace(versioned(WEB, 50), status=READY)])
        assert list(after.manager.cached) == [PodUID("uid-web")]

    simulate(scenario())


def test_the_checkpoint_of_a_status_taken_from_a_mirror_pod_has_that_mirror_pod() -> None:
    async def scenario() -> None:
        before = NumberedStatusHarness(STATIC, MIRROR, journal=(journal := StatusJournal()))
        before.manager.set_pod_status(STATIC, UNREADY)
        after = NumberedStatusHarness(STATIC, MIRROR, journal=journal)
        mirror = replace(versioned(MIRROR, 50), status=READY)
        after.manager.restore([mirror])
        assert checkpoint(journal, "hash").status == READY
        assert checkpoint(journal, "hash").shown == snapshot_of(mirror)

    simulate(scenario())


def test_a_static_pod_that_loses_its_mirror_pod_during_a_call_has_no_api_object_in_its_checkpoint() -> None:
    async def scenario() -> None:
        node = StatusHarness(STATIC, MIRROR, journal=(journal := StatusJournal()))
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(STATIC, UNREADY)
        async with asyncio.TaskGroup() as group:
            group.create_task(node.manager.sync_batch(every=True))
            await asyncio.sleep(0.5)
            node.known.remove(MIRROR)
            node.manager.forget(uid_of(STATIC))
            node.manager.set_pod_status(STATIC, READY)
            assert checkpoint(journal, "hash").shown is None

    simulate(scenario())


# Static pods that run again.


@pytest.mark.parametrize("in_flight", [False, True], ids=["without a call", "during a call"])
def test_a_static_pod_that_starts_over_is_not_compared_with_its_mirror_pod(in_flight: bool) -> None:
    async def scenario() -> None:
        node = StatusHarness(STATIC, replace(MIRROR, status=EXITED))
        node.api.seconds = lambda verb, name: 1.0
        assert not node.manager.set_pod_status(STATIC, READY)  # a terminated container cannot run
        async with asyncio.TaskGroup() as group:
            if in_flight:
                node.manager.set_pod_status(STATIC, replace(EXITED, message="2"))
                group.create_task(node.manager.sync_batch(every=True))
                await asyncio.sleep(0.5)
            node.manager.start_over(uid_of(STATIC))
            assert node.manager.phases() == {}
        assert node.manager.set_pod_status(STATIC, READY)

    simulate(scenario())


def test_the_first_status_of_a_static_pod_that_starts_over_keeps_nothing_of_its_mirror_pod() -> None:
    aligned: list[bool] = []

    def align(in_api: Pod, ours: PodStatus, first: bool) -> PodStatus:
        aligned.append(first)
        return ours

    async def scenario() -> None:
        node = StatusHarness(STATIC, replace(MIRROR, status=EXITED), hooks={"align": align})
        node.manager.start_over(uid_of(STATIC))
        for new in (UNREADY, READY):
            node.manager.set_pod_status(STATIC, new)
            await node.manager.sync_batch(every=False)
        assert aligned == [False, False]

    simulate(scenario())


def test_a_static_pod_that_was_forgotten_is_compared_with_its_mirror_pod_again() -> None:
    async def scenario() -> None:
        node = StatusHarness(STATIC, replace(MIRROR, status=EXITED))
        node.manager.start_over(uid_of(STATIC))
        assert node.manager.set_pod_status(STATIC, READY)
        node.manager.forget(uid_of(STATIC))
        assert not node.manager.set_pod_status(STATIC, READY)

    simulate(scenario())


def test_a_static_pod_that_was_forgotten_during_a_call_is_compared_with_its_mirror_pod() -> None:
    async def scenario() -> None:
        node = StatusHarness(STATIC, replace(MIRROR, status=EXITED))
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(STATIC, replace(EXITED, message="2"))
        async with asyncio.TaskGroup() as group:
            group.create_task(node.manager.sync_batch(every=True))
            await asyncio.sleep(0.5)
            node.manager.forget(uid_of(STATIC))
            assert not node.manager.set_pod_status(STATIC, READY)

    simulate(scenario())
