"""Records from CRI responses: recorded pods of the kubelet, and one property or case for each part."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.json_format import ParseDict

from podkeeper.model.k8s.core import Pod
from podkeeper.model.runtime import (
    ActualResources,
    ContainerRecord,
    ImageRecord,
    LinuxUser,
    NetworkMode,
    PodRecord,
    RecordState,
    SandboxRecord,
)
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.runtimes.cri.creation import kept_config, with_kept_places
from podkeeper.runtimes.cri.records import (
    container_record,
    containers_by_age,
    image_record,
    listed_container,
    listed_pods,
    listed_sandbox,
    listed_state,
    may_use_log,
    pod_record,
    sandbox_record,
    sandboxes_by_age,
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


# Pods of the kubelet.


@pytest.mark.parametrize("uid", PODS, ids=[pod["metadata"]["name"] for pod in PODS.values()])
def test_a_pod_of_the_kubelet_is_adopted_as_the_api_shows_it(uid: str) -> None:
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


def test_lists_and_statuses_have_the_same_ids_states_and_hashes() -> None:
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


def test_an_exit_has_its_code_reason_and_times() -> None:
    exited = next(each["status"] for each in OBJECTS["containers"] if each["status"].get("exit_code") == 3)
    record = container_record(ParseDict(exited, cri.ContainerStatus()), "box", "its last words")
    assert (record.state, record.exit_code, record.reason) == (RecordState.EXITED, 3, "Error")
    assert record.message == "its last words"
    assert record.started_at == datetime(2026, 11, 15, 8, 7, 52, 76004, UTC)
    assert record.finished_at == datetime(2026, 11, 15, 8, 7, 54, 89573, UTC)


def test_the_sandbox_configuration_is_read_from_containerd() -> None:
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
def test_a_status_without_configuration_is_detected(info: str) -> None:
    assert kept_config(info) is None


PLACES = {  # verbose status of a sandbox of CRI-O -> log directory and cgroup
    "both": (
        {"io.kubernetes.cri-o.LogPath": "/logs/p/id.log", "io.kubernetes.cri-o.CgroupParent": "/k/p"},
        "/logs/p", "/k/p"),
    "no logs": ({"io.kubernetes.cri-o.LogPath": "", "io.kubernetes.cri-o.CgroupParent": "/k/p"}, "/usual", "/k/p"),
    "another runtime": ({}, "/usual", "/usual/p"),
    "nonsense": ([], "/usual", "/usual/p"),
}  # fmt: skip


@pytest.mark.parametrize("annotations, logs, cgroup", PLACES.values(), ids=PLACES.keys())
def test_the_directories_of_a_sandbox_are_read_from_crio(annotations: Any, logs: str, cgroup: str) -> None:
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


def test_objects_without_pod_labels_are_ignored() -> None:
    assert listed_pods([box("unrelated", uid="")], [cri.Container(id="other")]) == ()


def test_a_container_whose_sandbox_is_gone_still_has_its_pod() -> None:
    labels = {"io.kubernetes.pod.uid": "u", "io.kubernetes.pod.name": "n", "io.kubernetes.container.name": "c"}
    (pod,) = listed_pods([], [cri.Container(id="x", labels=labels)])
    assert (pod.uid, pod.name, [it.name for it in pod.containers]) == ("u", "n", ["c"])


def test_a_created_container_has_not_started() -> None:
    record = container_record(cri.ContainerStatus(id="x"), "box")
    assert (record.state, record.started_at, record.finished_at) == (RecordState.CREATED, None, None)


def test_a_container_that_could_not_start_is_shown_as_by_the_kubelet() -> None:
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


def test_an_exit_is_never_before_the_start() -> None:
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


@pytest.mark.parametrize("reported, expected", ADDRESSES.values(), ids=ADDRESSES.keys())
def test_addresses(reported: tuple[str, ...], expected: tuple[str, ...]) -> None:
    network = cri.PodSandboxNetworkStatus(ip=reported[0], additional_ips=[cri.PodIP(ip=ip) for ip in reported[1:]])
    ready = sandbox_record(cri.PodSandboxStatus(id="b", network=network))
    stopped = sandbox_record(cri.PodSandboxStatus(id="b", network=network, state=cri.SANDBOX_NOTREADY))
    assert pod_record("u", {}, [ready], []).ips == expected
    assert pod_record("u", {}, [stopped], []).ips == ()
    assert pod_record("u", {}, [stopped, ready], []).ips == ()  # only the newest one counts


def test_a_sandbox_without_network_information() -> None:
    assert sandbox_record(cri.PodSandboxStatus(id="b")).ip is None
    assert listed_sandbox(box("b")).ip is None


RESOURCES = {
    "not reported": (cri.LinuxContainerResources(), None),
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


@pytest.mark.parametrize("reported, expected", RESOURCES.values(), ids=RESOURCES.keys())
def test_resources(reported: cri.LinuxContainerResources, expected: ActualResources | None) -> None:
    status = cri.ContainerStatus(id="x", resources=cri.ContainerResources(linux=reported))
    assert container_record(status, "box").resources == expected


def test_a_user_is_reported_only_if_the_runtime_reports_it() -> None:
    reported = cri.LinuxContainerUser(uid=0, gid=0, supplemental_groups=[7])
    status = cri.ContainerStatus(id="x", user=cri.ContainerUser(linux=reported))
    assert container_record(status, "box").user == LinuxUser(uid=0, gid=0, supplemental_groups=(7,))
    assert container_record(cri.ContainerStatus(id="x"), "box").user is None


def test_an_images_user_is_a_number_or_a_name() -> None:
    assert image_record(cri.Image(id="i", uid=cri.Int64Value(value=0))).user == "0"
    assert image_record(cri.Image(id="i", username="somebody")).user == "somebody"
    assert image_record(cri.Image(id="i")).user == ""


# Termination messages.

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
def test_the_path_of_the_termination_message_file(path: str, expected: str) -> None:
    annotations = {"io.kubernetes.container.terminationMessagePath": path}
    assert termination_log_of(cri.ContainerStatus(id="x", annotations=annotations, mounts=MOUNTS)) == expected


LOG_CASES = {
    "failed, and the spec selects the log": ("FallbackToLogsOnError", 1, "Error", True),
    "went well": ("FallbackToLogsOnError", 0, "Completed", False),
    "could not even run": ("FallbackToLogsOnError", 128, "ContainerCannotRun", False),
    "the spec selects only the file": ("File", 1, "Error", False),
}


@pytest.mark.parametrize("policy, code, reason, expected", LOG_CASES.values(), ids=LOG_CASES.keys())
def test_the_cases_in_which_the_log_is_the_termination_message(
    policy: str, code: int, reason: str, expected: bool
) -> None:
    annotations = {"io.kubernetes.container.terminationMessagePolicy": policy}
    status = cri.ContainerStatus(id="x", annotations=annotations, exit_code=code, reason=reason)
    assert may_use_log(status) is expected


# Whole records.

SECOND = 10**9
LABELS = {
    "io.kubernetes.pod.uid": "u",
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.container.name": "app",
}
ANNOTATIONS = {"io.kubernetes.container.hash": "h1", "io.kubernetes.container.restartCount": "4"}
IMAGE: Any = {
    "image": cri.ImageSpec(image="nginx:1"),
    "image_ref": "nginx@sha256:1",
    "image_id": "sha256:2",
    "labels": LABELS,
    "annotations": ANNOTATIONS,
    "metadata": cri.ContainerMetadata(name="other", attempt=9),
}
SEEN: Any = {
    "name": "app",
    "image": "nginx:1",
    "image_id": "sha256:2",
    "image_ref": "nginx@sha256:1",
    "spec_hash": "h1",
    "sandbox_id": "box",
    "restart_count": 4,
}


def at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


STATES = {
    cri.CONTAINER_CREATED: RecordState.CREATED,
    cri.CONTAINER_RUNNING: RecordState.RUNNING,
    cri.CONTAINER_EXITED: RecordState.EXITED,
    cri.CONTAINER_UNKNOWN: RecordState.UNKNOWN,
}


def test_the_record_of_a_listed_pod_is_complete() -> None:
    boxes = [
        cri.PodSandbox(
            id=name,
            state=state,
            created_at=3 * SECOND + 1999,
            labels=LABELS,
            metadata=cri.PodSandboxMetadata(attempt=attempt),
        )
        for name, state, attempt in (("old", cri.SANDBOX_NOTREADY, 1), ("new", cri.SANDBOX_READY, 2))
    ]
    containers = [
        cri.Container(id=f"c{state}", pod_sandbox_id="box", state=state, created_at=5 * SECOND, **IMAGE)
        for state in STATES
    ]
    assert listed_pods(boxes, containers) == (
        PodRecord(
            uid="u",
            name="web",
            namespace="shop",
            sandboxes=(
                SandboxRecord(id="new", ready=True, attempt=2, created_at=at(3.000001)),
                SandboxRecord(id="old", ready=False, attempt=1, created_at=at(3.000001)),
            ),
            containers=tuple(
                ContainerRecord(id=f"c{number}", state=state, created_at=at(5), **SEEN)
                for number, state in STATES.items()
            ),
        ),
    )
    assert [listed_state(each) for each in containers] == list(STATES.values())


def test_pods_are_separate_and_sorted_by_age() -> None:
    boxes = [box("a", uid="first", created=1), box("b", uid="second", created=2)]
    others = [
        cri.Container(id=f"of {uid}", labels={"io.kubernetes.pod.uid": uid}) for uid in ("first", "third", "second")
    ]
    found = listed_pods(boxes, others)
    assert [(pod.uid, [it.id for it in pod.sandboxes], [it.id for it in pod.containers]) for pod in found] == [
        ("second", ["b"], ["of second"]),
        ("first", ["a"], ["of first"]),
        ("third", [], ["of third"]),
    ]


def test_objects_of_the_same_age_are_sorted_by_id() -> None:
    assert [each.id for each in sandboxes_by_age([box("c"), box("a"), box("b", 1)])] == ["b", "a", "c"]
    assert [each.id for each in containers_by_age([cri.Container(id="b"), cri.Container(id="a")])] == ["a", "b"]


def test_fallbacks_for_missing_labels_and_annotations() -> None:
    bare = cri.Container(
        id="c", image_ref="ref", metadata=cri.ContainerMetadata(name="app"), annotations={HASH_OF_NONE: "x"}
    )
    assert listed_container(bare) == ContainerRecord(
        id="c", name="app", state=RecordState.CREATED, image_id="ref", image_ref="ref", created_at=at(0)
    )
    status = cri.ContainerStatus(id="c", image_ref="ref", metadata=cri.ContainerMetadata(name="app"))
    assert container_record(status, "box") == ContainerRecord(
        id="c",
        name="app",
        state=RecordState.CREATED,
        image_id="ref",
        image_ref="ref",
        sandbox_id="box",
        created_at=at(0),
    )


HASH_OF_NONE = "io.kubernetes.container.other"


@pytest.mark.parametrize("text, expected", [("0", 0), ("12", 12), ("", 0), ("many", 0), ("1.5", 0)])
def test_an_invalid_restart_count_is_zero(text: str, expected: int) -> None:
    annotations = {"io.kubernetes.container.restartCount": text}
    assert listed_container(cri.Container(id="c", annotations=annotations)).restart_count == expected
    assert container_record(cri.ContainerStatus(id="c", annotations=annotations), "b").restart_count == expected


@pytest.mark.parametrize("number", STATES)
def test_a_container_record_is_complete(number: Any) -> None:
    status = cri.ContainerStatus(
        id="c",
        state=number,
        created_at=1 * SECOND,
        started_at=2 * SECOND,
        finished_at=3 * SECOND,
        exit_code=7,
        reason="Error",
        message="why",
        resources=cri.ContainerResources(linux=cri.LinuxContainerResources(memory_limit_in_bytes=5)),
        user=cri.ContainerUser(linux=cri.LinuxContainerUser(uid=1, gid=2)),
        **IMAGE,
    )
    state = STATES[number]
    ended: Any = {"finished_at": at(3), "exit_code": 7, "reason": "Error", "message": "why: words"}
    assert container_record(status, "box", "words") == ContainerRecord(
        id="c",
        state=state,
        created_at=at(1),
        started_at=None if state is RecordState.CREATED else at(2),
        resources=ActualResources(memory_limit_bytes=5),
        user=LinuxUser(uid=1, gid=2),
        **SEEN,
        **(ended if state is RecordState.EXITED else {}),
    )


def namespaces(network: Any) -> cri.LinuxPodSandboxStatus:
    return cri.LinuxPodSandboxStatus(namespaces=cri.Namespace(options=cri.NamespaceOption(network=network)))


@pytest.mark.parametrize(
    "network, mode", [(cri.POD, NetworkMode.POD), (cri.NODE, NetworkMode.NODE), (cri.CONTAINER, NetworkMode.POD)]
)
def test_a_sandbox_record_is_complete(network: Any, mode: NetworkMode) -> None:
    status = cri.PodSandboxStatus(
        id="b",
        state=cri.SANDBOX_READY,
        created_at=1 * SECOND,
        metadata=cri.PodSandboxMetadata(attempt=3),
        network=cri.PodSandboxNetworkStatus(ip="192.0.2.1", additional_ips=[cri.PodIP(ip="2001:db8::1")]),
        linux=namespaces(network),
    )
    assert sandbox_record(status) == SandboxRecord(
        id="b",
        ready=True,
        attempt=3,
        network=mode,
        ip="192.0.2.1",
        additional_ips=("2001:db8::1",),
        created_at=at(1),
    )
    assert sandbox_record(cri.PodSandboxStatus(id="b", state=cri.SANDBOX_NOTREADY)) == SandboxRecord(
        id="b", ready=False, created_at=at(0)
    )


def test_the_record_of_a_pod_is_complete() -> None:
    ready = SandboxRecord(id="b", ready=True, ip="192.0.2.1", additional_ips=("", "2001:db8::1"))
    made = ContainerRecord(id="c", name="app", state=RecordState.RUNNING)
    expected = PodRecord(
        uid="u",
        name="web",
        namespace="shop",
        ips=("192.0.2.1", "2001:db8::1"),
        sandboxes=(ready,),
        containers=(made,),
    )
    assert pod_record("u", LABELS, iter([ready]), iter([made])) == expected
    assert pod_record("u", {}, [], []) == PodRecord(uid="u", name="", namespace="")


EXACT_RESOURCES = {
    "a share below the least": ({"cpu_shares": 1}, None),
    "shares are rounded up": ({"cpu_shares": 3}, ActualResources(cpu_request_milli=3)),
    "a quota without a period": ({"cpu_quota": 5000}, None),
    "a quota of nothing": ({"cpu_quota": 0, "cpu_period": 100}, None),
    "a quota of little": ({"cpu_quota": 1, "cpu_period": 1000}, ActualResources(cpu_limit_milli=1)),
    "a quota is rounded down": ({"cpu_quota": 1999, "cpu_period": 1000000}, ActualResources(cpu_limit_milli=1)),
    "memory without a limit": ({"memory_limit_in_bytes": -1}, None),
    "a byte of memory": ({"memory_limit_in_bytes": 1}, ActualResources(memory_limit_bytes=1)),
    "all of them": (
        {"cpu_quota": 150000, "cpu_period": 100000, "cpu_shares": 512, "memory_limit_in_bytes": 2**30},
        ActualResources(cpu_limit_milli=1500, cpu_request_milli=500, memory_limit_bytes=2**30)),
}  # fmt: skip


@pytest.mark.parametrize("reported, expected", EXACT_RESOURCES.values(), ids=EXACT_RESOURCES.keys())
def test_resources_are_exact(reported: dict[str, Any], expected: ActualResources | None) -> None:
    linux = cri.LinuxContainerResources(**reported)
    status = cri.ContainerStatus(id="x", resources=cri.ContainerResources(linux=linux))
    assert container_record(status, "box").resources == expected


def test_an_image_record_is_complete() -> None:
    image = cri.Image(id="i", repo_tags=["a:1", "b:2"], repo_digests=["a@sha256:1"], size=5, username="me", pinned=True)
    assert image_record(image) == ImageRecord(
        id="i", tags=("a:1", "b:2"), digests=("a@sha256:1",), size_bytes=5, user="me", pinned=True
    )
    assert image_record(cri.Image(id="i", uid=cri.Int64Value(value=7), username="me")).user == "7"


def test_the_termination_message_mount_is_found_among_many() -> None:
    mounts = [
        cri.Mount(container_path="/data", host_path="/x"),
        *MOUNTS,
        cri.Mount(container_path="/dev/termination-log", host_path="/later"),
    ]
    annotations = {"io.kubernetes.container.terminationMessagePath": "/dev/termination-log"}
    status = cri.ContainerStatus(id="x", annotations=annotations, mounts=mounts)
    assert termination_log_of(status) == "/pods/u/containers/c/1"
    assert termination_log_of(cri.ContainerStatus(id="x", mounts=[cri.Mount(container_path="/", host_path="/x")])) == ""
    assert not may_use_log(cri.ContainerStatus(id="x", exit_code=1))
