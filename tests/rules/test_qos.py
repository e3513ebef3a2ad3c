"""The quality-of-service class of a pod."""

import itertools

import pytest

from podkeeper.model.k8s import core
from podkeeper.rules.qos import qos_class, qos_of

FULL = {"cpu": "1", "memory": "1Gi"}


def asking(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> core.ResourceRequirements:
    return core.ResourceRequirements(requests=dict(requests or {}), limits=dict(limits or {}))


def spec(
    *containers: core.ResourceRequirements,
    init: tuple[core.ResourceRequirements, ...] = (),
    whole: core.ResourceRequirements | None = None,
) -> core.PodSpec:
    return core.PodSpec(
        containers=tuple(core.Container(resources=resources) for resources in containers),
        init_containers=tuple(core.Container(resources=resources) for resources in init),
        resources=whole,
    )


CASES = {
    "no resources is BestEffort": (spec(asking()), "BestEffort"),
    "zeros are ignored": (spec(asking({"cpu": "0"}, {"memory": "0"})), "BestEffort"),
    "other resources do not count": (spec(asking({"ephemeral-storage": "1Gi"})), "BestEffort"),
    "limits equal to requests are Guaranteed": (spec(asking(FULL, FULL)), "Guaranteed"),
    "equal amounts in different formats": (spec(asking({"cpu": "1000m", "memory": "1024Mi"}, FULL)), "Guaranteed"),
    "limits without requests are Burstable": (spec(asking(None, FULL)), "Burstable"),
    "a request below its limit is burstable": (spec(asking({"cpu": "1", "memory": "1"}, FULL)), "Burstable"),
    "one resource alone is Burstable": (spec(asking({"cpu": "1"}, {"cpu": "1"})), "Burstable"),
    "one container without limits makes it Burstable": (spec(asking(FULL, FULL), asking()), "Burstable"),
    "init containers count": (spec(asking(FULL, FULL), init=(asking(),)), "Burstable"),
    "only sums are compared": (
        spec(asking({"cpu": "1", "memory": "2Gi"}, FULL), asking(FULL, {"cpu": "1", "memory": "2Gi"})),
        "Guaranteed",
    ),
    "pod-level resources replace those of containers": (spec(asking(), whole=asking(FULL, FULL)), "Guaranteed"),
    "even if they are empty": (spec(asking(FULL, FULL), whole=asking()), "BestEffort"),
    "pod-level requests alone are Burstable": (spec(asking(), whole=asking(FULL)), "Burstable"),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", CASES.values(), ids=CASES.keys())
def test_qos_class(given: core.PodSpec, expected: str) -> None:
    assert qos_class(given) == expected


def test_the_class_in_the_status_has_priority() -> None:
    assert qos_of(core.Pod(spec=spec(asking()), status=core.PodStatus(qos_class="Guaranteed"))) == "Guaranteed"
    assert qos_of(core.Pod(spec=spec(asking()))) == "BestEffort"


def test_the_order_of_containers_does_not_matter() -> None:
    parts = [asking(FULL, FULL), asking({"cpu": "1"}), asking(), asking(None, FULL)]
    for chosen in itertools.combinations_with_replacement(parts, 3):
        assert len({qos_class(spec(*order)) for order in itertools.permutations(chosen)}) == 1
