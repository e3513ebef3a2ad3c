"""The builders set what their parameters name, and nothing else."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s.core import Container, EmptyDirVolumeSource, Pod, PodStatus, Probe, Volume
from podkeeper.model.messages import FILE_SOURCE
from podkeeper.model.pods import uid_of
from podkeeper.runtimes.fake.behaviour import Behaviour
from podkeeper.testing.build import container, exec_hook, pod, probe


def wire(value: Pod | Container | Probe) -> Any:
    """The fields of an object that are set."""

    def pruned(each: Any) -> Any:
        if isinstance(each, dict):
            kept = {key: pruned(part) for key, part in each.items()}
            return {key: part for key, part in kept.items() if part not in (None, {}, [])}
        return [pruned(part) for part in each] if isinstance(each, list) else each

    return pruned(msgspec.json.decode(msgspec.json.encode(value)))


PLAIN: dict[str, dict[str, Any]] = {
    "metadata": {"name": "web", "namespace": "default", "uid": "uid-web"},
    "spec": {
        "containers": [{"name": "app", "image": "app:v1"}],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
    },
}
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a user's pod has no UID": ({"uid": ""}, "metadata", {"name": "web", "namespace": "default"}),
    "a mirror pod": (
        {"source": FILE_SOURCE, "mirror": "h", "hashed": "h"},
        "metadata",
        PLAIN["metadata"]
        | {
            "annotations": {
                "kubernetes.io/config.source": "file",
                "kubernetes.io/config.mirror": "h",
                "kubernetes.io/config.hash": "h",
            }
        },
    ),
    "a deleted pod": (
        {"deleted": True, "deletion_grace": 5, "version": 7},
        "metadata",
        PLAIN["metadata"]
        | {
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 5,
            "resourceVersion": "7",
        },
    ),
    "a scripted container": (
        {"behaviours": {"app": Behaviour(exit_code=3)}},
        "metadata",
        PLAIN["metadata"] | {"annotations": {"fake.podkeeper.io/app": '{"exit_code":3}'}},
    ),
    "another image": (
        {"image": "nginx:2"},
        "spec",
        PLAIN["spec"] | {"containers": [{"name": "app", "image": "nginx:2"}]},
    ),
    "volumes with and without a source": (
        {"volumes": ("data", Volume(name="cache", empty_dir=EmptyDirVolumeSource(medium="Memory")))},
        "spec",
        PLAIN["spec"] | {"volumes": [{"name": "data"}, {"name": "cache", "emptyDir": {"medium": "Memory"}}]},
    ),
    "other fields of the spec win": (
        {"grace": 5, "volumes": ("data",), "spec": {"termination_grace_period_seconds": 7, "hostname": "h"}},
        "spec",
        PLAIN["spec"] | {"terminationGracePeriodSeconds": 7, "hostname": "h", "volumes": [{"name": "data"}]},
    ),
}


def test_a_plain_pod() -> None:
    assert wire(pod()) == PLAIN
    assert uid_of(pod("db")) == "uid-db"
    assert uid_of(pod("db", uid_prefix="")) == "db"
    assert uid_of(pod(uid="")) == ""
    assert pod(generation=3).metadata.generation == 3
    assert pod().metadata.annotations is None
    assert pod(annotations={}).metadata.annotations == {}


@pytest.mark.parametrize("case", CASES)
def test_parameters_of_a_pod(case: str) -> None:
    given, part, expected = CASES[case]
    assert wire(pod(**given))[part] == expected


def test_the_status_of_a_pod() -> None:
    assert pod(phase="Running").status == PodStatus(phase="Running")
    assert pod(status=PodStatus(phase="Failed", reason="Evicted")).status.reason == "Evicted"


def test_containers_and_probes() -> None:
    assert wire(container("db", sidecar=True, working_dir="/x")) == {
        "name": "db",
        "image": "db:v1",
        "restartPolicy": "Always",
        "workingDir": "/x",
    }
    assert wire(container(requests={"cpu": "1"}, limits={"cpu": "2"}))["resources"] == {
        "requests": {"cpu": "1"},
        "limits": {"cpu": "2"},
    }
    assert wire(container(restart_rule=("Restart", 42)))["restartPolicyRules"] == [
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    ]
    assert wire(container(pre_stop=exec_hook("bye")))["lifecycle"] == {"preStop": {"exec": {"command": ["bye"]}}}
    assert wire(probe("ls", period=3, initial_delay_seconds=1)) == {
        "exec": {"command": ["ls"]},
        "periodSeconds": 3,
        "initialDelaySeconds": 1,
        "failureThreshold": 3,
        "successThreshold": 1,
        "timeoutSeconds": 1,
    }
