"""Validation of scheduling fields.

Node selectors, affinity, tolerations and topology spread.

The agent itself uses only a few of these fields. The scheduler uses the others. Kubelet counterparts:
`validateAffinity`, `ValidateTolerations` and `validateTopologySpreadConstraints` in pkg/apis/core/validation.
"""

from typing import Final

from podkeeper.model.k8s import core, meta
from podkeeper.rules.validate.names import (
    POSITIVE,
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
    repeated,
    unsupported,
    unwanted,
    within,
    wrong,
)

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def placement(spec: core.PodSpec) -> Problems:
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
            yield missing(at, "must have at least one node selector term")
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
            yield missing(
                f"{at}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )
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
            yield wrong(f"{field}.matchLabelKeys[{index}]", key, "exists in both matchLabelKeys and mismatchLabelKeys")
    yield from label_key(f"{field}.topologyKey", term.topology_key)


def _label_keys(field: str, keys: tuple[str, ...], selector: meta.LabelSelector | None) -> Problems:
    if keys and selector is None:
        yield unwanted(field, "must not be specified when labelSelector is not set")
        return
    for index, key in enumerate(keys):
        yield from label_key(f"{field}[{index}]", key)


def _merged_keys(field: str, keys: tuple[str, ...], selector: meta.LabelSelector | None) -> Problems:
    """Report keys that the selector has already. The API server adds one expression per key to the selector."""
    if selector is None:
        return
    settled = set(selector.match_labels or {})
    for requirement in selector.match_expressions or ():
        if requirement.key in keys and requirement.key in settled:
            at = f"{field}[{keys.index(requirement.key)}]"
            yield wrong(at, requirement.key, "exists in both matchLabelKeys and labelSelector")
        settled.add(requirement.key)


def _toleration(field: str, toleration: core.Toleration) -> Problems:
    if toleration.key:
        yield from label_key(f"{field}.key", toleration.key)
    elif toleration.operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield wrong(f"{field}.operator", toleration.operator or "", detail)
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield wrong(f"{field}.effect", toleration.effect or "", detail)
    match toleration.operator or "Equal":
        case "Equal":
            yield from label_value(f"{field}.value", toleration.value or "")
        case "Exists":
            if toleration.value:
                yield wrong(f"{field}.value", toleration.value, "value must be empty when `operator` is 'Exists'")
        case other:
            yield unsupported(f"{field}.operator", other, ("Equal", "Exists"))
    yield from optional_choice(f"{field}.effect", toleration.effect or None, _EFFECTS)


def _spread(constraints: tuple[core.TopologySpreadConstraint, ...]) -> Problems:
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(constraints):
        at = f"spec.topologySpreadConstraints[{index}]"
        if constraint.max_skew <= 0:
            yield wrong(f"{at}.maxSkew", constraint.max_skew, POSITIVE)
        if not constraint.topology_key:
            yield missing(f"{at}.topologyKey", "can not be empty")
        yield from choice(f"{at}.whenUnsatisfiable", constraint.when_unsatisfiable, ("DoNotSchedule", "ScheduleAnyway"))
        key = (constraint.topology_key, constraint.when_unsatisfiable)
        if key in seen:
            # The field stays topologyKey (upstream names the pair), so that the file's line can be found.
            yield repeated(f"{at}.topologyKey", ", ".join(key))
        seen.add(key)
        if constraint.min_domains is not None:
            if constraint.min_domains <= 0:
                yield wrong(f"{at}.minDomains", constraint.min_domains, POSITIVE)
            if constraint.when_unsatisfiable != "DoNotSchedule":
                detail = "can only use minDomains if whenUnsatisfiable=DoNotSchedule"
                yield wrong(f"{at}.minDomains", constraint.min_domains, detail)
        yield from optional_choice(f"{at}.nodeAffinityPolicy", constraint.node_affinity_policy, ("Ignore", "Honor"))
        yield from optional_choice(f"{at}.nodeTaintsPolicy", constraint.node_taints_policy, ("Ignore", "Honor"))
        keys = constraint.match_label_keys or ()
        yield from _label_keys(f"{at}.matchLabelKeys", keys, constraint.label_selector)
        yield from _merged_keys(f"{at}.matchLabelKeys", keys, constraint.label_selector)
        yield from label_selector(f"{at}.labelSelector", constraint.label_selector)
