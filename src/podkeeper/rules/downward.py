"""The downward API: what a pod may learn of itself and of its node, as text.

A selector out of the spec and a `Surroundings` come in; a text goes out, or `NotConfigurable` with what the
container's status is to say. Limits nobody set are the pod's own, or else what the node can give. The Go ancestors
are `podFieldSelectorRuntimeValue` in pkg/kubelet/kubelet_pods.go, pkg/kubelet/kubelet_resources.go and
pkg/api/v1/resource.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, EphemeralContainer, ObjectFieldSelector, Pod, ResourceFieldSelector
from podkeeper.model.quantity import ZERO, Quantity, parse_quantity
from podkeeper.rules.probe.net import quoted
from podkeeper.rules.resources import Amounts, amounts_of, is_huge_pages

_DEFAULTED: Final = ("cpu", "memory", "ephemeral-storage")
_POD_LEVEL: Final = ("cpu", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known of a pod beside its spec."""

    pod: Pod
    pod_ips: tuple[str, ...] = ()  # the primary one first
    host_ips: tuple[str, ...] = ()
    allocatable: Amounts = field(default_factory=dict)  # what the node can give to pods


def field_value(selector: ObjectFieldSelector, seen: Surroundings) -> str:
    """The text that a `fieldRef` stands for; a label or annotation that is not there is empty."""
    if selector.api_version not in (None, "v1"):
        raise NotConfigurable(f"unsupported pod version: {selector.api_version}")
    path = selector.field_path
    whole, bracket, subscript = path.removesuffix("']").partition("['")
    if path.endswith("']") and bracket and whole:
        return _subscripted(path, whole, subscript, seen.pod)
    meta, spec = seen.pod.metadata, seen.pod.spec
    match path:
        case "metadata.name":
            return meta.name or ""
        case "metadata.namespace":
            return meta.namespace or ""
        case "metadata.uid":
            return meta.uid or ""
        case "metadata.labels":
            return _listed(meta.labels)
        case "metadata.annotations":
            return _listed(meta.annotations)
        case "spec.nodeName" | "spec.host":
            return spec.node_name or ""
        case "spec.serviceAccountName":
            return spec.service_account_name or ""
        case "status.hostIP":
            return _host_ips(seen)[0]
        case "status.hostIPs":
            return ",".join(_host_ips(seen))
        case "status.podIP":
            return seen.pod_ips[0] if seen.pod_ips else ""
        case "status.podIPs":
            return ",".join(seen.pod_ips)
        case "spec.restartPolicy" | "spec.schedulerName" | "status.phase":
            raise NotConfigurable(f"unsupported fieldPath: {path}")
        case _:
            raise NotConfigurable(f"field label not supported: {path}")


def resource_value(
    selector: ResourceFieldSelector, container: Container | EphemeralContainer, seen: Surroundings
) -> str:
    """The number that a `resourceFieldRef` of this container stands for, in units of its divisor, rounded up."""
    part, _, name = selector.resource.partition(".")
    if part not in ("limits", "requests") or not (name in _DEFAULTED or is_huge_pages(name)):
        raise NotConfigurable(f"unsupported container resource : {selector.resource}")
    has_defaults = True
    if selector.container_name:
        container, has_defaults = _named(selector.container_name, seen.pod)
    amounts = amounts_of(container.resources.limits if part == "limits" else container.resources.requests)
    amount = amounts.get(name, ZERO)
    if part == "limits" and has_defaults and not amount and name in _DEFAULTED:
        amount = _default_limit(name, seen)
    divisor = parse_quantity(selector.divisor) or Quantity(1)
    if name == "cpu":
        return str(_rounded_up(amount.milli_value, divisor.milli_value))
    return str(_rounded_up(amount.value, divisor.value))


def _subscripted(path: str, whole: str, subscript: str, pod: Pod) -> str:
    match whole:
        case "metadata.labels":
            return (pod.metadata.labels or {}).get(subscript, "")
        case "metadata.annotations":
            return (pod.metadata.annotations or {}).get(subscript, "")
        case _:
            raise NotConfigurable(f"field label does not support subscript: {path}")


def _listed(texts: Mapping[str, str] | None) -> str:
    """Labels or annotations, one a line, by name."""
    return "\n".join(f"{name}={quoted(text)}" for name, text in sorted((texts or {}).items()))


def _host_ips(seen: Surroundings) -> tuple[str, ...]:
    if not seen.host_ips:
        raise NotConfigurable("cannot tell the node's address yet")
    return seen.host_ips


def _named(name: str, pod: Pod) -> tuple[Container, bool]:
    """Another container of the pod, and whether its limits have defaults (those of init containers have none)."""
    for containers, has_defaults in ((pod.spec.containers, True), (pod.spec.init_containers or (), False)):
        for container in containers:
            if container.name == name:
                return container, has_defaults
    raise NotConfigurable(f"container {name} not found")


def _default_limit(name: str, seen: Surroundings) -> Quantity:
    """What a container may use that has no limit of its own."""
    allocatable = seen.allocatable.get(name)
    if allocatable is None:
        return ZERO
    pod_level = seen.pod.spec.resources
    if pod_level is None or name not in _POD_LEVEL:
        return allocatable
    return amounts_of(pod_level.limits).get(name) or allocatable


def _rounded_up(amount: int, divisor: int) -> int:
    return -(-amount // divisor)
