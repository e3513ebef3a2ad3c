"""Why a pod is as it is, in a line."""

from datetime import timedelta

import pytest

from podkeeper.app.local.reasons import why
from podkeeper.engine.history import Entry, Explanation
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from tests.app.local.test_printing import DONE, NOW, RUNNING, ended, pod, status, waits

PULL = "fetches nothing: write `image: host`"


def explained(next_seconds: float | None = None, waiting_for: str = "", probe: str = "") -> Explanation:
    retry = None if next_seconds is None else NOW + timedelta(seconds=next_seconds)
    told = (Entry(NOW, "Started"), Entry(NOW, "Unhealthy", probe), Entry(NOW, "phase Running")) if probe else ()
    return Explanation(uid=PodUID("u"), asked_at=NOW, next_retry=retry, waiting_for=waiting_for, timeline=told)


WHYS: dict[str, tuple[Pod, Explanation, str, str]] = {
    "all is well": (pod(status(RUNNING, ready=True)), explained(40), "", ""),
    "crashed, and waits": (
        pod(status(waits("CrashLoopBackOff"), restarts=1, last=ended(3, "Error"))),
        explained(8),
        "",
        "app: CrashLoopBackOff, last exit code 3, next sync in 8 s",
    ),
    "an image that is not there": (
        pod(status(waits("ErrImagePull", "no such\nimage")), phase="Pending"),
        explained(),
        "",
        "app: ErrImagePull: no such image",
    ),
    "rejected": (pod(phase="Failed", reason="OutOfcpu", message="no room"), explained(), "", "OutOfcpu: no room"),
    "stopped by hand": (pod(reason="Stopped", message="stopped by Ann"), explained(), "", "stopped by Ann"),
    "the runtime is slow": (pod(phase="Pending"), explained(), "it takes so long", "it takes so long"),
    "not ready": (pod(status(RUNNING)), explained(), "", "app: running, not ready"),
    "over": (pod(status(DONE), phase="Succeeded"), explained(), "", "app: Completed, exit code 0"),
    "over, and what prepared it is not what matters": (
        pod(status(DONE), inits=(status(DONE, name="prep"),), phase="Succeeded"),
        explained(),
        "",
        "app: Completed, exit code 0",
    ),
    "over, and not all well": (
        pod(status(DONE), status(ended(2, "Error"), name="b"), phase="Failed"),
        explained(),
        "",
        "b: Error, exit code 2",
    ),
    "the cause of a back-off comes first": (
        pod(status(waits("ImagePullBackOff", f'Back-off pulling image "x": ErrImagePull: {PULL}')), phase="Pending"),
        explained(),
        "",
        f"app: ImagePullBackOff: {PULL}",
    ),
    "a volume that does not come": (
        pod(status(waits("ContainerCreating")), phase="Pending"),
        explained(8, 'secret "s" not found'),
        "",
        'secret "s" not found, next sync in 8 s',
    ),
    "being made": (
        pod(status(waits("ContainerCreating")), phase="Pending"),
        explained(8),
        "",
        "app: ContainerCreating",
    ),
    "a probe says no": (
        pod(status(RUNNING)),
        explained(probe="Readiness probe failed: not\nyet\n"),
        "",
        "app: running, not ready: Readiness probe failed: not yet",
    ),
    "ended, and not yet begun again": (pod(status(ended(3, "Error"))), explained(), "", "app: Error, exit code 3"),
    "an init container runs": (
        pod(status(waits("PodInitializing")), inits=(status(RUNNING, name="prep"),), phase="Pending"),
        explained(),
        "",
        "init container prep has been running for 60m, the other containers wait for it",
    ),
    "a sidecar has not started": (
        pod(inits=(status(RUNNING, name="side", started=False),), sidecars=("side",), phase="Pending"),
        explained(),
        "",
        "sidecar side has been running for 60m, the other containers wait for it",
    ),
    "being stopped": (
        pod(status(RUNNING, ready=True), deleted=True),
        explained(),
        "",
        "stopping, killed in 30s at the latest",
    ),
    "waits for something": (pod(phase="Pending"), explained(waiting_for="a volume"), "", "a volume"),
}


@pytest.mark.parametrize("shown, explanation, slow, expected", WHYS.values(), ids=WHYS.keys())
def test_the_reason_of_a_pods_status(shown: Pod, explanation: Explanation, slow: str, expected: str) -> None:
    assert why(shown, explanation, slow) == expected
