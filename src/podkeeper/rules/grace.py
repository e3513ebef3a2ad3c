"""The grace period of a pod, and the time limit for waiting callers.

In: the grace periods of the API object, the kill and the spec, and the current one. Out: the effective seconds.
`rules.container.grace` computes the grace period of a container.

A grace period only becomes shorter, with one quirk of the kubelet. An explicit 0 counts as 1 s. But the next value
treats it as unset, and may then make the grace period longer. Kubelet counterpart: `calculateEffectiveGracePeriod` and
`killPodNow` in pkg/kubelet/pod_workers.go.
"""

from dataclasses import dataclass

# The kubelet's minimum.
MIN_GRACE_SECONDS = 1
# The kubelet's minimum in killPodNow.
MIN_KILL_TIMEOUT_SECONDS = 10  # time for runtime calls after the grace period


@dataclass(frozen=True, slots=True)
class Grace:
    """The effective grace period."""

    seconds: int
    changed: bool  # differs from the former one, so the current stop must be preempted


def effective_grace(
    current_seconds: int | None,
    *,
    deletion_seconds: int | None = None,
    override_seconds: int | None = None,
    spec_seconds: int | None = None,
) -> Grace:
    """Apply the grace periods of the deletion, then of the kill. The spec counts only if neither is set.

    `current_seconds` is the former result, None if the pod was not terminating.
    """
    seconds, replaced = current_seconds or 0, False
    for requested in (deletion_seconds, override_seconds):
        # `seconds == 0` is the kubelet's test for "unset". It keeps the quirk that an explicit 0 can be raised later.
        if requested is not None and (seconds == 0 or requested < seconds):
            seconds, replaced = requested, True
    if not replaced and seconds == 0 and spec_seconds is not None:
        seconds = spec_seconds
    seconds = max(seconds, MIN_GRACE_SECONDS)
    return Grace(seconds, changed=current_seconds is not None and seconds != current_seconds)


def kill_pod_timeout(override_seconds: int | None, spec_seconds: int | None) -> int:
    """Return how long a caller waits for a killed pod: 1.5 times the grace period, at least 10 s."""
    grace_seconds = override_seconds if override_seconds is not None else spec_seconds or 0
    # As in the kubelet: more than the grace period, because the runtime calls after a SIGKILL take time as well.
    return max(grace_seconds + grace_seconds // 2, MIN_KILL_TIMEOUT_SECONDS)
