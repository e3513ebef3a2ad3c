"""A container runtime for tests, with its own directories, socket, network, cgroups and images.

    node.in_network()  -> enter its network, where its pods can be reached
    node.opened()      -> a CriRuntime on it; in the end, all its pods are removed
    SharedInstance(Containerd).shared_instance()  -> the one of this test session, started on first use

This module has the parts that all runtimes share. `containerd.py` and `crio.py` configure each of them. The network is
a bridge in its own namespace. A small registry serves busybox images. `stop()` removes everything.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

from msgspec.structs import replace

from podkeeper.host.clock import SystemClock
from podkeeper.model.errors import RuntimeUnavailable, TryLater
from podkeeper.model.runtime_calls import SandboxConfig
from podkeeper.rules.naming import pod_log_directory
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.removal import Removal
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.runtime import CriRuntime
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.netns import NetworkNamespace, in_thread
from tests.runtimes.cri.oci import BUSYBOX, Store, registry

TIMEOUT_SECONDS = 30.0
PORT = 5000
PAUSE = "localhost/podkeeper/pause:1"
BUSYBOX_IMAGE = "docker.io/library/busybox:latest"  # preloaded
LOCAL_IMAGE = "localhost/podkeeper/busybox:1"  # preloaded
PULLABLE_IMAGE = f"localhost:{PORT}/podkeeper/busybox:1"
PRIVATE_IMAGE = f"localhost:{PORT}/private/busybox:1"
MISSING_IMAGE = f"localhost:{PORT}/podkeeper/missing:1"

NETWORK_FILE = "10-test.conflist"
GATEWAY = "10.88.0.1"
"""The address of the node in the network of its pods."""

_CNI_PLUGINS = ("/usr/lib/cni", "/opt/cni/bin")
_CGROUPS = Path("/sys/fs/cgroup")


class CriNode(ABC):
    """One container runtime with its own directories, network and images."""

    name: ClassVar[str]  # as in its Version response
    helper: ClassVar[str]  # its helper process per sandbox or container
    more_environment: Mapping[str, str] = {}

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = str(root / "c.sock")
        self.cgroup_root = f"/pktest-{uuid4().hex[:8]}"
        self.logs = root / "logs"
        self.network = NetworkNamespace()
        self.store = Store()
        # CRI-O sends SIGTERM and waits for the exit.
        self.store.add(PAUSE, {"Cmd": ["sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"]})
        for name in (BUSYBOX_IMAGE, LOCAL_IMAGE, PULLABLE_IMAGE, PRIVATE_IMAGE):
            self.store.add(name, {"Cmd": ["sh"], "Labels": {"name": name}})  # otherwise they would be one image
        self._process: subprocess.Popen[bytes] | None = None
        self._served = ExitStack()
        self.facts = NodeFacts(
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            pods_root=str(root / "pods"),
            seccomp_root=str(root / "seccomp"),
            cgroup_v2=(_CGROUPS / "cgroup.controllers").exists(),
        )

    # Specific to each runtime.

    @abstractmethod
    def reload(self) -> None:
        """Load the images."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that starts it."""

    @abstractmethod
    def _configure(self) -> None:
        """Write its configuration."""

    # Lifecycle.

    def start(self) -> None:
        """Start it, wait until it answers, and load its images."""
        with self.in_network():
            self._served.enter_context(registry(self.store, PORT))
        self._write_network()
        self._configure()
        self._begin()
        asyncio.run(self._answers())
        self.reload()

    async def start_again(self) -> None:
        """Start it after a crash and wait until it answers."""
        self._begin()
        await self._answers()

    def _begin(self) -> None:

        def begin() -> subprocess.Popen[bytes]:
            environment = {**os.environ, **self.more_environment}
            with self.network.entered(), (self.root / "log").open("ab") as log:
                return subprocess.Popen(self._command(), stdout=log, stderr=subprocess.STDOUT, env=environment)

        self._process = in_thread(begin)

    def kill(self) -> None:
        """Kill it as in a crash. Its containers keep running."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(TIMEOUT_SECONDS)
        self._process = None

    def freeze(self) -> None:
        """Stop it with SIGSTOP: it accepts calls and answers none, until thawed or killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue it after `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Remove all pods, stop it, and remove everything that it has left."""
        try:
            if self._process is not None and self._process.poll() is None:
                asyncio.run(self.remove_all())
                self._process.terminate()
                self._process.wait(TIMEOUT_SECONDS)
        finally:
            if self._process is not None and self._process.poll() is None:
                self.kill()
            self._sweep()
            self._served.close()
            self.network.close()

    # Use.

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """Enter its network, where its pods can be reached."""
        with self.network.entered():
            yield

    @contextmanager
    def with_host_ports(self) -> Iterator[None]:
        """Enable `hostPort` for new pods. CRI-O always does."""
        yield

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in its network."""
        with self.in_network():
            asyncio.run(work)

    def runtime(self) -> "CriNodeRuntime":
        """Return a runtime on it, not yet open."""
        return CriNodeRuntime(self)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["CriNodeRuntime"]:
        """Open a runtime on it. In the end, remove all pods."""
        async with self.runtime() as runtime:
            try:
                yield runtime
            finally:
                await self.remove_all()

    async def remove_all(self) -> None:
        transport = GrpcTransport(self.socket)
        calls = CriCalls(transport)
        removal = Removal(calls)

        async def remove(sandbox_id: str) -> None:
            await removal.stop_sandbox(sandbox_id)
            await removal.remove_sandbox(sandbox_id)

        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while boxes := await calls.sandboxes():
                    await asyncio.gather(*(remove(box.id) for box in boxes), return_exceptions=True)
        finally:
            await transport.close()
        shutil.rmtree(self.facts.pods_root, ignore_errors=True)

    def helpers(self) -> list[int]:
        """Return the PIDs of its helpers: one per sandbox with containerd, one per container with CRI-O."""
        return [pid for pid, command in _command_lines() if self.helper in command and str(self.root) in command]

    async def _answers(self) -> None:
        transport = GrpcTransport(self.socket)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while True:
                    with suppress(TryLater):
                        ready = {
                            each.type for each in (await CriCalls(transport).status()).status.conditions if each.status
                        }
                        if ready >= {"RuntimeReady", "NetworkReady"}:
                            return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise RuntimeUnavailable(f"{self.name} did not start: {(self.root / 'log').read_text()[-2000:]}") from None
        finally:
            await transport.close()

    def _write_network(self) -> None:
        (self.root / "cni").mkdir(exist_ok=True)
        (self.root / "cni" / NETWORK_FILE).write_text(self._network())

    def _network(self, *more: dict[str, Any]) -> str:
        """Return a CNI configuration with a bridge and additional plugins."""
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": "10.88.0.0/20"}]],
            "dataDir": str(self.root / "ipam"),
        }
        bridge = {"type": "bridge", "bridge": "pk0", "isGateway": True, "ipMasq": False, "ipam": addresses}
        return json.dumps({"cniVersion": "0.4.0", "name": "podkeeper", "plugins": [bridge, *more]})

    def _sweep(self) -> None:
        for pid in self.helpers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((each for each in mounts if each.startswith(f"{self.root}/")), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        remove_cgroups(self.cgroup_root)


N = TypeVar("N", bound=CriNode)


class CriNodeRuntime(CriRuntime):
    """A CriRuntime that places cgroups and logs of its pods below those of the node."""

    def __init__(self, node: CriNode) -> None:
        super().__init__(GrpcTransport(node.socket), node.facts, clock=SystemClock(), where=node.socket)
        self.node = node

    async def run_sandbox(self, config: SandboxConfig) -> str:
        parent = config.cgroup_parent or f"{self.node.cgroup_root}/pod{config.pod.metadata.uid}"
        logs = config.log_directory or pod_log_directory(str(self.node.logs), config.pod)
        return await super().run_sandbox(replace(config, cgroup_parent=parent, log_directory=logs))


class SharedInstance(Generic[N]):
    """One node for a test session. It stops after its last user has released it."""

    def __init__(self, make: Callable[[Path], N]) -> None:
        self._make = make
        self._instance: tuple[N, ExitStack] | None = None
        self._users = 0

    @contextmanager
    def shared_instance(self) -> Iterator[N]:
        """Yield the node of this session."""
        if self._instance is None:
            self._instance = self._started()
        self._users += 1
        node, _ = self._instance
        try:
            yield node
        finally:
            self._users -= 1
            if self._users == 0:
                (_, stack), self._instance = self._instance, None
                stack.close()

    def _started(self) -> tuple[N, ExitStack]:
        with ExitStack() as stack:
            directory = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="podkeeper-cri-", ignore_cleanup_errors=True)
            )
            node = self._make(Path(directory))
            stack.callback(node.stop)
            node.start()
            return node, stack.pop_all()


def missing_programs(*programs: tuple[str, str]) -> str | None:
    """Return the first missing program or CNI plugin with an installation hint, or None."""
    for command, hint in programs:
        if shutil.which(command) is None:
            return f"there is no {command}: install {hint}"
    if not BUSYBOX.exists():
        return "there is no busybox: install Debian's busybox-static"
    if cni_directory() is None:
        return "there are no CNI plugins: install Debian's containernetworking-plugins"
    return None


def remove_cgroups(name: str) -> None:
    """Remove the cgroups below a name that runtimes leave behind. Wait until they are empty."""
    tops = {path for path in (_CGROUPS / name.strip("/"), *_CGROUPS.glob(f"*/{name.strip('/')}")) if path.is_dir()}
    deadline = time.monotonic() + TIMEOUT_SECONDS
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


def cni_directory() -> str | None:
    """Return the directory of the CNI plugins."""
    return next((path for path in _CNI_PLUGINS if os.path.exists(f"{path}/bridge")), None)


def _command_lines() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                yield (
                    int(name),
                    Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                )
