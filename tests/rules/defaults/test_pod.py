"""Defaults of pods. The expected values are those that a real API server stored."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s import core
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.rules.images.reference import ImageReference, parse_image, pull_policy_for
from tests.rules.random_pods import random_pod

Json = dict[str, Any]


def stored(spec: Json) -> Json:
    """The spec of a pod with one container, after defaulting, as it would be written."""
    containers = spec.get("containers", [{"name": "c", "image": "app:v1"}])
    wire = {"metadata": {"name": "web"}, "spec": {**spec, "containers": containers}}
    written: Json = msgspec.json.decode(msgspec.json.encode(default_pod(msgspec.convert(wire, core.Pod)).spec))
    return written


def stored_container(**parts: Any) -> Json:
    container: Json = stored({"containers": [{"name": "c", "image": "app:v1", **parts}]})["containers"][0]
    return container


def stored_volume(**source: Any) -> Json:
    volume: Json = stored({"volumes": [{"name": "v", **source}]})["volumes"][0]
    return {name: value for name, value in volume.items() if name != "name"}


def test_a_bare_pod_gets_what_the_api_server_stores() -> None:
    assert stored({}) == {
        "containers": [
            {
                "name": "c",
                "image": "app:v1",
                "imagePullPolicy": "IfNotPresent",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    }


SPECS = {
    "empty texts are absent": (
        {"restartPolicy": "", "dnsPolicy": ""},
        {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"},
    ),
    "given values stay": (
        {"restartPolicy": "Never", "enableServiceLinks": False},
        {"restartPolicy": "Never", "enableServiceLinks": False},
    ),
    "a grace period of zero stays": ({"terminationGracePeriodSeconds": 0}, {"terminationGracePeriodSeconds": 0}),
    "a negative grace period is one second": (
        {"terminationGracePeriodSeconds": -5},
        {"terminationGracePeriodSeconds": 1},
    ),
    "the service account's old name is filled from the new": (
        {"serviceAccountName": "robot"},
        {"serviceAccountName": "robot", "serviceAccount": "robot"},
    ),
    "and the new from the old": (
        {"serviceAccount": "robot"},
        {"serviceAccountName": "robot", "serviceAccount": "robot"},
    ),
    "the new name has priority": (
        {"serviceAccount": "old", "serviceAccountName": "new"},
        {"serviceAccount": "new", "serviceAccountName": "new"},
    ),
    "overhead is in canonical form": (
        {"overhead": {"cpu": "0.25", "memory": "1024Ki"}},
        {"overhead": {"cpu": "250m", "memory": "1Mi"}},
    ),
}


@pytest.mark.parametrize("given, expected", SPECS.values(), ids=SPECS.keys())
def test_pod_spec(given: Json, expected: Json) -> None:
    result = stored(given)
    assert {name: result.get(name) for name in expected} == expected


TIMINGS = {"failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1}
CONTAINERS = {
    "latest is always pulled": ({"image": "app:latest"}, {"imagePullPolicy": "Always"}),
    "no tag means latest": ({"image": "registry.example:5000/team/app"}, {"imagePullPolicy": "Always"}),
    "a digest is not latest": ({"image": "app@sha256:" + "0" * 64}, {"imagePullPolicy": "IfNotPresent"}),
    "an invalid name is not latest": ({"image": "App"}, {"imagePullPolicy": "IfNotPresent"}),
    "the protocol is TCP": ({"ports": [{"containerPort": 80}]}, {"ports": [{"containerPort": 80, "protocol": "TCP"}]}),
    "probes get their timings": (
        {"livenessProbe": {"exec": {"command": ["true"]}}},
        {"livenessProbe": {"exec": {"command": ["true"]}, **TIMINGS}},
    ),
    "zero timings are absent": (
        {"startupProbe": {"periodSeconds": 0, "failureThreshold": 9}},
        {"startupProbe": {**TIMINGS, "failureThreshold": 9}},
    ),
    "http probes use the path /": (
        {"readinessProbe": {"httpGet": {"port": 80}}},
        {"readinessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, **TIMINGS}},
    ),
    "grpc probes use the empty service": (
        {"readinessProbe": {"grpc": {"port": 80}}},
        {"readinessProbe": {"grpc": {"port": 80, "service": ""}, **TIMINGS}},
    ),
    "http hooks use the path /": (
        {"lifecycle": {"preStop": {"httpGet": {"port": "web"}}}},
        {"lifecycle": {"preStop": {"httpGet": {"path": "/", "port": "web", "scheme": "HTTP"}}}},
    ),
    "fields of the pod are of v1": (
        {"env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
        {"env": [{"name": "N", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}]},
    ),
    "the divisor is zero": (
        {"env": [{"name": "N", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
        {"env": [{"name": "N", "valueFrom": {"resourceFieldRef": {"divisor": "0", "resource": "limits.cpu"}}}]},
    ),
    "keys of files are required": (
        {"env": [{"name": "N", "valueFrom": {"fileKeyRef": {"key": "K", "path": "p", "volumeName": "v"}}}]},
        {
            "env": [
                {
                    "name": "N",
                    "valueFrom": {"fileKeyRef": {"key": "K", "optional": False, "path": "p", "volumeName": "v"}},
                }
            ]
        },
    ),
    "requests follow limits": (
        {"resources": {"limits": {"cpu": "1"}}},
        {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}},
    ),
    "requests that are given stay": (
        {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "0.5"}}},
        {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}},
    ),
    "finer than a thousandth is rounded up": (
        {"resources": {"requests": {"cpu": "0.0001"}}},
        {"resources": {"requests": {"cpu": "1m"}}},
    ),
    "bare numbers become text": (
        {"resources": {"requests": {"cpu": 0.5, "memory": 1024}}},
        {"resources": {"requests": {"cpu": "500m", "memory": "1024"}}},
    ),
    "invalid quantities stay": (
        {"resources": {"limits": {"cpu": "lots"}}},
        {"resources": {"limits": {"cpu": "lots"}, "requests": {"cpu": "lots"}}},
    ),
}


@pytest.mark.parametrize("given, expected", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_container(given: Json, expected: Json) -> None:
    result = stored_container(**given)
    assert {name: result.get(name) for name in expected} == expected


def test_init_and_ephemeral_containers_are_completed_too() -> None:
    given = {"initContainers": [{"name": "i", "image": "app"}], "ephemeralContainers": [{"name": "e", "image": "app"}]}
    result = stored(given)
    for part in given:
        assert result[part][0]["imagePullPolicy"] == "Always"
        assert result[part][0]["terminationMessagePolicy"] == "File"


def test_in_the_host_network_container_ports_are_host_ports() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}]
    spec = {"containers": [{"name": "c", "ports": ports}], "initContainers": [{"name": "i", "ports": ports}]}
    result = stored({**spec, "hostNetwork": True})
    assert [port["hostPort"] for port in result["containers"][0]["ports"]] == [80, 8081]
    assert [port["hostPort"] for port in result["initContainers"][0]["ports"]] == [80, 8081]
    assert "hostPort" not in stored({**spec, "hostNetwork": False})["containers"][0]["ports"][0]


POD_LEVEL = {
    "requests of the pod are what its containers need": (
        {"limits": {"cpu": "4"}},
        {"requests": {"cpu": "1"}},
        {"limits": {"cpu": "4"}, "requests": {"cpu": "1"}},
    ),
    "or its limits if they have none": (
        {"limits": {"memory": "1Gi"}},
        {},
        {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}},
    ),
    "without limits nothing is filled in": (
        {"requests": {"cpu": "1"}},
        {"requests": {"memory": "1Gi"}},
        {"requests": {"cpu": "1"}},
    ),
    "huge pages of containers become limits of the pod": (
        {"limits": {"cpu": "4"}},
        {"limits": {"hugepages-2Mi": "4Mi"}},
        {"limits": {"cpu": "4", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "4", "hugepages-2Mi": "4Mi"}},
    ),
    "extended resources are not pod-level": (
        {"limits": {"cpu": "4"}},
        {"limits": {"example.com/gpu": "1"}},
        {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}},
    ),
}


@pytest.mark.parametrize("whole, part, expected", POD_LEVEL.values(), ids=POD_LEVEL.keys())
def test_resources_of_the_pod_as_a_whole(whole: Json, part: Json, expected: Json) -> None:
    assert stored({"resources": whole, "containers": [{"name": "c", "resources": part}]})["resources"] == expected


VOLUMES = {
    "no kind is an empty directory": ({}, {"emptyDir": {}}),
    "secrets are readable": ({"secret": {"secretName": "s"}}, {"secret": {"secretName": "s", "defaultMode": 0o644}}),
    "config maps are readable": ({"configMap": {"name": "s"}}, {"configMap": {"name": "s", "defaultMode": 0o644}}),
    "a mode of zero stays": ({"configMap": {"defaultMode": 0}}, {"configMap": {"defaultMode": 0}}),
    "the type of a host path is empty": ({"hostPath": {"path": "/x"}}, {"hostPath": {"path": "/x", "type": ""}}),
    "sizes are in canonical form": ({"emptyDir": {"sizeLimit": "1024Mi"}}, {"emptyDir": {"sizeLimit": "1Gi"}}),
    "the downward API is of v1": (
        {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {
            "downwardAPI": {
                "defaultMode": 0o644,
                "items": [{"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}}],
            }
        },
    ),
    "tokens live for an hour": (
        {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        {
            "projected": {
                "defaultMode": 0o644,
                "sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}],
            }
        },
    ),
    "image volumes follow their tag": (
        {"image": {"reference": "app"}},
        {"image": {"reference": "app", "pullPolicy": "Always"}},
    ),
    "ephemeral claims have mode Filesystem": (
        {"ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1024Mi"}}}}}},
        {
            "ephemeral": {
                "volumeClaimTemplate": {
                    "metadata": {},
                    "spec": {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}},
                }
            }
        },
    ),
    "iscsi has a default interface": (
        {"iscsi": {"targetPortal": "t", "iqn": "i"}},
        {"iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0, "iscsiInterface": "default"}},
    ),
    "rbd has a default pool": (
        {"rbd": {"image": "i"}},
        {"rbd": {"image": "i", "monitors": [], "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"}},
    ),
}


@pytest.mark.parametrize("given, expected", VOLUMES.values(), ids=VOLUMES.keys())
def test_volume(given: Json, expected: Json) -> None:
    assert stored_volume(**given) == expected


IMAGES = {
    "busybox": ImageReference("latest", ""),
    "busybox:1.36": ImageReference("1.36", ""),
    "localhost/app": ImageReference("latest", ""),
    "index.docker.io/app:v1": ImageReference("v1", ""),
    "registry.example:5000/team/app:v1": ImageReference("v1", ""),
    "[2001:db8::1]:5000/app": ImageReference("latest", ""),
    "Registry/app": ImageReference("latest", ""),
    "app:v1@sha256:" + "a" * 64: ImageReference("v1", "sha256:" + "a" * 64),
    "": None,
    "App": None,
    "team/App": None,
    "app:": None,
    "app:-v1": None,
    "a b": None,
    "a" * 64: None,
    "app@sha256:" + "a" * 63: None,
    "app@md5:" + "a" * 32: None,
    "app/": None,
    "http://registry/app": None,
}


@pytest.mark.parametrize("image", IMAGES)
def test_image_references(image: str) -> None:
    assert parse_image(image) == IMAGES[image]
    latest = IMAGES[image] is not None and IMAGES[image] == ImageReference("latest", "")
    assert pull_policy_for(image) == ("Always" if latest else "IfNotPresent")


@pytest.mark.parametrize("seed", range(40))
def test_defaulting_twice_is_defaulting_once(seed: int) -> None:
    once = default_pod(random_pod(seed))
    assert default_pod(once) == once


def test_defaulting_does_not_change_its_input() -> None:
    pod = random_pod(7)
    before = msgspec.json.encode(pod)
    default_pod(pod)
    assert msgspec.json.encode(pod) == before
