"""Container requests, for cases that the recorded pods do not cover."""

import json
from dataclasses import replace
from typing import Any

import pytest

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import (
    Container,
    ContainerPort,
    EmptyDirVolumeSource,
    EphemeralContainer,
    ExecAction,
    HostPathVolumeSource,
    HTTPGetAction,
    HTTPHeader,
    Lifecycle,
    LifecycleHandler,
    SleepAction,
    TCPSocketAction,
    Volume,
)
from podkeeper.model.runtime_calls import Mount
from podkeeper.runtimes.cri.requests.container import ContainerFiles, container_message
from podkeeper.runtimes.cri.requests.labels import DELETION_GRACE, PORTS, PRE_STOP, TERMINATION_GRACE
from podkeeper.runtimes.cri.requests.node import Handler, IdRange
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.requests.requesting import ABLE, NO_FILES, NODE, annotated, made, mount, pod, wanted

FILES = ContainerFiles(termination_log="/pods/uid-1/containers/web/1a2b", etc_hosts="/pods/uid-1/etc-hosts")


def test_values_computed_by_the_engine_are_sent() -> None:
    container = Container(name="web", image="registry.example/web:1", working_dir="/srv", stdin=True, stdin_once=True)
    found = made(
        pod(container),
        attempt=4,
        image="sha256:1",
        command=("serve",),
        args=("-v",),
        env={"B": "2", "A": "1"},
        log_path="web/4.log",
    )
    assert found.metadata == cri.ContainerMetadata(name="web", attempt=4)
    assert found.image == cri.ImageSpec(image="sha256:1", user_specified_image="registry.example/web:1")
    assert (list(found.command), list(found.args), found.working_dir) == (["serve"], ["-v"], "/srv")
    assert [(each.key, each.value) for each in found.envs] == [("B", b"2"), ("A", b"1")]
    assert (found.stdin, found.stdin_once, found.tty, found.log_path) == (True, True, False, "web/4.log")


def test_bytes_of_a_secret_are_kept_in_variables_and_refused_elsewhere() -> None:
    odd = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert made(pod(), env={"KEY": odd}).envs[0].value == b"\xff\xfe"
    with pytest.raises(NotConfigurable, match="cannot pass args to the container"):
        made(pod(), args=("-k", odd))


SIGNALS = {
    None: cri.RUNTIME_DEFAULT,
    "SIGUSR1": cri.SIGUSR1,
    "SIGRTMIN": cri.SIGRTMIN,
    "SIGRTMIN+15": cri.SIGRTMINPLUS15,
    "SIGRTMAX-14": cri.SIGRTMAXMINUS14,
    "SIGODD": cri.RUNTIME_DEFAULT,
}


@pytest.mark.parametrize("signal", SIGNALS, ids=str)
def test_the_stop_signal_of_a_container(signal: str | None) -> None:
    found = made(pod(Container(name="web", lifecycle=Lifecycle(stop_signal=signal))))
    assert found.stop_signal == SIGNALS[signal]


# ---- labels and annotations ----


def annotation(key: str, container: Container, **metadata: Any) -> str | None:
    return made(annotated(pod(container, grace=0), **metadata)).annotations.get(key)


PRE_STOPS = {
    "a command": (
        LifecycleHandler(exec=ExecAction(command=("sh", "-c", "a && b > c"))),
        '{"exec":{"command":["sh","-c","a \\u0026\\u0026 b \\u003e c"]}}'),
    "a request": (
        LifecycleHandler(http_get=HTTPGetAction(
            host="h", path="/bye", port="http", scheme="HTTP", http_headers=(HTTPHeader(name="X", value=""),))),
        '{"httpGet":{"path":"/bye","port":"http","host":"h","scheme":"HTTP",'
        '"httpHeaders":[{"name":"X","value":""}]}}'),
    "a connection": (LifecycleHandler(tcp_socket=TCPSocketAction(port=0)), '{"tcpSocket":{"port":0}}'),
    "a pause": (LifecycleHandler(sleep=SleepAction(seconds=5)), '{"sleep":{"seconds":5}}'),
}  # fmt: skip


@pytest.mark.parametrize("handler, expected", PRE_STOPS.values(), ids=PRE_STOPS.keys())
def test_the_prestop_hook_is_annotated_as_by_the_kubelet(handler: LifecycleHandler, expected: str) -> None:
    found = annotation(PRE_STOP, Container(name="web", lifecycle=Lifecycle(pre_stop=handler)))
    assert found == expected
    assert json.loads(found)


def test_ports_are_annotated_as_by_the_kubelet() -> None:
    ports = (ContainerPort(container_port=80, protocol="UDP", host_ip="::1", host_port=0), ContainerPort(name="x"))
    expected = '[{"containerPort":80,"protocol":"UDP","hostIP":"::1"},{"name":"x","containerPort":0}]'
    assert annotation(PORTS, Container(name="web", ports=ports)) == expected
    assert annotation(PORTS, Container(name="web")) is None


def test_known_grace_periods_are_annotated() -> None:
    plain = Container(name="web")
    assert (annotation(TERMINATION_GRACE, plain), annotation(DELETION_GRACE, plain)) == ("0", None)
    assert annotation(DELETION_GRACE, plain, deletion_grace_period_seconds=0) == "0"
    assert TERMINATION_GRACE not in made(pod()).annotations


def test_a_container_has_no_labels_of_its_pod() -> None:
    debug = EphemeralContainer(name="shell")
    found = made(annotated(pod(debug=(debug,)), labels={"app": "web"}), debug)
    assert dict(found.labels) == {
        "io.kubernetes.container.name": "shell",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": "uid-1",
    }


# ---- mounts ----


def shown(*mounts: Mount, files: ContainerFiles = NO_FILES, path: str = "", **spec: Any) -> list[tuple[str, str]]:
    container = Container(name="web", termination_message_path=path or None)
    message = container_message(wanted(pod(container, spec=spec), mounts=mounts), NODE, files)
    return [(each.container_path, each.host_path) for each in message.mounts]


MOUNTS = {
    "volumes, then the hosts file, then the termination log": (
        (mount(),), FILES, "/dev/termination-log",
        [("/data", "/host/data"), ("/etc/hosts", FILES.etc_hosts), ("/dev/termination-log", FILES.termination_log)]),
    "a hosts file of its own stays": (
        (mount(container_path="/etc/hosts"),), FILES, "", [("/etc/hosts", "/host/data")]),
    "no termination message path, no mount": ((), FILES, "", [("/etc/hosts", FILES.etc_hosts)]),
    "a relative termination message path becomes absolute": (
        (), ContainerFiles(termination_log="/log"), "tmp/last", [("/tmp/last", "/log")]),
    "no files, no mounts": ((), NO_FILES, "/dev/termination-log", []),
}  # fmt: skip


@pytest.mark.parametrize("mounts, files, path, expected", MOUNTS.values(), ids=MOUNTS.keys())
def test_mounts(mounts: tuple[Mount, ...], files: ContainerFiles, path: str, expected: list[tuple[str, str]]) -> None:
    assert shown(*mounts, files=files, path=path) == expected


def test_an_unprepared_sub_path_is_refused() -> None:
    with pytest.raises(NotConfigurable, match='failed to prepare subPath for volumeMount "data" of container "web"'):
        shown(mount(sub_path="a/b"))


PROPAGATION = {
    "": cri.PROPAGATION_PRIVATE,
    "HostToContainer": cri.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": cri.PROPAGATION_BIDIRECTIONAL,
}


@pytest.mark.parametrize("propagation", PROPAGATION)
def test_propagation(propagation: str) -> None:
    found = made(pod(), mounts=(mount(propagation=propagation, read_only=True),)).mounts[0]
    assert (found.propagation, found.readonly) == (PROPAGATION[propagation], True)


RECURSIVE = {
    "not set": (Handler(), {"read_only": True}, False),
    "disabled": (ABLE, {"read_only": True, "recursive_read_only": "Disabled"}, False),
    "if possible, supported": (ABLE, {"read_only": True, "recursive_read_only": "IfPossible"}, True),
    "if possible, not supported": (Handler(), {"read_only": True, "recursive_read_only": "IfPossible"}, False),
    "enabled, supported": (ABLE, {"read_only": True, "recursive_read_only": "Enabled"}, True),
    "enabled, not supported": (
        Handler(), {"read_only": True, "recursive_read_only": "Enabled"}, "it is not supported by the runtime"),
    "enabled for a mount that is not read-only": (ABLE, {"recursive_read_only": "Enabled"}, "it is not read-only"),
    "enabled for a mount with propagation": (
        ABLE, {"read_only": True, "propagation": "HostToContainer", "recursive_read_only": "Enabled"},
        'it is not compatible with propagation "HostToContainer"'),
    "an unknown value": (
        ABLE, {"read_only": True, "recursive_read_only": "Odd"}, 'unknown recursive read-only mode "Odd"'),
}  # fmt: skip


@pytest.mark.parametrize("handler, fields, expected", RECURSIVE.values(), ids=RECURSIVE.keys())
def test_recursive_read_only(handler: Handler, fields: dict[str, Any], expected: bool | str) -> None:
    node = replace(NODE, handlers={"": handler})
    if isinstance(expected, str):
        with pytest.raises(NotConfigurable, match=expected):
            made(pod(), node=node, mounts=(mount(**fields),))
    else:
        assert made(pod(), node=node, mounts=(mount(**fields),)).mounts[0].recursive_read_only is expected


def test_only_volumes_of_the_agent_are_relabelled() -> None:
    volumes = (
        Volume(name="data", empty_dir=EmptyDirVolumeSource()),
        Volume(name="node", host_path=HostPathVolumeSource(path="/srv")),
    )
    container = Container(name="web", termination_message_path="/last")
    given = wanted(
        pod(container, spec={"volumes": volumes}), mounts=(mount(), mount(volume="node", container_path="/srv"))
    )
    with_selinux = container_message(given, replace(NODE, selinux=True), FILES)
    assert [each.selinux_relabel for each in with_selinux.mounts] == [True, False, True, True]
    assert not any(each.selinux_relabel for each in container_message(given, NODE, FILES).mounts)


def test_mounts_of_a_pod_with_its_own_user_namespace_are_id_mapped() -> None:
    node = replace(NODE, handlers={"": ABLE})
    given = wanted(pod(spec={"host_users": False}), mounts=(mount(),))
    found = container_message(given, node, FILES, IdRange(65536))
    mapping = cri.IDMapping(host_id=65536, container_id=0, length=65536)
    assert [(list(each.uidMappings), list(each.gidMappings)) for each in found.mounts] == [([mapping], [mapping])] * 2
