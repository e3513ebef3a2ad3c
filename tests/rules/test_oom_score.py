"""Whom the kernel kills first."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, PodSpec, ResourceRequirements
from podkeeper.rules.oom_score import oom_score_of

MEMORY = 1000 * 2**20


def asking(name: str, memory: str | None = None, **fields: Any) -> Container:
    resources = ResourceRequirements(requests={"memory": memory} if memory else None)
    return replace(Container(name=name, resources=resources), **fields)


def pod(*apps: Container, **spec: Any) -> Pod:
    return Pod(spec=replace(PodSpec(containers=apps), **spec))


def sidecar(memory: str | None = None) -> Container:
    return asking("side", memory, restart_policy="Always")


WHOLE = ResourceRequirements(requests={"memory": "400Mi"})
EQUAL = ResourceRequirements(limits={"cpu": "1", "memory": "1Gi"}, requests={"cpu": "1", "memory": "1Gi"})
APP = asking("app", "100Mi")

SCORES = {
    "nothing requested goes first": (pod(asking("app")), asking("app"), 1000),
    "a guaranteed pod goes last": (pod(replace(APP, resources=EQUAL)), APP, -997),
    "a tenth of the memory": (pod(APP), APP, 900),
    "next to nothing is still spared before nothing": (pod(asking("app", "1")), asking("app", "1"), 999),
    "all of the memory is not as good as guaranteed": (pod(APP), asking("app", "1000Mi"), 3),
    "more than there is too": (pod(APP), asking("app", "5Gi"), 3),
    "a container without requests beside one with": (pod(APP, asking("poor")), asking("poor"), 999),
    "a sidecar is spared as long as the poorest app": (
        pod(APP, asking("rich", "200Mi"), init_containers=(sidecar(),)), sidecar(), 900),
    "a rich sidecar is spared longer": (pod(APP, init_containers=(sidecar("300Mi"),)), sidecar("300Mi"), 700),
    "a sidecar without app containers": (pod(init_containers=(sidecar("300Mi"),)), sidecar("300Mi"), 700),
    "what is like a sidecar and is none": (pod(APP, asking("x")), replace(asking("x"), restart_policy="Always"), 999),
    "what the pod requests besides is shared out": (pod(APP, asking("b", "100Mi"), resources=WHOLE), APP, 800),
    "among init containers too": (
        pod(APP, init_containers=(asking("i"), asking("j")), resources=WHOLE), APP, 800),
    "and a sidecar has its share": (pod(APP, init_containers=(sidecar(),), resources=WHOLE), sidecar(), 750),
    "an ephemeral container": (pod(APP), EphemeralContainer(name="shell"), 999),
}  # fmt: skip


@pytest.mark.parametrize("pod, container, expected", SCORES.values(), ids=SCORES.keys())
def test_score(pod: Pod, container: Container | EphemeralContainer, expected: int) -> None:
    assert oom_score_of(pod, container, MEMORY) == expected


def test_only_a_critical_pod_of_the_node_is_spared_by_its_class() -> None:
    critical = 2_000_001_000
    scores = [
        oom_score_of(pod(asking("app"), priority=priority, priority_class_name=name), asking("app"), MEMORY)
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
        oom_score_of(pod(asking("app", str(amount))), asking("app", str(amount)), memory)
        for amount in (less, less + more)
    ]
    assert 3 <= scores[1] <= scores[0] <= 999
