"""Defaults of the kubelet's configuration.

Go distinguishes an absent field from a zero only if the type has a pointer. So there are two kinds of defaults: for
absent fields, and for fields that are absent or zero. Three defaults depend on other fields: the status report
frequency, serialized image pulls, and the eviction thresholds.

Kubelet counterparts: `SetDefaults_KubeletConfiguration` and, for the thresholds, `loadConfigFile` in cmd/kubelet.
"""

from typing import Any, Final

import msgspec

from podkeeper.model.durations import parse_duration
from podkeeper.model.kubelet_config import (
    Duration,
    KubeletAuthentication,
    KubeletAuthorization,
    KubeletConfiguration,
)
from podkeeper.model.wire import Wire

EVICTION_HARD: Final = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}

_IF_ABSENT: Final[dict[str, Any]] = {
    "enable_server": True,
    "registry_pull_qps": 5,
    "event_record_qps": 50,
    "enable_debugging_handlers": True,
    "healthz_port": 10248,
    "image_gc_high_threshold_percent": 85,
    "image_gc_low_threshold_percent": 80,
    "cgroups_per_qos": True,
    "pod_pids_limit": -1,
    "resolv_conf": "/etc/resolv.conf",
    "cpu_cfs_quota": True,
    "cpu_cfs_quota_period": "100ms",
    "node_status_max_images": 50,
    "kube_api_qps": 50,
    "merge_default_eviction_settings": False,
    "fail_swap_on": True,
    "container_log_max_files": 5,
    "container_log_max_workers": 1,
    "container_log_monitor_interval": "10s",
    "enforce_node_allocatable": ("pods",),
    "seccomp_default": False,
    "register_node": True,
    "local_storage_capacity_isolation": True,
}

_IF_ABSENT_OR_ZERO: Final[dict[str, Any]] = {
    "address": "0.0.0.0",
    "port": 10250,
    "registry_burst": 10,
    "event_burst": 100,
    "healthz_bind_address": "127.0.0.1",
    "node_lease_duration_seconds": 40,
    "cgroup_driver": "cgroupfs",
    "image_pull_credentials_verification_policy": "NeverVerifyPreloadedImages",
    "max_pods": 110,
    "kube_api_burst": 100,
    "container_log_max_size": "10Mi",
    "config_map_and_secret_change_detection_strategy": "Watch",
    "container_runtime_endpoint": "unix:///run/containerd/containerd.sock",
    "pod_logs_dir": "/var/log/pods",
}

# As in SetDefaults_KubeletConfiguration: for these fields, an explicit zero means the default.
_IF_ZERO_DURATION: Final[dict[str, str]] = {
    "sync_frequency": "1m0s",
    "file_check_frequency": "20s",
    "http_check_frequency": "20s",
    "streaming_connection_idle_timeout": "4h0m0s",
    "node_status_update_frequency": "10s",
    "image_minimum_gc_age": "2m0s",
    "volume_stats_agg_period": "1m0s",
    "runtime_request_timeout": "2m0s",
    "eviction_pressure_transition_period": "5m0s",
}


def with_defaults(config: KubeletConfiguration) -> KubeletConfiguration:
    """Return the configuration with all defaults. Its durations must be valid."""
    crash_loop = config.crash_loop_back_off
    limit = config.pod_pids_limit
    parallel_pulls = config.max_parallel_image_pulls
    return msgspec.structs.replace(
        config,
        **_if_absent(config, _IF_ABSENT),
        **_if_zero(config, _IF_ABSENT_OR_ZERO),
        **_if_zero_duration(config, _IF_ZERO_DURATION),
        # As in the kubelet, every negative value means no limit.
        **({"pod_pids_limit": -1} if limit is not None and limit < 0 else {}),
        # If only the update frequency is set, it also applies to reports.
        **_if_zero_duration(
            config, {"node_status_report_frequency": _nonzero(config.node_status_update_frequency) or "5m0s"}
        ),
        **_if_absent(config, {"serialize_image_pulls": parallel_pulls is None or parallel_pulls < 2}),
        eviction_hard=_eviction_hard(config),
        authentication=_authentication(config.authentication),
        authorization=_authorization(config.authorization),
        crash_loop_back_off=msgspec.structs.replace(
            crash_loop, **_if_absent(crash_loop, {"max_container_restart_period": "5m0s"})
        ),
    )


def _if_absent(struct: Wire, defaults: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if getattr(struct, name) is None}


def _if_zero(struct: Wire, defaults: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if not getattr(struct, name)}


def _if_zero_duration(struct: Wire, defaults: dict[str, str]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if _nonzero(getattr(struct, name)) is None}


def _nonzero(duration: Duration | None) -> Duration | None:
    """Return a duration, None if it is absent or zero."""
    return None if duration is None or parse_duration(duration) == 0 else duration


def _eviction_hard(config: KubeletConfiguration) -> dict[str, str]:
    if config.eviction_hard is None:
        return EVICTION_HARD
    return EVICTION_HARD | config.eviction_hard if config.merge_default_eviction_settings else config.eviction_hard


def _authentication(given: KubeletAuthentication) -> KubeletAuthentication:
    webhook = msgspec.structs.replace(
        given.webhook,
        **_if_absent(given.webhook, {"enabled": True}),
        **_if_zero_duration(given.webhook, {"cache_ttl": "2m0s"}),
    )
    anonymous = msgspec.structs.replace(given.anonymous, **_if_absent(given.anonymous, {"enabled": False}))
    return msgspec.structs.replace(given, webhook=webhook, anonymous=anonymous)


def _authorization(given: KubeletAuthorization) -> KubeletAuthorization:
    lifetimes = {"cache_authorized_ttl": "5m0s", "cache_unauthorized_ttl": "30s"}
    webhook = msgspec.structs.replace(given.webhook, **_if_zero_duration(given.webhook, lifetimes))
    return msgspec.structs.replace(given, mode=given.mode or "Webhook", webhook=webhook)
