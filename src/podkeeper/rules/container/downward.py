"""The downward API: fields of a pod and resources of its containers, as text.

Inputs are a selector from the spec and a `PodContext`. The output is a text. `NotConfigurable` carries the message for
the container's status. For a container without a limit, the value is the pod-level limit, else the node's allocatable
amount.

Kubelet counterparts: `podFieldSelectorRuntimeValue` in pkg/kubelet/kubelet_pods.go,
pkg/kubelet/kubelet_resources.go and pkg/api/v1/resource.
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
class PodContext:
    """A pod, and facts about it that are not in its spec."""

    pod: Pod
    pod_ips: tuple[str, ...] = ()  # the primary one first
    host_ips: tuple[str, ...] = ()
    allocatable: Amounts = field(default_factory=dict)  # of the node


def field_value(selector: ObjectFieldSelector, context: PodContext) -> str:
    """Return the value of a `fieldRef`. A missing label or annotation is empty."""
    if selector.api_version not in (None, "v1"):
        raise NotConfigurable(f"unsupported pod version: {selector.api_version}")
    path = selector.field_path
    whole, bracket, subscript = path.removesuffix("']").partition("['")
    if path.endswith("']") and bracket and whole:
        return _subscripted(path, whole, subscript, context.pod)
    meta, spec = context.pod.metadata, context.pod.spec
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
            return _host_ips(context)[0]
        case "status.hostIPs":
            return ",".join(_host_ips(context))
        case "status.podIP":
            return context.pod_ips[0] if context.pod_ips else ""
        case "status.podIPs":
            return ",".join(context.pod_ips)
        case "spec.restartPolicy" | "spec.schedulerName" | "status.phase":
            raise NotConfigurable(f"unsupported fieldPath: {path}")
        case _:
            raise NotConfigurable(f"field label not supported: {path}")


def resource_value(
    selector: ResourceFieldSelector, container: Container | EphemeralContainer, context: PodContext
) -> str:
    """Return the value of a `resourceFieldRef` of this container, in units of its divisor, rounded up."""
    part, _, name = selector.resource.partition(".")
    if part not in ("limits", "requests") or not (name in _DEFAULTED or is_huge_pages(name)):
        raise NotConfigurable(f"unsupported container resource : {selector.resource}")
    has_defaults = True
    if selector.container_name:
        container, has_defaults = _named(selector.container_name, context.pod)
    amounts = amounts_of(container.resources.limits if part == "limits" else container.resources.requests)
    amount = amounts.get(name, ZERO)
    if part == "limits" and has_defaults and not amount and name in _DEFAULTED:
        amount = _default_limit(name, context)
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
    """Return labels or annotations, one per line, sorted by name."""
    return "\n".join(f"{name}={quoted(text)}" for name, text in sorted((texts or {}).items()))


def _host_ips(context: PodContext) -> tuple[str, ...]:
    if not context.host_ips:
        raise NotConfigurable("cannot get host IPs: the node has no address yet")
    return context.host_ips


def _named(name: str, pod: Pod) -> tuple[Container, bool]:
    """Return another container of the pod, and whether a missing limit has a default.

    Limits of init containers have none.
    """
    for containers, has_defaults in ((pod.spec.containers, True), (pod.spec.init_containers or (), False)):
        for container in containers:
            if container.name == name:
                return container, has_defaults
    raise NotConfigurable(f"container {name} not found")


def _default_limit(name: str, context: PodContext) -> Quantity:
    """Return the limit that applies to a container without its own."""
    allocatable = context.allocatable.get(name)
    if allocatable is None:
        return ZERO
    pod_level = context.pod.spec.resources
    if pod_level is None or name not in _POD_LEVEL:
        return allocatable
    return amounts_of(pod_level.limits).get(name) or allocatable


def _rounded_up(amount: int, divisor: int) -> int:
    # Round up, as in the kubelet: a limit of 100m is at least one CPU for a program that reads whole numbers.
    return -(-amount // divisor)
