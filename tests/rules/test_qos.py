"""The quality-of-service class of a pod."""

import itertools

import pytest

from podkeeper.model.k8s import core
from podkeeper.rules.qos import qos_class, qos_of
from podkeeper.testing.build import container, pod, resources

FULL = {"cpu": "1", "memory": "1Gi"}


def spec(
    *containers: core.ResourceRequirements,
    init: tuple[core.ResourceRequirements, ...] = (),
    whole: core.ResourceRequirements | None = None,
) -> core.PodSpec:
    apps = tuple(container(resources=each) for each in containers)
    inits = tuple(container(resources=each) for each in init)
    return pod(init=inits, spec={"containers": apps, "resources": whole}).spec


CASES = {
    "no resources is BestEffort": (spec(resources()), "BestEffort"),
    "zeros are ignored": (spec(resources({"cpu": "0"}, {"memory": "0"})), "BestEffort"),
    "other resources do not count": (spec(resources({"ephemeral-storage": "1Gi"})), "BestEffort"),
    "limits equal to requests are Guaranteed": (spec(resources(FULL, FULL)), "Guaranteed"),
    "equal amounts in different formats": (spec(resources({"cpu": "1000m", "memory": "1024Mi"}, FULL)), "Guaranteed"),
    "limits without requests are Burstable": (spec(resources(None, FULL)), "Burstable"),
    "a request below its limit is burstable": (spec(resources({"cpu": "1", "memory": "1"}, FULL)), "Burstable"),
    "one resource alone is Burstable": (spec(resources({"cpu": "1"}, {"cpu": "1"})), "Burstable"),
    "one container without limits makes it Burstable": (spec(resources(FULL, FULL), resources()), "Burstable"),
    "init containers count": (spec(resources(FULL, FULL), init=(resources(),)), "Burstable"),
    "only sums are compared": (
        spec(resources({"cpu": "1", "memory": "2Gi"}, FULL), resources(FULL, {"cpu": "1", "memory": "2Gi"})),
        "Guaranteed",
    ),
    "pod-level resources replace those of containers": (spec(resources(), whole=resources(FULL, FULL)), "Guaranteed"),
    "even if they are empty": (spec(resources(FULL, FULL), whole=resources()), "BestEffort"),
    "pod-level requests alone are Burstable": (spec(resources(), whole=resources(FULL)), "Burstable"),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", CASES.values(), ids=CASES.keys())
def test_qos_class(given: core.PodSpec, expected: str) -> None:
    assert qos_class(given) == expected


def test_the_class_in_the_status_has_priority() -> None:
    assert qos_of(core.Pod(spec=spec(resources()), status=core.PodStatus(qos_class="Guaranteed"))) == "Guaranteed"
    assert qos_of(core.Pod(spec=spec(resources()))) == "BestEffort"


def test_the_order_of_containers_does_not_matter() -> None:
    parts = [resources(FULL, FULL), resources({"cpu": "1"}), resources(), resources(None, FULL)]
    for chosen in itertools.combinations_with_replacement(parts, 3):
        assert len({qos_class(spec(*order)) for order in itertools.permutations(chosen)}) == 1
