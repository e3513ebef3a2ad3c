"""What the engine counts and measures: the families' names, labels and buckets, as the reference has them.

A family is a noun; what happens to it is said in `engine/metrics.py`. What the reference does not know is named
`podkeeper_*`. The Go ancestor is pkg/kubelet/metrics/metrics.go.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, eq=False)
class CounterFamily:
    """Counts what happened. Some names lack the suffix `_total`: they are older than the custom."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class GaugeFamily:
    """Says how much there is now."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class HistogramFamily:
    """Measures, and counts how many measurements lie below each bound."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


Family = CounterFamily | GaugeFamily | HistogramFamily


def _exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    bounds = [start]
    for _ in range(count - 1):
        bounds.append(bounds[-1] * factor)  # step by step, as the reference does: the digits agree
    return tuple(bounds)


_START: Final = (
    *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
)
_PULL: Final = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
_OPERATION: Final = ("operation_type",)
_STATIC: Final = ("static",)
_QUEUE: Final = ("name",)

# Pod workers, syncer, status.

PASSES: Final = HistogramFamily(
    "kubelet_pod_worker_duration_seconds", "How long it took from news of a pod to the end of its pass.", _OPERATION
)
PASS_WAITS: Final = HistogramFamily(
    "podkeeper_pod_worker_wait_seconds", "How long news of a pod waited for its pass to begin.", _OPERATION
)
FIRST_PASSES: Final = HistogramFamily(
    "kubelet_pod_worker_start_duration_seconds", "How long it took from first seeing a pod to its first pass."
)
POD_STARTS: Final = HistogramFamily(
    "kubelet_pod_start_duration_seconds", "How long it took from first seeing a pod to seeing it run.", (), _START
)
POD_START_SLI: Final = HistogramFamily(
    "kubelet_pod_start_sli_duration_seconds",
    "How long a pod took from creation to all containers started, image pulls and init containers not counted.",
    (),
    _START,
)
POD_START_TOTAL: Final = HistogramFamily(
    "kubelet_pod_start_total_duration_seconds",
    "How long a pod took from creation to all containers started, all counted.",
    (),
    _START,
)
STATUS_SYNCS: Final = HistogramFamily(
    "kubelet_pod_status_sync_duration_seconds",
    "How long it took from the first unsent change of a pod's status until the API had it.",
    (),
    (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60),
)
CONTAINERS_PER_POD: Final = HistogramFamily(
    "kubelet_containers_per_pod_count", "How many containers the pods have that a worker began with.", (),
    _exponential(1, 2, 5),
)  # fmt: skip
QUEUE_DEPTH: Final = GaugeFamily("workqueue_depth", "How many items a queue holds.", _QUEUE)
QUEUE_ADDS: Final = CounterFamily("workqueue_adds_total", "Items put into a queue.", _QUEUE)
QUEUE_RETRIES: Final = CounterFamily("workqueue_retries_total", "Items put back after a failure.", _QUEUE)
QUEUE_WAITS: Final = HistogramFamily(
    "workqueue_queue_duration_seconds", "How long an item stayed in a queue beyond its time.", _QUEUE,
    _exponential(1e-8, 10, 10),
)  # fmt: skip

# Runtime and PLEG.

CALLS: Final = CounterFamily("kubelet_runtime_operations_total", "Calls of the runtime.", _OPERATION)
CALL_TIMES: Final = HistogramFamily(
    "kubelet_runtime_operations_duration_seconds", "How long calls of the runtime took.", _OPERATION,
    _exponential(0.005, 2.5, 14),
)  # fmt: skip
CALL_ERRORS: Final = CounterFamily(
    "kubelet_runtime_operations_errors_total", "Calls of the runtime that failed.", _OPERATION
)
SLOW_CALLS: Final = GaugeFamily("podkeeper_slow_calls", "Calls under way that have outlived their lease.")
PULLS: Final = HistogramFamily(
    "kubelet_image_pull_duration_seconds", "How long pods waited for a pull, by the image's size.",
    ("image_size_in_bytes",), _PULL,
)  # fmt: skip
IMAGES_REMOVED: Final = CounterFamily(
    "kubelet_image_garbage_collected_total", "Images that were removed, for their age or for space.", ("reason",)
)
CONTAINER_STARTS: Final = CounterFamily(
    "kubelet_started_containers_total", "Containers that were to be started.", ("container_type",)
)
CONTAINER_ERRORS: Final = CounterFamily(
    "kubelet_started_containers_errors_total", "Containers that could not be started.", ("container_type", "code")
)
SANDBOX_STARTS: Final = CounterFamily("kubelet_started_pods_total", "Sandboxes that were to be made.")
SANDBOX_ERRORS: Final = CounterFamily("kubelet_started_pods_errors_total", "Sandboxes that could not be made.")
RELISTS: Final = HistogramFamily("kubelet_pleg_relist_duration_seconds", "How long a relist took.")
RELIST_INTERVALS: Final = HistogramFamily(
    "kubelet_pleg_relist_interval_seconds", "How much time lay between two relists."
)
DISCARDED_EVENTS: Final = CounterFamily("kubelet_pleg_discard_events", "Lifecycle events that nobody could take.")
LAST_SEEN: Final = GaugeFamily("kubelet_pleg_last_seen_seconds", "When the runtime was last listed, since 1970.")
LOOKS: Final = HistogramFamily("podkeeper_pleg_look_duration_seconds", "How long a look at one pod took.")
MISSED_EVENTS: Final = CounterFamily(
    "podkeeper_pleg_missed_events_total", "Pods whose change no event told, healed by a relist."
)
EVENT_LATENCY: Final = HistogramFamily(
    "kubelet_evented_pleg_connection_latency_seconds", "How late the runtime's events came."
)
STREAMS: Final = CounterFamily("kubelet_evented_pleg_connection_success_count", "Event streams asked for.")
STREAM_BREAKS: Final = CounterFamily(
    "kubelet_evented_pleg_connection_error_count", "Event streams that ended or failed."
)
RUNNING_PODS: Final = GaugeFamily("kubelet_running_pods", "Pods with a sandbox that runs.")
RUNNING_CONTAINERS: Final = GaugeFamily("kubelet_running_containers", "Containers by state.", ("container_state",))

# The node's pods.

DESIRED_PODS: Final = GaugeFamily("kubelet_desired_pods", "Pods that are to run here.", _STATIC)
ACTIVE_PODS: Final = GaugeFamily("kubelet_active_pods", "Pods that count when others are admitted.", _STATIC)
MIRROR_PODS: Final = GaugeFamily("kubelet_mirror_pods", "Mirrors of static pods in the API.")
EPHEMERAL_CONTAINERS: Final = GaugeFamily(
    "kubelet_managed_ephemeral_containers", "Ephemeral containers of the pods that are to run here."
)
WORKING_PODS: Final = GaugeFamily(
    "kubelet_working_pods", "Pods that have a worker, by where they stand and who wants them.",
    ("lifecycle", "config", "static"),
)  # fmt: skip
ORPHANED_PODS: Final = CounterFamily("kubelet_orphaned_runtime_pods_total", "Pods found running that nobody knew.")
RESTARTED_PODS: Final = CounterFamily(
    "kubelet_restarted_pods_total", "Pods begun again under the UID of one that ended.", _STATIC
)
REJECTIONS: Final = CounterFamily("kubelet_admission_rejections_total", "Pods turned away, by reason.", ("reason",))
EVICTIONS: Final = CounterFamily("kubelet_evictions", "Pods evicted, by signal.", ("eviction_signal",))
PREEMPTIONS: Final = CounterFamily(
    "kubelet_preemptions", "Pods killed for more important ones, by what was wanting.", ("preemption_signal",)
)

# Probes: per pod.

PROBES: Final = CounterFamily(
    "prober_probe_total", "Probes of a container, by what they said.",
    ("probe_type", "result", "container", "pod", "namespace", "pod_uid"),
)  # fmt: skip
PROBE_TIMES: Final = HistogramFamily(
    "prober_probe_duration_seconds", "How long an answered probe of a container took.",
    ("probe_type", "container", "pod", "namespace"),
)  # fmt: skip


def families() -> Iterator[Family]:
    """All of them, in the order of this file."""
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
    """The class of sizes that an image is counted in."""
    if size_bytes <= 0:
        return "N/A"
    return next((label for most, label in _IMAGE_SIZES if size_bytes <= most), "GT100GB")


def rejection_label(reason: str) -> str:
    """The reason that a rejection is counted under: a pod's author can make up others, and so series without end."""
    if reason in _REJECTIONS:
        return reason
    return "OutOfExtendedResources" if reason.startswith("OutOf") else "Other"
