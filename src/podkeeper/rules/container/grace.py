"""The grace period of one container, and how its steps share it.

Three steps use the budget one after the other: the preStop hook, the wait for the container's turn
(`rules.container.termination_order`), and the time between SIGTERM and SIGKILL. The last step always has at least two
seconds, so that every container can exit by itself.

The grace period of a whole pod is different: the pod's worker decides it and passes it as `override_seconds`.

Kubelet counterparts: `setTerminationGracePeriod` and `killContainer` in
pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

from dataclasses import dataclass
from enum import StrEnum

from podkeeper.model.k8s.core import Container, Pod

# The kubelet's minimumGracePeriodInSeconds.
MIN_STOP_SECONDS = 2


class KillReason(StrEnum):
    """Why one container is stopped."""

    SPEC_CHANGED = ""  # the kubelet has no name for it
    STARTUP_PROBE = "StartupProbe"
    LIVENESS_PROBE = "LivenessProbe"
    FAILED_POST_START_HOOK = "FailedPostStartHook"
    RESTART_ALL_CONTAINERS = "RestartAllContainers"
    UNKNOWN = "Unknown"  # its state is unknown, or the whole pod is stopped


@dataclass(frozen=True, slots=True)
class GraceBudget:
    """The rest of a container's grace period. It may become negative, `stop_seconds` does not."""

    seconds: int

    @property
    def stop_seconds(self) -> int:
        """The time between SIGTERM and SIGKILL."""
        return max(self.seconds, MIN_STOP_SECONDS)

    def after(self, spent_seconds: float) -> "GraceBudget":
        """Return the budget after a step. Fractions of a second are not charged."""
        # As in the kubelet, which subtracts whole seconds.
        return GraceBudget(self.seconds - int(spent_seconds))


def grace_budget(
    pod: Pod, container: Container, reason: KillReason, override_seconds: int | None = None
) -> GraceBudget:
    if override_seconds is not None:
        return GraceBudget(override_seconds)
    return GraceBudget(container_grace_seconds(pod, container, reason))


def container_grace_seconds(pod: Pod, container: Container, reason: KillReason) -> int:
    """Return the grace period of one container without an override.

    The grace period of a deletion has priority. The grace period of a probe applies only if the pod's spec sets one,
    too. It may be longer than that of the spec.
    """
    # The user's decision at the deletion counts, also for a container that a probe stops at the same time.
    if pod.metadata.deletion_grace_period_seconds is not None:
        return pod.metadata.deletion_grace_period_seconds
    spec_grace = pod.spec.termination_grace_period_seconds
    # Only pods that did not go through defaulting have none.
    if spec_grace is None:
        return MIN_STOP_SECONDS
    probe_grace = _probe_grace_seconds(container, reason)
    return spec_grace if probe_grace is None else probe_grace


def _probe_grace_seconds(container: Container, reason: KillReason) -> int | None:
    match reason:
        case KillReason.STARTUP_PROBE:
            probe = container.startup_probe
        case KillReason.LIVENESS_PROBE:
            probe = container.liveness_probe
        case _:
            probe = None
    return None if probe is None else probe.termination_grace_period_seconds
