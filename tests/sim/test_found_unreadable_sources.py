"""Regressions from the simulation: static pods whose manifests cannot be read when the agent starts."""

import asyncio

import pytest

from podkeeper.model.messages import PodUID
from podkeeper.testing.fake_sources import FakeStaticSource
from podkeeper.testing.sim.world import CrashOptions
from tests.sim.sim_node import SimNode, pod, run_scenario

PLACES = {"file": "/etc/podkeeper/static.yaml", "http": "http://manifests.test/static"}
each_source = pytest.mark.parametrize("source", PLACES)


def places(node: SimNode, source: str) -> FakeStaticSource:
    return node.world.files if source == "file" else node.world.web


def write(node: SimNode, source: str) -> PodUID:
    (made,) = places(node, source).write(PLACES[source], pod("static"))
    return PodUID(made.metadata.uid or "")


def make_unreadable(node: SimNode, source: str) -> None:
    places(node, source).fail()
    node.world.fault_log.begin(node.world.now(), "unreadable-sources")


@each_source
def test_a_static_pod_is_restarted_although_its_source_is_unreadable(source: str) -> None:
    """The new agent knew the pod only as a mirror pod, and did not restart its container (I8)."""

    async def scenario(node: SimNode) -> None:
        uid = write(node, source)
        await node.until(lambda: node.is_ready("static-n1"), within=2)
        make_unreadable(node, source)
        node.world.crash(downtime_seconds=10)
        await asyncio.sleep(30)
        node.runtime.end_container(uid, "app", 0)
        await node.until(lambda: len(node.runs_of(uid)) == 2 and node.runs(uid), within=3)
        places(node, source).recover()
        await asyncio.sleep(60)
        assert node.is_ready("static-n1")
        assert len(node.runs_of(uid)) == 2, "the source names the same pod as the notes"

    run_scenario(scenario)


@each_source
def test_static_pods_start_after_a_reboot_without_their_source_and_the_api(source: str) -> None:
    async def scenario(node: SimNode) -> None:
        uid = write(node, source)
        await node.until(lambda: node.is_ready("static-n1"), within=2)
        make_unreadable(node, source)
        node.api.go_down()
        node.world.fault_log.begin(node.world.now(), "api-down")
        node.world.reboot()
        await node.until(lambda: not node.runs(uid), within=1)
        await node.until(lambda: node.runs(uid), within=60)

    run_scenario(scenario)


@each_source
def test_a_manifest_that_was_removed_while_no_agent_ran_is_not_started_again(source: str) -> None:
    async def scenario(node: SimNode) -> None:
        uid = write(node, source)
        await node.until(lambda: node.is_ready("static-n1"), within=2)
        node.world.reboot()
        places(node, source).erase(PLACES[source])
        await asyncio.sleep(120)
        assert len(node.runs_of(uid)) == 1
        await node.until(lambda: node.is_gone("static-n1"), within=60)

    run_scenario(scenario)


@each_source
def test_a_manifest_that_was_removed_while_unreadable_is_stopped_when_the_source_recovers(source: str) -> None:
    async def scenario(node: SimNode) -> None:
        uid = write(node, source)
        await node.until(lambda: node.is_ready("static-n1"), within=2)
        make_unreadable(node, source)
        node.world.crash(downtime_seconds=5)
        places(node, source).erase(PLACES[source])
        await asyncio.sleep(60)
        assert node.runs(uid)
        places(node, source).recover()
        await node.until(lambda: not node.runs(uid), within=40)
        node.world.crash()
        await asyncio.sleep(60)
        assert not node.runs(uid), "the note is dropped with the manifest"

    run_scenario(scenario)


def test_a_static_pod_of_an_unreadable_source_keeps_running_without_a_journal_entry() -> None:
    """The disk was full: the new agent has no record of the pod. The source is not ready, so the pod is kept."""

    async def scenario(node: SimNode) -> None:
        node.world.journal.disk_full, node.world.crash_options = True, CrashOptions(keep_unsynced=False)
        node.world.fault_log.begin(node.world.now(), "disk-full")
        uid = write(node, "file")
        await node.until(lambda: node.is_ready("static-n1"), within=30)
        make_unreadable(node, "file")
        node.world.crash(downtime_seconds=5)
        await asyncio.sleep(120)
        assert node.runs(uid)
        places(node, "file").recover()
        await asyncio.sleep(60)
        assert [run.ended for run in node.runs_of(uid)] == [None]

    run_scenario(scenario)
