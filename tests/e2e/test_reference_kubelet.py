"""A node changes hands between podkeeper and the real reference kubelet, there and back: its pods notice nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.reference_kubelet import NodeOfBoth, needs_reference_kubelet, node_of_both
from tests.e2e.scripts import sh
from tests.host.own_cgroups import needs_cgroups
from tests.runtimes.cri.containerd import HOUSE_IMAGE, Containerd

pytestmark = [pytest.mark.slow, needs_cgroups, needs_reference_kubelet]

WAITS = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def container(name: str = "app", script: str = WAITS, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": HOUSE_IMAGE, "imagePullPolicy": "IfNotPresent", **sh(script), **more}


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
def node(containerd: Containerd) -> Iterator[NodeOfBoth]:
    with node_of_both(containerd) as made:
        for name, spec in PODS.items():
            made.write(name, **spec)
        yield made


def ready(node: NodeOfBoth, *names: str) -> dict[str, dict[str, tuple[str, int]]]:
    """Wait until pods are ready, and one that was written just now, too. Returns their containers.

    The new one shows that the agent has looked at all of them and done what it wanted to do.
    """
    node.until(lambda: all(node.is_ready(name) for name in names))
    node.write("mark", containers=[container()], terminationGracePeriodSeconds=0)
    node.until(lambda: node.is_ready("mark"))
    node.unwrite("mark")
    return {name: node.containers(name) for name in names}


def test_what_the_reference_started_podkeeper_goes_on_with_and_the_other_way_round(node: NodeOfBoth) -> None:
    node.start_reference()
    begun = ready(node, *PODS)
    node.kill()
    node.start_podkeeper()
    assert ready(node, *PODS) == begun
    node.kill()
    node.start_reference()
    assert ready(node, *PODS) == begun


def test_each_ends_what_the_other_started(node: NodeOfBoth) -> None:
    node.start_podkeeper()
    begun = ready(node, *PODS)
    node.kill()
    node.unwrite("full")
    node.start_reference()
    node.until(lambda: len(node.running()) == len(PODS) - 1)  # without the mark, too
    rest = PODS.keys() - {"full"}
    assert ready(node, *rest) == {name: begun[name] for name in rest}
    node.kill()
    for name in rest:
        node.unwrite(name)
    node.start_podkeeper()
    node.until(lambda: not node.sandboxes())
    node.until(lambda: not node.pod_cgroups())
