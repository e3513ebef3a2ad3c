"""A containerd for tests: with its own directories, socket, network, cgroups and images, and gone without a trace.

    borrowed()  -> the one of this test session, started when first wanted
    node.inside()  -> be in its network: its pods can be reached
    node.opened()  -> a CriRuntime on it; in the end all its pods are removed

Needs root and Debian's containerd, runc, containernetworking-plugins and busybox-static; `missing()` says what is not
there. The network is a bridge in a namespace of its own; images come from busybox, by import and from a small registry.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from podkeeper.host.clock import SystemClock
from podkeeper.model.errors import RuntimeUnavailable, TryLater
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.rules.naming import pod_log_directory
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.runtime import CriRuntime
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.netns import NetworkNamespace, in_thread
from tests.runtimes.cri.oci import BUSYBOX, Store, registry

PATIENCE_SECONDS = 30.0
PORT = 5000
PAUSE = "localhost/podkeeper/pause:1"
BUSYBOX_IMAGE = "docker.io/library/busybox:latest"  # is there
HOUSE_IMAGE = "localhost/podkeeper/busybox:1"  # is there, too
PULLABLE_IMAGE = f"localhost:{PORT}/podkeeper/busybox:1"
PRIVATE_IMAGE = f"localhost:{PORT}/private/busybox:1"
MISSING_IMAGE = f"localhost:{PORT}/podkeeper/missing:1"

NETWORK_FILE = "10-test.conflist"
GATEWAY = "10.88.0.1"
"""Where the node is, in the network of its pods."""

_CNI_PLUGINS = ("/usr/lib/cni", "/opt/cni/bin")
_CGROUPS = Path("/sys/fs/cgroup")
_DISABLED = (
    *("snapshotter.v1.aufs", "snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper"),
    *("tracing.processor.v1.otlp", "internal.v1.tracing", "internal.v1.opt"),
)


def missing() -> str | None:
    """What this machine lacks for running a containerd; None: nothing."""
    if os.geteuid() != 0:
        return "running containerd needs root"
    for command, package in (("containerd", "containerd"), ("ctr", "containerd"), ("runc", "runc")):
        if shutil.which(command) is None:
            return f"there is no {command}: install Debian's {package}"
    if not BUSYBOX.exists():
        return "there is no busybox: install Debian's busybox-static"
    if _cni_directory() is None:
        return "there are no CNI plugins: install Debian's containernetworking-plugins"
    return None


class Containerd:
    """One containerd and all that belongs to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = str(root / "c.sock")
        self.cgroup_root = f"/pktest-{uuid4().hex[:8]}"
        self.logs = root / "logs"
        self.network = NetworkNamespace()
        self.store = Store()
        self.store.add(PAUSE, {"Cmd": ["sleep", "2147483647"]})
        for name in (BUSYBOX_IMAGE, HOUSE_IMAGE, PULLABLE_IMAGE, PRIVATE_IMAGE):
            self.store.add(name, {"Cmd": ["sh"], "Labels": {"name": name}})  # else they would be one image
        self._process: subprocess.Popen[bytes] | None = None
        self.facts = NodeFacts(
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            pods_root=str(root / "pods"),
            seccomp_root=str(root / "seccomp"),
            cgroup_v2=(_CGROUPS / "cgroup.controllers").exists(),
        )

    # Its life.

    def start(self) -> None:
        """Start it with its images, and wait until it answers."""
        self._configure()
        self._begin()
        asyncio.run(self._answers())
        self.reload()

    async def start_again(self) -> None:
        """Start it after a crash, and wait until it answers."""
        self._begin()
        await self._answers()

    def _begin(self) -> None:

        def begin() -> subprocess.Popen[bytes]:
            with self.network.entered(), (self.root / "log").open("ab") as log:
                return subprocess.Popen(
                    ["containerd", "-c", str(self.root / "config.toml")], stdout=log, stderr=subprocess.STDOUT
                )

        self._process = in_thread(begin)

    def kill(self) -> None:
        """End it as a crash would; what it runs goes on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        self._process = None

    def freeze(self) -> None:
        """Let it hang: it takes calls and answers none, until it is thawed or killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Remove all pods, end it, and leave nothing."""
        try:
            if self._process is not None:
                asyncio.run(self.remove_all())
                self._process.terminate()
                self._process.wait(PATIENCE_SECONDS)
        finally:
            if self._process is not None and self._process.poll() is None:
                self.kill()
            self._sweep()
            self.network.close()

    def reload(self) -> None:
        """Import its images."""
        archive = self.root / "images.tar"
        archive.write_bytes(self.store.archive(PAUSE, BUSYBOX_IMAGE, HOUSE_IMAGE))
        command = ["ctr", "-a", self.socket, "-n", "k8s.io", "images", "import", str(archive)]
        subprocess.run(command, check=True, capture_output=True)
        archive.unlink()

    # Using it.

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be in its network, where its pods can be reached."""
        with self.network.entered():
            yield

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

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a scenario in its network."""
        with self.inside():
            asyncio.run(work)

    def runtime(self) -> "HousedRuntime":
        """A runtime on it, not yet open."""
        return HousedRuntime(self)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["HousedRuntime"]:
        """A runtime on it; in the end all its pods are removed."""
        async with self.runtime() as runtime:
            try:
                yield runtime
            finally:
                await self.remove_all()

    async def remove_all(self) -> None:
        """Remove every pod."""
        transport = GrpcTransport(self.socket)
        calls = Calls(transport)

        async def remove(sandbox_id: str) -> None:
            await calls.stop_sandbox(sandbox_id)
            await calls.remove_sandbox(sandbox_id)

        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while boxes := await calls.sandboxes():
                    await asyncio.gather(*(remove(box.id) for box in boxes), return_exceptions=True)
        finally:
            await transport.close()
        shutil.rmtree(self.facts.pods_root, ignore_errors=True)

    def shims(self) -> list[int]:
        """Its helpers that still live, one for each sandbox."""
        return [pid for pid, words in _command_lines() if "containerd-shim" in words and self.socket in words]

    async def _answers(self) -> None:
        transport = GrpcTransport(self.socket)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    with suppress(TryLater):
                        ready = {
                            each.type for each in (await Calls(transport).status()).status.conditions if each.status
                        }
                        if ready >= {"RuntimeReady", "NetworkReady"}:
                            return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise RuntimeUnavailable(f"containerd did not start: {(self.root / 'log').read_text()[-2000:]}") from None
        finally:
            await transport.close()

    def _configure(self) -> None:
        (self.root / "cni").mkdir(exist_ok=True)
        (self.root / "cni" / NETWORK_FILE).write_text(self._network())
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
    bin_dir = "{_cni_directory()}"
    conf_dir = "{self.root}/cni"
""")

    def _network(self, *more: dict[str, Any]) -> str:
        """A CNI configuration: a bridge, and more plugins after it."""
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": "10.88.0.0/20"}]],
            "dataDir": str(self.root / "ipam"),
        }
        bridge = {"type": "bridge", "bridge": "pk0", "isGateway": True, "ipMasq": False, "ipam": addresses}
        return json.dumps({"cniVersion": "0.4.0", "name": "podkeeper", "plugins": [bridge, *more]})

    def _sweep(self) -> None:
        for pid in self.shims():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((each for each in mounts if each.startswith(f"{self.root}/")), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        remove_cgroups(self.cgroup_root)


class HousedRuntime(CriRuntime):
    """A runtime whose pods have their cgroups and logs where the tests' containerd has its own."""

    def __init__(self, node: Containerd) -> None:
        super().__init__(GrpcTransport(node.socket), node.facts, clock=SystemClock(), where=node.socket)
        self.node = node

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a sandbox, in its place."""
        parent = config.cgroup_parent or f"{self.node.cgroup_root}/pod{config.pod.metadata.uid}"
        logs = config.log_directory or pod_log_directory(str(self.node.logs), config.pod)
        return await super().run_sandbox(replace(config, cgroup_parent=parent, log_directory=logs))


# The one of this session.

_lent: tuple[Containerd, ExitStack] | None = None
_borrowers = 0


@contextmanager
def borrowed() -> Iterator[Containerd]:
    """The containerd of this test session; it ends with its last borrower."""
    global _lent, _borrowers
    if _lent is None:
        _lent = _started()
    _borrowers += 1
    node, _ = _lent
    try:
        yield node
    finally:
        _borrowers -= 1
        if _borrowers == 0:
            (_, stack), _lent = _lent, None
            stack.close()


def _started() -> tuple[Containerd, ExitStack]:
    with ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="podkeeper-containerd-", ignore_cleanup_errors=True)
        )
        node = Containerd(Path(directory))
        stack.callback(node.stop)
        node.start()
        with node.inside():
            stack.enter_context(registry(node.store, PORT))
        return node, stack.pop_all()


def remove_cgroups(name: str) -> None:
    """Remove empty cgroups below a name, which runtimes leave behind; those that are not empty yet are waited for."""
    tops = {path for path in (_CGROUPS / name.strip("/"), *_CGROUPS.glob(f"*/{name.strip('/')}")) if path.is_dir()}
    deadline = time.monotonic() + PATIENCE_SECONDS
    for top in tops:
        for directory, _, _ in os.walk(top, topdown=False):
            while True:
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
                else:
                    break


def _cni_directory() -> str | None:
    return next((path for path in _CNI_PLUGINS if os.path.exists(f"{path}/bridge")), None)


def _command_lines() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                yield (
                    int(name),
                    Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                )
