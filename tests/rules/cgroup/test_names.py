"""Names of pod cgroups. The slices of the table are those of the kubelet's tests."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Pod
from podkeeper.rules.cgroup.names import (
    BRANCHES,
    Name,
    directory_path,
    name_of,
    pod_name,
    pod_of_slice,
    slice_name_error,
    slice_path,
    slice_unit,
)
from podkeeper.testing.build import container, pod

UID = "123e4567-e89b-12d3-a456-426655440000"
UNIT_UID = UID.replace("-", "_")

PATHS: dict[str, tuple[Name, str, str]] = {
    "nothing": ((), "/", "/"),
    "one part": (("Burstable",), "/Burstable", "/Burstable.slice"),
    "a pod of a class": (
        ("Burstable", "pod_123"), "/Burstable/pod_123", "/Burstable.slice/Burstable-pod_123.slice"),
    "a dash does not start a new level": (
        ("test-a", "test-b"), "/test-a/test-b", "/test_a.slice/test_a-test_b.slice"),
    "a pod in the kubelet's tests": (
        ("kubepods", "burstable", f"pod{UID}"), f"/kubepods/burstable/pod{UID}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNIT_UID}.slice"),
    "below another root": (
        ("system.slice", "kubepods"), "/system.slice/kubepods", "/system.slice.slice/system.slice-kubepods.slice"),
    "a root of our own": (
        ("podkeeper-0a1b", "podx"), "/podkeeper-0a1b/podx", "/podkeeper_0a1b.slice/podkeeper_0a1b-podx.slice"),
}  # fmt: skip


@pytest.mark.parametrize("name, directory, slices", PATHS.values(), ids=PATHS.keys())
def test_paths(name: Name, directory: str, slices: str) -> None:
    assert directory_path(name) == directory
    assert slice_path(name) == slices
    assert slice_path(name).rpartition("/")[2] == ("" if not name else slice_unit(name))


def test_the_empty_name_is_the_root_slice() -> None:
    assert slice_unit(()) == "-.slice"


def test_a_path_is_a_name() -> None:
    assert name_of("/") == name_of("") == ()
    assert name_of("/a/b-c/") == name_of("a/b-c") == ("a", "b-c")


CLASSES: dict[str, tuple[Pod, Name]] = {
    "Guaranteed": (
        pod("web", container(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "1", "memory": "1Gi"}), uid=UID),
        (),
    ),
    "Burstable": (pod("web", container(requests={"cpu": "1"}, limits={}), uid=UID), ("burstable",)),
    "BestEffort": (pod("web", container(requests={}, limits={}), uid=UID), ("besteffort",)),
}


@pytest.mark.parametrize("pod, branch", CLASSES.values(), ids=CLASSES.keys())
def test_a_pod_is_below_its_qos_class(pod: Pod, branch: Name) -> None:
    assert pod_name(("kubepods",), pod) == ("kubepods", *branch, f"pod{UID}")


UNITS: dict[str, tuple[str, Name, str | None]] = {
    "a pod": (f"kubepods-burstable-pod{UNIT_UID}.slice", ("kubepods", "burstable"), UID),
    "a Guaranteed one": (f"kubepods-pod{UNIT_UID}.slice", ("kubepods",), UID),
    "a pod of another class": (f"kubepods-burstable-pod{UNIT_UID}.slice", ("kubepods",), None),
    "a pod of another root": ("others-podx.slice", ("kubepods",), None),
    "a class": ("kubepods-burstable.slice", ("kubepods",), None),
    "further down than a pod": ("kubepods-podx-more.slice", ("kubepods",), None),
    "no UID": ("kubepods-pod.slice", ("kubepods",), None),
    "a scope": ("kubepods-podx.scope", ("kubepods",), None),
    "a directory of the other driver": ("podx", ("kubepods",), None),
    "a root with a dash": ("podkeeper_0a1b-podx.slice", ("podkeeper-0a1b",), "x"),
}


@pytest.mark.parametrize("unit, branch, uid", UNITS.values(), ids=UNITS.keys())
def test_the_pod_of_a_unit(unit: str, branch: Name, uid: str | None) -> None:
    assert pod_of_slice(unit, branch) == uid


UIDS: dict[str, tuple[str, str]] = {
    "a UID of the API server": (UID, ""),
    "a UID of a static pod": ("0123456789abcdef0123456789abcdef", ""),
    "an empty UID": ("", "is empty"),
    "a UID that cannot be recovered from its slice": ("a_b", "contains '_'"),
    "a UID with a path in it": ("../a", "contains '/'"),
    "a UID that is not valid in a unit name": ("a b", "contains ' '"),
    "a UID that is too long": ("a" * 200, "is too long"),
}


@pytest.mark.parametrize("uid, error", UIDS.values(), ids=UIDS.keys())
def test_slice_name_error(uid: str, error: str) -> None:
    assert slice_name_error(uid).startswith(error)
    assert bool(slice_name_error(uid)) == bool(error)


parts = st.text("abcpod01.:-", min_size=1, max_size=8)


@given(st.lists(parts, min_size=1, max_size=3), st.sampled_from(tuple(BRANCHES.values())), parts)
def test_every_pod_is_recovered_from_its_unit_and_only_in_its_branch(root: list[str], branch: Name, uid: str) -> None:
    assert slice_name_error(uid) == ""
    unit = slice_unit((*root, *branch, f"pod{uid}"))
    found = {other: pod_of_slice(unit, (*root, *other)) for other in BRANCHES.values()}
    assert found == {other: uid if other == branch else None for other in BRANCHES.values()}


@given(st.lists(parts, min_size=1, max_size=5))
def test_a_slice_is_in_those_that_its_name_begins_with(name: list[str]) -> None:
    steps = slice_path(tuple(name)).split("/")[1:]
    assert len(steps) == len(name)
    for above, below in pairwise(steps):
        assert below.startswith(above.removesuffix(".slice") + "-")
    assert all(step.removesuffix(".slice").count("-") == depth for depth, step in enumerate(steps))
