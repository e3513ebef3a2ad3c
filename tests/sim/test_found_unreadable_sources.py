"""What the simulation found about static pods whose manifests cannot be read when the agent starts."""

import asyncio

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.testing.fake_sources import FakeStaticSource
from podkeeper.testing.sim.world import Fate
from tests.sim.stories import Story, pod, tell

PLACES = {"file": "/etc/podkeeper/static.yaml", "http": "http://manifests.test/static"}
each_source = pytest.mark.parametrize("source", PLACES)


def places(it: Story, source: str) -> FakeStaticSource:
    return it.world.files if source == "file" else it.world.web


def write(it: Story, source: str) -> PodUID:
    (made,) = places(it, source).write(PLACES[source], pod("static"))
    return PodUID(made.metadata.uid or "")


def make_unreadable(it: Story, source: str) -> None:
    places(it, source).fail()
    it.world.troubles.begin(it.world.now(), "unreadable-sources")


@each_source
def test_a_static_pod_is_restarted_though_its_source_is_unreadable_since_the_agent_started(source: str) -> None:
    """The new agent knew the pod only as a mirror pod, and did not restart its container (I8)."""

    async def story(it: Story) -> None:
        uid = write(it, source)
        await it.until(lambda: it.is_ready("static-n1"), within=2)
        make_unreadable(it, source)
        it.world.crash(away_seconds=10)
        await asyncio.sleep(30)
        it.runtime.end_container(uid, "app", 0)
        await it.until(lambda: len(it.lives(uid)) == 2 and it.runs(uid), within=3)
        places(it, source).recover()
        await asyncio.sleep(60)
        assert it.is_ready("static-n1")
        assert len(it.lives(uid)) == 2, "the source names the same pod as the notes"

    tell(story)


@each_source
def test_after_a_reboot_static_pods_start_though_their_source_and_the_api_are_away(source: str) -> None:
    async def story(it: Story) -> None:
        uid = write(it, source)
        await it.until(lambda: it.is_ready("static-n1"), within=2)
        make_unreadable(it, source)
        it.api.go_down()
        it.world.troubles.begin(it.world.now(), "api-down")
        it.world.reboot()
        await it.until(lambda: not it.runs(uid), within=1)
        await it.until(lambda: it.runs(uid), within=60)

    tell(story)


@each_source
def test_a_manifest_that_was_erased_while_no_agent_ran_is_not_started_again(source: str) -> None:
    async def story(it: Story) -> None:
        uid = write(it, source)
        await it.until(lambda: it.is_ready("static-n1"), within=2)
        it.world.reboot()
        places(it, source).erase(PLACES[source])
        await asyncio.sleep(120)
        assert len(it.lives(uid)) == 1
        await it.until(lambda: it.is_gone("static-n1"), within=60)

    tell(story)


@each_source
def test_a_manifest_that_was_erased_while_it_was_unreadable_is_removed_when_it_can_be_read(source: str) -> None:
    async def story(it: Story) -> None:
        uid = write(it, source)
        await it.until(lambda: it.is_ready("static-n1"), within=2)
        make_unreadable(it, source)
        it.world.crash(away_seconds=5)
        places(it, source).erase(PLACES[source])
        await asyncio.sleep(60)
        assert it.runs(uid)
        places(it, source).recover()
        await it.until(lambda: not it.runs(uid), within=40)
        it.world.crash()
        await asyncio.sleep(60)
        assert not it.runs(uid), "the note is dropped with the manifest"

    tell(story)


def test_without_a_note_a_static_pod_of_an_unreadable_source_runs_on() -> None:
    """The disk was full: the new agent knows nothing of the pod. The source is not ready, so the pod is kept."""

    async def story(it: Story) -> None:
        it.world.journal.disk_full, it.world.fate = True, Fate(notes_kept=False)
        it.world.troubles.begin(it.world.now(), "disk-full")
        uid = write(it, "file")
        await it.until(lambda: it.is_ready("static-n1"), within=30)
        make_unreadable(it, "file")
        it.world.crash(away_seconds=5)
        await asyncio.sleep(120)
        assert it.runs(uid)
        places(it, "file").recover()
        await asyncio.sleep(60)
        assert [life.ended for life in it.lives(uid)] == [None]

    tell(story)
