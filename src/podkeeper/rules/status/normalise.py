"""Normalize and compare two statuses of one pod.

`normalised` cuts times to whole seconds (as the API stores them), sorts container statuses, and limits termination
messages to their share of the total size. `equal_by_kubelet` compares the fields that the node agent owns. As in the
API server, absent and empty are equal, except for pointers. Quantities are compared by value, so `1` and `1000m` are
equal.

One deliberate difference: a message is cut between two characters, never inside one. The kubelet cuts bytes, so the
status that it sends never equals the one that it stores. Kubelet counterpart: `normalizeStatus` and
`isPodStatusByKubeletEqual` in pkg/kubelet/status/status_manager.go.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerState, ContainerStatus, PodCondition, PodSpec, PodStatus
from podkeeper.model.quantity import parse_quantity
from podkeeper.model.times import format_time, parse_time
from podkeeper.rules.status.conditions import is_ours, is_shared

# The kubelet's MaxPodTerminationMessageLogLength.
MAX_POD_MESSAGE_BYTES = 12 * 1024
"""The maximum total size of the termination messages of a pod."""

_POINTERS = frozenset({"started", "stop_signal", "recursive_read_only"})
"""Scalar fields in which absent and zero differ, because they are pointers in Go."""

_AMOUNTS = frozenset({"allocated_resources", "limits", "requests"})


def normalised(spec: PodSpec, status: PodStatus) -> PodStatus:
    """Return a status in the form that can be compared and sent."""
    containers = len(spec.containers) + len(spec.init_containers or ()) + len(spec.ephemeral_containers or ())
    # As in the kubelet: the share of each container in the spec, whether it has a message or not.
    message_bytes = MAX_POD_MESSAGE_BYTES // max(containers, 1)

    def each(statuses: Iterable[ContainerStatus] | None) -> list[ContainerStatus]:
        return [_normal_container(found, message_bytes) for found in statuses or ()]

    return replace(
        status,
        start_time=_whole_seconds(status.start_time),
        conditions=tuple(map(_normal_condition, status.conditions or ())) or None,
        container_statuses=_by_name(each(status.container_statuses)) or None,
        init_container_statuses=_in_spec_order(spec, each(status.init_container_statuses)) or None,
        ephemeral_container_statuses=_by_name(each(status.ephemeral_container_statuses)) or None,
    )


def equal_by_kubelet(old: PodStatus, new: PodStatus) -> bool:
    """Return whether two normalized statuses are equal in the agent's own fields. Condition times do not count."""
    if _our_conditions(old) != _our_conditions(new):
        return False
    return _same(
        replace(
            old,
            conditions=new.conditions,
            resource_claim_statuses=new.resource_claim_statuses,
            extended_resource_claim_status=new.extended_resource_claim_status,
            node_allocatable_resource_claim_statuses=new.node_allocatable_resource_claim_statuses,
        ),
        new,
    )


_LENGTH_IN_SECONDS = len("2000-01-31T23:59:59Z")


def _our_conditions(status: PodStatus) -> dict[str, tuple[str, str, str]]:
    return {
        condition.type: (condition.status, condition.reason or "", condition.message or "")
        for condition in status.conditions or ()
        if is_ours(condition) or is_shared(condition)
    }


def _same(left: object, right: object, field: str = "") -> bool:
    """Return whether two values are equal for the API server. `field` is the name of their field."""
    if left == right:
        return True
    match left, right:
        case msgspec.Struct(), msgspec.Struct():
            return type(left) is type(right) and all(
                _same(getattr(left, name), getattr(right, name), name) for name in left.__struct_fields__
            )
        case tuple(), tuple():
            return len(left) == len(right) and all(map(_same, left, right))
        case dict(), dict() if field in _AMOUNTS:
            return left.keys() == right.keys() and all(
                parse_quantity(left[name]) == parse_quantity(right[name]) for name in left
            )
        case (None, other) | (other, None):
            return not isinstance(other, msgspec.Struct) and not other and field not in _POINTERS
    return False


def _normal_condition(condition: PodCondition) -> PodCondition:
    probed, changed = _whole_seconds(condition.last_probe_time), _whole_seconds(condition.last_transition_time)
    if probed is condition.last_probe_time and changed is condition.last_transition_time:
        return condition
    return replace(condition, last_probe_time=probed, last_transition_time=changed)


def _normal_container(status: ContainerStatus, message_bytes: int) -> ContainerStatus:
    state, last_state = _normal_state(status.state, message_bytes), _normal_state(status.last_state, message_bytes)
    if state is status.state and last_state is status.last_state:
        return status
    return replace(status, state=state, last_state=last_state)


def _normal_state(state: ContainerState, message_bytes: int) -> ContainerState:
    running, terminated = state.running, state.terminated
    if terminated is None and (running is None or _whole_seconds(running.started_at) is running.started_at):
        return state
    if running is not None:
        running = replace(running, started_at=_whole_seconds(running.started_at))
    if terminated is not None:
        terminated = replace(
            terminated,
            started_at=_whole_seconds(terminated.started_at),
            finished_at=_whole_seconds(terminated.finished_at),
            message=_cut(terminated.message, message_bytes),
        )
    return replace(state, running=running, terminated=terminated)


def _whole_seconds(time: str | None) -> str | None:
    """Return a time in UTC without a fraction. Usually it is the same object."""
    if time is None or (len(time) == _LENGTH_IN_SECONDS and time.endswith("Z")):
        return time
    return format_time(parse_time(time))


def _cut(message: str | None, limit_bytes: int) -> str | None:
    if message is None or len(message.encode()) <= limit_bytes:
        return message
    return message.encode()[:limit_bytes].decode(errors="ignore")


def _by_name(statuses: Iterable[ContainerStatus]) -> tuple[ContainerStatus, ...]:
    return tuple(sorted(statuses, key=lambda status: status.name))


def _in_spec_order(spec: PodSpec, statuses: Sequence[ContainerStatus]) -> tuple[ContainerStatus, ...]:
    """Sort statuses like the init containers.

    The position of unknown names is the same as in the kubelet, which swaps items in place.
    """
    ordered = list(statuses)
    current = 0
    for container in spec.init_containers or ():
        for place in range(current, len(ordered)):
            if ordered[place].name == container.name:
                ordered[current], ordered[place] = ordered[place], ordered[current]
                current += 1
                break
    return tuple(ordered)
