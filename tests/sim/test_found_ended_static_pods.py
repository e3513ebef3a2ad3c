"""Ended static pods: the manifest is removed and added again before the API answers."""

import asyncio

import pytest

from podkeeper.model.runtime import bare_container_id
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.build import container
from podkeeper.testing.sim.faults_services import UnreadableSources
from tests.sim.sim_node import SimNode, pod, run_scenario

PLACE = "/etc/podkeeper/job.yaml"


def shown_ids(node: SimNode) -> list[str]:
    """The ids of the containers that the mirror shows."""
    mirror = node.in_api("job-n1")
    statuses = () if mirror is None else mirror.status.container_statuses or ()
    return [bare_container_id(each.container_id or "") for each in statuses]


@pytest.mark.parametrize("api_comes_first", [True, False], ids=["it had a mirror", "it had no mirror"])
@pytest.mark.parametrize("downtime_seconds", [0.05, 10.0])
@pytest.mark.parametrize(("policy", "code", "phase"), [("Never", 1, "Failed"), ("OnFailure", 0, "Succeeded")])
def test_an_ended_static_pod_that_is_removed_and_added_again_runs_again_without_the_api(
    policy: str, code: int, phase: str, downtime_seconds: float, api_comes_first: bool
) -> None:
    """Its published phase stayed terminal, so housekeeping dropped the request, and the pod never ran again (I20)."""

    async def scenario(node: SimNode) -> None:
        job = pod("job", container(), policy=policy, behaviours={"app": Behaviour(after_seconds=5, exit_code=code)})
        if api_comes_first:
            node.write(PLACE, job)
            await node.until(lambda: node.in_api("job-n1") is not None and node.phase("job-n1") == phase, within=10)
        node.api.go_down()
        node.world.fault_log.begin(node.world.now(), "api-down")
        await node.restart_agent()
        uid = node.write(PLACE, job)
        await asyncio.sleep(20)
        assert len(node.runs_of(uid)) == 1
        assert not node.runs(uid)
        node.world.files.erase(PLACE)
        await asyncio.sleep(downtime_seconds)
        node.write(PLACE, job)
        await node.until(lambda: node.runs(uid), within=3)
        await asyncio.sleep(20)
        assert len(node.runs_of(uid)) == 2, "the ended pod ran again"
        node.api.come_up()
        await node.until(lambda: shown_ids(node) == [node.runs_of(uid)[-1].id], within=70)
        assert node.phase("job-n1") == phase
        await asyncio.sleep(100)
        assert len(node.runs_of(uid)) == 2

    run_scenario(scenario)


def test_an_ended_static_pod_whose_manifest_stays_does_not_run_again_without_the_api() -> None:
    async def scenario(node: SimNode) -> None:
        node.api.go_down()
        node.world.fault_log.begin(0.0, "api-down")
        await node.restart_agent()
        uid = node.write(PLACE, pod("job", container(), policy="Never", behaviours={"app": Behaviour(after_seconds=5)}))
        await asyncio.sleep(100)
        assert len(node.runs_of(uid)) == 1
        node.api.come_up()
        await asyncio.sleep(100)
        assert len(node.runs_of(uid)) == 1

    run_scenario(scenario)


def test_an_ended_static_pod_that_is_added_again_has_a_status_although_another_source_is_missing() -> None:
    """The mirror of the former run refused each status of the new one, so the pod ran without a status."""

    async def scenario(node: SimNode) -> None:
        job = pod("job", container(), policy="Never", behaviours={"app": Behaviour(after_seconds=30)})
        uid = node.write(PLACE, job)
        await node.until(lambda: node.in_api("job-n1") is not None and node.phase("job-n1") == "Succeeded", within=40)
        node.world.crash()
        UnreadableSources(files=False, web=True, seconds=100).run(node.world)
        await asyncio.sleep(10)
        node.world.files.erase(PLACE)
        await asyncio.sleep(5)
        node.write(PLACE, job)
        await node.until(lambda: node.runs(uid), within=3)
        await node.until(lambda: node.is_ready("job-n1"), within=5)
        await node.until(lambda: node.phase("job-n1") == "Succeeded", within=40)
        assert shown_ids(node) == [node.runs_of(uid)[-1].id]

    run_scenario(scenario)


def test_the_deadline_of_a_static_pod_that_is_added_again_counts_from_its_new_start() -> None:
    """When the API answered, the pod took the start time of its former run from the mirror, and was killed."""

    async def scenario(node: SimNode) -> None:
        run = Behaviour(after_seconds=50, exit_code=0)
        job = pod("job", container(), policy="Never", deadline=60, behaviours={"app": run})
        uid = node.write(PLACE, job)
        await node.until(lambda: node.in_api("job-n1") is not None and node.phase("job-n1") == "Succeeded", within=60)
        node.api.go_down()
        node.world.fault_log.begin(node.world.now(), "api-down")
        await node.restart_agent()
        await asyncio.sleep(5)
        node.world.files.erase(PLACE)
        await asyncio.sleep(5)
        node.write(PLACE, job)
        await node.until(lambda: node.runs(uid), within=3)
        node.api.come_up()
        await asyncio.sleep(70)
        assert [run.exit_code for run in node.runs_of(uid)] == [0, 0]
        assert node.phase("job-n1") == "Succeeded"

    run_scenario(scenario)
