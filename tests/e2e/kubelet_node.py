"""A node that runs the real kubelet and podkeeper in turn, with static pods and without an API server.

    with handover_node(containerd) as node:
        node.start_kubelet(); node.until(lambda: node.is_ready("web")); node.kill()
        node.start_podkeeper(); ...

Both read the same configuration and manifests, and use the same directories for files, logs and cgroups, so that each
can adopt the pods of the other. The manifests contain UIDs, because the two generate different ones.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
import yaml

from podkeeper.app.local.client import LocalClient, RequestFailed
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.manifests import manifest
from tests.runtimes.cri.containerd import Containerd, remove_cgroups

TIMEOUT_SECONDS = 60.0
PORT = 10255
NODE = "n1"
_CGROUPS = Path("/sys/fs/cgroup")


# Settings that the kubelet needs without an API server. It must not evict pods of the tests, nor remove their images.
STANDALONE: Mapping[str, Any] = {
    "failCgroupV1": False,
    "failSwapOn": False,
    "enforceNodeAllocatable": [],
    "readOnlyPort": PORT,
    "address": "127.0.0.1",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "1Mi"},
    "fileCheckFrequency": "1s",
}


def kubelet_configuration(containerd: Containerd, **settings: Any) -> dict[str, Any]:
    """Return a KubeletConfiguration for a containerd."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{containerd.socket}",
        **settings,
    }


def kubelet_program() -> str | None:
    """Return the path of the kubelet, from PATH or KUBEBUILDER_ASSETS, or None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    return shutil.which("kubelet") or (shutil.which("kubelet", path=assets) if assets else None)


def reported_pods(containerd: Containerd, socket: Path | None) -> Mapping[str, Any]:
    """Return the pods by name, from the socket of podkeeper, or without a socket from the port of the kubelet."""
    try:
        if socket is not None:
            items = LocalClient(socket).get("pods")["items"]
        else:
            with containerd.in_network(), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/pods") as answer:
                items = json.loads(answer.read())["items"] or ()
    except (RequestFailed, OSError):  # it does not answer yet
        return {}
    return {pod["metadata"]["name"].removesuffix(f"-{NODE}"): pod for pod in items}


needs_kubelet = pytest.mark.skipif(
    kubelet_program() is None,
    reason="kubelet not found: put `kubelet` (1.36) on the path, or in KUBEBUILDER_ASSETS",
)


class HandoverNode:
    """One machine with at most one agent at a time."""

    def __init__(self, directory: Path, containerd: Containerd) -> None:
        self._containerd = containerd
        self._directory = directory
        self._manifests = directory / "manifests"
        self._root = directory / "kubelet"
        self.cgroup_root = f"/pktest-{uuid4().hex[:8]}"
        self._agent: subprocess.Popen[bytes] | None = None
        self._is_ours = False
        for each in (self._manifests, self._root):
            each.mkdir()
        # As on a host with shared root. Otherwise the kubelet bind-mounts it onto itself and hides the mounts inside.
        for words in (["--bind", str(self._root)], ["--make-rshared"]):
            subprocess.run(["mount", *words, str(self._root)], check=True)
        self._make_cgroups()
        self._config = directory / "config.yaml"
        self._config.write_text(yaml.safe_dump(self._configuration()))

    def write(self, name: str, **spec: Any) -> None:
        document = {**manifest(name, metadata={"uid": str(uuid4()), "namespace": "default"}), "spec": spec}
        (self._manifests / f"{name}.yaml").write_text(yaml.safe_dump(document))

    def remove_manifest(self, name: str) -> None:
        (self._manifests / f"{name}.yaml").unlink()

    def start_kubelet(self) -> None:
        program = kubelet_program()
        assert program is not None
        where = ("--root-dir", str(self._root), "--cert-dir", str(self._directory / "pki"))
        self._start([program, "--config", str(self._config), "--hostname-override", NODE, *where], is_ours=False)

    def start_podkeeper(self) -> None:
        call = [sys.executable, "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')", "run"]
        where = ("--root", str(self._root), "--config", str(self._config), "--node-name", NODE)
        self._start([*call, str(self._manifests), "--runtime", "cri", *where], is_ours=True)

    @property
    def agent_pid(self) -> int:
        assert self._agent is not None
        return self._agent.pid

    def kill(self) -> None:
        """Kill the agent as in a crash. Its pods keep running."""
        assert self._agent is not None
        self._agent.send_signal(signal.SIGKILL)
        self._agent.wait(TIMEOUT_SECONDS)
        self._agent = None

    def pods(self) -> Mapping[str, Any]:
        """Return the pods of the current agent by name, or {} while it does not answer."""
        return reported_pods(self._containerd, self._root / "podkeeper.sock" if self._is_ours else None)

    def is_ready(self, name: str) -> bool:
        status = self.pods().get(name, {}).get("status", {})
        return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))

    def containers(self, name: str) -> dict[str, tuple[str, int]]:
        """Return ids and restart counts of a pod's containers, by name."""
        status = self.pods()[name]["status"]
        every = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
        return {each["name"]: (each["containerID"], each["restartCount"]) for each in every}

    def sandboxes(self) -> list[str]:
        """Return the states of all sandboxes."""
        return asyncio.run(self._sandboxes())

    def running(self) -> list[str]:
        """Return the states of the ready sandboxes."""
        return [state for state in self.sandboxes() if state == "SANDBOX_READY"]

    def pod_cgroups(self) -> list[Path]:
        """Return the cgroups of all pods."""
        return [path for path in _CGROUPS.glob(f"*{self.cgroup_root}/**/pod*") if path.is_dir()]

    async def _sandboxes(self) -> list[str]:
        transport = GrpcTransport(self._containerd.socket)
        try:
            return [cri.PodSandboxState.Name(box.state) for box in await CriCalls(transport).sandboxes()]
        finally:
            await transport.close()

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for a condition."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            assert time.monotonic() < end, (
                f"not within {TIMEOUT_SECONDS:g} s: {json.dumps(self.pods())}\n{self._output()[-8000:]}"
            )
            assert self._agent is None or self._agent.poll() is None, self._output()[-8000:]
            time.sleep(0.05)

    def close(self) -> None:
        """Kill the agent and remove all pods, cgroups and mounts."""
        if self._agent is not None:
            self.kill()
        self._containerd.run(self._containerd.remove_all())
        remove_cgroups(self.cgroup_root)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (place := line.split()[1]).startswith(str(self._root)):
                subprocess.run(["umount", "-l", place], check=False, capture_output=True)

    def _start(self, command: list[str], *, is_ours: bool) -> None:
        self._is_ours = is_ours
        with (self._directory / "output").open("ab") as output, self._containerd.in_network():
            self._agent = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def _output(self) -> str:
        return (self._directory / "output").read_text(errors="replace")

    def _configuration(self) -> dict[str, Any]:
        return kubelet_configuration(
            self._containerd,
            staticPodPath=str(self._manifests),
            podLogsDir=str(self._directory / "logs"),
            cgroupRoot=self.cgroup_root,
            cgroupDriver="cgroupfs",
            **STANDALONE,
        )

    def _make_cgroups(self) -> None:
        """Create the cgroup root that both expect."""
        tops = [_CGROUPS] if (_CGROUPS / "cgroup.controllers").exists() else list(_CGROUPS.iterdir())
        for top in tops:
            if (top / "cgroup.procs").exists():
                place = top / self.cgroup_root.strip("/")
                place.mkdir(exist_ok=True)
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if (place / name).exists() and not (place / name).read_text().strip():
                        (place / name).write_text((top / name).read_text())


@contextmanager
def handover_node(containerd: Containerd) -> Iterator[HandoverNode]:
    """Create a node for both agents. Afterwards, nothing is left of it."""
    with TemporaryDirectory(prefix="podkeeper-both-", ignore_cleanup_errors=True) as directory:
        node = HandoverNode(Path(directory), containerd)
        try:
            yield node
        finally:
            node.close()
