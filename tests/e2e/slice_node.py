"""A node whose containerd makes cgroups through systemd: that one, containerd and the agent, all inside of namespaces.

    with slice_node() as node:
        node.write("web", containers=[...]); node.start(); node.until(lambda: node.is_ready("web")); node.kill()

Systemd is `tests/host/booted.py`'s, which seals the machine's files off: everything here lies in its one directory that
can be written. The agent is a process of its own, as `podkeeper run --runtime cri` starts it, with the reference's
cgroup root; or it is the reference kubelet, where the machine has it: both read the same configuration and manifests,
and keep their files in the same places.
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

from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.e2e.reference_kubelet import NODE, PORT, pods_told, reference_kubelet
from tests.host.booted import Booted, booted
from tests.runtimes.cri.containerd import HOUSE_IMAGE, Containerd

PATIENCE_SECONDS = 60.0
PODKEEPER = (sys.executable, "-B", "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')")
SERVES = "trap 'exit 0' TERM; echo start >> /ledger/$NAME; sleep 100000 & wait"
_THROUGH_SYSTEMD = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true
"""


class SliceContainerd(Containerd):
    """A containerd that makes cgroups through a systemd, beside it."""

    def __init__(self, systemd: Booted) -> None:
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
        """Remove all pods; the rest goes with systemd."""
        if self._process is not None:
            try:
                asyncio.run(self.remove_all())
            finally:
                self._process.kill()
                self._process.wait(PATIENCE_SECONDS)


class SliceNode:
    """The machine, and an agent on it now and then."""

    def __init__(self, systemd: Booted, containerd: Containerd) -> None:
        self.systemd = systemd
        self.containerd = containerd
        self._manifests, self._ledger, self._root = (systemd.root / name for name in ("manifests", "ledger", "r"))
        for each in (self._manifests, self._ledger):
            each.mkdir()
        self._agent: subprocess.Popen[bytes] | None = None
        self._is_ours = True
        self._configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupRoot": "/",
            "podLogsDir": str(systemd.root / "logs"),
            "containerRuntimeEndpoint": f"unix://{containerd.socket}",
        }

    def write(self, name: str, resources: Mapping[str, Any]) -> str:
        """Write the manifest of a pod that notes down each start. Returns its UID."""
        uid = str(uuid4())
        container = {
            "name": "app",
            "image": HOUSE_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", SERVES],
            "env": [{"name": "NAME", "value": name}],
            "resources": resources,
            "volumeMounts": [{"name": "ledger", "mountPath": "/ledger"}],
        }
        spec = {
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            "volumes": [{"name": "ledger", "hostPath": {"path": str(self._ledger)}}],
        }
        metadata = {"name": name, "namespace": "default", "uid": uid}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        (self._manifests / f"{name}.yaml").write_text(yaml.safe_dump(manifest))
        return uid

    def unwrite(self, name: str) -> None:
        """Take a pod's manifest away."""
        (self._manifests / f"{name}.yaml").unlink()

    # The agent's life.

    def start(self) -> None:
        """Start podkeeper, and tell it nothing of the driver: the runtime does."""
        self._is_ours = True
        where = ("--root", str(self._root), "--config", self._configured(), "--node-name", NODE)
        self._start(*PODKEEPER, "run", str(self._manifests), "--runtime", "cri", "--plain", *where)

    def start_reference(self) -> None:
        """Start the reference kubelet."""
        program = reference_kubelet()
        assert program is not None
        if not self._root.exists():
            self._root.mkdir()
            # As on a machine whose root is shared; else it mounts that over itself, hiding what is mounted in it.
            self.systemd.run("mount", "--bind", str(self._root), str(self._root))
            self.systemd.run("mount", "--make-rshared", str(self._root))
        self._is_ours = False
        where = ("--root-dir", str(self._root), "--cert-dir", str(self.systemd.root / "pki"))
        self._start(
            program, "--config", self._configured(**self._of_the_reference()), "--hostname-override", NODE, *where
        )

    def _of_the_reference(self) -> dict[str, Any]:
        """What the reference must be told besides, alone and in namespaces."""
        return {
            "cgroupDriver": "systemd",  # this containerd is too old to tell it
            "staticPodPath": str(self._manifests),
            "volumePluginDir": str(self.systemd.root / "plugins"),
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "featureGates": {"KubeletInUserNamespace": True},  # kernel settings are not its own here
            "readOnlyPort": PORT,
            "address": "127.0.0.1",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi"},
            "fileCheckFrequency": "1s",
        }

    def _configured(self, **more: Any) -> str:
        path = self.systemd.root / "config.yaml"
        path.write_text(yaml.safe_dump({**self._configuration, **more}))
        return str(path)

    def _start(self, *argv: str) -> None:
        with (self.systemd.root / "said").open("ab") as said:
            command = self.systemd.command(*argv)
            self._agent = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the agent; its pods live on."""
        assert self._agent is not None
        children = Path(f"/proc/{self._agent.pid}/task/{self._agent.pid}/children")  # nsenter's one is the agent
        (agent,) = map(int, children.read_text().split())
        os.kill(agent, how)
        self._agent.wait(PATIENCE_SECONDS)
        self._agent = None

    # How things are.

    def pods(self) -> Mapping[str, Any]:
        """What the agent says of its pods, by name; nothing while it does not answer."""
        return pods_told(self.containerd, self._root / "podkeeper.sock" if self._is_ours else None)

    def is_ready(self, *names: str) -> bool:
        """Whether the agent says that pods are ready."""
        pods = self.pods()
        conditions = [pods.get(name, {}).get("status", {}).get("conditions", ()) for name in names]
        return all(any(it["type"] == "Ready" and it["status"] == "True" for it in each) for each in conditions)

    def container_id(self, name: str) -> str:
        """The container of a pod."""
        (status,) = self.pods()[name]["status"]["containerStatuses"]
        return str(status["containerID"]).removeprefix("containerd://")

    def cgroup_parents(self) -> dict[str, str]:
        """What the runtime was told as the cgroup parent of each pod, by the agent that started it."""
        return asyncio.run(self._cgroup_parents())

    async def _cgroup_parents(self) -> dict[str, str]:
        transport = GrpcTransport(self.containerd.socket)
        found = {}
        try:
            for box in await Calls(transport).sandboxes():
                request = cri.PodSandboxStatusRequest(pod_sandbox_id=box.id, verbose=True)
                method = "/runtime.v1.RuntimeService/PodSandboxStatus"
                answer = await transport.unary(method, request, cri.PodSandboxStatusResponse, PATIENCE_SECONDS)
                name = box.metadata.name.removesuffix(f"-{NODE}")
                found[name] = json.loads(answer.info["info"])["config"]["linux"]["cgroup_parent"]
        finally:
            await transport.close()
        return found

    def starts(self, name: str) -> int:
        """How often the container of a pod really began, by its own account."""
        return len((self._ledger / name).read_text().splitlines())

    def told(self, path: str, file: str) -> str:
        """What the kernel says of a cgroup."""
        return (self.systemd.directory(file.partition(".")[0], path) / file).read_text().strip()

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            said = (self.systemd.root / "said").read_text(errors="replace")[-8000:]
            assert time.monotonic() < end, f"waited in vain: {json.dumps(self.pods())}\n{said}"
            assert self._agent is None or self._agent.poll() is None, said
            time.sleep(0.05)

    def close(self) -> None:
        """End the agent, if it runs."""
        if self._agent is not None:
            self.end()


@contextmanager
def slice_node() -> Iterator[SliceNode]:
    """A node; nothing is left of it."""
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
