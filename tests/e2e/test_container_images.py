"""Images that are pulled: from a registry, with credentials, again and again, and for whom."""

import base64
import json
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.asking import said, told, waits_for
from tests.e2e.kinds import containers_only
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.objects import secret
from tests.runtimes.cri.cri_node import MISSING_IMAGE, PRIVATE_IMAGE, PULLABLE_IMAGE
from tests.runtimes.cri.oci import PASSWORD, USER

pytestmark = [pytest.mark.slow, containers_only]

HELLO = ("echo", "hello")


def keys(node: Node, name: str, user: str, password: str) -> None:
    """Write a secret that opens the registry of private images, or does not."""
    host = PRIVATE_IMAGE.partition("/")[0]
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    config = json.dumps({"auths": {host: {"auth": auth}}})
    secret(node, name, kind="kubernetes.io/dockerconfigjson", **{".dockerconfigjson": config})


def test_an_image_is_pulled_once_and_then_is_there(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.runtime.remove_image(PULLABLE_IMAGE)
        for name in ("first", "second"):
            node.create(pod(name, image=PULLABLE_IMAGE, command=HELLO, restartPolicy="Never"))
            assert await said(node, name) == "hello\n"
        assert told(node, "Pulling", "first") == [f'Pulling image "{PULLABLE_IMAGE}"']
        (pulled,) = told(node, "Pulled", "first")
        assert pulled.startswith(f'Successfully pulled image "{PULLABLE_IMAGE}" in ')
        assert "Image size: " in pulled
        assert told(node, "Pulling", "second") == []
        shown = node.status("first")
        assert (shown.image, "@sha256:" in shown.image_id) == (PULLABLE_IMAGE, True)

    on_a_node(scenario, tmp_path)


def test_an_image_is_asked_for_each_time_where_the_pod_wants_that(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        always = {"imagePullPolicy": "Always"}
        for name in ("first", "second"):
            node.create(pod(name, image=PULLABLE_IMAGE, command=HELLO, container=always, restartPolicy="Never"))
            assert await said(node, name) == "hello\n"
            assert len(told(node, "Pulling", name)) == 1

    on_a_node(scenario, tmp_path)


def test_a_private_image_needs_credentials_that_are_right(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.runtime.remove_image(PRIVATE_IMAGE)

        def backs_off(name: str) -> bool:
            return waits_for(node, name) == "ImagePullBackOff"

        keys(node, "wrong", "nobody", "wrong")
        keys(node, "right", USER, PASSWORD)
        for name, secrets in {"without": [], "mistaken": ["wrong"], "knowing": ["wrong", "right"]}.items():
            references = [{"name": each} for each in secrets]
            node.create(
                pod(name, image=PRIVATE_IMAGE, command=HELLO, imagePullSecrets=references, restartPolicy="Never")
            )
            if name != "knowing":
                await node.until(partial(backs_off, name))
        assert await said(node, "knowing") == "hello\n"
        assert "unauthorized" in told(node, "Failed", "without")[0].lower()

    on_a_node(scenario, tmp_path)


def test_what_one_pod_was_let_in_for_is_not_there_for_the_others(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.runtime.remove_image(PRIVATE_IMAGE)
        keys(node, "right", USER, PASSWORD)
        right = [{"name": "right"}]
        node.create(pod("knowing", image=PRIVATE_IMAGE, command=HELLO, restartPolicy="Never", imagePullSecrets=right))
        assert await said(node, "knowing") == "hello\n"
        node.create(pod("without", image=PRIVATE_IMAGE, command=HELLO, restartPolicy="Never"))
        await node.until(lambda: waits_for(node, "without") in ("ErrImagePull", "ImagePullBackOff"))
        node.create(pod("again", image=PRIVATE_IMAGE, command=HELLO, restartPolicy="Never", imagePullSecrets=right))
        assert await said(node, "again") == "hello\n"
        assert told(node, "Pulling", "again") == []

    on_a_node(scenario, tmp_path)


def test_an_image_that_is_nowhere_is_asked_for_less_and_less(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image=MISSING_IMAGE))
        await node.until(lambda: waits_for(node, "app") == "ImagePullBackOff")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert (waiting.message or "").startswith(f'Back-off pulling image "{MISSING_IMAGE}": ErrImagePull: ')
        # So says containerd, and so CRI-O.
        assert (waiting.message or "").endswith((f"{MISSING_IMAGE}: not found", "manifest unknown"))
        assert [each[:2] for each in node.events("app") if each[1] == "BackOff"] == [("Normal", "BackOff")]

    on_a_node(scenario, tmp_path)
