"""I20: a static pod runs again if its source removes and adds it again.

A manifest that is removed and comes back unchanged has the same UID. If it comes back while its pod still terminates,
the agent must keep the request: once the pod has terminated, it starts again. The invariant waits until the former run
and all other pods of that name have ended and no fault has affected the pod for `TIMEOUT_SECONDS`. Then a container
must have started since the request.

The request ends when the source drops the pod again. Nothing is checked while the pod is rejected or an image is
missing. The UID is the same, so a container whose former runs or starts failed waits for the rest of its backoff, as in
the kubelet.
"""

from dataclasses import dataclass

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.rules.backoff.table import CRASH_LOOP_BACK_OFF
from podkeeper.rules.static.mirror import full_name
from podkeeper.testing.sim.invariants.pods import TrackedPods, is_rejected, status_in_agent
from podkeeper.testing.sim.invariants.promptness import API_FAULTS, IRRELEVANT_FAULTS
from podkeeper.testing.sim.pods import all_containers
from podkeeper.testing.sim.records import AgentStarted, ReadEnded, UpdateReceived
from podkeeper.testing.sim.world import World

TIMEOUT_SECONDS = 60.0
"""From the end of the former run: the terminated pod is cleaned up, housekeeping removes it, and the pod starts."""


@dataclass(slots=True, eq=False)
class _Request:
    pod: Pod
    at: float
    former: frozenset[str]  # the containers that the pod had before
    quiet_since: float  # since then nothing has prevented the start


class StaticPodRestarts:
    """Checks every static pod that is added again, until it runs."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self._world = world
        self._pods = pods
        self._named: dict[str, dict[PodUID, Pod]] = {}  # by source
        self._dropped: set[PodUID] = set()
        self._requests: dict[PodUID, _Request] = {}
        world.bus.subscribe(UpdateReceived, self._on_update_received)
        world.bus.subscribe(AgentStarted, self._on_agent_started)
        world.bus.subscribe(
            ReadEnded, self._check_requests
        )  # checked on these records, which are frequent enough; a timer could change the order of other timers

    def _on_update_received(self, received: UpdateReceived) -> None:
        update = received.update
        if update.source == API_SOURCE or update.op is not Op.SET:
            return
        before = self._named.get(update.source, {})
        self._named[update.source] = now = {PodUID(pod.metadata.uid or ""): pod for pod in update.pods}
        for uid in before:
            if uid not in now:
                self._dropped.add(uid)
                self._requests.pop(uid, None)
        for uid, pod in now.items():
            if uid not in before and uid in self._dropped:
                former = frozenset(run.id for run in self._world.truth.of_pod(uid))
                self._requests[uid] = _Request(pod, received.at, former, received.at)

    def _on_agent_started(self, began: AgentStarted) -> None:
        """Wait again. A new agent has no record of the removal, so it starts or adopts the pod."""
        for request in self._requests.values():
            request.quiet_since = began.at

    def _check_requests(self, ended: ReadEnded) -> None:
        if not self._requests:
            return
        for uid, request in tuple(self._requests.items()):
            if self._is_blocked(uid, request):
                request.quiet_since = ended.at
            elif self._runs_again(uid, request):
                self._world.checked("I20")
                del self._requests[uid]
            elif ended.at - request.quiet_since > self._patience_seconds(uid):
                self._world.checked("I20")
                del self._requests[uid]
                text = f"{full_name(request.pod)} was added again at {request.at:.3f} s, but it does not run"
                self._world.violated("I20", uid, text)

    def _runs_again(self, uid: PodUID, request: _Request) -> bool:
        runs = [run for run in self._world.truth.of_pod(uid) if run.id not in request.former]
        return any(run.started is not None or run.ended is not None for run in runs)

    def _patience_seconds(self, uid: PodUID) -> float:
        status = status_in_agent(self._world, uid)
        containers = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        waiting = [each.state.waiting.reason for each in containers if each.state.waiting is not None]
        if CRASH_LOOP_BACK_OFF in waiting:
            return TIMEOUT_SECONDS + self._world.settings.restart_curve.maximum.total_seconds()
        return TIMEOUT_SECONDS

    def _is_blocked(self, uid: PodUID, request: _Request) -> bool:
        """Whether something prevents the new run, or may have prevented it a moment ago."""
        world = self._world
        namesakes = self._pods.static_namesakes(full_name(request.pod))
        if any(run.id in request.former for run in world.truth.running(uid)):
            return True
        if any(world.truth.running(other) for other in namesakes if other != uid):
            return True
        if not world.is_up or any(
            world.fault_log.any_since(world.now() - 1.0, each, API_FAULTS | IRRELEVANT_FAULTS) for each in namesakes
        ):
            return True
        missing = world.runtime.missing_images
        return is_rejected(world, uid) or any(each.image in missing for each in all_containers(request.pod))
