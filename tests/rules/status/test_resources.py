import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from podkeeper.model.runtime import ActualResources, ContainerRecord, RecordState
from podkeeper.rules.status.resources import allocated_resources, container_resources, pod_resources
from podkeeper.testing import build
from tests.rules.status.statuses import running

Amounts = dict[str, str] | None


def container(limits: Amounts = None, requests: Amounts = None, name: str = "a") -> Container:
    return Container(name=name, resources=resources(limits, requests))


def resources(limits: Amounts = None, requests: Amounts = None) -> ResourceRequirements:
    return ResourceRequirements(limits=limits, requests=requests)  # type: ignore[arg-type]  # also wrong ones


def shown(
    container: Container, actual: ActualResources | None, old: ContainerStatus | None = None, state: str = "running"
) -> ResourceRequirements:
    found = ContainerRecord(id="a", name="a", state=RecordState(state), resources=actual)
    return container_resources(container, found, "fake://a", old)


CPU_500 = ActualResources(cpu_limit_milli=500, cpu_request_milli=250)
BEFORE = replace(running("a"), resources=resources({"cpu": "3", "memory": "1Gi"}, {"cpu": "2"}))

CONTAINERS: dict[str, tuple[ResourceRequirements, ResourceRequirements]] = {
    "a spec without resources shows none": (shown(container(), CPU_500), resources()),
    "a running container shows its actual resources": (
        shown(container({"cpu": "1"}, {"cpu": "1"}), CPU_500), resources({"cpu": "500m"}, {"cpu": "250m"})),
    "a container that does not run shows its spec": (
        shown(container({"cpu": "1"}), CPU_500, state="exited"), resources({"cpu": "1"})),
    "memory has a binary suffix": (
        shown(container({"memory": "1"}, {"memory": "1"}),
              ActualResources(memory_limit_bytes=1 << 30, memory_request_bytes=1 << 20)),
        resources({"memory": "1Gi"}, {"memory": "1Mi"})),
    "an actual limit that is not in the spec is shown, too": (
        shown(container({"memory": "1Gi"}), CPU_500), resources({"memory": "1Gi", "cpu": "500m"})),
    "CPU below the minimum is shown as in the spec": (
        shown(container({"cpu": "1m"}, {"cpu": "1m"}), ActualResources(cpu_limit_milli=10, cpu_request_milli=2)),
        resources({"cpu": "1m"}, {"cpu": "1m"})),
    "CPU that was reduced to the minimum is shown": (
        shown(container({"cpu": "1"}), ActualResources(cpu_limit_milli=10)), resources({"cpu": "10m"})),
    "without actual values, the former ones stay": (
        shown(container({"cpu": "1"}, {"cpu": "1"}), None, BEFORE),
        resources({"cpu": "3", "memory": "1Gi"}, {"cpu": "2"})),
    "the values of a former container do not stay": (
        shown(container({"cpu": "1"}), None, replace(BEFORE, container_id="fake://b")), resources({"cpu": "1"})),
    "other resources are shown as in the spec": (
        shown(container({"example.com/gpu": "1"}), CPU_500), resources({"example.com/gpu": "1", "cpu": "500m"})),
}  # fmt: skip


@pytest.mark.parametrize("found, expected", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_resources_of_a_container(found: ResourceRequirements, expected: ResourceRequirements) -> None:
    assert found == expected


def pod_with(*containers: Container, phase: str = "Pending", level: ResourceRequirements | None = None) -> Pod:
    return build.pod("web", *containers, phase=phase, spec={"resources": level, "overhead": {"cpu": "10m"}})


TWO = (container({"cpu": "1"}, {"cpu": "500m"}), container({"cpu": "2", "memory": "0"}, {"memory": "1Gi"}, name="b"))


def test_a_pod_that_does_not_run_shows_the_sums_of_its_containers_and_its_overhead() -> None:
    expected = resources({"cpu": "3010m", "memory": "0"}, {"cpu": "510m", "memory": "1Gi"})
    assert pod_resources(pod_with(*TWO), PodStatus(), CPU_500) == expected
    assert allocated_resources(pod_with(*TWO).spec) == expected.requests


def test_pod_level_resources_take_precedence_over_the_sums() -> None:
    level = resources({"memory": "4Gi"}, {"cpu": "1"})
    expected = resources({"cpu": "3010m", "memory": "4Gi"}, {"cpu": "1010m", "memory": "1Gi"})
    assert pod_resources(pod_with(*TWO, level=level), PodStatus(), None) == expected


def test_a_running_pod_shows_the_values_of_its_cgroup() -> None:
    actual = ActualResources(cpu_limit_milli=1500, cpu_request_milli=700, memory_limit_bytes=1 << 20)
    expected = resources({"cpu": "1500m", "memory": "1Mi"}, {"cpu": "700m", "memory": "1Gi"})
    assert pod_resources(pod_with(*TWO, phase="Running"), PodStatus(), actual) == expected


def test_a_running_pod_keeps_former_values_that_its_cgroup_does_not_have() -> None:
    old = PodStatus(phase="Running", resources=resources({"cpu": "9"}, {"cpu": "8", "memory": "7"}))
    assert pod_resources(pod_with(phase="Running"), old, None) == old.resources
    assert pod_resources(pod_with(phase="Running"), replace(old, phase="Pending"), None) == resources()


def test_a_terminated_pod_keeps_its_values_while_it_is_running_in_the_api() -> None:
    old = PodStatus(phase="Failed", resources=resources({"memory": "9"}, {"memory": "7"}))
    assert pod_resources(pod_with(phase="Running"), old, None) == old.resources


def test_a_pod_without_resources_shows_none() -> None:
    assert pod_resources(Pod(), PodStatus(), None) == resources()
    assert allocated_resources(PodSpec()) is None


def test_a_running_pod_without_actual_values_shows_its_pod_level_spec() -> None:
    level = resources({"cpu": "2", "memory": "2Gi", "hugepages-2Mi": "2Mi"}, {"cpu": "1", "memory": "1Mi"})
    assert pod_resources(pod_with(*TWO, phase="Running", level=level), PodStatus(), None) == level


@pytest.mark.parametrize(
    ("spec_cpu", "actual", "limit", "cpu_request"),
    [
        ("1m", (10, 2), "1m", "1m"),
        ("1m", (11, 3), "11m", "3m"),
        ("10m", (10, 2), "10m", "2m"),
        ("11m", (10, 2), "10m", "2m"),
        ("2m", (10, 2), "2m", "2m"),
        ("3m", (9, 1), "3m", "1m"),
    ],
)
def test_cpu_at_the_minimum(spec_cpu: str, actual: tuple[int, int], limit: str, cpu_request: str) -> None:
    found = ActualResources(cpu_limit_milli=actual[0], cpu_request_milli=actual[1])
    expected = resources({"cpu": limit}, {"cpu": cpu_request})
    assert shown(container({"cpu": spec_cpu}, {"cpu": spec_cpu}), found) == expected
    level = resources({"cpu": spec_cpu}, {"cpu": spec_cpu})
    assert pod_resources(pod_with(phase="Running", level=level), PodStatus(), found) == expected


def test_memory_of_a_container_without_actual_value_stays() -> None:
    before = replace(running("a"), resources=resources({"memory": "3Gi"}, {"memory": "2Gi"}))
    requested = container({"memory": "1Gi", "cpu": "1"}, {"memory": "1Gi"})
    expected = resources({"memory": "3Gi", "cpu": "500m"}, {"memory": "2Gi", "cpu": "250m"})
    assert shown(requested, CPU_500, before) == expected
    assert shown(requested, None, replace(before, resources=None)) == requested.resources
    assert shown(requested, None, None) == requested.resources


def test_a_pod_that_does_not_run_adds_no_overhead_to_unlimited_resources() -> None:
    level = resources({"cpu": "0", "example.com/gpu": "1", "hugepages-2Mi": "2Mi"})
    assert pod_resources(pod_with(container(), level=level), PodStatus(), None) == resources(
        {"cpu": "0", "hugepages-2Mi": "2Mi"}, {"cpu": "10m"}
    )
