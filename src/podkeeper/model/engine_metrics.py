"""The engine's metric families: names, labels and buckets, as in the kubelet.

`engine/metrics.py` records the values. Families that the kubelet does not have are named `podkeeper_*`.

Kubelet counterpart: pkg/kubelet/metrics/metrics.go.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, eq=False)
class CounterFamily:
    """A counter. Some names lack the suffix `_total`, because they are older than that convention."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class GaugeFamily:
    """A current value."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class HistogramFamily:
    """A distribution of measured values."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


Family = CounterFamily | GaugeFamily | HistogramFamily


def _exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    bounds = [start]
    for _ in range(count - 1):
        bounds.append(bounds[-1] * factor)  # one after the other, as in the kubelet, so that the digits are equal
    return tuple(bounds)


_START: Final = (
    *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
)
_PULL: Final = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
_OPERATION: Final = ("operation_type",)
_STATIC: Final = ("static",)

# Pod workers, syncer, status.

POD_WORKER_DURATION: Final = HistogramFamily(
    "kubelet_pod_worker_duration_seconds", "Time from a pod update to the end of its sync.", _OPERATION
)
POD_WORKER_WAIT: Final = HistogramFamily(
    "podkeeper_pod_worker_wait_seconds", "Time from a pod update to the start of its sync.", _OPERATION
)
POD_WORKER_START: Final = HistogramFamily(
    "kubelet_pod_worker_start_duration_seconds", "Time from receiving a pod to its first sync."
)
POD_STARTS: Final = HistogramFamily(
    "kubelet_pod_start_duration_seconds", "Time from receiving a pod until it runs.", (), _START
)
STATUS_SYNCS: Final = HistogramFamily(
    "kubelet_pod_status_sync_duration_seconds",
    "Time from the first unsent change of a pod's status until the API server has stored it.",
    (),
    (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60),
)
CONTAINERS_PER_POD: Final = HistogramFamily(
    "kubelet_containers_per_pod_count", "Number of containers of pods that a worker started.", (),
    _exponential(1, 2, 5),
)  # fmt: skip

# Runtime and PLEG.

CALLS: Final = CounterFamily("kubelet_runtime_operations_total", "Runtime calls.", _OPERATION)
CALL_TIMES: Final = HistogramFamily(
    "kubelet_runtime_operations_duration_seconds", "Duration of runtime calls.", _OPERATION,
    _exponential(0.005, 2.5, 14),
)  # fmt: skip
CALL_ERRORS: Final = CounterFamily("kubelet_runtime_operations_errors_total", "Failed runtime calls.", _OPERATION)
SLOW_CALLS: Final = GaugeFamily("podkeeper_slow_calls", "Calls in flight that have exceeded their lease.")
PULLS: Final = HistogramFamily(
    "kubelet_image_pull_duration_seconds", "Time that pods waited for an image pull, by image size.",
    ("image_size_in_bytes",), _PULL,
)  # fmt: skip
IMAGES_REMOVED: Final = CounterFamily(
    "kubelet_image_garbage_collected_total", "Images removed by garbage collection, by reason.", ("reason",)
)
CONTAINER_STARTS: Final = CounterFamily(
    "kubelet_started_containers_total", "Attempts to start a container.", ("container_type",)
)
CONTAINER_ERRORS: Final = CounterFamily(
    "kubelet_started_containers_errors_total", "Failed attempts to start a container.", ("container_type", "code")
)
SANDBOX_STARTS: Final = CounterFamily("kubelet_started_pods_total", "Attempts to create a sandbox.")
SANDBOX_ERRORS: Final = CounterFamily("kubelet_started_pods_errors_total", "Failed attempts to create a sandbox.")
RELISTS: Final = HistogramFamily("kubelet_pleg_relist_duration_seconds", "Duration of a relist.")
RELIST_INTERVALS: Final = HistogramFamily("kubelet_pleg_relist_interval_seconds", "Time between two relists.")
DISCARDED_EVENTS: Final = CounterFamily("kubelet_pleg_discard_events", "Lifecycle events dropped.")
LAST_SEEN: Final = GaugeFamily("kubelet_pleg_last_seen_seconds", "Unix time of the last relist.")
INSPECTIONS: Final = HistogramFamily(
    "podkeeper_pleg_inspection_duration_seconds", "Duration of the inspection of one pod."
)
MISSED_EVENTS: Final = CounterFamily(
    "podkeeper_pleg_missed_events_total", "Changed pods that a relist found because no event reported them."
)
EVENT_LATENCY: Final = HistogramFamily(
    "kubelet_evented_pleg_connection_latency_seconds", "Delay of the runtime's events."
)
STREAMS: Final = CounterFamily("kubelet_evented_pleg_connection_success_count", "Event streams opened.")
STREAM_BREAKS: Final = CounterFamily(
    "kubelet_evented_pleg_connection_error_count", "Event streams that ended or failed."
)
RUNNING_PODS: Final = GaugeFamily("kubelet_running_pods", "Pods with a running sandbox.")
RUNNING_CONTAINERS: Final = GaugeFamily("kubelet_running_containers", "Containers by state.", ("container_state",))

# The node's pods.

DESIRED_PODS: Final = GaugeFamily("kubelet_desired_pods", "Pods that should run on this node.", _STATIC)
ACTIVE_PODS: Final = GaugeFamily("kubelet_active_pods", "Pods that count for admission.", _STATIC)
MIRROR_PODS: Final = GaugeFamily("kubelet_mirror_pods", "Mirror pods in the API server.")
EPHEMERAL_CONTAINERS: Final = GaugeFamily(
    "kubelet_managed_ephemeral_containers", "Ephemeral containers of pods that should run on this node."
)
WORKING_PODS: Final = GaugeFamily(
    "kubelet_working_pods", "Pods with a worker, by lifecycle state and configuration.",
    ("lifecycle", "config", "static"),
)  # fmt: skip
ORPHANED_PODS: Final = CounterFamily("kubelet_orphaned_runtime_pods_total", "Orphaned pods found in the runtime.")
RESTARTED_PODS: Final = CounterFamily(
    "kubelet_restarted_pods_total", "Pods restarted with the UID of a finished pod.", _STATIC
)
REJECTIONS: Final = CounterFamily(
    "kubelet_admission_rejections_total", "Pods rejected by admission, by reason.", ("reason",)
)
EVICTIONS: Final = CounterFamily("kubelet_evictions", "Pods evicted, by signal.", ("eviction_signal",))
PREEMPTIONS: Final = CounterFamily(
    "kubelet_preemptions", "Pods preempted, by the resource that was short.", ("preemption_signal",)
)

# Probes: per pod.

PROBES: Final = CounterFamily(
    "prober_probe_total", "Probes of a container, by result.",
    ("probe_type", "result", "container", "pod", "namespace", "pod_uid"),
)  # fmt: skip
PROBE_TIMES: Final = HistogramFamily(
    "prober_probe_duration_seconds", "Duration of probes of a container that returned a result.",
    ("probe_type", "container", "pod", "namespace"),
)  # fmt: skip


def families() -> Iterator[Family]:
    """Return all families in the order of this file."""
    return (value for value in globals().values() if isinstance(value, Family))


_MIB: Final = 2**20
_IMAGE_SIZES: Final = (
    (10 * _MIB, "0-10MB"),
    (100 * _MIB, "10MB-100MB"),
    (500 * _MIB, "100MB-500MB"),
    (1024 * _MIB, "500MB-1GB"),
    (5 * 1024 * _MIB, "1GB-5GB"),
    (10 * 1024 * _MIB, "5GB-10GB"),
    (20 * 1024 * _MIB, "10GB-20GB"),
    (30 * 1024 * _MIB, "20GB-30GB"),
    (40 * 1024 * _MIB, "30GB-40GB"),
    (60 * 1024 * _MIB, "40GB-60GB"),
    (100 * 1024 * _MIB, "60GB-100GB"),
)

_REJECTIONS: Final = frozenset(
    {
        "AppArmor",
        "Evicted",
        "InitContainerRestartPolicyForbidden",
        "InvalidNodeInfo",
        "NodeShutdown",
        "OutOfcpu",
        "OutOfephemeral-storage",
        "OutOfmemory",
        "OutOfpods",
        "PodFeatureUnsupported",
        "PodLevelResourcesNotSupported",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "SupplementalGroupsPolicyNotSupported",
        "SysctlForbidden",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
        "UnexpectedPredicateFailureType",
        "UnknownReason",
        "VolumeAttachmentLimitExceeded",
        "node(s) had taints that the pod didn't tolerate",
    }
)


def image_size_label(size_bytes: int) -> str:
    """Return the size class of an image."""
    if size_bytes <= 0:
        return "N/A"
    return next((label for most, label in _IMAGE_SIZES if size_bytes <= most), "GT100GB")


def rejection_label(reason: str) -> str:
    """Return the label of a rejection.

    All unknown reasons share one label. Otherwise pod authors could create any number of series.
    """
    if reason in _REJECTIONS:
        return reason
    return "OutOfExtendedResources" if reason.startswith("OutOf") else "Other"
