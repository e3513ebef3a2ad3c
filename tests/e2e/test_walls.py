"""The walls around a container: files, processes, names and messages of its own, unless it shares them."""

import os
from pathlib import Path

import pytest

from tests.e2e.asking import said
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.scripts import Wire, sh

pytestmark = pytest.mark.slow

# Its files.


def test_a_read_only_root_leaves_volumes_writable(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            **sh(
                "touch /etc/new /usr/new 2>/dev/null; ls /etc/new /usr/new 2>/dev/null; touch /scratch/new && echo ok"
            ),
            "securityContext": {"readOnlyRootFilesystem": True},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }
        node.create(pod("app", container=fields, restartPolicy="Never", volumes=[{"name": "scratch", "emptyDir": {}}]))
        assert await said(node) == "ok\n"

    on_a_node(scenario, tmp_path)


def test_what_a_container_writes_is_its_own(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(
            pod(
                "app",
                restartPolicy="Never",
                initContainers=[{"name": "first", "image": "host", **sh("echo 1 >/etc/of-a-pod; cat /etc/of-a-pod")}],
                container=sh("cat /etc/of-a-pod 2>/dev/null || echo nothing"),
            )
        )
        await node.until_phase("app", "Succeeded")
        assert node.log("app", "first") == "1\n"
        assert node.log("app") == "nothing\n"
        assert not Path("/etc/of-a-pod").exists()

    on_a_node(scenario, tmp_path)


def test_a_restarted_container_begins_with_clean_files(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "test -e /etc/of-a-pod && echo old; touch /etc/of-a-pod; echo end; exit 1"
        node.create(pod("app", container=sh(script)))
        await node.until(lambda: "end" in node.log("app", attempt=1))
        assert node.log("app", attempt=1) == "end\n"

    on_a_node(scenario, tmp_path)


# Its neighbours.

HOSTNAMES: dict[str, tuple[str, Wire, str]] = {
    "its pod's name": ("web-1", {}, "web-1"),
    "the name its pod asks for": ("web-1", {"hostname": "front"}, "front"),
    "the first 63 letters of a long name": ("w" * 70, {}, "w" * 63),
}


@pytest.mark.parametrize("name, spec, expected", HOSTNAMES.values(), ids=HOSTNAMES.keys())
def test_the_host_of_a_container_is_called(
    on_a_node: OnANode, name: str, spec: Wire, expected: str, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod(name, command=("uname", "-n"), restartPolicy="Never", **spec))
        assert await said(node, name) == f"{expected}\n"

    on_a_node(scenario, tmp_path)


def test_a_container_sees_only_its_own_processes(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        other = {"name": "other", "image": "host", "command": ["sleep", "987"]}
        looking = {"name": "app", "image": "host", **sh('echo "I am $$$$"; exec sleep 654')}
        node.create(pod("app", containers=[looking, other]))
        await node.until_ready("app")
        await node.until(lambda: node.log("app") == "I am 1\n")
        seen = await node.exec("app", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert b"sleep 654" in seen.output
        assert b"sleep 987" not in seen.output

    on_a_node(scenario, tmp_path)


def test_containers_that_share_processes_see_each_other(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        other = {"name": "other", "image": "host", "command": ["sleep", "987"]}
        looking = {"name": "app", "image": "host", "command": ["sleep", "654"]}
        node.create(pod("app", containers=[looking, other], shareProcessNamespace=True))
        await node.until_ready("app")
        seen = await node.exec("app", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert b"sleep 654" in seen.output
        assert b"sleep 987" in seen.output
        assert str(os.getpid()).encode() not in (await node.exec("app", "ls", "/proc")).output.split()

    on_a_node(scenario, tmp_path)


def test_one_container_may_signal_another_where_processes_are_shared(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        target = {"name": "app", "image": "host", **sh("trap 'exit 7' USR1; while :; do sleep 0.02; done")}
        script = "while ! grep -ls 'exit[ ]7' /proc/[0-9]*/cmdline; do sleep 0.05; done; sleep 0.1; "
        script += "kill -USR1 $(grep -ls 'exit[ ]7' /proc/[0-9]*/cmdline | cut -d/ -f3)"
        sender = {"name": "sender", "image": "host", **sh(script)}
        node.create(pod("app", containers=[target, sender], shareProcessNamespace=True, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        assert (node.exit_code("app"), node.exit_code("app", "sender")) == (7, 0)

    on_a_node(scenario, tmp_path)


def test_a_pod_of_the_hosts_processes_sees_them_all(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("cat", f"/proc/{os.getpid()}/comm"), hostPID=True, restartPolicy="Never"))
        assert await said(node) == Path("/proc/self/comm").read_text()

    on_a_node(scenario, tmp_path)


@pytest.mark.parametrize("shared", [True, False], ids=["the host's where asked for", "their own otherwise"])
def test_messages_and_semaphores_are(on_a_node: OnANode, shared: bool, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("readlink", "/proc/self/ns/ipc"), hostIPC=shared, restartPolicy="Never"))
        assert ((await said(node)).strip() == os.readlink("/proc/self/ns/ipc")) is shared

    on_a_node(scenario, tmp_path)
