"""Whether a node fits a pod: node selector, required node affinity, taints and tolerations."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s import core
from podkeeper.rules.admission.node_match import is_untolerated, matches_node

Json = dict[str, Any]
MOST = 2**63 - 1
LEAST = -(2**63)


def node(name: str = "n1", labels: dict[str, str] | None = None, taints: list[Json] | None = None) -> core.Node:
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}, core.Node)


def spec(**parts: Any) -> core.PodSpec:
    return msgspec.convert({"containers": [], **parts}, core.PodSpec)


def requiring(*terms: Json) -> core.PodSpec:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return spec(affinity={"nodeAffinity": required})


def label(operator: str, *values: str, key: str = "a") -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": values} if values else {})}]}


def field(operator: str, *values: str, key: str = "metadata.name") -> Json:
    return {"matchFields": [{"key": key, "operator": operator, **({"values": values} if values else {})}]}


def both(*terms: Json) -> Json:
    """One term of all the requirements of some terms."""
    return {
        part: [requirement for term in terms for requirement in term.get(part, ())]
        for part in ("matchExpressions", "matchFields")
    }


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        (None, None, True),
        ({}, {"a": "1"}, True),
        ({"a": "1"}, {"a": "1", "b": "2"}, True),
        ({"a": "1"}, {"a": "2"}, False),
        ({"a": "1"}, {}, False),
        ({"a": "1"}, None, False),
        ({"a": ""}, None, False),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "2"}, True),
        ({"a": "1", "b": "2"}, {"a": "1"}, False),
    ],
)
def test_a_node_has_all_labels_of_the_node_selector(
    selector: dict[str, str] | None, labels: dict[str, str] | None, expected: bool
) -> None:
    assert matches_node(spec(nodeSelector=selector), node(labels=labels)) is expected


def test_an_affinity_that_requires_nothing_fits_every_node() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": label("Exists")}]}
    affinities: list[Json] = [{}, {"nodeAffinity": {}}, {"nodeAffinity": preferred}, {"podAffinity": {}}]
    for affinity in affinities:
        assert matches_node(spec(affinity=affinity), node())


def test_the_node_selector_and_the_affinity_are_both_required() -> None:
    pod = msgspec.structs.replace(requiring(label("In", "1")), node_selector={"b": "2"})
    assert matches_node(pod, node(labels={"a": "1", "b": "2"}))
    assert not matches_node(pod, node(labels={"a": "1"}))
    assert not matches_node(pod, node(labels={"b": "2"}))


# A term, and the values of label `a` (None: no such label) of the nodes n1 that it fits, of all that are listed here.
VALUES = (None, "", "1", "2", "10", "+2", "-3", "x", str(MOST), str(MOST + 1), str(LEAST), str(LEAST - 1))
LABELS: dict[str, tuple[Json, set[str | None]]] = {
    "in": (label("In", "1", "x"), {"1", "x"}),
    "in the empty value": (label("In", ""), {""}),
    "not in": (label("NotIn", "1", "x"), set(VALUES) - {"1", "x"}),
    "exists": (label("Exists"), set(VALUES) - {None}),
    "does not exist": (label("DoesNotExist"), {None}),
    "greater": (label("Gt", "2"), {"10", str(MOST)}),
    "less": (label("Lt", "2"), {"1", "-3", str(LEAST)}),
    "greater than a bound of 19 digits": (label("Gt", str(MOST - 1)), {str(MOST)}),
    "less than the greatest number": (label("Lt", str(MOST)), {"1", "2", "10", "+2", "-3", str(LEAST)}),
    "greater than a number beyond 64 bits": (label("Gt", str(MOST + 1)), set()),
    "less than a number beyond 64 bits": (label("Lt", str(MOST + 1)), set()),
    "greater than text": (label("Gt", "x"), set()),
    "less than text": (label("Lt", "x"), set()),
    "greater than two bounds": (label("Gt", "1", "2"), set()),
    "greater than no bound": (label("Gt"), set()),
    "less than two bounds": (label("Lt", "10", "20"), set()),
    "less than no bound": (label("Lt"), set()),
    "in no values": (label("In"), set()),
    "not in no values": (label("NotIn"), set()),
    "exists with values": (label("Exists", "1"), set()),
    "does not exist with values": (label("DoesNotExist", "1"), set()),
    "an unknown operator": (label("Like", "1"), set()),
    "an invalid key": (label("DoesNotExist", key="a b"), set()),
    "an invalid value": (label("NotIn", "1", "a b"), set()),
    "another label": (label("In", "1", key="b"), set()),
    "an empty term": ({}, set()),
    "two expressions": (both(label("Exists"), label("NotIn", "1", "x", ""), label("Gt", "2")), {"10", str(MOST)}),
    "a valid expression beside an invalid one": (both(label("Exists"), label("In")), set()),
    "this node": (field("In", "n1"), set(VALUES)),
    "another node": (field("In", "n2"), set()),
    "not another node": (field("NotIn", "n2"), set(VALUES)),
    "not this node": (field("NotIn", "n1"), set()),
    "two nodes": (field("In", "n1", "n2"), set()),
    "no node": (field("NotIn"), set()),
    "an unknown operator of a field": (field("Exists", "n1"), set()),
    "an unknown operator of the field of another node": (field("Exists", "n2"), set()),
    "another field": (field("In", "n1", key="metadata.uid"), set()),
    "not another field": (field("NotIn", "n1", key="metadata.uid"), set(VALUES)),
    "another field that is empty": (field("In", "", key="metadata.uid"), set(VALUES)),
    "two fields": (both(field("In", "n1"), field("NotIn", "n1")), set()),
    "a valid field beside an invalid one": (both(field("In", "n1"), field("In")), set()),
    "a label and a field": (both(label("In", "1"), field("In", "n1")), {"1"}),
    "a label of another node": (both(label("In", "1"), field("In", "n2")), set()),
    "a valid label and an invalid field": (both(label("In", "1"), field("In")), set()),
    "an invalid label and a valid field": (both(label("In"), field("In", "n1")), set()),
}


@pytest.mark.parametrize(("term", "expected"), LABELS.values(), ids=LABELS.keys())
def test_a_term_fits_exactly_these_nodes(term: Json, expected: set[str | None]) -> None:
    def fits(value: str | None) -> bool:
        return matches_node(requiring(term), node(labels=None if value is None else {"a": value}))

    assert {value for value in VALUES if fits(value)} == expected


def test_one_term_of_several_suffices() -> None:
    assert matches_node(requiring(label("In", "2"), label("In", "1")), node(labels={"a": "1"}))
    assert not matches_node(requiring(label("In", "2"), label("In", "3")), node(labels={"a": "1"}))
    assert not matches_node(requiring(), node(labels={"a": "1"}))


def test_fields_of_a_node_without_name_are_not_compared() -> None:
    assert matches_node(requiring(field("In", "n1")), node(name=""))
    assert not matches_node(requiring(field("In")), node(name=""))


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}
TOLERATIONS: dict[str, tuple[Json, bool]] = {
    "the same": ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
    "no operator means Equal": ({"key": "k", "value": "v"}, True),
    "an empty operator": ({"key": "k", "operator": "", "value": "v"}, True),
    "another value": ({"key": "k", "value": "w"}, False),
    "no value": ({"key": "k"}, False),
    "another key": ({"key": "l", "value": "v"}, False),
    "any key": ({"value": "v"}, True),
    "another effect": ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
    "exists": ({"key": "k", "operator": "Exists"}, True),
    "another one exists": ({"key": "l", "operator": "Exists"}, False),
    "exists with another effect": ({"operator": "Exists", "effect": "NoExecute"}, False),
    "everything": ({"operator": "Exists"}, True),
    "an unknown operator": ({"key": "k", "operator": "Like", "value": "v"}, False),
}


@pytest.mark.parametrize(("toleration", "tolerated"), TOLERATIONS.values(), ids=TOLERATIONS.keys())
def test_a_toleration_of_a_taint(toleration: Json, tolerated: bool) -> None:
    tainted = node(taints=[TAINT])
    assert is_untolerated(spec(tolerations=[toleration]), tainted, "NoSchedule") is not tolerated
    assert is_untolerated(spec(tolerations=[{"key": "x"}, toleration]), tainted, "NoSchedule") is not tolerated


def test_only_taints_with_the_given_effect_count() -> None:
    assert not is_untolerated(spec(), node(taints=[TAINT]), "NoExecute")
    assert is_untolerated(spec(), node(taints=[TAINT]), "NoSchedule")
    assert not is_untolerated(spec(), node(), "NoSchedule")


def test_every_taint_must_be_tolerated() -> None:
    pod = spec(tolerations=[{"key": "k", "operator": "Exists"}])
    assert not is_untolerated(pod, node(taints=[TAINT, {**TAINT, "value": "w"}]), "NoSchedule")
    assert is_untolerated(pod, node(taints=[TAINT, {**TAINT, "key": "l"}]), "NoSchedule")


def test_a_taint_without_value_is_tolerated_by_a_toleration_without_value() -> None:
    tainted = node(taints=[{"key": "k", "effect": "NoSchedule"}])
    for value, tolerated in ((None, True), ("", True), ("v", False)):
        assert is_untolerated(spec(tolerations=[{"key": "k", "value": value}]), tainted, "NoSchedule") is not tolerated
