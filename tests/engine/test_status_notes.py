"""Notes of the status manager: what they hold of the API, so that an agent that comes back knows which is newer."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine

import msgspec
import pytest
from msgspec.structs import replace

from podkeeper.model.errors import ApiUnavailable
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.rules.status.publish import CachedStatus, Shown, as_shown, status_digest
from podkeeper.testing.virtual_time import simulate
from tests.engine.test_status import FakeJournal, Node, container, pod, status, uid_of

WEB = pod("web")
MIRROR, STATIC = pod("dns", "m-1", mirror=True), pod("dns", "hash", source="file", hashed="hash")
UNREADY, READY = (replace(status(1), container_statuses=(container(ready=ready),)) for ready in (False, True))
EXITED = replace(status(1), container_statuses=(container(exit_code=3),))


def versioned(of: Pod, version: int) -> Pod:
    return replace(of, metadata=replace(of.metadata, resource_version=str(version)))


def note(journal: FakeJournal, uid: str = "uid-web") -> CachedStatus:
    return msgspec.json.decode(journal.notes[f"status/{uid}"], type=CachedStatus)


class NumberedNode(Node):
    """A node whose API numbers its answers."""

    def __init__(self, *pods: Pod, journal: FakeJournal, api: bool = True) -> None:
        super().__init__(*(versioned(each, 10) for each in pods), journal=journal, api=api)
        self.version = 10
        self.api.lost = self.count

    def count(self, verb: str, name: str) -> None:
        if verb == "patch":
            self.version += 1
            self.api.put(versioned(self.api.pods[name], self.version))


def told(node: NumberedNode, said: PodStatus) -> Coroutine[object, object, int]:
    node.manager.set_pod_status(versioned(WEB, 10), said)
    return node.manager.sync_batch(every=True)


def shown_in_note_of(said: PodStatus, node: NumberedNode, journal: FakeJournal) -> Shown:
    """Set a status of WEB. Returns the API state in its note."""
    node.manager.set_pod_status(WEB, said)
    shown = note(journal).shown
    assert shown is not None
    return shown


def test_a_first_note_holds_what_the_source_showed() -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal()))
        pod_of_source = replace(versioned(WEB, 7), status=UNREADY)
        node.manager.set_pod_status(pod_of_source, READY)
        assert note(journal).shown == as_shown(pod_of_source)

    simulate(scenario())


def test_a_note_of_a_static_pod_holds_what_its_mirror_shows() -> None:
    async def scenario() -> None:
        node = NumberedNode(STATIC, MIRROR, journal=(journal := FakeJournal()))
        node.manager.set_pod_status(STATIC, READY)
        assert note(journal, "hash").shown == as_shown(versioned(MIRROR, 10))

    simulate(scenario())


def test_a_note_of_a_static_pod_without_a_mirror_holds_nothing_of_the_api() -> None:
    async def scenario() -> None:
        node = NumberedNode(STATIC, journal=(journal := FakeJournal()))
        node.manager.set_pod_status(STATIC, READY)
        assert note(journal, "hash").shown is None

    simulate(scenario())


def test_without_an_api_a_note_holds_nothing_of_it() -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal()), api=False)
        node.manager.set_pod_status(WEB, READY)
        assert note(journal).shown is None

    simulate(scenario())


def test_a_note_holds_the_last_answer_of_the_api() -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal()))
        await told(node, UNREADY)
        answer = as_shown(versioned(node.api.pods["web"], 10))  # the version counts after the answer
        node.manager.set_pod_status(WEB, READY)
        assert note(journal).shown == answer

    simulate(scenario())


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_note_written_during_a_call_holds_what_is_being_sent(verb: str) -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal()))
        node.api.seconds = lambda asked, name: 1.0 if asked == verb else 0.0
        async with asyncio.TaskGroup() as group:
            group.create_task(told(node, UNREADY))
            await asyncio.sleep(0.5)
            shown = shown_in_note_of(READY, node, journal)
            assert set(shown.unanswered) == {status_digest(UNREADY)}
        assert note(journal).shown == shown

    simulate(scenario())


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_note_holds_what_may_have_been_sent_although_the_answer_was_lost(verb: str) -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal()))

        def lose(asked: str, name: str) -> None:
            if asked == verb:
                raise ApiUnavailable("the answer is lost")

        node.api.lost = lose
        await told(node, UNREADY)
        shown = shown_in_note_of(READY, node, journal)
        assert shown.unanswered == ((status_digest(UNREADY),) if verb == "patch" else ())

    simulate(scenario())


def test_a_note_holds_every_status_that_may_have_been_sent_since_the_last_answer() -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal()))

        def lose(asked: str, name: str) -> None:
            if asked == "patch":
                raise ApiUnavailable("the answer is lost")

        node.api.lost = lose
        await told(node, UNREADY)
        node.api.seconds = lambda asked, name: 1.0 if asked == "get" else 0.0
        async with asyncio.TaskGroup() as group:
            group.create_task(told(node, READY))
            await asyncio.sleep(0.5)
            shown = shown_in_note_of(EXITED, node, journal)
            assert shown.unanswered == (status_digest(UNREADY), status_digest(READY))

    simulate(scenario())


def test_a_note_written_while_the_one_before_becomes_durable_holds_what_is_about_to_be_sent() -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal(seconds=0.8)))
        async with asyncio.TaskGroup() as group:
            group.create_task(told(node, UNREADY))
            await asyncio.sleep(0.4)
            node.manager.set_pod_status(WEB, READY)
            await asyncio.sleep(0.8)  # READY is to be sent as soon as its note is durable
            assert node.api.calls == []
            shown = shown_in_note_of(EXITED, node, journal)
            assert shown.unanswered == (status_digest(READY),)
        assert node.api.pods["web"].status.container_statuses == READY.container_statuses

    simulate(scenario())


def test_a_forgotten_pod_that_comes_back_is_noted_as_the_source_shows_it() -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal()))
        await told(node, UNREADY)
        node.manager.remove_orphaned_statuses(())
        node.manager.set_pod_status(versioned(WEB, 30), READY)
        assert note(journal).shown == as_shown(versioned(WEB, 30))

    simulate(scenario())


def test_a_pod_that_was_forgotten_during_a_call_leaves_nothing() -> None:
    async def scenario() -> None:
        node = NumberedNode(WEB, journal=(journal := FakeJournal()))
        node.api.seconds = lambda verb, name: 1.0 if verb == "patch" else 0.0
        async with asyncio.TaskGroup() as group:
            group.create_task(told(node, UNREADY))
            await asyncio.sleep(0.5)
            node.manager.remove_orphaned_statuses(())
        node.manager.set_pod_status(versioned(WEB, 30), READY)
        assert note(journal).shown == as_shown(versioned(WEB, 30))

    simulate(scenario())


def test_what_a_note_held_of_the_api_is_in_the_next_note_until_the_api_answers() -> None:
    async def scenario() -> None:
        before = NumberedNode(WEB, journal=(journal := FakeJournal()))
        await told(before, UNREADY)
        before.manager.set_pod_status(WEB, READY)
        shown = note(journal).shown
        assert shown is not None
        after = NumberedNode(WEB, journal=journal)
        after.manager.set_pod_status(versioned(WEB, 30), UNREADY)
        assert note(journal).version == 3
        # The former agent may have sent READY after it had written the note.
        assert note(journal).shown == dataclasses.replace(shown, unanswered=(status_digest(READY),))

    simulate(scenario())


def test_a_note_written_while_the_api_was_away_is_not_behind_what_an_earlier_agent_sent() -> None:
    async def scenario() -> None:
        first = NumberedNode(WEB, journal=(journal := FakeJournal()))
        await told(first, UNREADY)
        in_api = first.api.pods["web"]
        second = NumberedNode(WEB, journal=journal)  # its API does not answer
        second.manager.restore([WEB])
        second.manager.set_pod_status(WEB, READY)
        third = NumberedNode(in_api, journal=journal)
        third.manager.restore([in_api])
        noted = third.manager.get_pod_status(uid_of(WEB))
        assert noted is not None
        assert noted.container_statuses == READY.container_statuses

    simulate(scenario())


LATER: dict[str, tuple[Callable[[NumberedNode], Pod], bool]] = {
    "the API has what was sent without a note": (lambda node: node.api.pods["web"], True),
    "the list is older": (lambda node: replace(versioned(WEB, 5), status=UNREADY), False),
    "another change of the pod": (lambda node: replace(versioned(WEB, 50), status=UNREADY), False),
}


@pytest.mark.parametrize(("shown", "dropped"), LATER.values(), ids=LATER.keys())
def test_a_note_is_dropped_only_if_the_api_shows_what_was_sent_after_it(
    shown: Callable[[NumberedNode], Pod], dropped: bool
) -> None:
    async def scenario() -> None:
        before = NumberedNode(WEB, journal=(journal := FakeJournal()))
        await told(before, UNREADY)
        old_notes = dict(journal.notes)
        await told(before, READY)  # the disk refused its note
        journal.notes = old_notes
        after = NumberedNode(WEB, journal=journal)
        after.manager.restore([shown(before)])
        assert (list(after.manager.cached) == []) is dropped
        assert (after.manager.get_pod_status(uid_of(WEB)) is None) is dropped

    simulate(scenario())


def test_a_note_that_knows_more_than_a_later_status_is_kept() -> None:
    async def scenario() -> None:
        before = NumberedNode(WEB, journal=(journal := FakeJournal()))
        await told(before, UNREADY)
        before.manager.set_pod_status(WEB, EXITED)
        after = NumberedNode(WEB, journal=journal)
        after.manager.restore([replace(versioned(WEB, 50), status=READY)])
        assert list(after.manager.cached) == [PodUID("uid-web")]

    simulate(scenario())


def test_a_status_that_a_mirror_gave_is_noted_with_what_the_mirror_shows() -> None:
    async def scenario() -> None:
        before = NumberedNode(STATIC, MIRROR, journal=(journal := FakeJournal()))
        before.manager.set_pod_status(STATIC, UNREADY)
        after = NumberedNode(STATIC, MIRROR, journal=journal)
        mirror = replace(versioned(MIRROR, 50), status=READY)
        after.manager.restore([mirror])
        assert note(journal, "hash").status == READY
        assert note(journal, "hash").shown == as_shown(mirror)

    simulate(scenario())
