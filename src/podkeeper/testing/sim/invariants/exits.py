"""I2 and a part of I7: published exit statuses are true.

* A terminated state with a container ID has the true exit code of that container.
* Success (exit code 0, phase Succeeded) is published only for containers that really ran and succeeded.
* When the agent deletes a pod's object, the last status has the true exit status of each container's last run.

If an exit status can no longer be determined, it may be published as unknown (137) without a container ID.
"""

from collections.abc import Iterable

from podkeeper.model.k8s.core import ContainerStateTerminated, ContainerStatus, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import bare_container_id
from podkeeper.rules.static.mirror import is_mirror_pod
from podkeeper.rules.status.phase import Phase
from podkeeper.testing.sim.ground_truth import ContainerRun
from podkeeper.testing.sim.invariants.phases import every_status
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.records import PodChanged
from podkeeper.testing.sim.world import World


class ExitStatuses:
    """Checks every terminated state that the agent publishes."""

    def __init__(self, world: World, pods: TrackedPods) -> None:
        self._world = world
        self._pods = pods
        world.bus.subscribe(PodChanged, self._on_pod_changed)

    def _on_pod_changed(self, change: PodChanged) -> None:
        if not change.by:
            return
        if change.new is not None:
            self._check_published(change.old, change.new)
        elif change.old is not None and not is_mirror_pod(change.old):
            self._check_final_status(change.old)

    # Published statuses.

    def _check_published(self, old: Pod | None, new: Pod) -> None:
        before = {} if old is None else {status.name: status for status in every_status(old.status)}
        for status in every_status(new.status):
            former = before.get(status.name)
            for end, known in (
                (status.state.terminated, former and former.state.terminated),
                (status.last_state.terminated, former and former.last_state.terminated),
            ):
                if end is not None and end != known:
                    self._check_end(new, status, end)
        if new.status.phase == Phase.SUCCEEDED and (old is None or old.status.phase != Phase.SUCCEEDED):
            self._check_success(new)

    def _check_end(self, pod: Pod, status: ContainerStatus, end: ContainerStateTerminated) -> None:
        uid, owners = pod.metadata.uid or "", self._pods.shown_by(pod)
        if end.container_id:
            self._world.checked("I2")
            run = self._world.truth.containers.get(bare_container_id(end.container_id))
            if run is None or run.uid not in owners or run.name != status.name:
                text = (
                    f"{status.name} is published as ended with {end.container_id}, which is not one of its containers"
                )
                self._world.violated("I2", uid, text)
            elif run.ended is None or run.exit_code != end.exit_code or (end.exit_code == 0 and run.started is None):
                text = f"{status.name} ({run.id}) is published with exit code {end.exit_code}, but it {_true_end(run)}"
                self._world.violated("I2", uid, text)
        elif end.exit_code == 0:
            self._world.checked("I2")
            if not any(_succeeded(run) for owner in owners for run in self._world.truth.attempts(owner, status.name)):
                self._world.violated(
                    "I2", uid, f"{status.name} is published as succeeded, but no run of it exited with 0"
                )

    def _check_success(self, pod: Pod) -> None:
        self._world.checked("I2")
        names = [container.name for container in pod.spec.containers]
        owners = self._pods.shown_by(pod)
        if not any(all(self._last_succeeded(owner, name) for name in names) for owner in owners):
            published = [self._true_ends(owner, names) for owner in owners]
            self._world.violated(
                "I2", pod.metadata.uid or "", f"the pod is published as succeeded, but: {'; '.join(published)}"
            )

    def _last_succeeded(self, uid: PodUID, name: str) -> bool:
        run = last_run(self._world.truth.attempts(uid, name))
        return run is not None and _succeeded(run)

    def _true_ends(self, uid: PodUID, names: Iterable[str]) -> str:
        runs = [(name, last_run(self._world.truth.attempts(uid, name))) for name in names]
        return ", ".join(f"{name} {'never ran' if run is None else _true_end(run)}" for name, run in runs)

    # Final statuses.

    def _check_final_status(self, pod: Pod) -> None:
        """Compare the last status of a pod with the truth, after the agent has deleted its object."""
        uid = PodUID(pod.metadata.uid or "")
        runs: dict[str, list[ContainerRun]] = {}
        for run in self._world.truth.of_pod(uid):
            runs.setdefault(run.name, []).append(run)
        published = {status.name: status for status in every_status(pod.status)}
        for name, attempts in runs.items():
            last = last_run(attempts)
            if last is None or last.ended is None:
                continue  # it never ran, or it still runs, which I4 reports
            self._world.checked("I7")
            status = published.get(name)
            # A newer attempt may have been created and never started. Then the last run is in the last state.
            ends = () if status is None else (status.state, status.last_state)[: 1 + (attempts[-1] is not last)]
            if status is None or not any(_reports(state.terminated, last) for state in ends):
                text = f"the last status of the removed pod does not report that {name} ({last.id}) {_true_end(last)}"
                self._world.violated("I7", uid, f"{text}; it reports {_published_state(status)}")
            elif (status.restart_count or 0) < last.attempt:
                text = (
                    f"the pod was removed with {status.restart_count} restarts of {name}, but there were {last.attempt}"
                )
                self._world.violated("I7", uid, text)


def last_run(attempts: Iterable[ContainerRun]) -> ContainerRun | None:
    """Return the last of some attempts (oldest first) that really ran."""
    last, since = None, -1.0
    for run in attempts:
        if run.started is not None and run.started >= since:
            last, since = run, run.started
    return last


def _reports(end: ContainerStateTerminated | None, run: ContainerRun) -> bool:
    return end is not None and bare_container_id(end.container_id or "") == run.id and end.exit_code == run.exit_code


def _succeeded(run: ContainerRun) -> bool:
    return run.started is not None and run.ended is not None and run.exit_code == 0


def _true_end(run: ContainerRun) -> str:
    if run.ended is not None:
        return f"exited {run.exit_code}" if run.started is not None else f"failed to start ({run.exit_code})"
    return "runs" if run.started is not None else "never started"


def _published_state(status: ContainerStatus | None) -> str:
    if status is None:
        return "nothing"
    end = status.state.terminated
    if end is None:
        return "running" if status.state.running is not None else "waiting"
    return f"exited {end.exit_code} ({end.container_id or end.reason})"
