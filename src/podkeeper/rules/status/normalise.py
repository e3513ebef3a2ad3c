"""Two statuses of one pod compared: each is put into one form first, then only what is ours counts.

`normalised` cuts times to whole seconds (all that the API keeps), puts container statuses into one
order and shares the room for termination messages among the containers. `equal_by_kubelet` then asks
whether the API would show any difference that the node agent answers for. To the API's own comparison
nothing and empty are the same, except behind a pointer; so are equal amounts written differently.

One difference on purpose: a message is cut between two characters, never inside one. The reference
cuts bytes, and what it then sends instead of the broken character never equals what it holds. The Go
ancestors are `normalizeStatus` and `isPodStatusByKubeletEqual` in pkg/kubelet/status/status_manager.go.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerState, ContainerStatus, PodCondition, PodSpec, PodStatus
from podkeeper.model.quantity import parse_quantity
from podkeeper.model.times import format_time, parse_time
from podkeeper.rules.status.conditions import is_ours, is_shared

MAX_POD_MESSAGE_BYTES = 12 * 1024
"""The room for the termination messages of all containers of a pod together."""

_POINTERS = frozenset({"started", "stop_signal", "recursive_read_only"})
"""Plain fields of a status in which absent and zero are two things, as they are for structs."""

_AMOUNTS = frozenset({"allocated_resources", "limits", "requests"})


def normalised(spec: PodSpec, status: PodStatus) -> PodStatus:
    """The status in the form in which two of them can be compared."""
    containers = len(spec.containers) + len(spec.init_containers or ()) + len(spec.ephemeral_containers or ())
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
    """Whether two normalised statuses agree in all that the node agent writes; times of conditions do not count."""
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


_USUAL_LENGTH = len("2000-01-31T23:59:59Z")


def _our_conditions(status: PodStatus) -> dict[str, tuple[str, str, str]]:
    return {
        condition.type: (condition.status, condition.reason or "", condition.message or "")
        for condition in status.conditions or ()
        if is_ours(condition) or is_shared(condition)
    }


def _same(left: object, right: object, field: str = "") -> bool:
    """The API's own equality of two values in a field of that name."""
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
    """The time without a fraction, in UTC; the very same text when it is so already, as nearly always."""
    if time is None or (len(time) == _USUAL_LENGTH and time.endswith("Z")):
        return time
    return format_time(parse_time(time))


def _cut(message: str | None, limit_bytes: int) -> str | None:
    if message is None or len(message.encode()) <= limit_bytes:
        return message
    return message.encode()[:limit_bytes].decode(errors="ignore")


def _by_name(statuses: Iterable[ContainerStatus]) -> tuple[ContainerStatus, ...]:
    return tuple(sorted(statuses, key=lambda status: status.name))


def _in_spec_order(spec: PodSpec, statuses: Sequence[ContainerStatus]) -> tuple[ContainerStatus, ...]:
    """The order of the init containers. Where the spec does not know a name, the reference's swaps decide."""
    ordered = list(statuses)
    current = 0
    for container in spec.init_containers or ():
        for place in range(current, len(ordered)):
            if ordered[place].name == container.name:
                ordered[current], ordered[place] = ordered[place], ordered[current]
                current += 1
                break
    return tuple(ordered)
