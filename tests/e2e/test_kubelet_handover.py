"""Handover of a node between podkeeper and the real kubelet, in both directions, without restarts."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kubelet_node import HandoverNode, handover_node, needs_kubelet
from tests.e2e.scripts import sh
from tests.host.own_cgroups import needs_cgroups
from tests.runtimes.cri.containerd import LOCAL_IMAGE, Containerd

pytestmark = [pytest.mark.slow, needs_cgroups, needs_kubelet]

WAITS = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def container(name: str = "app", script: str = WAITS, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": LOCAL_IMAGE, "imagePullPolicy": "IfNotPresent", **sh(script), **more}


PODS: dict[str, dict[str, Any]] = {
    "simple": {"containers": [container()]},
    "firm": {
        "containers": [container(resources={"limits": {"cpu": "100m", "memory": "32Mi"}})],
        "securityContext": {"runAsUser": 1000, "fsGroup": 2000},
    },
    "full": {
        "initContainers": [
            container("prepare", "echo hello >/v/word"),
            container("side", restartPolicy="Always", startupProbe={"exec": {"command": ["true"]}}),
        ],
        "containers": [
            container(
                resources={"requests": {"cpu": "10m"}},
                volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "part"}],
                readinessProbe={"exec": {"command": ["true"]}, "periodSeconds": 1},
                ports=[{"containerPort": 80}],
                env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            )
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
    "hostish": {"hostNetwork": True, "containers": [container()]},
}
for _pod in PODS.values():
    _pod["terminationGracePeriodSeconds"] = 2
PODS["full"]["initContainers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]


@pytest.fixture
def node(containerd: Containerd) -> Iterator[HandoverNode]:
    with handover_node(containerd) as made:
        for name, spec in PODS.items():
            made.write(name, **spec)
        yield made


def ready(node: HandoverNode, *names: str) -> dict[str, dict[str, tuple[str, int]]]:
    """Wait until the pods and one new pod are ready. Return the containers of the pods.

    The new pod shows that the agent has synced all of them.
    """
    node.until(lambda: all(node.is_ready(name) for name in names))
    node.write("mark", containers=[container()], terminationGracePeriodSeconds=0)
    node.until(lambda: node.is_ready("mark"))
    node.remove_manifest("mark")
    return {name: node.containers(name) for name in names}


def test_podkeeper_and_the_kubelet_adopt_each_others_pods(node: HandoverNode) -> None:
    node.start_kubelet()
    begun = ready(node, *PODS)
    node.kill()
    node.start_podkeeper()
    assert ready(node, *PODS) == begun
    node.kill()
    node.start_kubelet()
    assert ready(node, *PODS) == begun


def test_podkeeper_and_the_kubelet_remove_each_others_pods(node: HandoverNode) -> None:
    node.start_podkeeper()
    begun = ready(node, *PODS)
    node.kill()
    node.remove_manifest("full")
    node.start_kubelet()
    node.until(lambda: len(node.running()) == len(PODS) - 1)  # also without the new pod
    rest = PODS.keys() - {"full"}
    assert ready(node, *rest) == {name: begun[name] for name in rest}
    node.kill()
    for name in rest:
        node.remove_manifest(name)
    node.start_podkeeper()
    node.until(lambda: not node.sandboxes())
    node.until(lambda: not node.pod_cgroups())
