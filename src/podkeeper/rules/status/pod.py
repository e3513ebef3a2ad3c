"""The whole status of a pod, as the API will show it.

In: the pod, with its status in the API; a `PodView`, all that is known of it here; a `NodeView`, what all
pods of the node share. Out: a `PodStatus` without start time and times of change, which
`rules.status.publish` adds. This room only puts together what its neighbours decide: the containers
(`rules.status.containers`), the phase (`rules.phase`), the flags (`rules.probe.flags`), the conditions
(`rules.status.conditions`). What it decides itself: a terminal phase, once it was published or is in the API, is
never left; reason and message live as long as their phase; an eviction outranks both. The Go ancestor is
`generateAPIPodStatus` in pkg/kubelet/kubelet_pods.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus
from podkeeper.model.runtime import ActualResources, PodRecord
from podkeeper.rules.evict import Eviction
from podkeeper.rules.phase import Phase, is_terminal, phase_of
from podkeeper.rules.probe.flags import ProbeView, with_probe_flags
from podkeeper.rules.qos import qos_of
from podkeeper.rules.restart import all_containers_should_restart, could_restart_all
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
from podkeeper.rules.status.resources import allocated_resources, pod_resources


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What every pod of this node shows of it."""

    runtime_name: str
    host_ips: tuple[str, ...] = ()  # at most one of each family, the preferred first; empty: not known
    prefers_ipv6: bool = False
    recursive_read_only: bool = False  # the runtime can mount so


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """What is known here of one pod."""

    record: PodRecord
    probes: ProbeView
    published: PodStatus | None = None  # the status manager's last; None: it has none, the API's counts
    start_failures: Mapping[str, StartFailure] = field(default_factory=dict)  # by container name
    eviction: Eviction | None = None
    ended: bool = False  # no container will ever start again
    end_is_final: bool = False  # a published Failed or Succeeded stays, whatever comes after it; not so upstream
    keeps_init_ends: bool = False  # of init containers that are removed for a new sandbox; not so upstream
    resize_conditions: tuple[PodCondition, ...] = ()
    actual_resources: ActualResources | None = None  # of the pod's cgroup


def api_pod_status(pod: Pod, view: PodView, node: NodeView) -> PodStatus:
    """The status of a pod, from what the runtime, the probes and history say."""
    old = pod.status if view.published is None else view.published
    initialized = _any_regular_in_present_sandbox(pod, view.record)
    containers = ContainerView(
        pod=pod,
        record=view.record,
        runtime_name=node.runtime_name,
        start_failures=view.start_failures,
        restarting_all=all_containers_should_restart(pod, view.record, old),
        recursive_read_only=node.recursive_read_only,
        # Init containers of a sandbox that is initialized have succeeded, even if their last known end is another.
        keeps_init_ends=view.keeps_init_ends and not initialized,
        ended=view.ended,
    )
    regular = regular_statuses(containers, old.container_statuses)
    init = init_statuses(containers, old.init_container_statuses)
    phase = phase_of(pod, (*regular, *init), ended=view.ended, initialized=initialized)
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
    status = _with_phase(status, phase, pod.status, old, view)
    status = with_probe_flags(pod, status, view.probes, _last_words_on_readiness(old, pod.status))
    status = replace(status, conditions=_conditions(pod, view, old, status))
    status = _with_host_ips(pod, status, node.host_ips)
    return replace(
        status,
        container_statuses=status.container_statuses or None,
        init_container_statuses=status.init_container_statuses or None,
    )


def sorted_pod_ips(ips: Sequence[str], *, prefers_ipv6: bool) -> tuple[str, ...]:
    """The first address of the node's preferred family, then the first of the other, in canonical form."""
    addresses = [address for address in map(_address, ips) if address is not None]
    families = (IPv6Address, IPv4Address) if prefers_ipv6 else (IPv4Address, IPv6Address)
    firsts = (next((each for each in addresses if isinstance(each, family)), None) for family in families)
    return tuple(str(address) for address in firsts if address is not None)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address as leniently as Go once did: leading zeros are fine, and mapped IPv4 is IPv4."""
    try:
        if ":" not in text:
            return IPv4Address(".".join(part.lstrip("0") or "0" if part else part for part in text.split(".")))
        address = IPv6Address(text)
    except ValueError:
        return None
    if address.scope_id is not None:
        return None
    return address.ipv4_mapped or address


def _last_words_on_readiness(published: PodStatus, in_api: PodStatus) -> tuple[PodStatus, PodStatus]:
    """Both statuses; first the one that changed its mind later.

    As a rule that is ours. But a disk that takes no notes leaves a restarted agent behind what the API knows.
    """
    return (in_api, published) if changed_readiness_later(in_api, published) else (published, in_api)


def _any_regular_in_present_sandbox(pod: Pod, record: PodRecord) -> bool:
    """Whether a regular container of the sandbox that serves now was ever created: init is behind the pod."""
    regular = {container.name for container in pod.spec.containers}
    present = next((sandbox.id for sandbox in record.sandboxes[:1] if sandbox.ready), None)
    return any(each.name in regular and each.sandbox_id in ("", present) for each in record.containers)


def _with_phase(status: PodStatus, phase: Phase, in_api: PodStatus, old: PodStatus, view: PodView) -> PodStatus:
    """The status with its phase, and the reason and message that belong to it."""
    settled: str | None = phase
    if view.end_is_final or not is_terminal(phase):
        settled = next((each.phase for each in (old, in_api) if is_terminal(each.phase)), phase)
    reason = message = None
    if settled == old.phase:
        reason = old.reason or in_api.reason or None
        message = old.message or in_api.message or None
    is_final = view.end_is_final and is_terminal(old.phase)
    if view.eviction is not None and not is_final:
        settled, reason, message = Phase.FAILED, view.eviction.reason or None, view.eviction.message or None
    if is_terminal(in_api.phase):
        settled = in_api.phase
    return replace(status, phase=settled, reason=reason, message=message)


def _conditions(pod: Pod, view: PodView, old: PodStatus, status: PodStatus) -> tuple[PodCondition, ...]:
    """The conditions of others as the API has them, then ours."""
    conditions = tuple(each for each in pod.status.conditions or () if not is_ours(each))
    if not view.ended:
        conditions += tuple(
            each if pod.metadata.generation else replace(each, observed_generation=None)
            for each in view.resize_conditions
        )
    # Disruption is told once, by whoever ends the pod; it cannot be found out again from the containers.
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
    """The status with the node's addresses; a pod on the node's network has them for its own."""
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
