"""Updates of the publisher of static pods across restarts of the agent, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.model.k8s.core import ConfigMap
from podkeeper.model.messages import FILE_SOURCE, Op, PodUpdate
from podkeeper.rules.static.pod import FromFile
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_content import ManifestReader, unreadable
from podkeeper.sources.static_publisher import LocationContent, StaticPublisher
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.sources.stored_pods import SOURCE_TIMEOUT_SECONDS
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import simulate
from tests.sources.static_listener import config_map_text, pod_text

SOON, LATER = SOURCE_TIMEOUT_SECONDS / 2, SOURCE_TIMEOUT_SECONDS * 2
A, B = "/m/a.yaml", "/m/b.yaml"


def found(location: str, *texts: str) -> dict[str, LocationContent]:
    text = "---\n".join(texts)
    content = ManifestReader("n1", has_store=True).read(text.encode(), FromFile(location), location)
    return {location: LocationContent(content, text)}


def unusable(location: str) -> dict[str, LocationContent]:
    return {location: LocationContent(unreadable("cannot read the file: permission denied", location), b"")}


class AgentRun:
    """One run of the agent."""

    def __init__(self, journal: FakeJournal) -> None:
        self.objects = LocalObjects()
        checkpoints = StoredManifests(Checkpoints(journal, "manifest/file/"), "n1", keep_secrets=True)
        self.publisher = StaticPublisher(FILE_SOURCE, self.objects, None, checkpoints)
        self.received: list[str] = []

    def receive(self, update: PodUpdate) -> None:
        names = " ".join((pod.metadata.name or "").removesuffix("-n1") for pod in update.pods)
        self.received.append(f"{update.op} {names}".rstrip())

    def publish(self, *locations: dict[str, LocationContent], complete: bool = True) -> None:
        everything = {location: what for each in locations for location, what in each.items()}
        self.publisher.publish(everything, {}, self.receive, complete=complete)


@asynccontextmanager
async def agent_run(journal: FakeJournal) -> AsyncIterator[AgentRun]:
    it = AgentRun(journal)
    it.publisher.begin()
    running = asyncio.create_task(it.publisher.run(it.receive))
    await asyncio.sleep(0)
    yield it
    running.cancel()
    await asyncio.wait([running])
    journal.crash()


async def journal_after_run_with(*locations: dict[str, LocationContent]) -> FakeJournal:
    journal = FakeJournal()
    async with agent_run(journal) as first:
        first.publish(*locations)
        await asyncio.sleep(1)
    return journal


def test_stored_pods_are_added_after_the_timeout_of_the_source() -> None:
    async def scenario() -> None:
        journal = await journal_after_run_with(found(A, pod_text("web")))
        async with agent_run(journal) as it:
            await asyncio.sleep(SOON)
            assert it.received == []
            await asyncio.sleep(LATER)
            assert it.received == ["ADD web"]
            it.publish(found(A, pod_text("web")))
            assert it.received == ["ADD web", "SET web"]

    simulate(scenario())


def test_stored_pods_are_not_sent_if_the_source_reads_in_time() -> None:
    async def scenario() -> None:
        journal = await journal_after_run_with(found(A, pod_text("web")), found(B, pod_text("gone")))
        async with agent_run(journal) as it:
            await asyncio.sleep(SOON)
            it.publish(found(A, pod_text("web")))
            await asyncio.sleep(LATER)
            assert it.received == ["SET web"]
        async with agent_run(journal) as third:
            await asyncio.sleep(LATER)
            assert third.received == ["ADD web"]

    simulate(scenario())


def test_a_readable_empty_source_removes_all_pods() -> None:
    async def scenario() -> None:
        journal = await journal_after_run_with(found(A, pod_text("web")))
        async with agent_run(journal) as it:
            it.publish()
            await asyncio.sleep(LATER)
            assert it.received == ["SET"]
        assert journal.load() == {}

    simulate(scenario())


def test_an_invalid_location_keeps_its_pods_and_does_not_affect_the_others() -> None:
    async def scenario() -> None:
        journal = await journal_after_run_with(found(A, pod_text("web")), found(B, pod_text("old")))
        async with agent_run(journal) as it:
            it.publish(unusable(A), found(B, pod_text("new")))
            assert it.received == ["SET web new"]
        async with agent_run(journal) as third:
            third.publish(unusable(A), unusable(B))
            assert third.received == ["SET web new"]

    simulate(scenario())


def test_until_all_locations_are_listed_updates_are_add_and_remove() -> None:
    async def scenario() -> None:
        journal = await journal_after_run_with(found(A, pod_text("web")))
        async with agent_run(journal) as it:
            it.publish(unusable(A), complete=False)
            it.publish(unusable(A), found(B, pod_text("new")), complete=False)
            it.publish(unusable(A), complete=False)
            await asyncio.sleep(LATER)
            it.publish(found(A, pod_text("web")))
            assert it.received == ["ADD web", "ADD web new", "REMOVE new", "ADD web", "SET web"]

    simulate(scenario())


def test_a_source_without_pods_is_not_ready_until_all_locations_are_listed() -> None:
    async def scenario() -> None:
        async with agent_run(FakeJournal()) as it:
            it.publish(complete=False)
            await asyncio.sleep(LATER)
            assert it.received == []
            it.publish()
            assert it.received == ["SET"]

    simulate(scenario())


def test_stored_objects_are_in_the_store_before_their_pods_are_sent() -> None:
    async def scenario() -> None:
        journal = await journal_after_run_with(found(A, pod_text("web"), config_map_text("settings", "one")))
        async with agent_run(journal) as it:
            seen: list[str | None] = []
            receive = it.receive

            def receive_and_check(update: PodUpdate) -> None:
                seen.extend(
                    (each.data or {}).get("key") for each in it.objects.objects() if isinstance(each, ConfigMap)
                )
                receive(update)

            it.publish(unusable(A))
            it.publisher.begin()
            it.publisher.publish(unusable(A), {}, receive_and_check)
            assert seen == ["one"]
            assert it.received == ["SET web", "SET web"]

    simulate(scenario())


def test_a_refused_update_is_sent_again() -> None:
    async def scenario() -> list[Op]:
        updates: list[Op] = []

        def refuse_once(update: PodUpdate) -> None:
            updates.append(update.op)
            if len(updates) == 1:
                raise ValueError("not now")

        async with agent_run(FakeJournal()) as it:
            for _ in range(3):
                it.publisher.publish(found(A, pod_text("web")), {}, refuse_once)
        return updates

    assert simulate(scenario())[0] == [Op.SET, Op.SET]
