"""Which objects of the manifests are in use, depending on current and earlier content."""

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.rules.static.pod import FromFile
from podkeeper.sources.active_objects import ActiveObjects
from podkeeper.sources.manifest_content import ManifestContent, ManifestReader
from tests.sources.static_listener import config_map_text, pod_text

Texts = dict[str, str]

BROKEN = "kind: ["


def content(texts: Texts) -> dict[str, ManifestContent]:
    reader = ManifestReader("n1", has_store=True)
    return {location: reader.read(text.encode(), FromFile(location), location) for location, text in texts.items()}


def both(*texts: str) -> str:
    return "---\n".join(texts)


A1, A2, B1, C1 = pod_text("a", "v1"), pod_text("a", "v2"), pod_text("b", "v1"), pod_text("c", "v1")

CASES: dict[str, tuple[list[Texts], list[str], list[str]]] = {
    "all locations, in order": ([{"x": B1, "y": A1}], ["b1", "a1"], []),
    "a change replaces the pod": ([{"x": A1}, {"x": A2}], ["a2"], []),
    "an object that complete content lacks is removed": ([{"x": both(A1, B1)}, {"x": B1}], ["b1"], []),
    "the objects of a removed location are removed": ([{"x": A1, "y": B1}, {"y": B1}], ["b1"], []),
    "an invalid location without earlier content has no objects": ([{"x": BROKEN, "y": B1}], ["b1"], ["x"]),
    "an invalid location keeps its objects": ([{"x": both(A1, B1)}, {"x": BROKEN}], ["a1", "b1"], ["x"]),
    "the valid documents of an invalid location are used": (
        [{"x": both(A1, B1)}, {"x": both(A2, BROKEN)}], ["a2", "b1"], ["x"]
    ),
    "a fixed location replaces all its objects": ([{"x": both(A1, B1)}, {"x": BROKEN}, {"x": A2}], ["a2"], []),
    "the objects of a removed invalid location are removed": ([{"x": A1}, {"x": BROKEN}, {}], [], []),
    "the first of two new locations gets a name": ([{"x": A1, "y": A2}], ["a1"], ["y"]),
    "the location that has a name keeps it": ([{"y": A2}, {"x": A1, "y": A2}], ["a2"], ["x"]),
    "a free name is given to the next location": ([{"x": A1, "y": A2}, {"y": A2}], ["a2"], []),
    "a name moves to another location": (
        [{"x": both(A1, B1), "y": C1}, {"x": B1, "y": both(A2, C1)}], ["b1", "a2", "c1"], []
    ),
    "a location with a duplicate name keeps objects": ([{"x": A1, "y": B1}, {"x": A1, "y": A2}], ["a1", "b1"], ["y"]),
    "a name that an invalid location keeps is in use": ([{"x": A1}, {"x": BROKEN, "y": A2}], ["a1"], ["x", "y"]),
    "two locations may swap their names": ([{"x": A1, "y": B1}, {"x": B1, "y": A2}], ["b1", "a2"], []),
}  # fmt: skip


@pytest.mark.parametrize("versions, pods, wrong", CASES.values(), ids=CASES.keys())
def test_update(versions: list[Texts], pods: list[str], wrong: list[str]) -> None:
    objects = ActiveObjects()
    for texts in versions:
        result = objects.update(content(texts))
    assert [described(pod) for pod in result.pods] == pods
    assert list(result.problems) == wrong


def described(pod: Pod) -> str:
    return (pod.metadata.name or "").removesuffix("-n1") + (pod.spec.containers[0].image or "").removeprefix("v")


def test_the_same_content_changes_nothing() -> None:
    for versions, _, _ in CASES.values():
        objects = ActiveObjects()
        for texts in versions:
            result = objects.update(content(texts))
        assert objects.update(content(versions[-1])) == result


def test_a_pod_and_a_config_map_may_have_the_same_name() -> None:
    result = ActiveObjects().update(content({"x": both(pod_text("a"), config_map_text("a", "v"))}))
    assert (len(result.pods), len(result.objects), result.problems) == (1, 1, {})


def test_of_two_pods_with_the_same_uid_one_is_used() -> None:
    texts = {name: pod_text(name).replace("metadata:", "metadata:\n  uid: same") for name in ("a", "b")}
    result = ActiveObjects().update(content(texts))
    assert [described(pod) for pod in result.pods] == ["ahost"]
    (problem,) = result.problems["b"]
    assert (problem.field, problem.line) == ("metadata.uid", 4)


def test_the_number_of_retained_objects() -> None:
    objects = ActiveObjects()
    objects.update(content({"x": both(A1, B1)}))
    assert objects.update(content({"x": BROKEN})).retained == {"x": 2}
