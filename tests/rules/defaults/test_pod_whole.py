"""Defaults of whole objects: given values are kept, and every absent field is set."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s import core
from podkeeper.rules.defaults.pod import default_pod

Json = dict[str, Any]


def stored(spec: Json) -> Json:
    pod = msgspec.convert({"metadata": {"name": "web"}, "spec": spec}, core.Pod)
    written: Json = msgspec.json.decode(msgspec.json.encode(default_pod(pod).spec))
    return written


PROBE = {
    "httpGet": {"path": "/x", "port": 1, "scheme": "HTTPS"},
    "grpc": {"port": 2, "service": "s"},
    "timeoutSeconds": 2,
    "periodSeconds": 3,
    "successThreshold": 4,
    "failureThreshold": 5,
}
HOOKS = {
    "postStart": {"httpGet": {"path": "/a", "port": 1, "scheme": "HTTPS"}},
    "preStop": {"httpGet": {"path": "/b", "port": 1, "scheme": "HTTPS"}},
}
GIVEN_CONTAINER = {
    "name": "c",
    "image": "app",
    "imagePullPolicy": "Never",
    "terminationMessagePath": "/log",
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "ports": [{"containerPort": 1, "hostPort": 2, "protocol": "UDP"}],
    "env": [
        {"name": "A", "value": "x"},
        {"name": "B", "valueFrom": {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {"name": "D", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v", "optional": True}}},
    ],
    "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}},
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "startupProbe": PROBE,
    "lifecycle": HOOKS,
}
DOWNWARD_ITEMS = [
    {"path": "a", "fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}},
    {"path": "b", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}},
]
GIVEN_CLAIM = {"limits": {"storage": "2Gi"}, "requests": {"storage": "1Gi"}}
GIVEN_VOLUMES: list[Json] = [
    {"secret": {"secretName": "s", "defaultMode": 1}},
    {"configMap": {"name": "s", "defaultMode": 2}},
    {"downwardAPI": {"defaultMode": 3, "items": DOWNWARD_ITEMS}},
    {
        "projected": {
            "defaultMode": 4,
            "sources": [
                {"downwardAPI": {"items": DOWNWARD_ITEMS}},
                {"serviceAccountToken": {"path": "t", "expirationSeconds": 600}},
            ],
        }
    },
    {"hostPath": {"path": "/x", "type": "File"}},
    {"emptyDir": {"sizeLimit": "1Gi"}},
    {"image": {"reference": "app", "pullPolicy": "Never"}},
    {"ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"volumeMode": "Block", "resources": GIVEN_CLAIM}}}},
    {"ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"volumeMode": "", "resources": {}}}}},
    {"ephemeral": {}},
    {"iscsi": {"targetPortal": "t", "iqn": "i", "lun": 1, "iscsiInterface": "tcp"}},
    {"rbd": {"image": "i", "monitors": ["m"], "pool": "p", "user": "u", "keyring": "/k"}},
    {
        "azureDisk": {
            "diskName": "d",
            "diskURI": "u",
            "cachingMode": "None",
            "fsType": "xfs",
            "kind": "Managed",
            "readOnly": True,
        }
    },
    {"azureDisk": {"diskName": "d", "diskURI": "u", "cachingMode": "", "fsType": "", "kind": "", "readOnly": False}},
    {"scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "n"}, "storageMode": "Thick", "fsType": "ext4"}},
    {"nfs": {"server": "s", "path": "/x"}},
]


def named(sources: list[Json]) -> list[Json]:
    return [{"name": f"v{index}", **source} for index, source in enumerate(sources)]


def test_given_values_are_kept() -> None:
    given = {
        "containers": [GIVEN_CONTAINER],
        "initContainers": [{**GIVEN_CONTAINER, "name": "i"}],
        "ephemeralContainers": [{**GIVEN_CONTAINER, "name": "e"}],
        "volumes": named(GIVEN_VOLUMES),
        "overhead": {"cpu": "1"},
        "resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "3"}},
        "restartPolicy": "Never",
        "dnsPolicy": "Default",
        "securityContext": {"runAsUser": 1},
        "terminationGracePeriodSeconds": 0,
        "schedulerName": "mine",
        "enableServiceLinks": False,
        "serviceAccountName": "robot",
        "serviceAccount": "robot",
    }
    assert stored(given) == given


FILLED_PROBE = {
    "httpGet": {"path": "/", "port": 1, "scheme": "HTTP"},
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
FILLED_HOOK = {"httpGet": {"path": "/", "port": 1, "scheme": "HTTP"}}


@pytest.mark.parametrize("place", ["containers", "initContainers", "ephemeralContainers"])
@pytest.mark.parametrize("silence", [None, ""])
def test_every_absent_field_of_a_container_is_set(place: str, silence: str | None) -> None:
    action = {"httpGet": {"path": silence, "port": 1, "scheme": silence}}
    given = {
        "name": "c",
        "image": silence,
        "imagePullPolicy": silence,
        "terminationMessagePath": silence,
        "terminationMessagePolicy": silence,
        "ports": [{"containerPort": 1, "protocol": silence}],
        "env": [
            {"name": "A", "valueFrom": {"fieldRef": {"apiVersion": silence, "fieldPath": "f"}}},
            {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "r", "divisor": "0.001"}}},
            {"name": "C", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}},
        ],
        "livenessProbe": action,
        "readinessProbe": action,
        "startupProbe": action,
        "lifecycle": {"postStart": action, "preStop": action},
        "resources": {"limits": {"cpu": 0.0001}, "requests": {"cpu": "0.5", "memory": "1024Ki"}},
    }
    filled = stored({"containers": [], place: [given]})[place][0]
    assert filled.pop("image", None) == silence
    assert filled == {
        "name": "c",
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "ports": [{"containerPort": 1, "protocol": "TCP"}],
        "env": [
            {"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "f"}}},
            {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "r", "divisor": "1m"}}},
            {"name": "C", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v", "optional": False}}},
        ],
        "livenessProbe": FILLED_PROBE,
        "readinessProbe": FILLED_PROBE,
        "startupProbe": FILLED_PROBE,
        "lifecycle": {"postStart": FILLED_HOOK, "preStop": FILLED_HOOK},
        "resources": {"limits": {"cpu": "1m"}, "requests": {"cpu": "500m", "memory": "1Mi"}},
    }


VOLUMES: dict[str, tuple[Json, Json]] = {
    "a secret": ({"secret": {}}, {"secret": {"defaultMode": 420}}),
    "a config map": ({"configMap": {}}, {"configMap": {"defaultMode": 420}}),
    "the downward API": (
        {"downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {"resource": "r", "divisor": "0.001"}}]}},
        {
            "downwardAPI": {
                "defaultMode": 420,
                "items": [{"path": "a", "resourceFieldRef": {"resource": "r", "divisor": "1m"}}],
            }
        },
    ),
    "the downward API without items": ({"downwardAPI": {}}, {"downwardAPI": {"defaultMode": 420}}),
    "a projection": (
        {"projected": {"sources": [{"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "f"}}]}}, {}]}},
        {
            "projected": {
                "defaultMode": 420,
                "sources": [
                    {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"apiVersion": "v1", "fieldPath": "f"}}]}},
                    {},
                ],
            }
        },
    ),
    "a host path": ({"hostPath": {"path": "/x", "type": ""}}, {"hostPath": {"path": "/x", "type": ""}}),
    "an empty directory": ({"emptyDir": {"medium": "Memory"}}, {"emptyDir": {"medium": "Memory"}}),
    "a tagged image": (
        {"image": {"reference": "a:v1"}},
        {"image": {"reference": "a:v1", "pullPolicy": "IfNotPresent"}},
    ),
    "no image": ({"image": {}}, {"image": {"pullPolicy": "IfNotPresent"}}),
    "a claim": (
        {
            "ephemeral": {
                "volumeClaimTemplate": {"spec": {"resources": {"limits": {"a": "1024Ki"}, "requests": {"a": "0.5"}}}}
            }
        },
        {
            "ephemeral": {
                "volumeClaimTemplate": {
                    "metadata": {},
                    "spec": {
                        "volumeMode": "Filesystem",
                        "resources": {"limits": {"a": "1Mi"}, "requests": {"a": "500m"}},
                    },
                }
            }
        },
    ),
    "an azure disk": (
        {"azureDisk": {"diskName": "d", "diskURI": "u"}},
        {
            "azureDisk": {
                "diskName": "d",
                "diskURI": "u",
                "cachingMode": "ReadWrite",
                "fsType": "ext4",
                "kind": "Shared",
                "readOnly": False,
            }
        },
    ),
    "scale IO": (
        {"scaleIO": {"gateway": "g", "system": "s", "secretRef": {}, "storageMode": "", "fsType": ""}},
        {
            "scaleIO": {
                "gateway": "g",
                "system": "s",
                "secretRef": {},
                "storageMode": "ThinProvisioned",
                "fsType": "xfs",
            }
        },
    ),
    "iscsi": (
        {"iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0, "iscsiInterface": ""}},
        {"iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0, "iscsiInterface": "default"}},
    ),
    "rbd": (
        {"rbd": {"image": "i", "monitors": [], "pool": "", "user": "", "keyring": ""}},
        {"rbd": {"image": "i", "monitors": [], "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"}},
    ),
    "two sources": (
        {"emptyDir": {}, "hostPath": {"path": "/x"}},
        {"emptyDir": {}, "hostPath": {"path": "/x", "type": ""}},
    ),
}


@pytest.mark.parametrize(("given", "expected"), VOLUMES.values(), ids=VOLUMES.keys())
def test_every_absent_field_of_a_volume_is_set(given: Json, expected: Json) -> None:
    assert stored({"containers": [], "volumes": named([given])})["volumes"] == named([expected])


@pytest.mark.parametrize(("seconds", "expected"), [(None, 30), (0, 0), (1, 1), (2, 2), (-1, 1), (-30, 1)], ids=str)
def test_the_grace_period_of_a_pod(seconds: int | None, expected: int) -> None:
    assert (
        stored({"containers": [], "terminationGracePeriodSeconds": seconds})["terminationGracePeriodSeconds"]
        == expected
    )


def test_container_ports_are_host_ports_only_in_the_host_network() -> None:
    ports = [{"containerPort": 1}, {"containerPort": 2, "hostPort": 3}, {"containerPort": 4, "hostPort": 0}, {}]
    spec = {
        "containers": [{"name": "c", "ports": ports}, {"name": "d"}],
        "initContainers": [{"name": "i", "ports": ports}],
    }
    for host_network, expected in ((True, [1, 3, 4, None]), (False, [None, 3, 0, None]), (None, [None, 3, 0, None])):
        result = stored({**spec, "hostNetwork": host_network})
        for place in ("containers", "initContainers"):
            assert [port.get("hostPort") for port in result[place][0]["ports"]] == expected


# Resources of the pod, of its only container, and of the pod after defaulting.
POD_LEVEL: dict[str, tuple[Json, Json, Json]] = {
    "no pod-level resources": ({}, {"limits": {"cpu": "1"}}, {}),
    "a request of huge pages is kept": (
        {"requests": {"hugepages-2Mi": "2Mi"}},
        {"limits": {"hugepages-2Mi": "4Mi"}},
        {"requests": {"hugepages-2Mi": "2Mi"}},
    ),
    "a limit of huge pages is kept": (
        {"limits": {"hugepages-2Mi": "8Mi"}},
        {"limits": {"hugepages-2Mi": "4Mi"}},
        {"limits": {"hugepages-2Mi": "8Mi"}, "requests": {"hugepages-2Mi": "8Mi"}},
    ),
    "huge pages beside a request": (
        {"requests": {"cpu": "1"}},
        {"limits": {"hugepages-2Mi": "4Mi"}},
        {"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}},
    ),
    "requests of containers have priority over pod-level limits": (
        {"limits": {"cpu": "4", "memory": "4Gi"}},
        {"requests": {"cpu": "1", "example.com/a": "1", "ephemeral-storage": "1Gi"}},
        {"limits": {"cpu": "4", "memory": "4Gi"}, "requests": {"cpu": "1", "memory": "4Gi"}},
    ),
    "pod-level requests have priority": (
        {"limits": {"cpu": "4"}, "requests": {"cpu": "2"}},
        {"requests": {"cpu": "1", "memory": "1Gi"}},
        {"limits": {"cpu": "4"}, "requests": {"cpu": "2", "memory": "1Gi"}},
    ),
    "a limit that is not pod-level becomes no request": (
        {"limits": {"example.com/a": "1"}},
        {},
        {"limits": {"example.com/a": "1"}},
    ),
    "quantities are in canonical form": (
        {"limits": {"cpu": "0.5"}},
        {},
        {"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}},
    ),
    "invalid quantities stay": (
        {"limits": {"cpu": "4"}},
        {"requests": {"cpu": "lots"}},
        {"limits": {"cpu": "4"}},
    ),
}


@pytest.mark.parametrize(("whole", "part", "expected"), POD_LEVEL.values(), ids=POD_LEVEL.keys())
def test_resources_of_the_pod_as_a_whole(whole: Json, part: Json, expected: Json) -> None:
    assert stored({"resources": whole, "containers": [{"name": "c", "resources": part}]})["resources"] == expected


def test_requests_follow_limits_in_init_containers_too() -> None:
    limited = {"name": "c", "resources": {"limits": {"cpu": "1"}}}
    result = stored({"containers": [limited], "initContainers": [limited], "ephemeralContainers": [limited]})
    requests = [result[place][0]["resources"].get("requests") for place in ("containers", "initContainers")]
    assert requests == [{"cpu": "1"}, {"cpu": "1"}]
    assert "requests" not in result["ephemeralContainers"][0]["resources"]
