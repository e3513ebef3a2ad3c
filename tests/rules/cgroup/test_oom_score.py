"""OOM scores of containers."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, ResourceRequirements
from podkeeper.rules.cgroup.oom_score import oom_score_of
from podkeeper.testing import build

MEMORY = 1000 * 2**20


def container(name: str, memory: str | None = None, **fields: Any) -> Container:
    return build.container(name, requests={"memory": memory} if memory else None, **fields)


pod = partial(build.pod, "web")


def sidecar(memory: str | None = None) -> Container:
    return container("side", memory, restart_policy="Always")


WHOLE = ResourceRequirements(requests={"memory": "400Mi"})
EQUAL = ResourceRequirements(limits={"cpu": "1", "memory": "1Gi"}, requests={"cpu": "1", "memory": "1Gi"})
APP = container("app", "100Mi")

SCORES = {
    "BestEffort has the highest score": (pod(container("app")), container("app"), 1000),
    "Guaranteed has the lowest score": (pod(replace(APP, resources=EQUAL)), APP, -997),
    "a tenth of the memory": (pod(APP), APP, 900),
    "a tiny request is below BestEffort": (pod(container("app", "1")), container("app", "1"), 999),
    "a request of all memory is above Guaranteed": (pod(APP), container("app", "1000Mi"), 3),
    "a request of more than all memory too": (pod(APP), container("app", "5Gi"), 3),
    "a container without requests beside one with": (pod(APP, container("poor")), container("poor"), 999),
    "a sidecar's score is at most an app container's": (
        pod(APP, container("rich", "200Mi"), init=(sidecar(),)), sidecar(), 900),
    "a larger request lowers its score": (pod(APP, init=(sidecar("300Mi"),)), sidecar("300Mi"), 700),
    "a sidecar without app containers": (pod(init=(sidecar("300Mi"),), spec={"containers": ()}), sidecar("300Mi"), 700),
    "an app container is never a sidecar": (pod(APP, container("x")), container("x", restart_policy="Always"), 999),
    "the rest of a pod-level request is divided": (
        pod(APP, container("b", "100Mi"), spec={"resources": WHOLE}), APP, 800),
    "init containers get a part of it": (
        pod(APP, init=(container("i"), container("j")), spec={"resources": WHOLE}), APP, 800),
    "a sidecar gets a part of it": (pod(APP, init=(sidecar(),), spec={"resources": WHOLE}), sidecar(), 750),
    "an ephemeral container": (pod(APP), EphemeralContainer(name="shell"), 999),
}  # fmt: skip


@pytest.mark.parametrize("pod, container, expected", SCORES.values(), ids=SCORES.keys())
def test_score(pod: Pod, container: Container | EphemeralContainer, expected: int) -> None:
    assert oom_score_of(pod, container, MEMORY) == expected


def test_only_a_critical_pod_of_class_system_node_critical_has_the_lowest_score() -> None:
    critical = 2_000_001_000
    scores = [
        oom_score_of(
            pod(container("app"), priority=priority, spec={"priority_class_name": name}), container("app"), MEMORY
        )
        for priority, name in (
            (critical, "system-node-critical"),
            (critical, "system-cluster-critical"),
            (0, "system-node-critical"),
        )
    ]
    assert scores == [-997, 1000, 1000]


@given(st.integers(1, 2**50), st.integers(0, 2**50), st.integers(1, 2**50))
def test_a_score_between_the_classes_falls_as_requests_grow(less: int, more: int, memory: int) -> None:
    scores = [
        oom_score_of(pod(container("app", str(amount))), container("app", str(amount)), memory)
        for amount in (less, less + more)
    ]
    assert 3 <= scores[1] <= scores[0] <= 999
