"""What the probes say about a pod's containers: the `started` and `ready` flags of its status.

Comes in: the pod, a status fresh from the runtime, and a `ProbeView`: what the probe workers have
stored and who they are. Goes out: the same status with both flags set on every regular and every
init container. Three promises:

* a container that does not run is neither started nor ready, except that an ordinary init
  container which ended well is ready;
* without a probe of a kind, that kind is never an obstacle;
* a restart of the agent changes no flag: for a container that ran before it, what was last
  published of it stands until its readiness probe has spoken.

The Go ancestor is `UpdatePodStatus` in pkg/kubelet/prober/prober_manager.go.
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
from podkeeper.rules.restart import is_sidecar

AGENT_RESTART_MARGIN = timedelta(seconds=10)
"""In the reference, a container older than the agent by this much counts as started under its predecessor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeView:
    """What the probes of one pod know. Results are keyed by the id the API shows (`containerd://abc`)."""

    own: frozenset[str] = frozenset()  # what this agent made, by the runtime's own ids; all else was there before it
    agent_started: datetime | None = None  # where given, this tells instead, as in the reference
    readiness: Mapping[str, ProbeResult] = field(default_factory=dict)
    startup: Mapping[str, ProbeResult] = field(default_factory=dict)
    workers: frozenset[tuple[str, ProbeKind]] = frozenset()  # (container name, kind) of each live probe worker


def with_probe_flags(
    pod: Pod, status: PodStatus, view: ProbeView, published: Sequence[PodStatus] | None = None
) -> PodStatus:
    """The status with `started` and `ready` of its regular and init containers as the probes have them.

    `published` is what was last said of the pod, the latest first: the first that knows a container says whether it was
    ready. None: only the pod's Ready condition in the API tells, for all alike. The reference goes by that: after a
    restart its static pods, whose status is in no manifest, are not ready, nor are those that only wait for others.
    """
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
    """Containers that have started and only wait for their readiness probe: it should run at once.

    `status` is one that `with_probe_flags` returned.
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
    """Whether a running container was started under this agent's predecessor.

    The reference compares the times of both starts. Clocks are put back: what ran before them would then be taken for
    started after, and be unready until probed. What an agent has not made itself predates it, whatever the time.
    """
    if found.state.running is None:
        return False
    if agent_started is None:
        return bare_container_id(found.container_id or "") not in own
    started_at = instant(found.state.running.started_at)
    return started_at is not None and started_at < agent_started - AGENT_RESTART_MARGIN


Ids = frozenset[str | None]
"""Of containers, as the API shows them."""


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
    # What was published before stands until the startup probe speaks: a restarted agent must not un-start it.
    return bool(found.started) or (found.name, ProbeKind.STARTUP) not in view.workers


def _is_ready(container: Container | None, found: ContainerStatus, view: ProbeView, was_ready: Ids) -> bool:
    """Whether a started (hence running) container takes traffic."""
    result = view.readiness.get(found.container_id or "")
    if result is ProbeResult.SUCCESS:
        return True
    unprobed = (found.name, ProbeKind.READINESS) not in view.workers
    if container is None or not predates_agent(found, view.own, view.agent_started):
        return unprobed
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
    """Whether a pod was last said to be Ready."""
    return any(held.type == "Ready" and held.status == "True" for held in status.conditions or ())


def _init_container(pod: Pod, index: int, found: ContainerStatus) -> Container | None:
    """The init container a status is about: statuses follow the order of the spec."""
    containers = pod.spec.init_containers or ()
    return containers[index] if index < len(containers) and containers[index].name == found.name else None
