"""How long one container may take to stop, and how that time is shared out.

A pod, a container of it and the reason for the kill come in; a `GraceBudget` goes out. Three things
draw on the budget, one after the other: the preStop hook, the wait for the container's turn
(`rules.termination_order`), and the time between TERM and KILL. The last is never less than two
seconds, however little is left: a container always gets the chance to leave by itself.

Not to be confused with the grace of a whole pod, which the pod's worker decides and hands down as
`override_seconds`. The Go ancestors are `setTerminationGracePeriod` and `killContainer` in
pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

from dataclasses import dataclass
from enum import StrEnum

from podkeeper.model.k8s.core import Container, Pod

MIN_STOP_SECONDS = 2


class KillReason(StrEnum):
    """Why one container is stopped while its pod lives on."""

    SPEC_CHANGED = ""  # the reference has no word for it
    STARTUP_PROBE = "StartupProbe"
    LIVENESS_PROBE = "LivenessProbe"
    FAILED_POST_START_HOOK = "FailedPostStartHook"
    RESTART_ALL_CONTAINERS = "RestartAllContainers"
    UNKNOWN = "Unknown"  # its state is, or the whole pod goes


@dataclass(frozen=True, slots=True)
class GraceBudget:
    """What is left of a container's grace. It may fall below zero; `stop_seconds` never does."""

    seconds: int

    @property
    def exhausted(self) -> bool:
        """Whether there is no time for a hook, or for waiting until others are gone."""
        return self.seconds <= 0

    @property
    def stop_seconds(self) -> int:
        """The time between TERM and KILL."""
        return max(self.seconds, MIN_STOP_SECONDS)

    def after(self, spent_seconds: float) -> "GraceBudget":
        """What is left when a step has taken its time; a begun second is not charged."""
        return GraceBudget(self.seconds - int(spent_seconds))


def grace_budget(
    pod: Pod, container: Container, reason: KillReason, override_seconds: int | None = None
) -> GraceBudget:
    """The budget with which the stopping of a container begins."""
    if override_seconds is not None:
        return GraceBudget(override_seconds)
    return GraceBudget(container_grace_seconds(pod, container, reason))


def container_grace_seconds(pod: Pod, container: Container, reason: KillReason) -> int:
    """The grace of one container when nobody overrides it.

    A deletion's own grace goes before everything. A probe's grace refines that of the spec, so it
    counts only when the spec has one; it may also be the longer of the two.
    """
    if pod.metadata.deletion_grace_period_seconds is not None:
        return pod.metadata.deletion_grace_period_seconds
    grace_of_spec = pod.spec.termination_grace_period_seconds
    if grace_of_spec is None:
        return MIN_STOP_SECONDS
    grace_of_probe = _probe_grace_seconds(container, reason)
    return grace_of_spec if grace_of_probe is None else grace_of_probe


def _probe_grace_seconds(container: Container, reason: KillReason) -> int | None:
    match reason:
        case KillReason.STARTUP_PROBE:
            probe = container.startup_probe
        case KillReason.LIVENESS_PROBE:
            probe = container.liveness_probe
        case _:
            probe = None
    return None if probe is None else probe.termination_grace_period_seconds
