"""The hand-written models: durations, the kubelet's configuration, tables, metrics, discovery."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.discovery import APIGroupDiscoveryList, APIResourceDiscovery, APISubresourceDiscovery
from podkeeper.model.durations import format_duration, parse_duration, seconds_of
from podkeeper.model.errors import BadInput
from podkeeper.model.kubelet_config import (
    KUBELET_FIELDS,
    Duration,
    KubeletConfiguration,
    ShutdownGracePeriodByPodPriority,
    read_kubelet_configuration,
    unsupported_fields,
)
from podkeeper.model.kubelet_defaults import EVICTION_HARD, with_defaults
from podkeeper.model.manifest import Document, read_documents
from podkeeper.model.pod_metrics import ContainerMetrics, NodeMetrics, NodeMetricsList, PodMetrics, PodMetricsList
from podkeeper.model.table import Table, TableColumnDefinition, TableRow, TableRowCondition
from podkeeper.model.wire import Wire

SECOND = 1_000_000_000

# What Go's time.ParseDuration and Duration.String say.
DURATIONS = {
    "zero": ("0", 0, "0s"),
    "minus zero": ("-0", 0, "0s"),
    "a minute and a half": ("90s", 90 * SECOND, "1m30s"),
    "an hour": ("60m", 3600 * SECOND, "1h0m0s"),
    "several terms": ("1h15m30.918s", 4_530_918_000_000, "1h15m30.918s"),
    "the same unit twice": ("1s1s", 2 * SECOND, "2s"),
    "half an hour": (".5h", 1800 * SECOND, "30m0s"),
    "a point without a fraction": ("1.s", SECOND, "1s"),
    "milliseconds": ("100ms", 100_000_000, "100ms"),
    "microseconds in three spellings": ("1us1µs1μs", 3_000, "3µs"),
    "less than a microsecond": ("999ns", 999, "999ns"),
    "a part of a microsecond": ("1.5us", 1_500, "1.5µs"),
    "negative": ("-1.5s", -1_500_000_000, "-1.5s"),
    "a fraction is cut to nanoseconds": ("0.9999999999s", 999_999_999, "999.999999ms"),
    "more digits than count": ("0.1000000000000000000000000000000000001h", 360 * SECOND, "6m0s"),
    "the longest": ("9223372036854775807ns", 2**63 - 1, "2562047h47m16.854775807s"),
    "the longest into the past": ("-9223372036854775808ns", -(2**63), "-2562047h47m16.854775808s"),
}


@pytest.mark.parametrize("text, nanoseconds, written", DURATIONS.values(), ids=DURATIONS.keys())
def test_a_duration_is_read_and_written_as_in_go(text: str, nanoseconds: int, written: str) -> None:
    assert parse_duration(text) == nanoseconds
    assert format_duration(nanoseconds) == written


@pytest.mark.parametrize(
    "text",
    ["", "-", "5", "1h5", "1d", "1S", ".s", "1e3s", " 1s", "1s ", "9223372036854775808ns", "3000000h", "1" * 5000],
)
def test_a_malformed_duration_is_rejected(text: str) -> None:
    with pytest.raises(BadInput, match=r"Invalid value: .*: must be a duration"):
        parse_duration(text)


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-3600 * SECOND, 3600 * SECOND))
def test_formatted_durations_parse_to_the_same_value(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


def test_seconds_for_timers() -> None:
    assert seconds_of("1m0.5s") == 60.5


def configuration(body: str) -> Document:
    text = f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{body}"
    (document,) = read_documents(text, "kubelet.yaml").all_valid()
    return document


def test_supported_fields_are_fields_of_the_kubelet() -> None:
    ours = {field.encode_name for field in msgspec.structs.fields(KubeletConfiguration)} - {"apiVersion", "kind"}
    assert ours < KUBELET_FIELDS


def test_a_kubelet_configuration_is_decoded() -> None:
    config = read_kubelet_configuration(
        configuration(
            "staticPodPath: /etc/kubernetes/manifests\nsyncFrequency: 90s\nport: 0\n"
            "shutdownGracePeriodByPodPriority: [{priority: 5}]\nauthentication: {webhook: {cacheTTL: 5m}}\n"
        )
    )
    assert config.static_pod_path == "/etc/kubernetes/manifests"
    assert config.sync_frequency == "90s"
    assert config.port == 0
    assert config.shutdown_grace_period_by_pod_priority == (ShutdownGracePeriodByPodPriority(priority=5),)
    assert config.authentication.webhook.cache_ttl == "5m"
    assert config.authentication.anonymous.enabled is None


BAD_CONFIGURATIONS = {
    "a number as a duration": (
        "syncFrequency: 60",
        "kubelet.yaml:3: syncFrequency: Invalid value: number 60: must be a string",
    ),
    "a duration without a unit": (
        'syncFrequency: "60"',
        'kubelet.yaml:3: syncFrequency: Invalid value: "60": must be a duration',
    ),
    "a duration deep inside": (
        "authorization:\n  webhook:\n    cacheAuthorizedTTL: x",
        'kubelet.yaml:5: authorization.webhook.cacheAuthorizedTTL: Invalid value: "x": must be a duration',
    ),
    "another kind": (
        "---\nkind: Pod",
        'kubelet.yaml:4: kind: Unsupported value: "Pod": must be kind KubeletConfiguration',
    ),
}


@pytest.mark.parametrize("body, message", BAD_CONFIGURATIONS.values(), ids=BAD_CONFIGURATIONS.keys())
def test_an_invalid_configuration_is_reported(body: str, message: str) -> None:
    text = f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{body}\n"
    with pytest.raises(BadInput) as caught:
        read_kubelet_configuration(read_documents(text, "kubelet.yaml").all_valid()[-1])
    assert str(caught.value).startswith(message)


def test_unsupported_and_unknown_fields_are_reported() -> None:
    found = unsupported_fields(
        configuration("maxPods: 5\ncpuManagerPolicy: static\nmaxPod: 3\ncrashLoopBackOff: {max: 1s}\n")
    )
    assert [str(problem) for problem in found.unsupported] == [
        "kubelet.yaml:4: cpuManagerPolicy: unsupported by podkeeper, ignored"
    ]
    assert [(problem.field, problem.line) for problem in found.unknown] == [("maxPod", 5), ("crashLoopBackOff.max", 6)]


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


WRITTEN: dict[str, tuple[Wire, Any]] = {
    "an empty table": (Table(), {"metadata": {}, "columnDefinitions": [], "rows": []}),
    "a column": (
        TableColumnDefinition(name="Name"),
        {"name": "Name", "type": "", "format": "", "description": "", "priority": 0},
    ),
    "a row without its object": (TableRow(cells=("a", 1, None)), {"cells": ["a", 1, None], "object": None}),
    "a row with everything": (
        TableRow(object={"kind": "Pod"}, conditions=(TableRowCondition(type="Completed", status="True"),)),
        {"cells": [], "object": {"kind": "Pod"}, "conditions": [{"type": "Completed", "status": "True"}]},
    ),
    "empty pod metrics": (PodMetrics(), {"metadata": {}, "timestamp": None, "window": "0s", "containers": []}),
    "metrics of a container": (
        ContainerMetrics(name="a", usage={"cpu": "5m"}),
        {"name": "a", "usage": {"cpu": "5m"}},
    ),
    "empty node metrics": (NodeMetrics(), {"metadata": {}, "timestamp": None, "window": "0s", "usage": {}}),
    "empty lists of metrics": (PodMetricsList(), {"metadata": {}, "items": []}),
    "of nodes too": (NodeMetricsList(), {"metadata": {}, "items": []}),
    "an empty discovery": (APIGroupDiscoveryList(), {"metadata": {}, "items": []}),
    "a discovered resource": (
        APIResourceDiscovery(resource="pods", scope="Namespaced"),
        {"resource": "pods", "scope": "Namespaced", "singularResource": "", "verbs": []},
    ),
    "a discovered subresource": (APISubresourceDiscovery(subresource="log"), {"subresource": "log", "verbs": []}),
    "an empty configuration": (
        KubeletConfiguration(),
        {
            "authentication": {"x509": {}, "webhook": {}, "anonymous": {}},
            "authorization": {"webhook": {}},
            "crashLoopBackOff": {},
            "containerRuntimeEndpoint": "",
        },
    ),
}


@pytest.mark.parametrize("struct, wire", WRITTEN.values(), ids=WRITTEN.keys())
def test_fields_that_are_always_written(struct: Wire, wire: Any) -> None:
    encoded = msgspec.json.encode(struct)
    assert msgspec.json.decode(encoded) == wire
    assert msgspec.json.decode(encoded, type=type(struct)) == struct
    # Go takes null anywhere, and reads it as the zero.
    assert msgspec.convert(dict.fromkeys(wire), type(struct)) == type(struct)()
