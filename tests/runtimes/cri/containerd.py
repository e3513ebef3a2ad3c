"""A containerd for tests. `shared_instance()` is the one of this test session.

It needs root and Debian's containerd, runc, containernetworking-plugins and busybox-static. `missing()` returns what
the machine lacks. `cri_node.py` has the parts that all runtimes share.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.cri_node import (
    BUSYBOX_IMAGE,
    GATEWAY,
    LOCAL_IMAGE,
    MISSING_IMAGE,
    NETWORK_FILE,
    PAUSE,
    PORT,
    PRIVATE_IMAGE,
    PULLABLE_IMAGE,
    TIMEOUT_SECONDS,
    CriNode,
    CriNodeRuntime,
    SharedInstance,
    cni_directory,
    missing_programs,
    remove_cgroups,
)

__all__ = [
    "BUSYBOX_IMAGE",
    "GATEWAY",
    "LOCAL_IMAGE",
    "MISSING_IMAGE",
    "PAUSE",
    "PORT",
    "PRIVATE_IMAGE",
    "PULLABLE_IMAGE",
    "Containerd",
    "CriNodeRuntime",
    "missing",
    "remove_cgroups",
    "shared_instance",
]

_DISABLED = (
    *("snapshotter.v1.aufs", "snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper"),
    *("tracing.processor.v1.otlp", "internal.v1.tracing", "internal.v1.opt"),
)


def missing() -> str | None:
    """Return what this machine lacks for running containerd, or None."""
    if os.geteuid() != 0:
        return "running containerd needs root"
    return missing_programs(
        ("containerd", "Debian's containerd"), ("ctr", "Debian's containerd"), ("runc", "Debian's runc")
    )


class Containerd(CriNode):
    """One containerd with its own directories, network and images."""

    name = "containerd"
    helper = "containerd-shim"

    def reload(self) -> None:
        archive = self.root / "images.tar"
        archive.write_bytes(self.store.archive(PAUSE, BUSYBOX_IMAGE, LOCAL_IMAGE))
        command = ["ctr", "-a", self.socket, "-n", "k8s.io", "images", "import", str(archive)]
        subprocess.run(command, check=True, capture_output=True)
        archive.unlink()

    def _command(self) -> list[str]:
        return ["containerd", "-c", str(self.root / "config.toml")]

    @contextmanager
    def with_host_ports(self) -> Iterator[None]:
        """Enable `hostPort` for new pods. Not the default, because it costs calls of iptables."""
        file = self.root / "cni" / NETWORK_FILE
        usual = file.read_text()
        try:
            self._set_network(self._network({"type": "portmap", "capabilities": {"portMappings": True}}))
            yield
        finally:
            self._set_network(usual)

    def lose_pipes(self) -> None:
        """Simulate a crash during the exit of every container: remove their pipes, with their exits unrecorded.

        Call it while containerd is down. After its restart, it reports these containers as UNKNOWN.
        """
        for pipes in (self.root / "state" / "io.containerd.grpc.v1.cri" / "containers").glob("*/io"):
            shutil.rmtree(pipes)

    def _set_network(self, config: str) -> None:
        """Change the network of new pods."""
        file = self.root / "cni" / NETWORK_FILE
        fresh = file.with_suffix(".new")
        fresh.write_text(config)
        fresh.replace(file)
        asyncio.run(self._until_network_is(config))

    async def _until_network_is(self, config: str) -> None:
        wanted = len(json.loads(config)["plugins"])
        transport = GrpcTransport(self.socket)
        request = cri.StatusRequest(verbose=True)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while True:
                    status = await transport.unary(
                        "/runtime.v1.RuntimeService/Status", request, cri.StatusResponse, TIMEOUT_SECONDS
                    )
                    networks = json.loads(status.info["cniconfig"])["Networks"]
                    mine = [each for each in networks if each["Config"]["Name"] == "podkeeper"]
                    if mine and len(mine[0]["Config"]["Plugins"]) == wanted:
                        return
                    await asyncio.sleep(0.02)
        finally:
            await transport.close()

    def _configure(self) -> None:
        disabled = ", ".join(f'"io.containerd.{name}"' for name in _DISABLED)
        (self.root / "config.toml").write_text(f"""
version = 2
root = "{self.root}/root"
state = "{self.root}/state"
disabled_plugins = [{disabled}]
[grpc]
  address = "{self.socket}"
[ttrpc]
  address = "{self.root}/t.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true  # otherwise containers fail if it cannot be lowered
  stream_server_port = "0"
  enable_selinux = false
  netns_mounts_under_state_dir = true  # so that those leaked by a killed containerd are found
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_directory()}"
    conf_dir = "{self.root}/cni"
""")


shared_instance = SharedInstance(Containerd).shared_instance
