"""The stop filter: which pods it sends, stops and terminates, and which it stores."""

import asyncio

from podkeeper.app.local.stop_filter import StopFilter
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.host.clock import SystemClock
from podkeeper.model.messages import Op, PodUID, PodUpdate
from podkeeper.ports.source import SendUpdate
from podkeeper.testing.build import pod
from podkeeper.testing.fake_sources import FakeStaticSource, fake_file_source
from podkeeper.testing.fakes import FakeJournal

A, B = PodUID("uid-a"), PodUID("uid-b")


class Harness:
    """A source, a stop filter, and the updates that the filter sent."""

    def __init__(self, journal: FakeJournal) -> None:
        self.stop_filter = StopFilter(clock=SystemClock(), checkpoints=Checkpoints(journal, "stopped/"))
        self.source: FakeStaticSource = fake_file_source("n1")
        self.updates: list[PodUpdate] = []

    async def __aenter__(self) -> "Harness":
        self._running = asyncio.create_task(self.stop_filter.filtered(self.source).run(self.updates.append))
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.wait((self._running,))

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def sent(self) -> list[str]:
        return [each.metadata.uid or "" for each in self.updates[-1].pods]


def test_updates_of_a_source_are_sent() -> None:
    async def scenario() -> None:
        async with Harness(FakeJournal()) as node:
            assert (node.updates[0].op, node.updates[0].pods) == ("SET", ())
            node.source.write("/a", pod("a"), pod("b"))
            await node.settle()
            assert node.sent() == [A, B]
            assert node.stop_filter.first_seen(A) is not None

    asyncio.run(scenario())


def test_a_stopped_pod_terminates_and_is_sent_again_when_it_is_started() -> None:
    async def scenario() -> None:
        async with Harness(FakeJournal()) as node:
            node.source.write("/a", pod("a"), pod("b"))
            await node.settle()
            await node.stop_filter.stop(A)
            assert node.sent() == [B]
            assert (list(node.stop_filter.terminating()), list(node.stop_filter.stopped())) == ([A], [])
            node.stop_filter.mark_terminated(A)
            assert (list(node.stop_filter.terminating()), list(node.stop_filter.stopped())) == ([], [A])
            await node.stop_filter.stop(B)
            assert list(node.stop_filter.terminating()) == [B]  # not A, which has terminated before
            await node.stop_filter.start(A)
            assert node.sent() == [A]
            assert list(node.stop_filter.stopped()) == []

    asyncio.run(scenario())


def test_a_terminating_pod_that_is_started_is_sent_after_its_end() -> None:
    async def scenario() -> None:
        async with Harness(FakeJournal()) as node:
            node.source.write("/a", pod("a"), pod("b"))
            await node.settle()
            await node.stop_filter.stop(A)
            await node.stop_filter.start(A)
            assert (node.sent(), list(node.stop_filter.terminating())) == ([B], [A])
            assert node.stop_filter.will_restart(A)
            node.stop_filter.mark_terminated(A)
            assert (node.sent(), list(node.stop_filter.terminating())) == ([A, B], [])
            assert not node.stop_filter.will_restart(A)

    asyncio.run(scenario())


def test_a_removed_and_restored_manifest_is_sent_after_the_end_of_its_pod() -> None:
    async def scenario() -> None:
        async with Harness(FakeJournal()) as node:
            for pods in ((pod("a"),), (), (pod("a"),)):
                node.source.write("/a", *pods)
                await node.settle()
            assert (node.sent(), list(node.stop_filter.terminating())) == ([], [A])
            node.stop_filter.mark_terminated(A)
            assert node.sent() == [A]

    asyncio.run(scenario())


def test_the_shortest_requested_grace_period_is_used() -> None:
    async def scenario() -> None:
        async with Harness(FakeJournal()) as node:
            node.source.write("/a", pod("a"))
            await node.settle()
            await node.stop_filter.stop(A)
            assert node.stop_filter.terminating()[A].grace_seconds == 30
            await node.stop_filter.stop(A, grace_seconds=60)
            assert node.stop_filter.terminating()[A].grace_seconds == 30
            await node.stop_filter.stop(A, grace_seconds=3)
            assert node.stop_filter.terminating()[A].grace_seconds in (3, 4)

    asyncio.run(scenario())


def test_a_stopped_pod_stays_stopped_after_a_restart_until_its_manifest_is_removed() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        async with Harness(journal) as node:
            node.source.write("/a", pod("a"), pod("b"))
            await node.settle()
            await node.stop_filter.stop(A)
        journal.crash()
        async with Harness(journal) as node:
            node.source.write("/a", pod("a"), pod("b"))
            await node.settle()
            assert node.sent() == [B]
            assert list(node.stop_filter.stopped()) == [A]
            node.source.write("/a", pod("b"))
            await node.settle()
            assert node.stop_filter.stopped() == {}
        assert journal.load() == {}

    asyncio.run(scenario())


def test_a_pod_whose_manifest_is_removed_is_forgotten_and_not_started_again() -> None:
    async def scenario() -> None:
        async with Harness(FakeJournal()) as node:
            node.source.write("/a", pod("a"))
            await node.settle()
            node.source.write("/a")
            await node.settle()
            assert (node.stop_filter.first_seen(A), node.stop_filter.will_restart(A)) == (None, False)

    asyncio.run(scenario())


def test_a_started_pod_is_started_durably() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        async with Harness(journal) as node:
            node.source.write("/a", pod("a"))
            await node.settle()
            await node.stop_filter.stop(A)
            await node.stop_filter.start(A)
            journal.crash()
        assert journal.load() == {}

    asyncio.run(scenario())


def test_a_closed_filter_sends_no_pods_and_stores_nothing() -> None:
    async def scenario() -> None:
        journal = FakeJournal()
        async with Harness(journal) as node:
            node.source.write("/a", pod("a"))
            await node.settle()
            node.stop_filter.close()
            assert (node.sent(), list(node.stop_filter.terminating())) == ([], [A])
            node.source.write("/b", pod("b"))
            await node.settle()
            assert node.sent() == []
        assert journal.load() == {}

    asyncio.run(scenario())


def test_a_changed_manifest_terminates_the_old_pod_and_sends_the_new_one() -> None:
    async def scenario() -> None:
        async with Harness(FakeJournal()) as node:
            node.source.write("/a", pod("a"))
            await node.settle()
            node.source.write("/a", pod("a", uid=B))
            await node.settle()
            assert (node.sent(), list(node.stop_filter.terminating())) == ([B], [A])

    asyncio.run(scenario())


def test_a_stopped_pod_stays_stopped_while_its_source_only_sends_add_and_remove() -> None:
    """A source that has not read its manifests since the start sends its stored pods, but no SET."""

    async def scenario() -> list[tuple[str, list[str]]]:
        journal, updates = FakeJournal(), list[PodUpdate]()
        async with Harness(journal) as node:
            node.source.write("/a", pod("a"), pod("b"))
            await node.settle()
            await node.stop_filter.stop(A)
        stop_filter = StopFilter(clock=SystemClock(), checkpoints=Checkpoints(journal, "stopped/"))
        source = Partial()
        running = asyncio.create_task(stop_filter.filtered(source).run(updates.append))
        await asyncio.sleep(0)
        source.emit(PodUpdate(Op.ADD, (pod("a"), pod("b")), "file"))
        assert list(stop_filter.stopped()) == [A]
        await stop_filter.start(A)
        await stop_filter.stop(B)
        stop_filter.mark_terminated(B)
        source.emit(PodUpdate(Op.REMOVE, (pod("a"),), "file"))
        running.cancel()
        return [(each.op, [found.metadata.uid or "" for found in each.pods]) for each in updates]

    sent = asyncio.run(scenario())
    assert sent == [("ADD", [B]), ("ADD", [A, B]), ("REMOVE", [B]), ("ADD", [A]), ("REMOVE", [A])]


class Partial:
    """A source that sends the updates of a test."""

    name = "file"

    def __init__(self) -> None:
        self.emit: SendUpdate = lambda update: None

    async def run(self, emit: SendUpdate) -> None:
        self.emit = emit
        await asyncio.Event().wait()
