"""A containerd for tests: `borrowed()` is the one of this test session.

Needs root and Debian's containerd, runc, containernetworking-plugins and busybox-static; `missing()` says what is not
there. All that is not containerd's own is in `cri_node.py`.
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
    HOUSE_IMAGE,
    MISSING_IMAGE,
    NETWORK_FILE,
    PATIENCE_SECONDS,
    PAUSE,
    PORT,
    PRIVATE_IMAGE,
    PULLABLE_IMAGE,
    CriNode,
    HousedRuntime,
    Lending,
    cni_directory,
    missing_programs,
    remove_cgroups,
)

__all__ = [
    "BUSYBOX_IMAGE",
    "GATEWAY",
    "HOUSE_IMAGE",
    "MISSING_IMAGE",
    "PAUSE",
    "PORT",
    "PRIVATE_IMAGE",
    "PULLABLE_IMAGE",
    "Containerd",
    "HousedRuntime",
    "borrowed",
    "missing",
    "remove_cgroups",
]

_DISABLED = (
    *("snapshotter.v1.aufs", "snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper"),
    *("tracing.processor.v1.otlp", "internal.v1.tracing", "internal.v1.opt"),
)


def missing() -> str | None:
    """What this machine lacks for running a containerd; None: nothing."""
    if os.geteuid() != 0:
        return "running containerd needs root"
    return missing_programs(
        ("containerd", "Debian's containerd"), ("ctr", "Debian's containerd"), ("runc", "Debian's runc")
    )


class Containerd(CriNode):
    """One containerd and all that belongs to it."""

    name = "containerd"
    helper = "containerd-shim"

    def reload(self) -> None:
        """Import its images."""
        archive = self.root / "images.tar"
        archive.write_bytes(self.store.archive(PAUSE, BUSYBOX_IMAGE, HOUSE_IMAGE))
        command = ["ctr", "-a", self.socket, "-n", "k8s.io", "images", "import", str(archive)]
        subprocess.run(command, check=True, capture_output=True)
        archive.unlink()

    def _command(self) -> list[str]:
        return ["containerd", "-c", str(self.root / "config.toml")]

    @contextmanager
    def with_host_ports(self) -> Iterator[None]:
        """Pods made meanwhile have their `hostPort`s. It costs them calls of iptables: so not always."""
        file = self.root / "cni" / NETWORK_FILE
        usual = file.read_text()
        try:
            self._set_network(self._network({"type": "portmap", "capabilities": {"portMappings": True}}))
            yield
        finally:
            self._set_network(usual)

    def lose_pipes(self) -> None:
        """Be as after a crash within the end of every container: their pipes are gone, their ends are not noted.

        To be called between two lives of it. In its next one it says that it does not know how they are.
        """
        for pipes in (self.root / "state" / "io.containerd.grpc.v1.cri" / "containers").glob("*/io"):
            shutil.rmtree(pipes)

    def _set_network(self, config: str) -> None:
        """Have another network, as from the next pod."""
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
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    status = await transport.unary(
                        "/runtime.v1.RuntimeService/Status", request, cri.StatusResponse, PATIENCE_SECONDS
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
  restrict_oom_score_adj = true  # who may not lower it is not refused
  stream_server_port = "0"
  enable_selinux = false
  netns_mounts_under_state_dir = true  # so that those which a killed containerd forgets are found
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_directory()}"
    conf_dir = "{self.root}/cni"
""")


borrowed = Lending(Containerd).borrowed
