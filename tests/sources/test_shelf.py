"""What counts of all manifests, now and before, without a file in sight."""

import pytest

from podkeeper.model.k8s.core import Pod
from podkeeper.rules.static import FromFile
from podkeeper.sources.contents import Contents, Reader
from podkeeper.sources.shelf import Shelf
from tests.sources.static_listener import config_map_text, pod_text

Texts = dict[str, str]

BROKEN = "kind: ["


def contents(texts: Texts) -> dict[str, Contents]:
    reader = Reader("n1", has_store=True)
    return {place: reader.read(text.encode(), FromFile(place), place) for place, text in texts.items()}


def both(*texts: str) -> str:
    return "---\n".join(texts)


A1, A2, B1, C1 = pod_text("a", "v1"), pod_text("a", "v2"), pod_text("b", "v1"), pod_text("c", "v1")

CASES: dict[str, tuple[list[Texts], list[str], list[str]]] = {
    "all places, in order": ([{"x": B1, "y": A1}], ["b1", "a1"], []),
    "a change replaces": ([{"x": A1}, {"x": A2}], ["a2"], []),
    "what a whole place no longer holds is gone": ([{"x": both(A1, B1)}, {"x": B1}], ["b1"], []),
    "a place that is gone takes all with it": ([{"x": A1, "y": B1}, {"y": B1}], ["b1"], []),
    "a broken place that never was whole holds nothing": ([{"x": BROKEN, "y": B1}], ["b1"], ["x"]),
    "a broken place keeps what it had": ([{"x": both(A1, B1)}, {"x": BROKEN}], ["a1", "b1"], ["x"]),
    "of a broken place the sound documents count": (
        [{"x": both(A1, B1)}, {"x": both(A2, BROKEN)}], ["a2", "b1"], ["x"]
    ),
    "a mended place says all": ([{"x": both(A1, B1)}, {"x": BROKEN}, {"x": A2}], ["a2"], []),
    "a broken place that goes takes all with it": ([{"x": A1}, {"x": BROKEN}, {}], [], []),
    "of two newcomers the first gets a name": ([{"x": A1, "y": A2}], ["a1"], ["y"]),
    "who has a name keeps it": ([{"y": A2}, {"x": A1, "y": A2}], ["a2"], ["x"]),
    "a free name goes to the next": ([{"x": A1, "y": A2}, {"y": A2}], ["a2"], []),
    "a name moves from place to place": (
        [{"x": both(A1, B1), "y": C1}, {"x": B1, "y": both(A2, C1)}], ["b1", "a2", "c1"], []
    ),
    "who wants a taken name keeps what it had": ([{"x": A1, "y": B1}, {"x": A1, "y": A2}], ["a1", "b1"], ["y"]),
    "what a broken place keeps is taken, too": ([{"x": A1}, {"x": BROKEN, "y": A2}], ["a1"], ["x", "y"]),
    "two places that swap their names both succeed": ([{"x": A1, "y": B1}, {"x": B1, "y": A2}], ["b1", "a2"], []),
}  # fmt: skip


@pytest.mark.parametrize("versions, pods, wrong", CASES.values(), ids=CASES.keys())
def test_take(versions: list[Texts], pods: list[str], wrong: list[str]) -> None:
    shelf = Shelf()
    for texts in versions:
        shelved = shelf.take(contents(texts))
    assert [described(pod) for pod in shelved.pods] == pods
    assert list(shelved.problems) == wrong


def described(pod: Pod) -> str:
    return (pod.metadata.name or "").removesuffix("-n1") + (pod.spec.containers[0].image or "").removeprefix("v")


def test_taking_the_same_again_changes_nothing() -> None:
    for versions, _, _ in CASES.values():
        shelf = Shelf()
        for texts in versions:
            shelved = shelf.take(contents(texts))
        assert shelf.take(contents(versions[-1])) == shelved


def test_pods_and_config_maps_of_one_name_do_not_meet() -> None:
    shelved = Shelf().take(contents({"x": both(pod_text("a"), config_map_text("a", "v"))}))
    assert (len(shelved.pods), len(shelved.objects), shelved.problems) == (1, 1, {})


def test_two_pods_with_one_uid_are_not_both_told() -> None:
    texts = {name: pod_text(name).replace("metadata:", "metadata:\n  uid: same") for name in ("a", "b")}
    shelved = Shelf().take(contents(texts))
    assert [described(pod) for pod in shelved.pods] == ["ahost"]
    (problem,) = shelved.problems["b"]
    assert (problem.field, problem.line) == ("metadata.uid", 4)


def test_a_place_that_keeps_something_says_how_much() -> None:
    shelf = Shelf()
    shelf.take(contents({"x": both(A1, B1)}))
    assert shelf.take(contents({"x": BROKEN})).held == {"x": 2}
