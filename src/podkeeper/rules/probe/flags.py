"""Set the `started` and `ready` flags of container statuses from probe results.

In: the pod, a status computed from the runtime, and a `ProbeView` with the results and workers. Out: the status with
both flags set for every regular and init container. Guarantees:

* A container that does not run is neither started nor ready. An ordinary init container that succeeded is ready.
* A container without a probe of some kind passes that kind.
* A restart of the agent changes no flag. The flags of a container that ran before stay as last published, until its
  readiness probe has a result.

Kubelet counterpart: `UpdatePodStatus` in pkg/kubelet/prober/prober_manager.go.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, ContainerStatus, Pod, PodStatus
from podkeeper.model.messages import ProbeKind, ProbeResult
from podkeeper.model.runtime import bare_container_id
from podkeeper.model.times import instant
from podkeeper.rules.container.restart import is_sidecar

AGENT_RESTART_MARGIN = timedelta(seconds=10)
"""As in the kubelet, a container predates the agent if it started at least this long before the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeView:
    """The probe results of one pod, keyed by the container ID in the API (`containerd://abc`)."""

    own: frozenset[str] = frozenset()  # runtime IDs of containers that this agent created; all others predate it
    agent_started: datetime | None = None  # if given, used instead of `own`, as in the kubelet
    readiness: Mapping[str, ProbeResult] = field(default_factory=dict)
    startup: Mapping[str, ProbeResult] = field(default_factory=dict)
    workers: frozenset[tuple[str, ProbeKind]] = frozenset()  # (container name, kind) of each running probe worker


def with_probe_flags(
    pod: Pod, status: PodStatus, view: ProbeView, published: Sequence[PodStatus] | None = None
) -> PodStatus:
    """Return the status with `started` and `ready` of its regular and init containers.

    `published` are the last published statuses, the latest first. The first one with a container determines whether it
    was ready. None: use the pod's Ready condition in the API for all containers, as the kubelet does. After a restart
    of the kubelet, static pods are therefore not ready, because no manifest has a status.
    """
    # k/k 100277: with the kubelet's rule, a restart of the agent makes pods NotReady until their first probe.
    was_ready = _ids(status) if published is None and _was_ready(pod.status) else _ready_ids(published or ())
    regular = {container.name: container for container in reversed(pod.spec.containers)}
    changed = status
    if status.container_statuses is not None:
        flagged = (_regular(regular.get(found.name), found, view, was_ready) for found in status.container_statuses)
        changed = replace(changed, container_statuses=tuple(flagged))
    if status.init_container_statuses is not None:
        flagged = (
            _init(_init_container(pod, index, found), found, view, was_ready)
            for index, found in enumerate(status.init_container_statuses)
        )
        changed = replace(changed, init_container_statuses=tuple(flagged))
    return changed


def readiness_wanted_now(pod: Pod, status: PodStatus, view: ProbeView) -> tuple[str, ...]:
    """Return started containers that only need a readiness result, so that the probe should run at once.

    `status` is a result of `with_probe_flags`.
    """
    candidates = [
        *(status.container_statuses or ()),
        *(
            found
            for index, found in enumerate(status.init_container_statuses or ())
            if (container := _init_container(pod, index, found)) is not None and is_sidecar(container)
        ),
    ]
    return tuple(
        found.name
        for found in candidates
        if found.started
        and view.readiness.get(found.container_id or "") is not ProbeResult.SUCCESS
        and (found.name, ProbeKind.READINESS) in view.workers
    )


def predates_agent(found: ContainerStatus, own: AbstractSet[str], agent_started: datetime | None = None) -> bool:
    """Return whether a running container was started before this agent.

    The kubelet compares both start times. If the clock was set back, old containers would seem new and be unready until
    probed. So without `agent_started`, every container that this agent did not create predates it.
    """
    if found.state.running is None:
        return False
    if agent_started is None:
        return bare_container_id(found.container_id or "") not in own
    started_at = instant(found.state.running.started_at)
    return started_at is not None and started_at < agent_started - AGENT_RESTART_MARGIN


Ids = frozenset[str | None]
"""Container IDs as in the API."""


def _regular(container: Container | None, found: ContainerStatus, view: ProbeView, was_ready: Ids) -> ContainerStatus:
    if not _is_started(found, view):
        return replace(found, started=False)
    return replace(found, started=True, ready=_is_ready(container, found, view, was_ready))


def _init(container: Container | None, found: ContainerStatus, view: ProbeView, was_ready: Ids) -> ContainerStatus:
    started = _is_started(found, view)
    if container is None:
        return replace(found, started=started)
    if not is_sidecar(container):
        done = found.state.terminated is not None and found.state.terminated.exit_code == 0
        return replace(found, started=started, ready=found.ready or done)
    if not started:
        return replace(found, started=False)
    return replace(found, started=True, ready=_is_ready(container, found, view, was_ready))


def _is_started(found: ContainerStatus, view: ProbeView) -> bool:
    if found.state.running is None:
        return False
    result = view.startup.get(found.container_id or "")
    if result is not None:
        return result is ProbeResult.SUCCESS
    # Keep the published flag until the startup probe has a result, also after a restart of the agent.
    return bool(found.started) or (found.name, ProbeKind.STARTUP) not in view.workers


def _is_ready(container: Container | None, found: ContainerStatus, view: ProbeView, was_ready: Ids) -> bool:
    """Return whether a started (therefore running) container is ready."""
    result = view.readiness.get(found.container_id or "")
    if result is ProbeResult.SUCCESS:
        return True
    unprobed = (found.name, ProbeKind.READINESS) not in view.workers
    if container is None or not predates_agent(found, view.own, view.agent_started):
        return unprobed
    # k/k 135795: a container that was not ready before the restart must not become ready by default.
    if container.readiness_probe is not None and found.container_id not in was_ready:
        return False
    return unprobed or result is None


def _ids(status: PodStatus) -> Ids:
    return frozenset(found.container_id for found in _every(status))


def _ready_ids(published: Sequence[PodStatus]) -> Ids:
    ready: dict[str | None, bool] = {}
    for status in published:
        for found in _every(status):
            ready.setdefault(found.container_id, found.ready)
    return frozenset(container_id for container_id, was_ready in ready.items() if was_ready)


def _every(status: PodStatus) -> tuple[ContainerStatus, ...]:
    return (*(status.init_container_statuses or ()), *(status.container_statuses or ()))


def _was_ready(status: PodStatus) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in status.conditions or ())


def _init_container(pod: Pod, index: int, found: ContainerStatus) -> Container | None:
    """Return the init container of a status. Statuses have the order of the spec."""
    containers = pod.spec.init_containers or ()
    return containers[index] if index < len(containers) and containers[index].name == found.name else None
