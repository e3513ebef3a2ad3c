"""Regressions from the simulation: rejection and preemption of pods on a full node."""

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace

from podkeeper.app.build import simple_node
from podkeeper.model.k8s.core import Container, Pod, ResourceRequirements
from podkeeper.rules.admission.preempt import SYSTEM_CRITICAL_PRIORITY
from podkeeper.rules.status.phase import is_terminal
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.build import container
from podkeeper.testing.sim.faults_services import UnreadableSources, WatchStale
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import NODE
from tests.sim.sim_node import SimNode, pod, run_scenario

PLACE = "/static.yaml"


def requesting(cpu: str, name: str = "app") -> Container:
    return replace(container(name), resources=ResourceRequirements(requests={"cpu": cpu}))


def critical(made: Pod) -> Pod:
    return replace(made, spec=replace(made.spec, priority=SYSTEM_CRITICAL_PRIORITY))


STUBBORN = Behaviour(term_seconds=None)


@pytest.mark.parametrize("when", ["while it is held", "before the agent comes back"])
def test_a_critical_pod_is_deleted_in_time_during_its_preemption(when: str) -> None:
    """After a restart there was no room: its deletion waited for the grace periods of the preempted pods (I5)."""

    async def scenario(node: SimNode) -> None:
        node.put(pod("victim", requesting("4"), grace=60, behaviours={"app": STUBBORN}))
        uid = node.put(critical(pod("web", requesting("4"), grace=2)))
        await node.until(lambda: node.is_ready("victim", "web"), within=1)
        node.world.crash(downtime_seconds=5)
        node.write(PLACE, pod("static", requesting("4")))  # created last, received first
        if when.startswith("before"):
            node.delete("web")
        await asyncio.sleep(20)
        if when.startswith("while"):
            assert uid in node.agent.engine.preemption.held()
            node.delete("web")
        await node.until(lambda: node.is_gone("web"), within=10)
        await asyncio.sleep(120)
        assert node.is_gone("web")
        assert len(node.runs_of(uid)) == 1

    run_scenario(scenario)


def test_a_rejection_is_published_although_a_source_is_not_ready() -> None:
    """A source was not ready, and the agent did not publish the rejection until it was (I8)."""

    async def scenario(node: SimNode) -> None:
        node.world.crash(downtime_seconds=1)
        UnreadableSources(files=True, web=False, seconds=200).run(node.world)
        await asyncio.sleep(20)
        node.put(pod("web", requesting("9")))
        await node.until(lambda: node.phase("web") == "Failed", within=1)
        assert node.seen("web").status.reason == "OutOfcpu"

    run_scenario(scenario)


def test_a_pod_rejected_after_a_restart_is_not_terminal_while_it_runs() -> None:
    """Only the phase is checked here, because readiness changes at once."""

    async def scenario(node: SimNode) -> None:
        uid = node.put(pod("web", requesting("8")))
        await node.until(lambda: node.is_ready("web"), within=1)
        node.world.crash(downtime_seconds=1)
        node.world.settings = dataclasses.replace(node.world.settings, node=simple_node(NODE, cpu="4"))
        UnreadableSources(files=True, web=False, seconds=60).run(node.world)
        ran = []

        def see(change: PodChanged) -> None:
            if change.new is not None and is_terminal(change.new.status.phase):
                ran.append(node.runs(uid))

        node.world.bus.subscribe(PodChanged, see)
        await node.until(lambda: bool(ran), within=120)
        assert not any(ran)

    run_scenario(scenario, watched=False)


@pytest.mark.parametrize("how", ["the agent is restarted", "it comes back at once", "it comes back later"])
def test_a_rejected_static_pod_is_admitted_again(how: str) -> None:
    """Its failure was stored, also in the journal. There was room, and it never ran (I10)."""

    async def scenario(node: SimNode) -> None:
        node.put(critical(pod("big", requesting("8"), grace=1)))
        await node.until(lambda: node.is_ready("big"), within=1)
        manifest = pod("static", requesting("4"))
        uid = node.write(PLACE, manifest)
        await asyncio.sleep(10)
        assert not node.runs(uid)
        node.delete("big")
        await node.until(lambda: node.is_gone("big"), within=10)
        await asyncio.sleep(10)
        assert not node.runs(uid)  # as in the kubelet: it is not admitted again by itself
        if how == "the agent is restarted":
            await node.restart_agent()
        else:
            node.world.files.erase(PLACE)
            await asyncio.sleep(0.5 if how.endswith("at once") else 10)
            assert node.write(PLACE, manifest) == uid
        await node.until(lambda: node.runs(uid), within=5)
        await node.until(lambda: node.is_ready("static-n1"), within=5)

    run_scenario(scenario)


def test_a_static_pod_that_is_added_again_without_room_is_rejected_again() -> None:
    async def scenario(node: SimNode) -> None:
        node.put(critical(pod("big", requesting("8"), grace=1)))
        await node.until(lambda: node.is_ready("big"), within=1)
        manifest = pod("static", requesting("4"))
        uid = node.write(PLACE, manifest)
        await asyncio.sleep(10)
        node.world.files.erase(PLACE)
        await asyncio.sleep(0.5)
        node.write(PLACE, manifest)
        await asyncio.sleep(60)
        assert (node.runs(uid), node.is_ready("big")) == (False, True)

    run_scenario(scenario)


def test_a_restart_of_the_agent_does_not_run_a_completed_static_job_again() -> None:
    async def scenario(node: SimNode) -> None:
        uid = node.write(PLACE, pod("job", policy="Never", behaviours={"app": Behaviour(after_seconds=5, exit_code=0)}))
        await asyncio.sleep(20)
        await node.restart_agent()
        await asyncio.sleep(60)
        assert (len(node.runs_of(uid)), node.phase("job-n1")) == (1, "Succeeded")

    run_scenario(scenario)


def test_a_preempted_pod_stays_failed_although_its_containers_exit_with_0() -> None:
    """Seed 194: the watch had not shown that the API knew it as Failed when the last status was made (I1)."""

    async def scenario(node: SimNode) -> None:
        node.put(
            pod(
                "victim",
                requesting("6"),
                policy="OnFailure",
                behaviours={"app": Behaviour(term_seconds=0.5, term_exit_code=0)},
            )
        )
        await node.until(lambda: node.is_ready("victim"), within=1)
        WatchStale(seconds=60, delay_seconds=5).run(node.world)
        node.put(critical(pod("web", requesting("6"))))
        await asyncio.sleep(30)
        assert node.is_ready("web")
        assert (node.phase("victim"), node.seen("victim").status.reason) == ("Failed", "Preempting")

    run_scenario(scenario)


def test_a_rejected_pod_is_not_started_if_the_watch_has_not_delivered_its_successor() -> None:
    """Seed 583: the status was dropped because its object belonged to the successor, so the pod was started (I12)."""

    async def scenario(node: SimNode) -> None:
        node.put(pod("big", requesting("8")))
        await node.until(lambda: node.is_ready("big"), within=1)
        WatchStale(seconds=300, delay_seconds=100).run(node.world)
        rejected = node.put(pod("web", requesting("4")))
        await node.until(lambda: node.phase("web") == "Failed", within=110)
        node.delete("web", grace=0)
        node.put(pod("web", requesting("4")))
        await asyncio.sleep(300)
        assert node.runs_of(rejected) == []

    run_scenario(scenario)
