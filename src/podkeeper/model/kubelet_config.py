"""The kubelet's configuration file, as far as this agent obeys it (kubelet.config.k8s.io/v1beta1).

A document comes in; a `KubeletConfiguration` goes out, with the reference's own defaults where
the file is silent (`kubelet_defaults.with_defaults`). Names are those of the wire, durations are text as Go writes
them (`model.durations` reads them). The reference knows more fields than we obey: `passed_over`
tells a user which of a file's fields change nothing here, and which no kubelet has ever had.

The Go ancestors are k8s.io/kubelet/config/v1beta1 and `SetDefaults_KubeletConfiguration`.
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
"""A duration as Go writes it."""

# fmt: off
REFERENCE_FIELDS: Final = frozenset({
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
"""Every field of the reference's type, in release 1.36."""


class KubeletX509Authentication(Wire, frozen=True):
    """Clients that show a certificate signed by this authority are known by its name."""

    client_ca_file: str | None = field(default=None, name="clientCAFile")


class KubeletWebhookAuthentication(Wire, frozen=True):
    """Bearer tokens are shown to the API server."""

    enabled: bool | None = None
    cache_ttl: Duration | None = field(default=None, name="cacheTTL")


class KubeletAnonymousAuthentication(Wire, frozen=True):
    """Whether unknown clients may speak at all."""

    enabled: bool | None = None


class KubeletAuthentication(Wire, frozen=True):
    """Who a client of the agent's server is."""

    x509: Filled[KubeletX509Authentication] = field(default_factory=KubeletX509Authentication)
    webhook: Filled[KubeletWebhookAuthentication] = field(default_factory=KubeletWebhookAuthentication)
    anonymous: Filled[KubeletAnonymousAuthentication] = field(default_factory=KubeletAnonymousAuthentication)

    def __post_init__(self) -> None:
        fill(self)


class KubeletWebhookAuthorization(Wire, frozen=True):
    """How long the API server's answers are believed."""

    cache_authorized_ttl: Duration | None = field(default=None, name="cacheAuthorizedTTL")
    cache_unauthorized_ttl: Duration | None = field(default=None, name="cacheUnauthorizedTTL")


class KubeletAuthorization(Wire, frozen=True):
    """What a known client may do: `AlwaysAllow` or `Webhook`."""

    mode: str | None = None
    webhook: Filled[KubeletWebhookAuthorization] = field(default_factory=KubeletWebhookAuthorization)

    def __post_init__(self) -> None:
        fill(self)


class CrashLoopBackOffConfig(Wire, frozen=True):
    """How far the delay before a restart may grow."""

    max_container_restart_period: Duration | None = field(default=None, name="maxContainerRestartPeriod")


class ShutdownGracePeriodByPodPriority(Wire, frozen=True):
    """How long pods from this priority on get when the node shuts down."""

    priority: Filled[Int32] = field(default_factory=int)
    shutdown_grace_period_seconds: Filled[Int64] = field(default_factory=int, name="shutdownGracePeriodSeconds")

    def __post_init__(self) -> None:
        fill(self)


class KubeletConfiguration(Wire, frozen=True):
    """What the file says; None where it is silent."""

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
class PassedOver:
    """The fields of a file that change nothing."""

    not_obeyed: tuple[Problem, ...]  # the reference's kubelet knows them; this agent does not act on them
    unknown: tuple[Problem, ...]


def read_kubelet_configuration(document: Document) -> KubeletConfiguration:
    """The configuration that a document holds, without defaults. Raises `BadInput` with every problem."""
    if (document.api_version, document.kind) != (API_VERSION, KIND):
        message = f"Unsupported value: {quoted(document.kind)}: must be kind {KIND} of apiVersion {API_VERSION}"
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


def passed_over(document: Document) -> PassedOver:
    """Which fields of a configuration file change nothing here."""
    strange = unknown_fields(document, KubeletConfiguration)
    return PassedOver(
        not_obeyed=tuple(
            document.problem("unsupported by podkeeper, ignored", problem.field)
            for problem in strange
            if problem.field in REFERENCE_FIELDS
        ),
        unknown=tuple(problem for problem in strange if problem.field not in REFERENCE_FIELDS),
    )


def _durations(struct: Wire, prefix: str) -> Iterator[tuple[str, Duration]]:
    """Every duration in a configuration, with its field's name."""
    for each in msgspec.structs.fields(struct):
        value = getattr(struct, each.name)
        if isinstance(value, Wire):
            yield from _durations(value, f"{prefix}{each.encode_name}.")
        elif value is not None and Duration in get_args(each.type):
            yield prefix + each.encode_name, value
