"""Records from what CRI tells: pods that the reference kubelet started, and one law or case for each part."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.json_format import ParseDict

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import ActualResources, ContainerState, LinuxUser, NetworkMode, PodRecord
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.runtimes.cri.making import kept_config, with_kept_places
from podkeeper.runtimes.cri.records import (
    container_record,
    image_record,
    listed_pods,
    listed_sandbox,
    may_ask_log,
    pod_record,
    sandbox_record,
    termination_log_of,
)
from podkeeper.runtimes.cri.schema import cri

GOLDEN = Path(__file__).parent / "golden"
OBJECTS = json.loads((GOLDEN / "objects.json").read_text())
PODS = {
    pod["metadata"]["uid"]: pod
    for name in ("plain", "full", "hostish")
    for pod in [yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())]
}


def listed() -> tuple[list[cri.PodSandbox], list[cri.Container]]:
    sandboxes = [ParseDict(each["list"], cri.PodSandbox()) for each in OBJECTS["sandboxes"]]
    return sandboxes, [ParseDict(each["list"], cri.Container()) for each in OBJECTS["containers"]]


def adopted(uid: str) -> PodRecord:
    """A recorded pod, as the runtime makes it from statuses."""
    boxes = [each["status"] for each in OBJECTS["sandboxes"] if each["status"]["metadata"]["uid"] == uid]
    box = ParseDict(boxes[0], cri.PodSandboxStatus())
    containers = [
        container_record(ParseDict(each["status"], cri.ContainerStatus()), each["list"]["pod_sandbox_id"])
        for each in OBJECTS["containers"]
        if each["status"]["labels"]["io.kubernetes.pod.uid"] == uid
    ]
    return pod_record(uid, box.labels, [sandbox_record(box)], containers)


def statuses_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    status = pod["status"]
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


# Pods of the reference.


@pytest.mark.parametrize("uid", PODS, ids=[pod["metadata"]["name"] for pod in PODS.values()])
def test_a_pod_of_the_reference_is_adopted_as_the_api_shows_it(uid: str) -> None:
    record, pod = adopted(uid), PODS[uid]
    assert (record.name, record.namespace) == (pod["metadata"]["name"], pod["metadata"]["namespace"])
    shown = {status["containerID"].removeprefix("containerd://"): status for status in statuses_of(pod)}
    assert shown
    for container in record.containers:
        status = shown.get(container.id)
        if status is None:  # an earlier try
            continue
        assert (container.name, container.image) == (status["name"], status["image"])
        assert (container.image_id, container.restart_count) == (status["imageID"], status["restartCount"])


def test_a_pods_addresses_are_those_of_its_sandbox() -> None:
    for uid, pod in PODS.items():
        in_nodes_network = bool(pod["spec"].get("hostNetwork"))
        expected = () if in_nodes_network else tuple(each["ip"] for each in pod["status"]["podIPs"])
        record = adopted(uid)
        assert record.ips == expected
        assert record.sandboxes[0].network is (NetworkMode.NODE if in_nodes_network else NetworkMode.POD)


def test_lists_tell_the_same_ids_states_and_hashes_as_statuses() -> None:
    pods = {pod.uid: pod for pod in listed_pods(*listed())}
    assert pods.keys() == {each["status"]["metadata"]["uid"] for each in OBJECTS["sandboxes"]}
    for uid in pods:
        seen, whole = pods[uid], adopted(uid)
        assert [(it.id, it.ready, it.attempt) for it in seen.sandboxes] == [
            (it.id, it.ready, it.attempt) for it in whole.sandboxes
        ]
        assert {(it.id, it.state, it.spec_hash, it.restart_count) for it in seen.containers} == {
            (it.id, it.state, it.spec_hash, it.restart_count) for it in whole.containers
        }


def test_an_end_is_told_with_its_code_reason_and_times() -> None:
    exited = next(each["status"] for each in OBJECTS["containers"] if each["status"].get("exit_code") == 3)
    record = container_record(ParseDict(exited, cri.ContainerStatus()), "box", "its last words")
    assert (record.state, record.exit_code, record.reason) == (ContainerState.EXITED, 3, "Error")
    assert record.message == "its last words"
    assert record.started_at == datetime(2026, 11, 15, 8, 7, 52, 76004, UTC)
    assert record.finished_at == datetime(2026, 11, 15, 8, 7, 54, 89573, UTC)


def test_what_a_sandbox_was_made_from_is_read_back_from_containerd() -> None:
    for each in OBJECTS["sandboxes"]:
        sent = each["config_sent"]
        message = kept_config(json.dumps({"pid": 1, "config": sent, "unheardOf": [1]}))
        assert message is not None
        assert message.metadata.uid == sent["metadata"]["uid"]
        assert message.log_directory == sent["log_directory"]
        assert message.linux.cgroup_parent == sent["linux"]["cgroup_parent"]


@pytest.mark.parametrize(
    "info", ["", "no json", "[]", "{}", '{"config": 3}', '{"config": {}}', '{"config": {"linux": 1}}']
)
def test_a_runtime_that_does_not_keep_it_is_noticed(info: str) -> None:
    assert kept_config(info) is None


PLACES = {  # what CRI-O tells of a sandbox -> where its logs and its cgroup are
    "both": (
        {"io.kubernetes.cri-o.LogPath": "/logs/p/id.log", "io.kubernetes.cri-o.CgroupParent": "/k/p"},
        "/logs/p", "/k/p"),
    "no logs": ({"io.kubernetes.cri-o.LogPath": "", "io.kubernetes.cri-o.CgroupParent": "/k/p"}, "/usual", "/k/p"),
    "another runtime": ({}, "/usual", "/usual/p"),
    "nonsense": ([], "/usual", "/usual/p"),
}  # fmt: skip


@pytest.mark.parametrize("annotations, logs, cgroup", PLACES.values(), ids=PLACES.keys())
def test_where_a_sandbox_has_its_places_is_read_back_from_crio(annotations: Any, logs: str, cgroup: str) -> None:
    usual = SandboxConfig(pod=Pod(), attempt=0, log_directory="/usual", cgroup_parent="/usual/p")
    found = with_kept_places(usual, json.dumps({"runtimeSpec": {"annotations": annotations}}))
    assert (found.log_directory, found.cgroup_parent) == (logs, cgroup)


# Parts.


def box(sandbox_id: str, attempt: int = 0, created: int = 0, uid: str = "u") -> cri.PodSandbox:
    labels = {"io.kubernetes.pod.uid": uid} if uid else {}
    meta = cri.PodSandboxMetadata(name="n", namespace="s", uid=uid, attempt=attempt)
    return cri.PodSandbox(id=sandbox_id, metadata=meta, created_at=created, labels=labels)


def test_newest_come_first() -> None:
    (pod,) = listed_pods(
        [box("old", 0, 9), box("new", 2, 1), box("twin", 2, 2)],
        [
            cri.Container(id=name, created_at=created, labels={"io.kubernetes.pod.uid": "u"})
            for name, created in (("first", 1), ("third", 3), ("second", 2))
        ],
    )
    assert [it.id for it in pod.sandboxes] == ["twin", "new", "old"]
    assert [it.id for it in pod.containers] == ["third", "second", "first"]


def test_what_has_no_pod_is_not_ours() -> None:
    assert listed_pods([box("stranger", uid="")], [cri.Container(id="other")]) == ()


def test_a_container_whose_sandbox_is_gone_still_has_its_pod() -> None:
    labels = {"io.kubernetes.pod.uid": "u", "io.kubernetes.pod.name": "n", "io.kubernetes.container.name": "c"}
    (pod,) = listed_pods([], [cri.Container(id="x", labels=labels)])
    assert (pod.uid, pod.name, [it.name for it in pod.containers]) == ("u", "n", ["c"])


def test_a_created_container_has_not_started() -> None:
    record = container_record(cri.ContainerStatus(id="x"), "box")
    assert (record.state, record.started_at, record.finished_at) == (ContainerState.CREATED, None, None)


def test_one_that_could_not_start_is_shown_as_the_reference_does() -> None:
    status = cri.ContainerStatus(
        id="x",
        state=cri.CONTAINER_EXITED,
        exit_code=128,
        reason="StartError",
        message="no such file",
        finished_at=5 * 10**9,
    )
    record = container_record(status, "box")
    assert (record.reason, record.message, record.exit_code) == ("StartError", "no such file", 128)
    assert record.started_at == datetime(1970, 1, 1, tzinfo=UTC)
    assert record.finished_at == datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)


def test_nothing_ends_before_it_began() -> None:
    status = cri.ContainerStatus(id="x", state=cri.CONTAINER_EXITED, started_at=9_000_000, finished_at=8_000_000)
    record = container_record(status, "box")
    assert record.finished_at == record.started_at


def test_the_runtimes_message_comes_before_the_containers() -> None:
    status = cri.ContainerStatus(id="x", state=cri.CONTAINER_EXITED, message="runtime")
    assert container_record(status, "box", "container").message == "runtime: container"


ADDRESSES = {
    "one": (("192.0.2.1",), ("192.0.2.1",)),
    "both kinds": (("192.0.2.1", "2001:db8::1"), ("192.0.2.1", "2001:db8::1")),
    "none, in the node's network": (("",), ()),
    "one that is none spoils all": (("192.0.2.1", "nonsense"), ()),
}


@pytest.mark.parametrize("told, expected", ADDRESSES.values(), ids=ADDRESSES.keys())
def test_addresses(told: tuple[str, ...], expected: tuple[str, ...]) -> None:
    network = cri.PodSandboxNetworkStatus(ip=told[0], additional_ips=[cri.PodIP(ip=ip) for ip in told[1:]])
    ready = sandbox_record(cri.PodSandboxStatus(id="b", network=network))
    stopped = sandbox_record(cri.PodSandboxStatus(id="b", network=network, state=cri.SANDBOX_NOTREADY))
    assert pod_record("u", {}, [ready], []).ips == expected
    assert pod_record("u", {}, [stopped], []).ips == ()
    assert pod_record("u", {}, [stopped, ready], []).ips == ()  # only the newest one counts


def test_a_sandbox_without_network_information_says_so() -> None:
    assert sandbox_record(cri.PodSandboxStatus(id="b")).ip is None
    assert listed_sandbox(box("b")).ip is None


RESOURCES = {
    "nothing told": (cri.LinuxContainerResources(), None),
    "the least share is two thousandths": (
        cri.LinuxContainerResources(cpu_period=100000, cpu_shares=2),
        ActualResources(cpu_request_milli=2),
    ),
    "a limit without a request": (
        cri.LinuxContainerResources(cpu_period=100000, cpu_quota=50000),
        ActualResources(cpu_limit_milli=500),
    ),
    "no limit is minus one": (
        cri.LinuxContainerResources(cpu_period=100000, cpu_quota=-1, cpu_shares=1024),
        ActualResources(cpu_request_milli=1000),
    ),
    "memory": (
        cri.LinuxContainerResources(memory_limit_in_bytes=2**20),
        ActualResources(memory_limit_bytes=2**20),
    ),
}


@pytest.mark.parametrize("told, expected", RESOURCES.values(), ids=RESOURCES.keys())
def test_resources(told: cri.LinuxContainerResources, expected: ActualResources | None) -> None:
    status = cri.ContainerStatus(id="x", resources=cri.ContainerResources(linux=told))
    assert container_record(status, "box").resources == expected


def test_a_user_is_told_only_where_the_runtime_tells_one() -> None:
    told = cri.LinuxContainerUser(uid=0, gid=0, supplemental_groups=[7])
    status = cri.ContainerStatus(id="x", user=cri.ContainerUser(linux=told))
    assert container_record(status, "box").user == LinuxUser(uid=0, gid=0, supplemental_groups=(7,))
    assert container_record(cri.ContainerStatus(id="x"), "box").user is None


def test_an_images_user_is_a_number_or_a_name() -> None:
    assert image_record(cri.Image(id="i", uid=cri.Int64Value(value=0))).user == "0"
    assert image_record(cri.Image(id="i", username="somebody")).user == "somebody"
    assert image_record(cri.Image(id="i")).user == ""


# Last words.

MOUNTS = [cri.Mount(container_path="/dev/termination-log", host_path="/pods/u/containers/c/1")]


@pytest.mark.parametrize(
    "path, expected",
    [
        ("/dev/termination-log", "/pods/u/containers/c/1"),
        ("dev/termination-log", "/pods/u/containers/c/1"),
        ("/x", ""),
        ("", ""),
    ],
)
def test_where_last_words_are(path: str, expected: str) -> None:
    annotations = {"io.kubernetes.container.terminationMessagePath": path}
    assert termination_log_of(cri.ContainerStatus(id="x", annotations=annotations, mounts=MOUNTS)) == expected


LOG_CASES = {
    "failed, and its spec says so": ("FallbackToLogsOnError", 1, "Error", True),
    "went well": ("FallbackToLogsOnError", 0, "Completed", False),
    "could not even run": ("FallbackToLogsOnError", 128, "ContainerCannotRun", False),
    "its spec wants only the file": ("File", 1, "Error", False),
}


@pytest.mark.parametrize("policy, code, reason, expected", LOG_CASES.values(), ids=LOG_CASES.keys())
def test_whether_the_log_will_do(policy: str, code: int, reason: str, expected: bool) -> None:
    annotations = {"io.kubernetes.container.terminationMessagePolicy": policy}
    status = cri.ContainerStatus(id="x", annotations=annotations, exit_code=code, reason=reason)
    assert may_ask_log(status) is expected
