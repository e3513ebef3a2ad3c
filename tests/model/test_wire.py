"""Absent, null and zero are three things on the wire; times are text outside and instants inside."""

import json
from typing import Any

import msgspec
import pytest

from podkeeper.model.discovery import APIGroupDiscoveryList, APIResourceDiscovery, APISubresourceDiscovery
from podkeeper.model.k8s import coordination, core, events, kinds, meta
from podkeeper.model.kubelet_config import KubeletConfiguration
from podkeeper.model.pod_metrics import ContainerMetrics, NodeMetrics, NodeMetricsList, PodMetrics, PodMetricsList
from podkeeper.model.table import Table, TableColumnDefinition, TableRow, TableRowCondition
from podkeeper.model.wire import Wire, fill


def encoded(value: Wire) -> Any:
    return json.loads(msgspec.json.encode(value))


ALWAYS_WRITTEN = {
    "a container status names its flags and its states": (
        core.ContainerStatus(name="web"),
        {"name": "web", "ready": False, "restartCount": 0, "image": "", "imageID": "", "state": {}, "lastState": {}},
    ),
    "a condition writes unknown times as null": (
        core.PodCondition(type="Ready", status="True"),
        {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": None},
    ),
    "a pod writes its three parts": (core.Pod(), {"metadata": {}, "spec": {"containers": []}, "status": {}}),
    "a container writes empty resources": (core.Container(name="web"), {"name": "web", "resources": {}}),
    "a running container writes its unknown start": (core.ContainerStateRunning(), {"startedAt": None}),
    "a terminated container writes its exit code": (
        core.ContainerStateTerminated(),
        {"exitCode": 0, "startedAt": None, "finishedAt": None},
    ),
    "a lease writes its spec": (coordination.Lease(), {"metadata": {}, "spec": {}}),
    "a list writes its items": (core.PodList(), {"metadata": {}, "items": []}),
    "optional zeros that were given are kept": (
        core.PodSpec(containers=(), host_network=False, termination_grace_period_seconds=0, init_containers=()),
        {"containers": [], "hostNetwork": False, "terminationGracePeriodSeconds": 0, "initContainers": []},
    ),
    "metadata does not write unknown times": (meta.ObjectMeta(name="x"), {"name": "x"}),
}


@pytest.mark.parametrize("value, expected", ALWAYS_WRITTEN.values(), ids=ALWAYS_WRITTEN.keys())
def test_encoding(value: Wire, expected: dict[str, Any]) -> None:
    assert encoded(value) == expected


GENERATED = sorted(Wire.__subclasses__(), key=lambda struct: f"{struct.__module__}.{struct.__name__}")


@pytest.mark.parametrize("struct", GENERATED, ids=lambda struct: struct.__name__)
def test_null_is_tolerated_everywhere_and_reads_as_absent(struct: type[Wire]) -> None:
    nulls = dict.fromkeys(struct.__struct_encode_fields__)
    from_nulls = msgspec.convert(nulls, struct)
    assert from_nulls == struct()
    assert msgspec.json.decode(msgspec.json.encode(from_nulls), type=struct) == struct()


def test_labels_null_and_labels_empty_differ() -> None:
    absent, empty = (msgspec.json.decode(raw, type=meta.ObjectMeta) for raw in (b"{}", b'{"labels": {}}'))
    assert (absent.labels, empty.labels) == (None, {})
    assert absent != empty
    assert encoded(empty) == {"labels": {}}


def test_unknown_fields_are_ignored() -> None:
    assert msgspec.json.decode(b'{"spec": {"notYetInvented": 1}}', type=core.Pod) == core.Pod()


def test_numbers_out_of_range_are_rejected_with_their_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.priority"):
        msgspec.json.decode(b'{"spec": {"priority": 2147483648}}', type=core.Pod)


def test_field_names_are_in_snake_case() -> None:
    pod = msgspec.json.decode(b'{"status": {"podIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.2"}]}}', type=core.Pod)
    assert pod.status.pod_ip == "10.0.0.1"
    assert pod.status.host_ips == (core.HostIP(ip="10.0.0.2"),)
    assert meta.ListMeta(continue_="token") == msgspec.json.decode(b'{"continue": "token"}', type=meta.ListMeta)


def test_fill_keeps_given_values() -> None:
    status = core.ContainerStatus(name="web", restart_count=3)
    fill(status)
    assert (status.name, status.restart_count, status.ready) == ("web", 3, False)


def test_kinds_map_to_their_structs() -> None:
    assert kinds.KINDS["v1", "Pod"] is core.Pod
    assert kinds.KINDS["events.k8s.io/v1", "Event"] is events.Event
    assert kinds.KINDS["v1", "Event"] is core.Event


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
    "an empty list of pod metrics": (PodMetricsList(), {"metadata": {}, "items": []}),
    "an empty list of node metrics": (NodeMetricsList(), {"metadata": {}, "items": []}),
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
    # Go accepts null anywhere and decodes it as the zero value.
    assert msgspec.convert(dict.fromkeys(wire), type(struct)) == type(struct)()
