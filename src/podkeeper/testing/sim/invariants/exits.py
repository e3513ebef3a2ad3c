"""I2, and of I7 the exit codes: what the agent says about ends is what happened.

* An end that names its container carries that container's true exit code.
* Success (exit code 0, phase Succeeded) is told only of what really ran and really succeeded.
* When the agent lets a pod's object go, the last status tells the true end of each container's last run.

An end that nobody could see any more may be told as unknown (137), without a container; but nothing else is made up.
"""

from collections.abc import Iterable

from podkeeper.model.k8s.core import ContainerStateTerminated, ContainerStatus, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import bare_container_id
from podkeeper.rules.mirror import is_mirror_pod
from podkeeper.rules.phase import Phase
from podkeeper.testing.sim.invariants.phases import every_status
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.truth import ContainerLife
from podkeeper.testing.sim.world import World


class Exits:
    """Judges every end that the agent tells."""

    def __init__(self, world: World, pods: Pods) -> None:
        self._world = world
        self._pods = pods
        world.bus.subscribe(PodChanged, self._see)

    def _see(self, change: PodChanged) -> None:
        if not change.by:
            return
        if change.new is not None:
            self._judge_told(change.old, change.new)
        elif change.old is not None and not is_mirror_pod(change.old):
            self._judge_last(change.old)

    # What is told.

    def _judge_told(self, old: Pod | None, new: Pod) -> None:
        before = {} if old is None else {status.name: status for status in every_status(old.status)}
        for status in every_status(new.status):
            former = before.get(status.name)
            for end, known in (
                (status.state.terminated, former and former.state.terminated),
                (status.last_state.terminated, former and former.last_state.terminated),
            ):
                if end is not None and end != known:
                    self._judge_end(new, status, end)
        if new.status.phase == Phase.SUCCEEDED and (old is None or old.status.phase != Phase.SUCCEEDED):
            self._judge_success(new)

    def _judge_end(self, pod: Pod, status: ContainerStatus, end: ContainerStateTerminated) -> None:
        uid, owners = pod.metadata.uid or "", self._pods.shown_by(pod)
        if end.container_id:
            self._world.checked("I2")
            life = self._world.truth.containers.get(bare_container_id(end.container_id))
            if life is None or life.uid not in owners or life.name != status.name:
                text = f"{status.name} is said to have ended as {end.container_id}, which is none of its containers"
                self._world.broken("I2", uid, text)
            elif life.ended is None or life.exit_code != end.exit_code or (end.exit_code == 0 and life.started is None):
                text = f"{status.name} ({life.id}) is said to have exited {end.exit_code}; in truth it {_fate(life)}"
                self._world.broken("I2", uid, text)
        elif end.exit_code == 0:
            self._world.checked("I2")
            if not any(_succeeded(life) for owner in owners for life in self._world.truth.attempts(owner, status.name)):
                self._world.broken("I2", uid, f"{status.name} is said to have succeeded, and never did")

    def _judge_success(self, pod: Pod) -> None:
        self._world.checked("I2")
        names = [container.name for container in pod.spec.containers]
        owners = self._pods.shown_by(pod)
        if not any(all(self._last_succeeded(owner, name) for name in names) for owner in owners):
            told = [self._fates(owner, names) for owner in owners]
            self._world.broken("I2", pod.metadata.uid or "", f"the pod is said to have succeeded; {'; '.join(told)}")

    def _last_succeeded(self, uid: PodUID, name: str) -> bool:
        life = last_run(self._world.truth.attempts(uid, name))
        return life is not None and _succeeded(life)

    def _fates(self, uid: PodUID, names: Iterable[str]) -> str:
        lives = [(name, last_run(self._world.truth.attempts(uid, name))) for name in names]
        return ", ".join(f"{name} {'never ran' if life is None else _fate(life)}" for name, life in lives)

    # What was told last.

    def _judge_last(self, pod: Pod) -> None:
        """Hold a pod's last status against the truth, when the agent has let its object go."""
        uid = PodUID(pod.metadata.uid or "")
        lives: dict[str, list[ContainerLife]] = {}
        for life in self._world.truth.of_pod(uid):
            lives.setdefault(life.name, []).append(life)
        told = {status.name: status for status in every_status(pod.status)}
        for name, attempts in lives.items():
            last = last_run(attempts)
            if last is None or last.ended is None:
                continue  # nothing to tell; or it still runs, and I4 says so
            self._world.checked("I7")
            status = told.get(name)
            # One that was made and never started may stand before it: then the last run is the last state.
            ends = () if status is None else (status.state, status.last_state)[: 1 + (attempts[-1] is not last)]
            if status is None or not any(_tells(state.terminated, last) for state in ends):
                text = f"the pod is gone, and its last status does not tell that {name} ({last.id}) {_fate(last)}"
                self._world.broken("I7", uid, f"{text}; it says {_said(status)}")
            elif (status.restart_count or 0) < last.attempt:
                text = (
                    f"the pod is gone with {name} restarted {status.restart_count} times; it was {last.attempt} times"
                )
                self._world.broken("I7", uid, text)


def last_run(attempts: Iterable[ContainerLife]) -> ContainerLife | None:
    """The last of some attempts (oldest first) that really ran."""
    last, since = None, -1.0
    for life in attempts:
        if life.started is not None and life.started >= since:
            last, since = life, life.started
    return last


def _tells(end: ContainerStateTerminated | None, life: ContainerLife) -> bool:
    return end is not None and bare_container_id(end.container_id or "") == life.id and end.exit_code == life.exit_code


def _succeeded(life: ContainerLife) -> bool:
    return life.started is not None and life.ended is not None and life.exit_code == 0


def _fate(life: ContainerLife) -> str:
    if life.ended is not None:
        return f"exited {life.exit_code}" if life.started is not None else f"failed to start ({life.exit_code})"
    return "runs" if life.started is not None else "never started"


def _said(status: ContainerStatus | None) -> str:
    if status is None:
        return "nothing of it"
    end = status.state.terminated
    if end is None:
        return "that it runs" if status.state.running is not None else "that it waits"
    return f"exited {end.exit_code} ({end.container_id or end.reason})"
