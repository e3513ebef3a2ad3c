"""Containers with a missing image: they wait with a reason and do not block other containers."""

from pathlib import Path

import pytest

from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import waiting_reason
from tests.e2e.runtime_kinds import processes_only
from tests.e2e.scripts import POLITE, Wire, named

pytestmark = pytest.mark.slow

IMAGES: dict[str, tuple[str, Wire, tuple[str, ...]]] = {
    "cannot be pulled": ("podkeeper.invalid/missing:1", {}, ("ErrImagePull", "ImagePullBackOff")),
    "must not be pulled": (
        "podkeeper.invalid/missing:1", {"imagePullPolicy": "Never"}, ("ErrImageNeverPull",)
    ),
    "invalid name": ("Not A Name", {}, ("InvalidImageName",)),
}  # fmt: skip


@pytest.mark.parametrize("image, fields, reasons", IMAGES.values(), ids=IMAGES.keys())
def test_a_container_waits_for_its_image(
    run_on_node: ScenarioRunner, image: str, fields: Wire, reasons: tuple[str, ...], tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image=image, container=fields))
        await node.until(lambda: waiting_reason(node, "app") == reasons[-1])
        assert node.phase("app") == "Pending"
        assert ("Warning", "Failed") in [event[:2] for event in node.events("app")] or "Name" in reasons[0]

    run_on_node(scenario, tmp_path)


@processes_only
def test_a_registry_image_on_the_process_runtime_suggests_the_cri_runtime(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image="nginx"))
        await node.until(lambda: waiting_reason(node, "app") in ("ErrImagePull", "ImagePullBackOff"))
        event = [message for kind, _, message in node.events("app") if kind == "Warning"]
        assert any("--runtime cri" in message for message in event)
        shown = node.status("app").state.waiting
        assert shown is not None
        assert "nginx" in (shown.message or "")

    run_on_node(scenario, tmp_path)


def test_one_missing_image_does_not_block_the_other_containers(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        bad = {**named("bad", "true"), "image": "podkeeper.invalid/missing:1"}
        node.create(pod("app", containers=[bad, named("app", POLITE)]))
        await node.until(lambda: waiting_reason(node, "app", "bad") == "ImagePullBackOff")
        await node.until(lambda: node.status("app").state.running is not None)
        assert not node.is_ready("app")

    run_on_node(scenario, tmp_path)
