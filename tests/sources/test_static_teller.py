"""The teller of static pods across restarts of the agent, in virtual time: what is told, when, and as what."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from podkeeper.engine.notebook import Notebook
from podkeeper.model.k8s.core import ConfigMap
from podkeeper.model.messages import FILE_SOURCE, Op, PodUpdate
from podkeeper.rules.static import FromFile
from podkeeper.sources.contents import Reader, broken
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.remembered import PATIENCE_SECONDS
from podkeeper.sources.static_teller import Found, StaticTeller
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import simulate
from tests.sources.static_listener import config_map_text, pod_text

SOON, LATER = PATIENCE_SECONDS / 2, PATIENCE_SECONDS * 2
A, B = "/m/a.yaml", "/m/b.yaml"


def found(place: str, *texts: str) -> dict[str, Found]:
    text = "---\n".join(texts)
    return {place: Found(Reader("n1", has_store=True).read(text.encode(), FromFile(place), place), text)}


def unusable(place: str) -> dict[str, Found]:
    return {place: Found(broken("cannot read it: permission denied", place), b"")}


class Life:
    """One life of the agent."""

    def __init__(self, journal: FakeJournal) -> None:
        self.objects = LocalObjects()
        notes = ManifestNotes(Notebook(journal, "manifest/file/"), "n1", keep_secrets=True)
        self.teller = StaticTeller(FILE_SOURCE, self.objects, None, notes)
        self.heard: list[str] = []

    def hear(self, update: PodUpdate) -> None:
        names = " ".join((pod.metadata.name or "").removesuffix("-n1") for pod in update.pods)
        self.heard.append(f"{update.op} {names}".rstrip())

    def take(self, *places: dict[str, Found], complete: bool = True) -> None:
        everything = {place: what for each in places for place, what in each.items()}
        self.teller.take(everything, {}, self.hear, complete=complete)


@asynccontextmanager
async def life(journal: FakeJournal) -> AsyncIterator[Life]:
    it = Life(journal)
    it.teller.begin()
    running = asyncio.create_task(it.teller.run(it.hear))
    await asyncio.sleep(0)
    yield it
    running.cancel()
    await asyncio.wait([running])
    journal.crash()


async def after_a_life_with(*places: dict[str, Found]) -> FakeJournal:
    journal = FakeJournal()
    async with life(journal) as first:
        first.take(*places)
        await asyncio.sleep(1)
    return journal


def test_stored_pods_are_added_once_the_source_has_read_nothing_for_a_while() -> None:
    async def scenario() -> None:
        journal = await after_a_life_with(found(A, pod_text("web")))
        async with life(journal) as it:
            await asyncio.sleep(SOON)
            assert it.heard == []
            await asyncio.sleep(LATER)
            assert it.heard == ["ADD web"]
            it.take(found(A, pod_text("web")))
            assert it.heard == ["ADD web", "SET web"]

    simulate(scenario())


def test_a_source_that_reads_in_time_is_the_truth_and_removed_manifests_are_not_told() -> None:
    async def scenario() -> None:
        journal = await after_a_life_with(found(A, pod_text("web")), found(B, pod_text("gone")))
        async with life(journal) as it:
            await asyncio.sleep(SOON)
            it.take(found(A, pod_text("web")))
            await asyncio.sleep(LATER)
            assert it.heard == ["SET web"]
        async with life(journal) as third:
            await asyncio.sleep(LATER)
            assert third.heard == ["ADD web"]

    simulate(scenario())


def test_a_source_that_is_readable_and_empty_removes_everything() -> None:
    async def scenario() -> None:
        journal = await after_a_life_with(found(A, pod_text("web")))
        async with life(journal) as it:
            it.take()
            await asyncio.sleep(LATER)
            assert it.heard == ["SET"]
        assert journal.load() == {}

    simulate(scenario())


def test_a_place_that_cannot_be_used_keeps_what_it_had_and_the_others_decide_for_themselves() -> None:
    async def scenario() -> None:
        journal = await after_a_life_with(found(A, pod_text("web")), found(B, pod_text("old")))
        async with life(journal) as it:
            it.take(unusable(A), found(B, pod_text("new")))
            assert it.heard == ["SET web new"]
        async with life(journal) as third:
            third.take(unusable(A), unusable(B))
            assert third.heard == ["SET web new"]

    simulate(scenario())


def test_until_everything_was_listed_pods_are_added_and_removed_but_never_set() -> None:
    async def scenario() -> None:
        journal = await after_a_life_with(found(A, pod_text("web")))
        async with life(journal) as it:
            it.take(unusable(A), complete=False)
            it.take(unusable(A), found(B, pod_text("new")), complete=False)
            it.take(unusable(A), complete=False)
            await asyncio.sleep(LATER)
            it.take(found(A, pod_text("web")))
            assert it.heard == ["ADD web", "ADD web new", "REMOVE new", "ADD web", "SET web"]

    simulate(scenario())


def test_a_source_without_pods_is_not_ready_before_everything_was_listed() -> None:
    async def scenario() -> None:
        async with life(FakeJournal()) as it:
            it.take(complete=False)
            await asyncio.sleep(LATER)
            assert it.heard == []
            it.take()
            assert it.heard == ["SET"]

    simulate(scenario())


def test_stored_objects_are_there_before_the_pods_that_refer_to_them_are_told() -> None:
    async def scenario() -> None:
        journal = await after_a_life_with(found(A, pod_text("web"), config_map_text("settings", "one")))
        async with life(journal) as it:
            seen: list[str | None] = []
            hear = it.hear

            def hear_and_look(update: PodUpdate) -> None:
                seen.extend(
                    (each.data or {}).get("key") for each in it.objects.objects() if isinstance(each, ConfigMap)
                )
                hear(update)

            it.take(unusable(A))
            it.teller.begin()
            it.teller.take(unusable(A), {}, hear_and_look)
            assert seen == ["one"]
            assert it.heard == ["SET web", "SET web"]

    simulate(scenario())


def test_a_refused_word_is_told_again() -> None:
    async def scenario() -> list[Op]:
        told: list[Op] = []

        def refuse_once(update: PodUpdate) -> None:
            told.append(update.op)
            if len(told) == 1:
                raise ValueError("not now")

        async with life(FakeJournal()) as it:
            for _ in range(3):
                it.teller.take(found(A, pod_text("web")), {}, refuse_once)
        return told

    assert simulate(scenario())[0] == [Op.SET, Op.SET]
