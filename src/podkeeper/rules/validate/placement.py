"""Validation of where a pod wants to run: selectors, affinity, tolerations, spread.

The agent obeys little of this itself (the scheduler does), but an API that stored nonsense would
hand it on. The Go ancestors are `validateAffinity`, `ValidateTolerations` and
`validateTopologySpreadConstraints` in pkg/apis/core/validation.
"""

from typing import Final

from podkeeper.model.k8s import core, meta
from podkeeper.rules.validate.names import (
    Problems,
    choice,
    dns_label,
    dns_subdomain,
    label_key,
    label_selector,
    label_value,
    labels,
    missing,
    operator_and_values,
    optional_choice,
    unwanted,
    within,
    wrong,
)

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def placement(spec: core.PodSpec) -> Problems:
    """Everything wrong with where a pod wants to run."""
    yield from labels("spec.nodeSelector", spec.node_selector)
    affinity = spec.affinity or core.Affinity()
    if affinity.node_affinity is not None:
        yield from _node_affinity("spec.affinity.nodeAffinity", affinity.node_affinity)
    for name, given in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
        if given is not None:
            yield from _pod_affinity(f"spec.affinity.{name}", given)
    for index, toleration in enumerate(spec.tolerations or ()):
        yield from _toleration(f"spec.tolerations[{index}]", toleration)
    yield from _spread(spec.topology_spread_constraints or ())


def _node_affinity(field: str, affinity: core.NodeAffinity) -> Problems:
    required = affinity.required_during_scheduling_ignored_during_execution
    if required is not None:
        at = f"{field}.{_REQUIRED}.nodeSelectorTerms"
        if not required.node_selector_terms:
            yield missing(at, "at least one term")
        for index, term in enumerate(required.node_selector_terms):
            yield from _node_term(f"{at}[{index}]", term, check_values=True)
    for index, weighted in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        at = f"{field}.{_PREFERRED}[{index}]"
        yield from within(f"{at}.weight", weighted.weight, 1, 100)
        yield from _node_term(f"{at}.preference", weighted.preference, check_values=False)


def _node_term(field: str, term: core.NodeSelectorTerm, *, check_values: bool) -> Problems:
    for index, requirement in enumerate(term.match_expressions or ()):
        at = f"{field}.matchExpressions[{index}]"
        yield from operator_and_values(at, requirement.operator, requirement.values, ordered=True)
        yield from label_key(f"{at}.key", requirement.key)
        if check_values:
            for position, value in enumerate(requirement.values or ()):
                yield from label_value(f"{at}.values[{position}]", value)
    for index, requirement in enumerate(term.match_fields or ()):
        at = f"{field}.matchFields[{index}]"
        yield from choice(f"{at}.operator", requirement.operator, ("In", "NotIn"))
        yield from choice(f"{at}.key", requirement.key, ("metadata.name",))
        if len(requirement.values or ()) != 1:
            yield wrong(f"{at}.values", list(requirement.values or ()), "exactly one node name")
        for position, value in enumerate(requirement.values or ()):
            yield from dns_subdomain(f"{at}.values[{position}]", value)


def _pod_affinity(field: str, affinity: core.PodAffinity | core.PodAntiAffinity) -> Problems:
    for index, term in enumerate(affinity.required_during_scheduling_ignored_during_execution or ()):
        yield from _pod_term(f"{field}.{_REQUIRED}[{index}]", term)
    for index, weighted in enumerate(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        at = f"{field}.{_PREFERRED}[{index}]"
        yield from within(f"{at}.weight", weighted.weight, 1, 100)
        yield from _pod_term(f"{at}.podAffinityTerm", weighted.pod_affinity_term)


def _pod_term(field: str, term: core.PodAffinityTerm) -> Problems:
    yield from label_selector(f"{field}.labelSelector", term.label_selector)
    yield from label_selector(f"{field}.namespaceSelector", term.namespace_selector)
    for index, namespace in enumerate(term.namespaces or ()):
        yield from dns_label(f"{field}.namespaces[{index}]", namespace)
    yield from _label_keys(f"{field}.matchLabelKeys", term.match_label_keys or (), term.label_selector)
    yield from _label_keys(f"{field}.mismatchLabelKeys", term.mismatch_label_keys or (), term.label_selector)
    yield from _merged_keys(f"{field}.matchLabelKeys", term.match_label_keys or (), term.label_selector)
    for index, key in enumerate(term.match_label_keys or ()):
        if key in (term.mismatch_label_keys or ()):
            yield wrong(f"{field}.matchLabelKeys[{index}]", key, "a key that is not among mismatchLabelKeys")
    yield from label_key(f"{field}.topologyKey", term.topology_key)


def _label_keys(field: str, keys: tuple[str, ...], selector: meta.LabelSelector | None) -> Problems:
    if keys and selector is None:
        yield unwanted(field, "without a labelSelector")
        return
    for index, key in enumerate(keys):
        yield from label_key(f"{field}[{index}]", key)


def _merged_keys(field: str, keys: tuple[str, ...], selector: meta.LabelSelector | None) -> Problems:
    """Complain of a key the selector already settles; one expression per key is what merging them adds."""
    if selector is None:
        return
    settled = set(selector.match_labels or {})
    for requirement in selector.match_expressions or ():
        if requirement.key in keys and requirement.key in settled:
            at = f"{field}[{keys.index(requirement.key)}]"
            yield wrong(at, requirement.key, "a key that labelSelector does not name")
        settled.add(requirement.key)


def _toleration(field: str, toleration: core.Toleration) -> Problems:
    if toleration.key:
        yield from label_key(f"{field}.key", toleration.key)
    elif toleration.operator != "Exists":
        yield wrong(f"{field}.operator", toleration.operator or "", "Exists, since the key is empty")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield wrong(f"{field}.effect", toleration.effect or "", "NoExecute, since tolerationSeconds is given")
    match toleration.operator or "Equal":
        case "Equal":
            yield from label_value(f"{field}.value", toleration.value or "")
        case "Exists":
            if toleration.value:
                yield unwanted(f"{field}.value", "for Exists")
        case other:
            yield wrong(f"{field}.operator", other, "Equal or Exists")
    yield from optional_choice(f"{field}.effect", toleration.effect or None, _EFFECTS)


def _spread(constraints: tuple[core.TopologySpreadConstraint, ...]) -> Problems:
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(constraints):
        at = f"spec.topologySpreadConstraints[{index}]"
        if constraint.max_skew <= 0:
            yield wrong(f"{at}.maxSkew", constraint.max_skew, "one or more")
        if not constraint.topology_key:
            yield missing(f"{at}.topologyKey", "the key of a node label")
        yield from choice(f"{at}.whenUnsatisfiable", constraint.when_unsatisfiable, ("DoNotSchedule", "ScheduleAnyway"))
        key = (constraint.topology_key, constraint.when_unsatisfiable)
        if key in seen:
            yield wrong(f"{at}.topologyKey", constraint.topology_key, "used once per whenUnsatisfiable")
        seen.add(key)
        if constraint.min_domains is not None:
            if constraint.min_domains <= 0:
                yield wrong(f"{at}.minDomains", constraint.min_domains, "one or more")
            if constraint.when_unsatisfiable != "DoNotSchedule":
                yield unwanted(f"{at}.minDomains", "unless whenUnsatisfiable is DoNotSchedule")
        yield from optional_choice(f"{at}.nodeAffinityPolicy", constraint.node_affinity_policy, ("Ignore", "Honor"))
        yield from optional_choice(f"{at}.nodeTaintsPolicy", constraint.node_taints_policy, ("Ignore", "Honor"))
        keys = constraint.match_label_keys or ()
        yield from _label_keys(f"{at}.matchLabelKeys", keys, constraint.label_selector)
        yield from _merged_keys(f"{at}.matchLabelKeys", keys, constraint.label_selector)
        yield from label_selector(f"{at}.labelSelector", constraint.label_selector)
