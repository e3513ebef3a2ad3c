"""Compute the complete status of a pod for the API.

In: the pod with its status in the API, a `PodView` (the agent's state of the pod) and a `NodeView` (common to all
pods). Out: a `PodStatus` without start time and transition times, which `rules.status.publish` adds.

This module combines the containers (`rules.status.containers`), the phase (`rules.status.phase`), the flags
(`rules.probe.flags`) and the conditions (`rules.status.conditions`). A terminal phase that was published, or that is in
the API, never changes. Reason and message stay as long as the phase. An eviction takes precedence. Kubelet counterpart:
`generateAPIPodStatus` in pkg/kubelet/kubelet_pods.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus
from podkeeper.model.runtime import ActualResources, PodRecord
from podkeeper.rules.container.restart import all_containers_should_restart, could_restart_all
from podkeeper.rules.evict import Eviction
from podkeeper.rules.probe.flags import ProbeView, with_probe_flags
from podkeeper.rules.qos import qos_of
from podkeeper.rules.status.conditions import (
    DISRUPTION_TARGET,
    all_containers_restarting_condition,
    changed_readiness_later,
    containers_ready_condition,
    find_condition,
    initialized_condition,
    is_ours,
    pod_scheduled_condition,
    ready_condition,
    ready_to_start_containers_condition,
    with_condition,
)
from podkeeper.rules.status.containers import (
    ContainerView,
    StartFailure,
    ephemeral_statuses,
    init_statuses,
    regular_statuses,
)
from podkeeper.rules.status.phase import Phase, is_terminal, phase_of
from podkeeper.rules.status.resources import allocated_resources, pod_resources


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """The part of a status that is the same for all pods of the node."""

    runtime_name: str
    host_ips: tuple[str, ...] = ()  # at most one of each family, the preferred one first; empty: unknown
    prefers_ipv6: bool = False
    recursive_read_only: bool = False  # the runtime supports it


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """The agent's state of one pod: runtime record, probes, published status."""

    record: PodRecord
    probes: ProbeView
    published: PodStatus | None = None  # the last one of the status manager; None: use the one in the API
    start_failures: Mapping[str, StartFailure] = field(default_factory=dict)  # by container name
    eviction: Eviction | None = None
    pod_is_terminal: bool = False  # no container will start again
    terminal_phase_is_final: bool = False  # a published terminal phase never changes; not in the kubelet
    keeps_init_exits: bool = False  # of init containers removed for a new sandbox; not in the kubelet
    resize_conditions: tuple[PodCondition, ...] = ()
    actual_resources: ActualResources | None = None  # of the pod's cgroup


def api_pod_status(pod: Pod, view: PodView, node: NodeView) -> PodStatus:
    """Return the status of a pod from the runtime, the probes and its old status."""
    old = pod.status if view.published is None else view.published
    initialized = _has_regular_container_in_sandbox(pod, view.record)
    containers = ContainerView(
        pod=pod,
        record=view.record,
        runtime_name=node.runtime_name,
        start_failures=view.start_failures,
        restarting_all=all_containers_should_restart(pod, view.record, old),
        recursive_read_only=node.recursive_read_only,
        # In an initialized sandbox, init containers have succeeded, even if their last known exit failed.
        keeps_init_exits=view.keeps_init_exits and not initialized,
        pod_is_terminal=view.pod_is_terminal,
    )
    regular = regular_statuses(containers, old.container_statuses)
    init = init_statuses(containers, old.init_container_statuses)
    phase = phase_of(pod, (*regular, *init), pod_is_terminal=view.pod_is_terminal, initialized=initialized)
    pod_ips = sorted_pod_ips(view.record.ips, prefers_ipv6=node.prefers_ipv6)
    status = PodStatus(
        pod_ip=pod_ips[0] if pod_ips else None,
        pod_ips=tuple(PodIP(ip=ip) for ip in pod_ips) or None,
        qos_class=qos_of(pod),
        container_statuses=regular,
        init_container_statuses=init,
        ephemeral_container_statuses=ephemeral_statuses(containers, old.ephemeral_container_statuses) or None,
        resources=pod_resources(pod, old, view.actual_resources),
        allocated_resources=allocated_resources(pod.spec),
    )
    # Before the conditions, which depend on the phase.
    status = _with_phase(status, phase, pod.status, old, view)
    status = with_probe_flags(pod, status, view.probes, _by_latest_readiness(old, pod.status))
    status = replace(status, conditions=_conditions(pod, view, old, status))
    status = _with_host_ips(pod, status, node.host_ips)
    return replace(
        status,
        container_statuses=status.container_statuses or None,
        init_container_statuses=status.init_container_statuses or None,
    )


def sorted_pod_ips(ips: Sequence[str], *, prefers_ipv6: bool) -> tuple[str, ...]:
    """Return the first address of each family in canonical form. The node's preferred family comes first."""
    addresses = [address for address in map(_address, ips) if address is not None]
    families = (IPv6Address, IPv4Address) if prefers_ipv6 else (IPv4Address, IPv6Address)
    firsts = (next((each for each in addresses if isinstance(each, family)), None) for family in families)
    return tuple(str(address) for address in firsts if address is not None)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address as older Go versions did: with leading zeros, and mapped IPv4 as IPv4."""
    try:
        if ":" not in text:
            return IPv4Address(".".join(part.lstrip("0") or "0" if part else part for part in text.split(".")))
        address = IPv6Address(text)
    except ValueError:
        return None
    if address.scope_id is not None:
        return None
    return address.ipv4_mapped or address


def _by_latest_readiness(published: PodStatus, in_api: PodStatus) -> tuple[PodStatus, PodStatus]:
    """Return both statuses, the one with the later readiness change first.

    Usually this is ours. But if the disk was full, the stored status may be older than the one in the API.
    """
    return (in_api, published) if changed_readiness_later(in_api, published) else (published, in_api)


def _has_regular_container_in_sandbox(pod: Pod, record: PodRecord) -> bool:
    """Return whether a regular container exists in the current sandbox, so that initialization is done."""
    regular = {container.name for container in pod.spec.containers}
    current = next((sandbox.id for sandbox in record.sandboxes[:1] if sandbox.ready), None)
    return any(each.name in regular and each.sandbox_id in ("", current) for each in record.containers)


def _with_phase(status: PodStatus, phase: Phase, in_api: PodStatus, old: PodStatus, view: PodView) -> PodStatus:
    """Return the status with phase, reason and message."""
    final_phase: str | None = phase
    # Seed 194: a preempted pod became Succeeded, because its containers exited with 0 before the watch showed Failed.
    if view.terminal_phase_is_final or not is_terminal(phase):
        final_phase = next((each.phase for each in (old, in_api) if is_terminal(each.phase)), phase)
    reason = message = None
    if final_phase == old.phase:
        reason = old.reason or in_api.reason or None
        message = old.message or in_api.message or None
    is_final = view.terminal_phase_is_final and is_terminal(old.phase)
    # An eviction must not change an end that was already published.
    if view.eviction is not None and not is_final:
        final_phase, reason, message = Phase.FAILED, view.eviction.reason or None, view.eviction.message or None
    # Other components may have acted on a terminal phase in the API, so it never changes (k/k 58711).
    if is_terminal(in_api.phase):
        final_phase = in_api.phase
    return replace(status, phase=final_phase, reason=reason, message=message)


def _conditions(pod: Pod, view: PodView, old: PodStatus, status: PodStatus) -> tuple[PodCondition, ...]:
    """Return the conditions of others as in the API, then ours."""
    conditions = tuple(each for each in pod.status.conditions or () if not is_ours(each))
    if not view.pod_is_terminal:
        conditions += tuple(
            each if pod.metadata.generation else replace(each, observed_generation=None)
            for each in view.resize_conditions
        )
    # Keep the disruption condition. It is set once by an eviction and does not follow from the containers.
    disruption = find_condition(old.conditions, DISRUPTION_TARGET)
    if disruption is not None:
        conditions = with_condition(conditions, disruption)
    containers: tuple[ContainerStatus, ...] = (
        *(status.init_container_statuses or ()),
        *(status.container_statuses or ()),
    )
    phase = status.phase
    conditions += (ready_to_start_containers_condition(pod, view.record),)
    conditions += (initialized_condition(pod, old.conditions, containers, phase),)
    conditions += (ready_condition(pod, conditions, containers, phase),)
    conditions += (containers_ready_condition(pod, containers, phase), pod_scheduled_condition(pod))
    if could_restart_all(pod.spec):
        conditions += (all_containers_restarting_condition(pod, view.record, old, phase),)
    return conditions


def _with_host_ips(pod: Pod, status: PodStatus, host_ips: tuple[str, ...]) -> PodStatus:
    """Return the status with the node's addresses. A pod in the host network has them as its own."""
    if not host_ips:
        return status
    status = replace(status, host_ip=host_ips[0], host_ips=tuple(HostIP(ip=ip) for ip in host_ips[:2]))
    if not pod.spec.host_network:
        return status
    if not status.pod_ip:
        status = replace(status, pod_ip=host_ips[0], pod_ips=(PodIP(ip=host_ips[0]),))
    pod_ips = status.pod_ips or ()
    if len(host_ips) > 1 and len(pod_ips) == 1 and (":" in pod_ips[0].ip) != (":" in host_ips[1]):
        status = replace(status, pod_ips=(*pod_ips, PodIP(ip=host_ips[1])))
    return status
