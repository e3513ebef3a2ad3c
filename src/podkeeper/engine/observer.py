"""Observer: the measurements that engine modules report.

`Observer` does nothing. `engine.metrics.Metrics` counts. A subclass overrides only the methods it needs. Reports are
for measurements only: no decision may depend on them, and a method must not raise or block.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID, ProbeKind, ProbeResult
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.housekeeping import CleanupInput, CleanupPlan
from podkeeper.rules.worker.updates import UpdateType
from podkeeper.rules.worker.workers import PodWorkerSync


class Observer:
    """Receives measurements and drops them."""

    # Workers.

    def pod_started(self, pod: Pod) -> None:
        """A worker starts to sync a pod for the first time."""

    def sync_started(self, update_type: UpdateType, waited_seconds: float) -> None:
        """A sync begins, `waited_seconds` after its update reached the agent."""

    def sync_ended(self, operation: str, seconds: float) -> None:
        """A sync ended, `seconds` after its update. `operation` is the update type, or `terminated` at the end."""

    def workers_listed(self, known: Mapping[PodUID, PodWorkerSync]) -> None:
        """Housekeeping listed all workers."""

    # Syncer. Seconds count from the moment when the agent first saw the pod.

    def first_sync_started(self, seconds: float) -> None:
        """The first sync of a pod begins."""

    def pod_running(self, seconds: float) -> None:
        """A pod is Running for the first time."""

    # Executor. Kinds are `container`, `init_container` and `ephemeral_container`.

    def sandbox_starting(self) -> None:
        """A sandbox is about to be created."""

    def sandbox_failed(self) -> None:
        """A sandbox was not created."""

    def container_starting(self, kind: str) -> None:
        """A container is about to be started."""

    def container_start_failed(self, kind: str, reason: str) -> None:
        """A container was not started. `reason` is the one in its status."""

    def image_pulled(self, seconds: float, size_bytes: int) -> None:
        """An image was pulled for one pod, which waited `seconds`."""

    # PLEG.

    def relisted(self, seconds: float, interval_seconds: float | None) -> None:
        """A relist ended, successfully or not. `interval_seconds`: since the start of the last successful one."""

    def pods_listed(self, pods: Sequence[PodRecord], now: datetime) -> None:
        """A relist succeeded with this listing."""

    def inspected(self, seconds: float) -> None:
        """An inspection of one pod ended, successfully or not."""

    def events_missed(self, pods: int) -> None:
        """A relist found this many pods changed without an event."""

    def event_discarded(self) -> None:
        """A lifecycle event could not be delivered."""

    def event_received(self, latency_seconds: float) -> None:
        """A runtime event arrived, this long after the change it reports."""

    def stream_opened(self) -> None:
        """The event stream was requested."""

    def stream_ended(self) -> None:
        """The event stream ended or failed."""

    # Runtime calls.

    def runtime_call(self, operation: str, seconds: float, *, failed: bool) -> None:
        """A call to the runtime ended."""

    def slow_calls(self, count: int) -> None:
        """Housekeeping counted this many slow runtime calls."""

    # All pods.

    def pods_cleaned_up(self, cleanup_input: CleanupInput, plan: CleanupPlan) -> None:
        """Housekeeping found this state and executes this plan."""

    def status_synced(self, seconds: float) -> None:
        """The API has a status, `seconds` after it changed."""

    def rejected(self, reason: str) -> None:
        """Admission rejected a pod."""

    def preempted(self, resource: str) -> None:
        """A pod was killed because a critical pod needs this resource."""

    def evicted(self, signal: str) -> None:
        """A pod is evicted because of this signal."""

    def image_removed(self, reason: str) -> None:
        """Garbage collection removed an image. `reason` is `age` or `space`."""

    # Probes.

    def probed(self, pod: Pod, container: str, kind: ProbeKind, result: ProbeResult, seconds: float) -> None:
        """A probe was executed, including its repetitions, and returned a result."""

    def probe_removed(self, pod: Pod, container: str, kind: ProbeKind) -> None:
        """A probe worker ended, so its metric series end."""
