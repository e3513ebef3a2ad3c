"""Defaults of the KubeletConfiguration."""

from typing import Any

import pytest

from podkeeper.model.kubelet_config import (
    Duration,
    KubeletConfiguration,
)
from podkeeper.model.kubelet_defaults import EVICTION_HARD, with_defaults


def defaulted(**fields: Any) -> KubeletConfiguration:
    return with_defaults(KubeletConfiguration(**fields))


def test_absent_fields_get_the_kubelets_defaults() -> None:
    config = defaulted()
    assert (config.port, config.max_pods, config.sync_frequency) == (10250, 110, "1m0s")
    assert (config.authentication.anonymous.enabled, config.authentication.webhook.enabled) == (False, True)
    assert (config.authorization.mode, config.authorization.webhook.cache_unauthorized_ttl) == ("Webhook", "30s")
    assert (config.crash_loop_back_off.max_container_restart_period, config.eviction_hard) == ("5m0s", EVICTION_HARD)
    assert (config.node_status_update_frequency, config.node_status_report_frequency) == ("10s", "5m0s")


def test_defaulting_twice_is_defaulting_once() -> None:
    assert with_defaults(defaulted()) == defaulted()


ZEROS: dict[str, tuple[KubeletConfiguration, KubeletConfiguration]] = {
    "a zero that Go cannot distinguish from absent": (defaulted(port=0, address=""), defaulted()),
    "a duration of zero": (defaulted(sync_frequency=Duration("0s")), defaulted()),
    "a negative limit of processes": (defaulted(pod_pids_limit=-7), defaulted()),
}


@pytest.mark.parametrize("got, expected", ZEROS.values(), ids=ZEROS.keys())
def test_zeros_that_mean_absent(got: KubeletConfiguration, expected: KubeletConfiguration) -> None:
    assert got == expected


def test_zeros_that_mean_zero() -> None:
    config = defaulted(healthz_port=0, enforce_node_allocatable=(), resolv_conf="", event_record_qps=0)
    assert (config.healthz_port, config.enforce_node_allocatable) == (0, ())
    assert (config.resolv_conf, config.event_record_qps) == ("", 0)


def test_defaults_that_follow_from_other_fields() -> None:
    assert defaulted(node_status_update_frequency=Duration("5s")).node_status_report_frequency == "5s"
    assert [defaulted(max_parallel_image_pulls=n).serialize_image_pulls for n in (None, 1, 2)] == [True, True, False]
    own = {"memory.available": "1Gi"}
    assert defaulted(eviction_hard=own).eviction_hard == own
    assert defaulted(eviction_hard=own, merge_default_eviction_settings=True).eviction_hard == EVICTION_HARD | own
    assert defaulted(eviction_hard={}).eviction_hard == {}
