"""A node whose containerd creates cgroups through systemd. Systemd, containerd and the agent run in namespaces.

    with slice_node() as node:
        node.write("web", containers=[...]); node.start(); node.until(lambda: node.is_ready("web")); node.kill()

`tests/host/booted.py` boots systemd with a read-only file system, so all files are in its one writable directory. The
agent is `podkeeper run --runtime cri` with the kubelet's cgroup root, or the kubelet itself, if it is installed. Both
read the same configuration and manifests and use the same directories.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.e2e.kubelet_node import NODE, STANDALONE, kubelet_configuration, kubelet_program, reported_pods
from tests.host.booted import BootedSystemd, booted
from tests.manifests import manifest
from tests.runtimes.cri.containerd import LOCAL_IMAGE, Containerd

TIMEOUT_SECONDS = 60.0
PODKEEPER = (sys.executable, "-B", "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')")
SERVES = "trap 'exit 0' TERM; echo start >> /markers/$NAME; sleep 100000 & wait"
_THROUGH_SYSTEMD = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true
"""


class SliceContainerd(Containerd):
    """A containerd that creates cgroups through a booted systemd."""

    def __init__(self, systemd: BootedSystemd) -> None:
        root = systemd.root / "c"
        root.mkdir()
        super().__init__(root)
        self.network.close()
        self.network = systemd.network
        self._systemd = systemd

    def _configure(self) -> None:
        super()._configure()
        with (self.root / "config.toml").open("a") as config:
            config.write(_THROUGH_SYSTEMD)

    def _begin(self) -> None:
        with (self.root / "log").open("ab") as log:
            command = self._systemd.command("containerd", "-c", str(self.root / "config.toml"))
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        """Remove all pods. The shutdown of systemd removes the rest."""
        if self._process is not None:
            try:
                asyncio.run(self.remove_all())
            finally:
                self._process.kill()
                self._process.wait(TIMEOUT_SECONDS)


class SliceNode:
    """The machine with at most one agent at a time."""

    def __init__(self, systemd: BootedSystemd, containerd: Containerd) -> None:
        self.systemd = systemd
        self.containerd = containerd
        self._manifests, self._markers, self._root = (systemd.root / name for name in ("manifests", "markers", "r"))
        for each in (self._manifests, self._markers):
            each.mkdir()
        self._agent: subprocess.Popen[bytes] | None = None
        self._is_ours = True
        self._configuration = kubelet_configuration(containerd, cgroupRoot="/", podLogsDir=str(systemd.root / "logs"))

    def write(self, name: str, resources: Mapping[str, Any]) -> str:
        """Write the manifest of a pod that records each start. Return its UID."""
        uid = str(uuid4())
        container = {
            "image": LOCAL_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", SERVES],
            "env": [{"name": "NAME", "value": name}],
            "resources": resources,
            "volumeMounts": [{"name": "markers", "mountPath": "/markers"}],
        }
        document = manifest(
            name,
            container,
            metadata={"namespace": "default", "uid": uid},
            terminationGracePeriodSeconds=5,
            volumes=[{"name": "markers", "hostPath": {"path": str(self._markers)}}],
        )
        (self._manifests / f"{name}.yaml").write_text(yaml.safe_dump(document))
        return uid

    def remove_manifest(self, name: str) -> None:
        (self._manifests / f"{name}.yaml").unlink()

    # Lifecycle of the agent.

    def start(self) -> None:
        """Start podkeeper without a cgroup driver in its configuration: the runtime reports it."""
        self._is_ours = True
        where = ("--root", str(self._root), "--config", self._configured(), "--node-name", NODE)
        self._start(*PODKEEPER, "run", str(self._manifests), "--runtime", "cri", "--plain", *where)

    def start_kubelet(self) -> None:
        program = kubelet_program()
        assert program is not None
        if not self._root.exists():
            self._root.mkdir()
            # As on a host with shared root. Otherwise the kubelet bind-mounts it onto itself and hides mounts inside.
            self.systemd.run("mount", "--bind", str(self._root), str(self._root))
            self.systemd.run("mount", "--make-rshared", str(self._root))
        self._is_ours = False
        where = ("--root-dir", str(self._root), "--cert-dir", str(self.systemd.root / "pki"))
        self._start(
            program, "--config", self._configured(**self._kubelet_settings()), "--hostname-override", NODE, *where
        )

    def _kubelet_settings(self) -> dict[str, Any]:
        """Return the additional settings that the kubelet needs in namespaces and without an API server."""
        return {
            "cgroupDriver": "systemd",  # this containerd is too old to report it
            "staticPodPath": str(self._manifests),
            "volumePluginDir": str(self.systemd.root / "plugins"),
            "featureGates": {"KubeletInUserNamespace": True},  # it cannot change sysctls here
            **STANDALONE,
        }

    def _configured(self, **more: Any) -> str:
        path = self.systemd.root / "config.yaml"
        path.write_text(yaml.safe_dump({**self._configuration, **more}))
        return str(path)

    def _start(self, *argv: str) -> None:
        with (self.systemd.root / "output").open("ab") as output:
            command = self.systemd.command(*argv)
            self._agent = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Stop the agent. Its pods keep running."""
        assert self._agent is not None
        children = Path(f"/proc/{self._agent.pid}/task/{self._agent.pid}/children")  # the child of nsenter is the agent
        (agent,) = map(int, children.read_text().split())
        os.kill(agent, how)
        self._agent.wait(TIMEOUT_SECONDS)
        self._agent = None

    # Observations.

    def pods(self) -> Mapping[str, Any]:
        """Return the pods of the agent by name, or {} while it does not answer."""
        return reported_pods(self.containerd, self._root / "podkeeper.sock" if self._is_ours else None)

    def is_ready(self, *names: str) -> bool:
        pods = self.pods()
        conditions = [pods.get(name, {}).get("status", {}).get("conditions", ()) for name in names]
        return all(any(it["type"] == "Ready" and it["status"] == "True" for it in each) for each in conditions)

    def container_id(self, name: str) -> str:
        """Return the container id of a pod."""
        (status,) = self.pods()[name]["status"]["containerStatuses"]
        return str(status["containerID"]).removeprefix("containerd://")

    def cgroup_parents(self) -> dict[str, str]:
        """Return the cgroup parent in the sandbox configuration of each pod."""
        return asyncio.run(self._cgroup_parents())

    async def _cgroup_parents(self) -> dict[str, str]:
        transport = GrpcTransport(self.containerd.socket)
        found = {}
        try:
            for box in await CriCalls(transport).sandboxes():
                request = cri.PodSandboxStatusRequest(pod_sandbox_id=box.id, verbose=True)
                method = "/runtime.v1.RuntimeService/PodSandboxStatus"
                answer = await transport.unary(method, request, cri.PodSandboxStatusResponse, TIMEOUT_SECONDS)
                name = box.metadata.name.removesuffix(f"-{NODE}")
                found[name] = json.loads(answer.info["info"])["config"]["linux"]["cgroup_parent"]
        finally:
            await transport.close()
        return found

    def starts(self, name: str) -> int:
        """Return how often the container of a pod started, from its own records."""
        return len((self._markers / name).read_text().splitlines())

    def cgroup_file(self, path: str, file: str) -> str:
        """Read a file of a cgroup."""
        return (self.systemd.directory(file.partition(".")[0], path) / file).read_text().strip()

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for a condition."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            output = (self.systemd.root / "output").read_text(errors="replace")[-8000:]
            assert time.monotonic() < end, f"not within {TIMEOUT_SECONDS:g} s: {json.dumps(self.pods())}\n{output}"
            assert self._agent is None or self._agent.poll() is None, output
            time.sleep(0.05)

    def close(self) -> None:
        """Stop the agent if it runs."""
        if self._agent is not None:
            self.end()


@contextmanager
def slice_node() -> Iterator[SliceNode]:
    """Create a node. Afterwards, nothing is left of it."""
    with booted() as systemd:
        containerd = SliceContainerd(systemd)
        try:
            containerd.start()
            node = SliceNode(systemd, containerd)
            try:
                yield node
            finally:
                node.close()
        finally:
            containerd.stop()
