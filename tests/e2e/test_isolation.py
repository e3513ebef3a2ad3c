"""Isolation of containers: files, processes, hostname, IPC, and sharing of them."""

import os
from pathlib import Path

import pytest

from tests.e2e.node import Node, ScenarioRunner, pod
from tests.e2e.pod_queries import log_after_success
from tests.e2e.scripts import Wire, sh

pytestmark = pytest.mark.slow

# Files.


def test_a_read_only_root_leaves_volumes_writable(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            **sh(
                "touch /etc/new /usr/new 2>/dev/null; ls /etc/new /usr/new 2>/dev/null; touch /scratch/new && echo ok"
            ),
            "securityContext": {"readOnlyRootFilesystem": True},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }
        node.create(pod("app", container=fields, restartPolicy="Never", volumes=[{"name": "scratch", "emptyDir": {}}]))
        assert await log_after_success(node) == "ok\n"

    run_on_node(scenario, tmp_path)


def test_files_written_by_a_container_are_private(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
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

    run_on_node(scenario, tmp_path)


def test_a_restarted_container_has_a_clean_file_system(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "test -e /etc/of-a-pod && echo old; touch /etc/of-a-pod; echo end; exit 1"
        node.create(pod("app", container=sh(script)))
        await node.until(lambda: "end" in node.log("app", attempt=1))
        assert node.log("app", attempt=1) == "end\n"

    run_on_node(scenario, tmp_path)


# Processes, hostname, IPC.

HOSTNAMES: dict[str, tuple[str, Wire, str]] = {
    "the pod name": ("web-1", {}, "web-1"),
    "spec.hostname": ("web-1", {"hostname": "front"}, "front"),
    "the first 63 characters of a long name": ("w" * 70, {}, "w" * 63),
}


@pytest.mark.parametrize("name, spec, expected", HOSTNAMES.values(), ids=HOSTNAMES.keys())
def test_hostname(run_on_node: ScenarioRunner, name: str, spec: Wire, expected: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod(name, command=("uname", "-n"), restartPolicy="Never", **spec))
        assert await log_after_success(node, name) == f"{expected}\n"

    run_on_node(scenario, tmp_path)


def test_a_container_sees_only_its_own_processes(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        other = {"name": "other", "image": "host", "command": ["sleep", "987"]}
        looking = {"name": "app", "image": "host", **sh('echo "I am $$$$"; exec sleep 654')}
        node.create(pod("app", containers=[looking, other]))
        await node.until_ready("app")
        await node.until(lambda: node.log("app") == "I am 1\n")
        seen = await node.exec("app", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert b"sleep 654" in seen.output
        assert b"sleep 987" not in seen.output

    run_on_node(scenario, tmp_path)


def test_containers_with_shared_pids_see_each_other(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        other = {"name": "other", "image": "host", "command": ["sleep", "987"]}
        looking = {"name": "app", "image": "host", "command": ["sleep", "654"]}
        node.create(pod("app", containers=[looking, other], shareProcessNamespace=True))
        await node.until_ready("app")
        seen = await node.exec("app", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert b"sleep 654" in seen.output
        assert b"sleep 987" in seen.output
        assert str(os.getpid()).encode() not in (await node.exec("app", "ls", "/proc")).output.split()

    run_on_node(scenario, tmp_path)


def test_containers_with_shared_pids_can_signal_each_other(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        target = {"name": "app", "image": "host", **sh("trap 'exit 7' USR1; while :; do sleep 0.02; done")}
        script = "while ! grep -ls 'exit[ ]7' /proc/[0-9]*/cmdline; do sleep 0.05; done; sleep 0.1; "
        script += "kill -USR1 $(grep -ls 'exit[ ]7' /proc/[0-9]*/cmdline | cut -d/ -f3)"
        sender = {"name": "sender", "image": "host", **sh(script)}
        node.create(pod("app", containers=[target, sender], shareProcessNamespace=True, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        assert (node.exit_code("app"), node.exit_code("app", "sender")) == (7, 0)

    run_on_node(scenario, tmp_path)


def test_a_pod_with_host_pid_sees_all_processes(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("cat", f"/proc/{os.getpid()}/comm"), hostPID=True, restartPolicy="Never"))
        assert await log_after_success(node) == Path("/proc/self/comm").read_text()

    run_on_node(scenario, tmp_path)


@pytest.mark.parametrize("shared", [True, False], ids=["hostIPC", "own namespace"])
def test_ipc_namespace(run_on_node: ScenarioRunner, shared: bool, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("readlink", "/proc/self/ns/ipc"), hostIPC=shared, restartPolicy="Never"))
        assert ((await log_after_success(node)).strip() == os.readlink("/proc/self/ns/ipc")) is shared

    run_on_node(scenario, tmp_path)
