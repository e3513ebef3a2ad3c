"""I20: a static pod that its source names again runs again.

A manifest that is removed and comes back unchanged has the same UID. If it comes back while its pod still terminates,
the agent must keep the request: once the pod has terminated, it starts again. The invariant waits until the former run
and all other pods of that name have ended and nothing has disturbed the pod for `PATIENCE_SECONDS`. Then a container
must have started since the request.

The request ends when the source drops the pod again. Nothing is judged while there is no room for the pod or no image.
The UID is the same, so a container whose former runs or starts failed waits for the rest of its backoff, as in the
kubelet.
"""

from dataclasses import dataclass

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import API_SOURCE, Op, PodUID
from podkeeper.rules.backoff import CRASH_LOOP_BACK_OFF
from podkeeper.rules.mirror import full_name
from podkeeper.testing.sim.invariants.pods import Pods, status_in_agent, turned_away
from podkeeper.testing.sim.invariants.promptness import API, ELSEWHERE
from podkeeper.testing.sim.pods import all_containers
from podkeeper.testing.sim.records import Asked, LifeBegan, Told
from podkeeper.testing.sim.world import World

PATIENCE_SECONDS = 60.0
"""From the end of the former run: the terminated pod is cleaned up, housekeeping forgets it, and the pod starts."""


@dataclass(slots=True, eq=False)
class _Request:
    pod: Pod
    at: float
    former: frozenset[str]  # the containers that the pod had before
    quiet_since: float  # since then nothing has stood in the way


class Restarts:
    """Judges every static pod that is named again, until it runs."""

    def __init__(self, world: World, pods: Pods) -> None:
        self._world = world
        self._pods = pods
        self._named: dict[str, dict[PodUID, Pod]] = {}  # by source
        self._dropped: set[PodUID] = set()
        self._requests: dict[PodUID, _Request] = {}
        world.bus.subscribe(Told, self._hear)
        world.bus.subscribe(LifeBegan, self._see_life)
        world.bus.subscribe(Asked, self._look)  # any sign that time passes; a timer could change the order of others

    def _hear(self, told: Told) -> None:
        update = told.update
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
                former = frozenset(life.id for life in self._world.truth.of_pod(uid))
                self._requests[uid] = _Request(pod, told.at, former, told.at)

    def _see_life(self, began: LifeBegan) -> None:
        """A new agent never learned that the pod was dropped: to it, the pod is one that runs or is to start."""
        for request in self._requests.values():
            request.quiet_since = began.at

    def _look(self, asked: Asked) -> None:
        if not self._requests:
            return
        for uid, request in tuple(self._requests.items()):
            if self._is_hindered(uid, request):
                request.quiet_since = asked.at
            elif self._runs_again(uid, request):
                self._world.checked("I20")
                del self._requests[uid]
            elif asked.at - request.quiet_since > self._patience_seconds(uid):
                self._world.checked("I20")
                del self._requests[uid]
                text = f"its source named {full_name(request.pod)} again after {request.at:.3f} s, and it does not run"
                self._world.broken("I20", uid, text)

    def _runs_again(self, uid: PodUID, request: _Request) -> bool:
        lives = [life for life in self._world.truth.of_pod(uid) if life.id not in request.former]
        return any(life.started is not None or life.ended is not None for life in lives)

    def _patience_seconds(self, uid: PodUID) -> float:
        status = status_in_agent(self._world, uid)
        containers = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        waiting = [each.state.waiting.reason for each in containers if each.state.waiting is not None]
        if CRASH_LOOP_BACK_OFF in waiting:
            return PATIENCE_SECONDS + self._world.settings.restart_curve.maximum.total_seconds()
        return PATIENCE_SECONDS

    def _is_hindered(self, uid: PodUID, request: _Request) -> bool:
        """Whether something still stands in the way of the new run, or may have done so a moment ago."""
        world = self._world
        namesakes = self._pods.static_namesakes(full_name(request.pod))
        if any(life.id in request.former for life in world.truth.running(uid)):
            return True
        if any(world.truth.running(other) for other in namesakes if other != uid):
            return True
        if not world.is_up or any(
            world.troubles.touched(world.now() - 1.0, each, API | ELSEWHERE) for each in namesakes
        ):
            return True
        missing = world.runtime.missing_images
        return turned_away(world, uid) or any(each.image in missing for each in all_containers(request.pod))
