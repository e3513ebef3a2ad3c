"""The reason of a pod's status in one line."""

from datetime import timedelta

import pytest

from podkeeper.app.local.reasons import reason_of
from podkeeper.engine.history import Explanation, TimelineEntry
from podkeeper.model.history import EventRecorded, StatusChanged
from podkeeper.model.k8s.core import ContainerState, ContainerStateTerminated, Pod
from podkeeper.model.messages import PodUID
from tests.app.local.test_pod_table import DONE, NOW, RUNNING, ended, pod_with, status, waits

PULL = "fetches nothing: write `image: host`"


def explained(next_seconds: float | None = None, waiting_for: str = "", probe: str = "") -> Explanation:
    retry = None if next_seconds is None else NOW + timedelta(seconds=next_seconds)
    events = (EventRecorded("Started", ""), EventRecorded("Unhealthy", probe), StatusChanged("Running", False))
    timeline = tuple(TimelineEntry(NOW, event) for event in events) if probe else ()
    return Explanation(uid=PodUID("u"), asked_at=NOW, next_retry=retry, waiting_for=waiting_for, timeline=timeline)


WHYS: dict[str, tuple[Pod, Explanation, str, str]] = {
    "all is well": (pod_with(status(RUNNING, ready=True)), explained(40), "", ""),
    "crash loop": (
        pod_with(status(waits("CrashLoopBackOff"), restarts=1, last=ended(3, "Error"))),
        explained(8),
        "",
        "app: CrashLoopBackOff, last exit code 3, next sync in 8 s",
    ),
    "a crash loop of a command that cannot be started": (
        pod_with(
            status(
                waits("CrashLoopBackOff"),
                last=ContainerState(terminated=ContainerStateTerminated(exit_code=128, message="no such file")),
            )
        ),
        explained(),
        "",
        "app: CrashLoopBackOff, last exit code 128: no such file",
    ),
    "the message of a program that crashes is in its log": (
        pod_with(
            status(
                waits("CrashLoopBackOff"),
                last=ContainerState(terminated=ContainerStateTerminated(exit_code=3, message="bye")),
            )
        ),
        explained(),
        "",
        "app: CrashLoopBackOff, last exit code 3",
    ),
    "a message of the maximum length": (
        pod_with(phase="Failed", reason="A", message="x" * 237),
        explained(),
        "",
        "A: " + "x" * 237,
    ),
    "a longer message": (
        pod_with(phase="Failed", reason="A", message="x" * 238),
        explained(),
        "",
        "A: " + "x" * 234 + "...",
    ),
    "a missing image": (
        pod_with(status(waits("ErrImagePull", "no such\nimage")), phase="Pending"),
        explained(),
        "",
        "app: ErrImagePull: no such image",
    ),
    "rejected": (pod_with(phase="Failed", reason="OutOfcpu", message="no room"), explained(), "", "OutOfcpu: no room"),
    "stopped by podkeeper stop": (
        pod_with(reason="Stopped", message="stopped by Ann"),
        explained(),
        "",
        "stopped by Ann",
    ),
    "the runtime is slow": (pod_with(phase="Pending"), explained(), "it takes so long", "it takes so long"),
    "not ready": (pod_with(status(RUNNING)), explained(), "", "app: running, not ready"),
    "over": (pod_with(status(DONE), phase="Succeeded"), explained(), "", "app: Completed, exit code 0"),
    "terminated: the app container has priority over init containers": (
        pod_with(status(DONE), inits=(status(DONE, name="prep"),), phase="Succeeded"),
        explained(),
        "",
        "app: Completed, exit code 0",
    ),
    "terminated with a failure": (
        pod_with(status(DONE), status(ended(2, "Error"), name="b"), phase="Failed"),
        explained(),
        "",
        "b: Error, exit code 2",
    ),
    "the cause of a back-off has priority": (
        pod_with(
            status(waits("ImagePullBackOff", f'Back-off pulling image "x": ErrImagePull: {PULL}')), phase="Pending"
        ),
        explained(),
        "",
        f"app: ImagePullBackOff: {PULL}",
    ),
    "a volume that cannot be mounted": (
        pod_with(status(waits("ContainerCreating")), phase="Pending"),
        explained(8, 'secret "s" not found'),
        "",
        'secret "s" not found, next sync in 8 s',
    ),
    "being made": (
        pod_with(status(waits("ContainerCreating")), phase="Pending"),
        explained(8),
        "",
        "app: ContainerCreating",
    ),
    "a failed probe": (
        pod_with(status(RUNNING)),
        explained(probe="Readiness probe failed: not\nyet\n"),
        "",
        "app: running, not ready: Readiness probe failed: not yet",
    ),
    "terminated and not yet restarted": (
        pod_with(status(ended(3, "Error"))),
        explained(),
        "",
        "app: Error, exit code 3",
    ),
    "an init container runs": (
        pod_with(status(waits("PodInitializing")), inits=(status(RUNNING, name="prep"),), phase="Pending"),
        explained(),
        "",
        "init container prep has been running for 60m, the other containers wait for it",
    ),
    "a sidecar has not started": (
        pod_with(inits=(status(RUNNING, name="side", started=False),), sidecars=("side",), phase="Pending"),
        explained(),
        "",
        "sidecar side has been running for 60m, the other containers wait for it",
    ),
    "terminating": (
        pod_with(status(RUNNING, ready=True), deleted=True),
        explained(),
        "",
        "stopping, killed in 30s at the latest",
    ),
    "waiting": (pod_with(phase="Pending"), explained(waiting_for="a volume"), "", "a volume"),
}


@pytest.mark.parametrize("shown, explanation, slow, expected", WHYS.values(), ids=WHYS.keys())
def test_the_reason_of_a_pods_status(shown: Pod, explanation: Explanation, slow: str, expected: str) -> None:
    assert reason_of(shown, explanation, slow) == expected
