"""The supported part of the kubelet's configuration file (v1beta1).

Its group is kubelet.config.k8s.io. The input is a document, the output a `KubeletConfiguration`.
`kubelet_defaults.with_defaults` adds the kubelet's defaults. Field names are those of the wire, durations are texts in
Go's format (`model.durations` parses them). The kubelet has more fields than podkeeper supports. `unsupported_fields`
returns the fields of a file that have no effect: those that podkeeper does not support, and those that the kubelet does
not have.

Kubelet counterparts: k8s.io/kubelet/config/v1beta1 and `SetDefaults_KubeletConfiguration`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NewType, get_args

import msgspec
from msgspec import field

from podkeeper.model.durations import parse_duration
from podkeeper.model.errors import BadInput, Problem, quoted
from podkeeper.model.k8s import core
from podkeeper.model.manifest import Document, decode, unknown_fields
from podkeeper.model.wire import Filled, Int32, Int64, Wire, fill

API_VERSION: Final = "kubelet.config.k8s.io/v1beta1"
KIND: Final = "KubeletConfiguration"

Duration = NewType("Duration", str)
"""A duration in Go's format."""

# fmt: off
KUBELET_FIELDS: Final = frozenset({
    "address", "allowedUnsafeSysctls", "authentication", "authorization", "cgroupDriver", "cgroupRoot",
    "cgroupsPerQOS", "clusterDNS", "clusterDomain", "configMapAndSecretChangeDetectionStrategy",
    "containerLogMaxFiles", "containerLogMaxSize", "containerLogMaxWorkers", "containerLogMonitorInterval",
    "containerRuntimeEndpoint", "contentType", "cpuCFSQuota", "cpuCFSQuotaPeriod", "cpuManagerPolicy",
    "cpuManagerPolicyOptions", "cpuManagerReconcilePeriod", "crashLoopBackOff", "enableContentionProfiling",
    "enableControllerAttachDetach", "enableDebugFlagsHandler", "enableDebuggingHandlers", "enableProfilingHandler",
    "enableServer", "enableSystemLogHandler", "enableSystemLogQuery", "enforceNodeAllocatable", "eventBurst",
    "eventRecordQPS", "evictionHard", "evictionMaxPodGracePeriod", "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod", "evictionSoft", "evictionSoftGracePeriod", "failCgroupV1", "failSwapOn",
    "featureGates", "fileCheckFrequency", "hairpinMode", "healthzBindAddress", "healthzPort", "httpCheckFrequency",
    "imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "imageMaximumGCAge", "imageMinimumGCAge",
    "imagePullCredentialsVerificationPolicy", "imageServiceEndpoint", "iptablesDropBit", "iptablesMasqueradeBit",
    "kernelMemcgNotification", "kubeAPIBurst", "kubeAPIQPS", "kubeletCgroups", "kubeReserved", "kubeReservedCgroup",
    "localStorageCapacityIsolation", "logging", "makeIPTablesUtilChains", "maxOpenFiles", "maxParallelImagePulls",
    "maxPods", "memoryManagerPolicy", "memoryReservationPolicy", "memorySwap", "memoryThrottlingFactor",
    "mergeDefaultEvictionSettings", "nodeLeaseDurationSeconds", "nodeStatusMaxImages", "nodeStatusReportFrequency",
    "nodeStatusUpdateFrequency", "oomScoreAdj", "podCIDR", "podLogsDir", "podPidsLimit", "podsPerCore", "port",
    "preloadedImagesVerificationAllowlist", "protectKernelDefaults", "providerID", "qosReserved", "readOnlyPort",
    "registerNode", "registerWithTaints", "registryBurst", "registryPullQPS", "reservedMemory",
    "reservedSystemCPUs", "resolvConf", "rotateCertificates", "runOnce", "runtimeRequestTimeout", "seccompDefault",
    "serializeImagePulls", "serverTLSBootstrap", "showHiddenMetricsForVersion", "shutdownGracePeriod",
    "shutdownGracePeriodByPodPriority", "shutdownGracePeriodCriticalPods", "singleProcessOOMKill", "staticPodPath",
    "staticPodURL", "staticPodURLHeader", "streamingConnectionIdleTimeout", "syncFrequency", "systemCgroups",
    "systemReserved", "systemReservedCgroup", "tlsCertFile", "tlsCipherSuites", "tlsCurvePreferences",
    "tlsMinVersion", "tlsPrivateKeyFile", "topologyManagerPolicy", "topologyManagerPolicyOptions",
    "topologyManagerScope", "tracing", "userNamespaces", "volumePluginDir", "volumeStatsAggPeriod",
})
# fmt: on
"""Every field of the kubelet's type, in release 1.36."""


class KubeletX509Authentication(Wire, frozen=True):
    """Authenticate clients by a certificate of this authority. The user is the common name of the certificate."""

    client_ca_file: str | None = field(default=None, name="clientCAFile")


class KubeletWebhookAuthentication(Wire, frozen=True):
    """The API server checks bearer tokens."""

    enabled: bool | None = None
    cache_ttl: Duration | None = field(default=None, name="cacheTTL")


class KubeletAnonymousAuthentication(Wire, frozen=True):
    """Whether unauthenticated clients are accepted."""

    enabled: bool | None = None


class KubeletAuthentication(Wire, frozen=True):
    """How clients of the agent's server are authenticated."""

    x509: Filled[KubeletX509Authentication] = field(default_factory=KubeletX509Authentication)
    webhook: Filled[KubeletWebhookAuthentication] = field(default_factory=KubeletWebhookAuthentication)
    anonymous: Filled[KubeletAnonymousAuthentication] = field(default_factory=KubeletAnonymousAuthentication)

    def __post_init__(self) -> None:
        fill(self)


class KubeletWebhookAuthorization(Wire, frozen=True):
    """How long results of the API server are cached."""

    cache_authorized_ttl: Duration | None = field(default=None, name="cacheAuthorizedTTL")
    cache_unauthorized_ttl: Duration | None = field(default=None, name="cacheUnauthorizedTTL")


class KubeletAuthorization(Wire, frozen=True):
    """How requests of clients are authorized: `AlwaysAllow` or `Webhook`."""

    mode: str | None = None
    webhook: Filled[KubeletWebhookAuthorization] = field(default_factory=KubeletWebhookAuthorization)

    def __post_init__(self) -> None:
        fill(self)


class CrashLoopBackOffConfig(Wire, frozen=True):
    """The maximum delay before a restart."""

    max_container_restart_period: Duration | None = field(default=None, name="maxContainerRestartPeriod")


class ShutdownGracePeriodByPodPriority(Wire, frozen=True):
    """The grace period of pods with at least this priority when the node shuts down."""

    priority: Filled[Int32] = field(default_factory=int)
    shutdown_grace_period_seconds: Filled[Int64] = field(default_factory=int, name="shutdownGracePeriodSeconds")

    def __post_init__(self) -> None:
        fill(self)


class KubeletConfiguration(Wire, frozen=True):
    """The content of the file. None: not set."""

    api_version: str | None = field(default=None, name="apiVersion")
    kind: str | None = None
    # Where pods come from.
    static_pod_path: str | None = field(default=None, name="staticPodPath")
    static_pod_url: str | None = field(default=None, name="staticPodURL")
    static_pod_url_header: dict[str, tuple[str, ...]] | None = field(default=None, name="staticPodURLHeader")
    file_check_frequency: Duration | None = field(default=None, name="fileCheckFrequency")
    http_check_frequency: Duration | None = field(default=None, name="httpCheckFrequency")
    sync_frequency: Duration | None = field(default=None, name="syncFrequency")
    # The agent's own server.
    enable_server: bool | None = field(default=None, name="enableServer")
    address: str | None = None
    port: Int32 | None = None
    read_only_port: Int32 | None = field(default=None, name="readOnlyPort")
    tls_cert_file: str | None = field(default=None, name="tlsCertFile")
    tls_private_key_file: str | None = field(default=None, name="tlsPrivateKeyFile")
    tls_min_version: str | None = field(default=None, name="tlsMinVersion")
    rotate_certificates: bool | None = field(default=None, name="rotateCertificates")
    server_tls_bootstrap: bool | None = field(default=None, name="serverTLSBootstrap")
    authentication: Filled[KubeletAuthentication] = field(default_factory=KubeletAuthentication)
    authorization: Filled[KubeletAuthorization] = field(default_factory=KubeletAuthorization)
    enable_debugging_handlers: bool | None = field(default=None, name="enableDebuggingHandlers")
    healthz_bind_address: str | None = field(default=None, name="healthzBindAddress")
    healthz_port: Int32 | None = field(default=None, name="healthzPort")
    streaming_connection_idle_timeout: Duration | None = field(default=None, name="streamingConnectionIdleTimeout")
    # The node and its API.
    register_node: bool | None = field(default=None, name="registerNode")
    register_with_taints: tuple[core.Taint, ...] | None = field(default=None, name="registerWithTaints")
    provider_id: str | None = field(default=None, name="providerID")
    node_status_update_frequency: Duration | None = field(default=None, name="nodeStatusUpdateFrequency")
    node_status_report_frequency: Duration | None = field(default=None, name="nodeStatusReportFrequency")
    node_status_max_images: Int32 | None = field(default=None, name="nodeStatusMaxImages")
    node_lease_duration_seconds: Int32 | None = field(default=None, name="nodeLeaseDurationSeconds")
    kube_api_qps: Int32 | None = field(default=None, name="kubeAPIQPS")
    kube_api_burst: Int32 | None = field(default=None, name="kubeAPIBurst")
    event_record_qps: Int32 | None = field(default=None, name="eventRecordQPS")
    event_burst: Int32 | None = field(default=None, name="eventBurst")
    config_map_and_secret_change_detection_strategy: str | None = field(
        default=None, name="configMapAndSecretChangeDetectionStrategy"
    )
    # Pods.
    max_pods: Int32 | None = field(default=None, name="maxPods")
    pods_per_core: Int32 | None = field(default=None, name="podsPerCore")
    pod_cidr: str | None = field(default=None, name="podCIDR")
    pod_logs_dir: str | None = field(default=None, name="podLogsDir")
    pod_pids_limit: Int64 | None = field(default=None, name="podPidsLimit")
    cluster_dns: tuple[str, ...] | None = field(default=None, name="clusterDNS")
    cluster_domain: str | None = field(default=None, name="clusterDomain")
    resolv_conf: str | None = field(default=None, name="resolvConf")
    allowed_unsafe_sysctls: tuple[str, ...] | None = field(default=None, name="allowedUnsafeSysctls")
    seccomp_default: bool | None = field(default=None, name="seccompDefault")
    crash_loop_back_off: Filled[CrashLoopBackOffConfig] = field(
        default_factory=CrashLoopBackOffConfig, name="crashLoopBackOff"
    )
    shutdown_grace_period: Duration | None = field(default=None, name="shutdownGracePeriod")
    shutdown_grace_period_critical_pods: Duration | None = field(default=None, name="shutdownGracePeriodCriticalPods")
    shutdown_grace_period_by_pod_priority: tuple[ShutdownGracePeriodByPodPriority, ...] | None = field(
        default=None, name="shutdownGracePeriodByPodPriority"
    )
    # The runtime, its images and logs.
    container_runtime_endpoint: Filled[str] = field(default_factory=str, name="containerRuntimeEndpoint")
    image_service_endpoint: str | None = field(default=None, name="imageServiceEndpoint")
    runtime_request_timeout: Duration | None = field(default=None, name="runtimeRequestTimeout")
    registry_pull_qps: Int32 | None = field(default=None, name="registryPullQPS")
    registry_burst: Int32 | None = field(default=None, name="registryBurst")
    serialize_image_pulls: bool | None = field(default=None, name="serializeImagePulls")
    max_parallel_image_pulls: Int32 | None = field(default=None, name="maxParallelImagePulls")
    image_pull_credentials_verification_policy: str | None = field(
        default=None, name="imagePullCredentialsVerificationPolicy"
    )
    preloaded_images_verification_allowlist: tuple[str, ...] | None = field(
        default=None, name="preloadedImagesVerificationAllowlist"
    )
    image_minimum_gc_age: Duration | None = field(default=None, name="imageMinimumGCAge")
    image_maximum_gc_age: Duration | None = field(default=None, name="imageMaximumGCAge")
    image_gc_high_threshold_percent: Int32 | None = field(default=None, name="imageGCHighThresholdPercent")
    image_gc_low_threshold_percent: Int32 | None = field(default=None, name="imageGCLowThresholdPercent")
    container_log_max_size: str | None = field(default=None, name="containerLogMaxSize")
    container_log_max_files: Int32 | None = field(default=None, name="containerLogMaxFiles")
    container_log_max_workers: Int32 | None = field(default=None, name="containerLogMaxWorkers")
    container_log_monitor_interval: Duration | None = field(default=None, name="containerLogMonitorInterval")
    # The machine.
    cgroup_root: str | None = field(default=None, name="cgroupRoot")
    cgroups_per_qos: bool | None = field(default=None, name="cgroupsPerQOS")
    cgroup_driver: str | None = field(default=None, name="cgroupDriver")
    cpu_cfs_quota: bool | None = field(default=None, name="cpuCFSQuota")
    cpu_cfs_quota_period: Duration | None = field(default=None, name="cpuCFSQuotaPeriod")
    fail_swap_on: bool | None = field(default=None, name="failSwapOn")
    system_reserved: dict[str, str] | None = field(default=None, name="systemReserved")
    kube_reserved: dict[str, str] | None = field(default=None, name="kubeReserved")
    enforce_node_allocatable: tuple[str, ...] | None = field(default=None, name="enforceNodeAllocatable")
    local_storage_capacity_isolation: bool | None = field(default=None, name="localStorageCapacityIsolation")
    volume_stats_agg_period: Duration | None = field(default=None, name="volumeStatsAggPeriod")
    eviction_hard: dict[str, str] | None = field(default=None, name="evictionHard")
    eviction_soft: dict[str, str] | None = field(default=None, name="evictionSoft")
    eviction_soft_grace_period: dict[str, str] | None = field(default=None, name="evictionSoftGracePeriod")
    eviction_pressure_transition_period: Duration | None = field(default=None, name="evictionPressureTransitionPeriod")
    eviction_max_pod_grace_period: Int32 | None = field(default=None, name="evictionMaxPodGracePeriod")
    eviction_minimum_reclaim: dict[str, str] | None = field(default=None, name="evictionMinimumReclaim")
    merge_default_eviction_settings: bool | None = field(default=None, name="mergeDefaultEvictionSettings")

    def __post_init__(self) -> None:
        fill(self)


@dataclass(frozen=True, slots=True)
class UnsupportedFields:
    """The fields of a file that have no effect."""

    unsupported: tuple[Problem, ...]  # fields of the kubelet that podkeeper does not support
    unknown: tuple[Problem, ...]


def read_kubelet_configuration(document: Document) -> KubeletConfiguration:
    """Return the configuration in a document, without defaults. Raises `BadInput` with all problems."""
    if (document.api_version, document.kind) != (API_VERSION, KIND):
        supported = f"{quoted(KIND)} of apiVersion {quoted(API_VERSION)}"
        message = f"Unsupported value: {quoted(document.kind)}: supported values: {supported}"
        raise BadInput(document.problem(message, "kind"))
    config = decode(document, KubeletConfiguration)
    problems = []
    for name, text in _durations(config, ""):
        try:
            parse_duration(text)
        except BadInput as error:
            problems += [document.problem(problem.message, name) for problem in error.problems]
    if problems:
        raise BadInput(*problems)
    return config


def unsupported_fields(document: Document) -> UnsupportedFields:
    """Return the fields of a configuration file that have no effect."""
    ignored = unknown_fields(document, KubeletConfiguration)
    return UnsupportedFields(
        unsupported=tuple(
            document.problem("unsupported by podkeeper, ignored", problem.field)
            for problem in ignored
            if problem.field in KUBELET_FIELDS
        ),
        unknown=tuple(problem for problem in ignored if problem.field not in KUBELET_FIELDS),
    )


def _durations(struct: Wire, prefix: str) -> Iterator[tuple[str, Duration]]:
    """Yield every duration in a configuration with its field name."""
    for each in msgspec.structs.fields(struct):
        value = getattr(struct, each.name)
        if isinstance(value, Wire):
            yield from _durations(value, f"{prefix}{each.encode_name}.")
        elif value is not None and Duration in get_args(each.type):
            yield prefix + each.encode_name, value
