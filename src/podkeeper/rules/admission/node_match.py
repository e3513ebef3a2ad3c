"""Whether a node matches a pod's node selector, affinity and tolerations.

A term that cannot be evaluated (an unknown operator, a bound that is not a number) matches nothing, as in the kubelet.

Kubelet counterparts: component-helpers/scheduling/corev1 and its nodeaffinity package.
"""

import re
from collections.abc import Mapping
from typing import Final

from podkeeper.model.k8s import core
from podkeeper.rules.validate.names import label_key, label_value

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


def matches_node(spec: core.PodSpec, node: core.Node) -> bool:
    """Return whether a node has the labels that the pod's node selector and required affinity need."""
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return required is None or any(_matches_term(term, node, labels) for term in required.node_selector_terms)


def is_untolerated(spec: core.PodSpec, node: core.Node, effect: str) -> bool:
    """Return whether a node has a taint with this effect that the pod does not tolerate."""
    return any(
        taint.effect == effect and not any(_tolerates(toleration, taint) for toleration in spec.tolerations or ())
        for taint in node.spec.taints or ()
    )


def _matches_term(term: core.NodeSelectorTerm, node: core.Node, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    # As in the API: an empty term matches no node.
    if not expressions and not fields:
        return False
    if not all(map(_is_valid_expression, expressions)) or not all(map(_is_valid_field, fields)):
        return False
    return all(_matches(requirement, labels) for requirement in expressions) and (
        not node.metadata.name or all(_matches_field(requirement, node.metadata.name) for requirement in fields)
    )


def _is_valid_expression(requirement: core.NodeSelectorRequirement) -> bool:
    values = requirement.values or ()
    match requirement.operator:
        case "In" | "NotIn":
            enough = bool(values)
        case "Exists" | "DoesNotExist":
            enough = not values
        case "Gt" | "Lt":
            enough = len(values) == 1 and _number(values[0]) is not None
        case _:
            return False
    return enough and label_key.holds(requirement.key) and all(map(label_value.holds, values))


def _matches(requirement: core.NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    present = labels.get(requirement.key)
    values = requirement.values or ()
    match requirement.operator:
        case "In":
            return present in values
        case "NotIn":
            return present not in values
        case "Exists":
            return present is not None
        case "DoesNotExist":
            return present is None
        case _:
            bound, number = _number(values[0]), _number(present)
            if bound is None or number is None:
                return False
            return number > bound if requirement.operator == "Gt" else number < bound


def _is_valid_field(requirement: core.NodeSelectorRequirement) -> bool:
    return requirement.operator in ("In", "NotIn") and len(requirement.values or ()) == 1


def _matches_field(requirement: core.NodeSelectorRequirement, node_name: str) -> bool:
    present = node_name if requirement.key == "metadata.name" else ""
    return (present in (requirement.values or ())) == (requirement.operator == "In")


def _number(text: str | None) -> int | None:
    if text is None or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _tolerates(toleration: core.Toleration, taint: core.Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator or "Equal":
        case "Equal":
            return (toleration.value or "") == (taint.value or "")
        case "Exists":
            return True
        case _:
            return False
