"""Image pulls from a registry: credentials, pull policies, backoff, access per pod."""

import base64
import json
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.objects import secret
from tests.e2e.pod_queries import event_messages, log_after_success, waiting_reason
from tests.e2e.runtime_kinds import containers_only
from tests.runtimes.cri.cri_node import MISSING_IMAGE, PRIVATE_IMAGE, PULLABLE_IMAGE
from tests.runtimes.cri.oci import PASSWORD, USER

pytestmark = [pytest.mark.slow, containers_only]

HELLO = ("echo", "hello")


def keys(node: Node, name: str, user: str, password: str) -> None:
    """Write an image pull secret with a valid or an invalid password."""
    host = PRIVATE_IMAGE.partition("/")[0]
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    config = json.dumps({"auths": {host: {"auth": auth}}})
    secret(node, name, kind="kubernetes.io/dockerconfigjson", **{".dockerconfigjson": config})


def test_an_image_is_pulled_only_once(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.runtime.remove_image(PULLABLE_IMAGE)
        for name in ("first", "second"):
            node.create(pod(name, image=PULLABLE_IMAGE, command=HELLO, restartPolicy="Never"))
            assert await log_after_success(node, name) == "hello\n"
        assert event_messages(node, "Pulling", "first") == [f'Pulling image "{PULLABLE_IMAGE}"']
        (pulled,) = event_messages(node, "Pulled", "first")
        assert pulled.startswith(f'Successfully pulled image "{PULLABLE_IMAGE}" in ')
        assert "Image size: " in pulled
        assert event_messages(node, "Pulling", "second") == []
        shown = node.status("first")
        assert (shown.image, "@sha256:" in shown.image_id) == (PULLABLE_IMAGE, True)

    run_on_node(scenario, tmp_path)


def test_pull_policy_always_pulls_for_each_container(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        always = {"imagePullPolicy": "Always"}
        for name in ("first", "second"):
            node.create(pod(name, image=PULLABLE_IMAGE, command=HELLO, container=always, restartPolicy="Never"))
            assert await log_after_success(node, name) == "hello\n"
            assert len(event_messages(node, "Pulling", name)) == 1

    run_on_node(scenario, tmp_path)


def test_a_private_image_needs_valid_credentials(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await node.runtime.remove_image(PRIVATE_IMAGE)

        def backs_off(name: str) -> bool:
            return waiting_reason(node, name) == "ImagePullBackOff"

        keys(node, "wrong", "another", "wrong")
        keys(node, "right", USER, PASSWORD)
        for name, secrets in {"without": [], "mistaken": ["wrong"], "knowing": ["wrong", "right"]}.items():
            references = [{"name": each} for each in secrets]
            node.create(
                pod(name, image=PRIVATE_IMAGE, command=HELLO, imagePullSecrets=references, restartPolicy="Never")
            )
            if name != "knowing":
                await node.until(partial(backs_off, name))
        assert await log_after_success(node, "knowing") == "hello\n"
        assert "unauthorized" in event_messages(node, "Failed", "without")[0].lower()

    run_on_node(scenario, tmp_path)


def test_a_private_image_is_not_available_to_pods_without_credentials(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        await node.runtime.remove_image(PRIVATE_IMAGE)
        keys(node, "right", USER, PASSWORD)
        right = [{"name": "right"}]
        node.create(pod("knowing", image=PRIVATE_IMAGE, command=HELLO, restartPolicy="Never", imagePullSecrets=right))
        assert await log_after_success(node, "knowing") == "hello\n"
        node.create(pod("without", image=PRIVATE_IMAGE, command=HELLO, restartPolicy="Never"))
        await node.until(lambda: waiting_reason(node, "without") in ("ErrImagePull", "ImagePullBackOff"))
        node.create(pod("again", image=PRIVATE_IMAGE, command=HELLO, restartPolicy="Never", imagePullSecrets=right))
        assert await log_after_success(node, "again") == "hello\n"
        assert event_messages(node, "Pulling", "again") == []

    run_on_node(scenario, tmp_path)


def test_pulls_of_a_missing_image_are_backed_off(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image=MISSING_IMAGE))
        await node.until(lambda: waiting_reason(node, "app") == "ImagePullBackOff")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert (waiting.message or "").startswith(f'Back-off pulling image "{MISSING_IMAGE}": ErrImagePull: ')
        # The first is the message of containerd, the second of CRI-O.
        assert (waiting.message or "").endswith((f"{MISSING_IMAGE}: not found", "manifest unknown"))
        assert [each[:2] for each in node.events("app") if each[1] == "BackOff"] == [("Normal", "BackOff")]

    run_on_node(scenario, tmp_path)
