"""What the kubelet's configuration means where its file is silent.

Go tells an absent field from a zero only where the type holds a pointer, so there are two kinds of
defaults: for fields that are absent, and for fields that are absent or zero. Three follow from
others: how often status is reported, whether image pulls are serialized, and the eviction
thresholds. The Go ancestors are `SetDefaults_KubeletConfiguration` and, for the
thresholds, `loadConfigFile` in cmd/kubelet.
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

_IF_NO_TIME: Final[dict[str, str]] = {
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
    """The configuration complete; durations in it must be readable."""
    crash_loop = config.crash_loop_back_off
    limit = config.pod_pids_limit
    parallel_pulls = config.max_parallel_image_pulls
    return msgspec.structs.replace(
        config,
        **_silent(config, _IF_ABSENT),
        **_zero(config, _IF_ABSENT_OR_ZERO),
        **_no_time(config, _IF_NO_TIME),
        **({"pod_pids_limit": -1} if limit is not None and limit < 0 else {}),
        # Whoever sets only the one frequency means both.
        **_no_time(config, {"node_status_report_frequency": _given(config.node_status_update_frequency) or "5m0s"}),
        **_silent(config, {"serialize_image_pulls": parallel_pulls is None or parallel_pulls < 2}),
        eviction_hard=_eviction_hard(config),
        authentication=_authentication(config.authentication),
        authorization=_authorization(config.authorization),
        crash_loop_back_off=msgspec.structs.replace(
            crash_loop, **_silent(crash_loop, {"max_container_restart_period": "5m0s"})
        ),
    )


def _silent(struct: Wire, defaults: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if getattr(struct, name) is None}


def _zero(struct: Wire, defaults: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if not getattr(struct, name)}


def _no_time(struct: Wire, defaults: dict[str, str]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if _given(getattr(struct, name)) is None}


def _given(duration: Duration | None) -> Duration | None:
    """A duration unless it is absent or zero."""
    return None if duration is None or parse_duration(duration) == 0 else duration


def _eviction_hard(config: KubeletConfiguration) -> dict[str, str]:
    if config.eviction_hard is None:
        return EVICTION_HARD
    return EVICTION_HARD | config.eviction_hard if config.merge_default_eviction_settings else config.eviction_hard


def _authentication(said: KubeletAuthentication) -> KubeletAuthentication:
    webhook = msgspec.structs.replace(
        said.webhook, **_silent(said.webhook, {"enabled": True}), **_no_time(said.webhook, {"cache_ttl": "2m0s"})
    )
    anonymous = msgspec.structs.replace(said.anonymous, **_silent(said.anonymous, {"enabled": False}))
    return msgspec.structs.replace(said, webhook=webhook, anonymous=anonymous)


def _authorization(said: KubeletAuthorization) -> KubeletAuthorization:
    lifetimes = {"cache_authorized_ttl": "5m0s", "cache_unauthorized_ttl": "30s"}
    webhook = msgspec.structs.replace(said.webhook, **_no_time(said.webhook, lifetimes))
    return msgspec.structs.replace(said, mode=said.mode or "Webhook", webhook=webhook)
