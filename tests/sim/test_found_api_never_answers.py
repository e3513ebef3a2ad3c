"""Regressions from the simulation: static pods of an agent that the API has not answered since it started."""

import asyncio

import pytest

from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.build import container
from tests.sim.sim_node import SimNode, pod, run_scenario

PLACE = "/etc/podkeeper/web.yaml"
GONE = ""  # the manifest is removed

WRITES = {
    "the successor is written again": (0.05, ("app:v2", "app:v1", "app:v2")),
    "the change is taken back while the pod terminates": (0.05, ("app:v2", "app:v1")),
    "the change is taken back after the successor has started": (5.0, ("app:v2", "app:v1")),
    "the manifest comes back while the pod terminates": (0.05, (GONE, "app:v1")),
    "the manifest comes back after the pod has terminated": (5.0, (GONE, "app:v1")),
}


def published_id(node: SimNode) -> str:
    """Return the ID of the container in the mirror pod's status, without the name of its runtime."""
    return (node.status("web-n1").container_id or "").rpartition("://")[2]


def running_id(node: SimNode) -> str:
    (run,) = node.world.truth.all_running()
    return run.id


@pytest.mark.parametrize(("pause", "images"), WRITES.values(), ids=WRITES.keys())
def test_a_static_pod_that_is_added_again_runs_again_without_the_api(pause: float, images: tuple[str, ...]) -> None:
    """Seed 334: only housekeeping restarted such pods, and it waits until the API has answered once (I14).

    If the pod is the API server of this node, both would wait forever.
    """

    async def scenario(node: SimNode) -> None:
        def write(image: str) -> None:
            node.write(PLACE, pod("web", container(image=image), behaviours={"app": Behaviour(term_seconds=0.5)}))

        write("app:v1")
        await node.until(lambda: node.is_ready("web-n1"), within=3)
        node.api.go_down()
        node.world.fault_log.begin(node.world.now(), "api-down")
        await node.restart_agent()
        await asyncio.sleep(20)
        for image in images:
            if image:
                write(image)
            else:
                node.world.files.erase(PLACE)
            await asyncio.sleep(pause)
        await node.until(lambda: [run.image for run in node.world.truth.all_running()] == [images[-1]], within=3)
        await asyncio.sleep(60)
        assert [run.image for run in node.world.truth.all_running()] == [images[-1]]
        node.api.come_up()
        # The API still has the ready mirror pod of the first container, from before the outage.
        await node.until(lambda: node.is_ready("web-n1") and published_id(node) == running_id(node), within=70)
        await asyncio.sleep(30)
        assert [run.image for run in node.world.truth.all_running()] == [images[-1]]

    run_scenario(scenario)
