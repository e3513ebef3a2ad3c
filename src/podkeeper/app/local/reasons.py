"""The reason of a pod's status in one line.

Input: a pod with its status and its explanation. Output: a text, or "" if the pod is healthy. The reason of the pod has
priority over those of its containers, which are checked in the order of their start.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from podkeeper.app.local.pod_table import STOPPED, human_duration
from podkeeper.engine.history import Explanation
from podkeeper.model.history import EventRecorded
from podkeeper.model.k8s.core import ContainerStatus, Pod
from podkeeper.model.times import instant
from podkeeper.rules.container.restart import is_sidecar

MAX_LENGTH: Final = 240
_NOT_YET: Final = (None, "PodInitializing", "ContainerCreating")  # reasons without information
_OVER: Final = ("Succeeded", "Failed")
_UNHEALTHY: Final = "Unhealthy"  # the event of a probe that failed
_PULL_FAILED: Final = "ErrImagePull: "


def reason_of(pod: Pod, explanation: Explanation, slow: str = "") -> str:
    """Return the reason of a pod's status, or "" if the pod is healthy.

    `slow` describes a call to the runtime for this pod that takes too long.
    """
    status = pod.status
    if pod.metadata.deletion_timestamp and status.phase not in _OVER:
        return _terminating(pod, explanation)
    if slow and status.phase == "Pending":
        return slow
    if status.reason == STOPPED:
        return status.message or ""
    if status.reason:
        return _shortened(": ".join(filter(None, (status.reason, status.message))))
    inits, mains = status.init_container_statuses or (), status.container_statuses or ()
    return _shortened(
        _waiting((*inits, *mains), explanation)
        or _has_failed((*inits, *mains))
        or (_has_terminated(mains) if status.phase in _OVER else "")
        or _initializing(pod, inits, explanation)
        or _not_ready(pod, (*inits, *mains), explanation)
        or _last_termination((*inits, *mains))
        or explanation.waiting_for
    )


def _terminating(pod: Pod, explanation: Explanation) -> str:
    until = instant(pod.metadata.deletion_timestamp)
    left = timedelta(0) if until is None else until - explanation.asked_at
    return f"stopping, killed in {human_duration(left)} at the latest" if left > timedelta(0) else "being killed"


def _waiting(statuses: Sequence[ContainerStatus], explanation: Explanation) -> str:
    retry = explanation.next_retry
    next_sync = "" if retry is None else f", next sync in {(retry - explanation.asked_at).total_seconds():.0f} s"
    for each in statuses:
        if (waiting := each.state.waiting) is not None and waiting.reason not in _NOT_YET:
            return f"{each.name}: {waiting.reason}{_detail(each)}{next_sync}"
    for each in statuses:
        if (waiting := each.state.waiting) is not None and waiting.reason == "ContainerCreating":
            return (
                f"{explanation.waiting_for}{next_sync}" if explanation.waiting_for else f"{each.name}: {waiting.reason}"
            )
    return ""


def _detail(container: ContainerStatus) -> str:
    """Return the last exit code or the message of a waiting container."""
    ended, waiting = container.last_state.terminated, container.state.waiting
    if waiting is None:
        return ""
    if waiting.reason == "CrashLoopBackOff" and ended is not None:
        message = "" if ended.exit_code != 128 or not ended.message else f": {ended.message}"
        return f", last exit code {ended.exit_code}{message}"
    message = (waiting.message or "").rpartition(_PULL_FAILED)[2]  # the error that caused the back-off
    return f": {message}" if message else ""


def _has_failed(statuses: Sequence[ContainerStatus]) -> str:
    ended = ((each, each.state.terminated) for each in statuses)
    return _has_terminated([each for each, end in ended if end is not None and end.reason != "Completed"])


def _has_terminated(statuses: Sequence[ContainerStatus]) -> str:
    for each in statuses:
        if (ended := each.state.terminated) is not None:
            return f"{each.name}: {ended.reason}, exit code {ended.exit_code}"
    return ""


def _initializing(pod: Pod, inits: Sequence[ContainerStatus], explanation: Explanation) -> str:
    sidecars = {each.name for each in pod.spec.init_containers or () if is_sidecar(each)}
    for each in inits:
        if (running := each.state.running) is None or (each.name in sidecars and each.started):
            continue
        started = instant(running.started_at)
        since = "" if started is None else f" for {human_duration(explanation.asked_at - started)}"
        kind = "sidecar" if each.name in sidecars else "init container"
        return f"{kind} {each.name} has been running{since}, the other containers wait for it"
    return ""


def _not_ready(pod: Pod, statuses: Sequence[ContainerStatus], explanation: Explanation) -> str:
    message = _last_message(explanation, _UNHEALTHY)
    for each in statuses:
        if not each.ready and each.state.running is not None:
            return f"{each.name}: running, not ready" + (f": {message}" if message else "")
    for condition in pod.status.conditions or ():
        if condition.type == "Ready" and condition.status != "True" and condition.message:
            return f"not ready: {condition.message}"
    return ""


def _last_message(explanation: Explanation, reason: str) -> str:
    """Return the message of the pod's last event with a reason."""
    events = (entry.event for entry in reversed(explanation.timeline))
    return next((each.message for each in events if isinstance(each, EventRecorded) and each.reason == reason), "")


def _last_termination(statuses: Sequence[ContainerStatus]) -> str:
    for each in statuses:
        if each.restart_count and (ended := each.last_state.terminated) is not None:
            return f"{each.name}: last terminated with {ended.reason}, exit code {ended.exit_code}"
    return ""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LENGTH else line[: MAX_LENGTH - 3] + "..."
