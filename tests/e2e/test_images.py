"""Containers whose image is not there: they wait, say why, and hold nobody else up."""

from pathlib import Path

import pytest

from tests.e2e.asking import waits_for
from tests.e2e.kinds import processes_only
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.scripts import POLITE, Wire, named

pytestmark = pytest.mark.slow

IMAGES: dict[str, tuple[str, Wire, tuple[str, ...]]] = {
    "one that cannot be fetched": ("podkeeper.invalid/missing:1", {}, ("ErrImagePull", "ImagePullBackOff")),
    "one that may not be fetched": (
        "podkeeper.invalid/missing:1", {"imagePullPolicy": "Never"}, ("ErrImageNeverPull",)
    ),
    "one whose name is none": ("Not A Name", {}, ("InvalidImageName",)),
}  # fmt: skip


@pytest.mark.parametrize("image, fields, reasons", IMAGES.values(), ids=IMAGES.keys())
def test_a_container_waits_for_its_image(
    on_a_node: OnANode, image: str, fields: Wire, reasons: tuple[str, ...], tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image=image, container=fields))
        await node.until(lambda: waits_for(node, "app") == reasons[-1])
        assert node.phase("app") == "Pending"
        assert ("Warning", "Failed") in [told[:2] for told in node.events("app")] or "Name" in reasons[0]

    on_a_node(scenario, tmp_path)


@processes_only
def test_an_image_that_the_host_does_not_give_names_the_runtime_that_would(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image="nginx"))
        await node.until(lambda: waits_for(node, "app") in ("ErrImagePull", "ImagePullBackOff"))
        told = [message for kind, _, message in node.events("app") if kind == "Warning"]
        assert any("--runtime cri" in message for message in told)
        shown = node.status("app").state.waiting
        assert shown is not None
        assert "nginx" in (shown.message or "")

    on_a_node(scenario, tmp_path)


def test_one_bad_image_does_not_keep_the_other_containers_from_running(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        bad = {**named("bad", "true"), "image": "podkeeper.invalid/missing:1"}
        node.create(pod("app", containers=[bad, named("app", POLITE)]))
        await node.until(lambda: waits_for(node, "app", "bad") == "ImagePullBackOff")
        await node.until(lambda: node.status("app").state.running is not None)
        assert not node.is_ready("app")

    on_a_node(scenario, tmp_path)
