"""Termination order: all containers at once, but sidecars last and in reverse order."""

from collections.abc import Mapping, Set
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import PodSpec
from podkeeper.rules.container.restart import is_sidecar
from podkeeper.rules.container.termination_order import TerminationOrder, termination_order
from podkeeper.testing.build import container, pod


def spec(init: str = "", apps: str = "ab") -> PodSpec:
    """Return containers by letter. A capital letter is a sidecar."""
    inits = tuple(container(each, sidecar=each.isupper()) for each in init)
    return pod(init=inits, spec={"containers": tuple(container(each) for each in apps)}).spec


CASES = {
    "app containers do not wait": (spec(), "ab", {"a": "", "b": ""}),
    "a sidecar waits for the app containers": (spec("S"), "Sab", {"a": "", "b": "", "S": "ab"}),
    "sidecars stop in reverse order": (spec("STU"), "STUa", {"a": "", "U": "a", "T": "aU", "S": "aUT"}),
    "containers that do not run are not waited for": (spec("STU"), "STb", {"b": "", "T": "b", "S": "bT"}),
    "a dead sidecar does not break the chain": (spec("STU"), "SU", {"U": "", "S": "U"}),
    "an init container neither waits nor is waited for": (spec("iSj"), "iSj", {"i": "", "S": "", "j": ""}),
    "a container that is not in the spec stops at once": (spec("S"), "Sx", {"S": "", "x": ""}),
    "nothing runs": (spec("S"), "", {}),
}  # fmt: skip


@pytest.mark.parametrize("of, running, expected", CASES.values(), ids=CASES.keys())
def test_order(of: PodSpec, running: str, expected: Mapping[str, str]) -> None:
    assert termination_order(of, running) == {name: frozenset(awaited) for name, awaited in expected.items()}


def free_to_stop(order: TerminationOrder, exited: Set[str]) -> tuple[str, ...]:
    return tuple(name for name, awaited in order.items() if name not in exited and awaited <= exited)


def test_containers_become_free_to_stop_as_others_exit() -> None:
    order = termination_order(spec("ST"), "STab")
    turns = [free_to_stop(order, frozenset(gone)) for gone in ("", "a", "ab", "abT", "abTS")]
    assert turns == [("a", "b"), ("b",), ("T",), ("S",), ()]


POD_SHAPES = st.permutations("ijSTUV").flatmap(
    lambda letters: st.integers(0, 6).map(lambda size: "".join(letters[:size]))
)


@given(POD_SHAPES, st.sets(st.sampled_from("ijSTUVabcx")), st.randoms(use_true_random=False))
def test_all_containers_stop_and_sidecars_stop_last_in_reverse_order(
    init: str, running: set[str], chance: Random
) -> None:
    of = spec(init, apps="abc")
    order = termination_order(of, sorted(running))
    gone: list[str] = []
    while free := free_to_stop(order, frozenset(gone)):
        gone.append(chance.choice(free))
    assert set(gone) == running
    sidecars = [each.name for each in of.init_containers or () if is_sidecar(each) and each.name in running]
    assert [name for name in gone if name in sidecars] == sidecars[::-1]
    if sidecars:
        assert {"a", "b", "c"} & running <= set(gone[: gone.index(sidecars[-1])])
