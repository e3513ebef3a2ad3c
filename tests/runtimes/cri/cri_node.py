"""A container runtime for tests: with its own directories, socket, network, cgroups and images, gone without a trace.

    node.inside()  -> be in its network: its pods can be reached
    node.opened()  -> a CriRuntime on it; in the end all its pods are removed
    Lending(Containerd).borrowed()  -> the one of this test session, started when first wanted

What all runtimes have in common is here; `containerd.py` and `crio.py` say how each is set up. The network is a bridge
in a namespace of its own; images come from busybox, and a small registry serves them.
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
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.ending import Ending
from podkeeper.runtimes.cri.requests.node import NodeFacts
from podkeeper.runtimes.cri.runtime import CriRuntime
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


class CriNode(ABC):
    """One container runtime and all that belongs to it."""

    name: ClassVar[str]  # what it calls itself
    helper: ClassVar[str]  # the program that it leaves with what runs
    more_environment: Mapping[str, str] = {}

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = str(root / "c.sock")
        self.cgroup_root = f"/pktest-{uuid4().hex[:8]}"
        self.logs = root / "logs"
        self.network = NetworkNamespace()
        self.store = Store()
        # CRI-O asks it to end, and waits.
        self.store.add(PAUSE, {"Cmd": ["sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"]})
        for name in (BUSYBOX_IMAGE, HOUSE_IMAGE, PULLABLE_IMAGE, PRIVATE_IMAGE):
            self.store.add(name, {"Cmd": ["sh"], "Labels": {"name": name}})  # else they would be one image
        self._process: subprocess.Popen[bytes] | None = None
        self._served = ExitStack()
        self.facts = NodeFacts(
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            pods_root=str(root / "pods"),
            seccomp_root=str(root / "seccomp"),
            cgroup_v2=(_CGROUPS / "cgroup.controllers").exists(),
        )

    # What each kind does in its own way.

    @abstractmethod
    def reload(self) -> None:
        """Fetch its images."""

    @abstractmethod
    def _command(self) -> list[str]:
        """How it is started."""

    @abstractmethod
    def _configure(self) -> None:
        """Write its configuration."""

    # Its life.

    def start(self) -> None:
        """Start it with its images, and wait until it answers."""
        with self.inside():
            self._served.enter_context(registry(self.store, PORT))
        self._write_network()
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
            environment = {**os.environ, **self.more_environment}
            with self.network.entered(), (self.root / "log").open("ab") as log:
                return subprocess.Popen(self._command(), stdout=log, stderr=subprocess.STDOUT, env=environment)

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
            if self._process is not None and self._process.poll() is None:
                asyncio.run(self.remove_all())
                self._process.terminate()
                self._process.wait(PATIENCE_SECONDS)
        finally:
            if self._process is not None and self._process.poll() is None:
                self.kill()
            self._sweep()
            self._served.close()
            self.network.close()

    # Using it.

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be in its network, where its pods can be reached."""
        with self.network.entered():
            yield

    @contextmanager
    def with_host_ports(self) -> Iterator[None]:
        """Pods made meanwhile have their `hostPort`s. CRI-O sees to that itself."""
        yield

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
        ending = Ending(calls)

        async def remove(sandbox_id: str) -> None:
            await ending.stop_sandbox(sandbox_id)
            await ending.remove_sandbox(sandbox_id)

        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while boxes := await calls.sandboxes():
                    await asyncio.gather(*(remove(box.id) for box in boxes), return_exceptions=True)
        finally:
            await transport.close()
        shutil.rmtree(self.facts.pods_root, ignore_errors=True)

    def helpers(self) -> list[int]:
        """Its helpers that still live: one for each sandbox of containerd, or for each container of CRI-O."""
        return [pid for pid, words in _command_lines() if self.helper in words and str(self.root) in words]

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
            raise RuntimeUnavailable(f"{self.name} did not start: {(self.root / 'log').read_text()[-2000:]}") from None
        finally:
            await transport.close()

    def _write_network(self) -> None:
        (self.root / "cni").mkdir(exist_ok=True)
        (self.root / "cni" / NETWORK_FILE).write_text(self._network())

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
        for pid in self.helpers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((each for each in mounts if each.startswith(f"{self.root}/")), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        remove_cgroups(self.cgroup_root)


N = TypeVar("N", bound=CriNode)


class HousedRuntime(CriRuntime):
    """A runtime whose pods have their cgroups and logs where the tests' container runtime has its own."""

    def __init__(self, node: CriNode) -> None:
        super().__init__(GrpcTransport(node.socket), node.facts, clock=SystemClock(), where=node.socket)
        self.node = node

    async def run_sandbox(self, config: SandboxConfig) -> str:
        """Make a sandbox, in its place."""
        parent = config.cgroup_parent or f"{self.node.cgroup_root}/pod{config.pod.metadata.uid}"
        logs = config.log_directory or pod_log_directory(str(self.node.logs), config.pod)
        return await super().run_sandbox(replace(config, cgroup_parent=parent, log_directory=logs))


class Lending(Generic[N]):
    """One node for all who want it in a test session; it ends with its last borrower."""

    def __init__(self, make: Callable[[Path], N]) -> None:
        self._make = make
        self._lent: tuple[N, ExitStack] | None = None
        self._borrowers = 0

    @contextmanager
    def borrowed(self) -> Iterator[N]:
        """The one of this session."""
        if self._lent is None:
            self._lent = self._started()
        self._borrowers += 1
        node, _ = self._lent
        try:
            yield node
        finally:
            self._borrowers -= 1
            if self._borrowers == 0:
                (_, stack), self._lent = self._lent, None
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
    """What of programs, given with how to get them, and of what every runtime needs, this machine lacks."""
    for command, hint in programs:
        if shutil.which(command) is None:
            return f"there is no {command}: install {hint}"
    if not BUSYBOX.exists():
        return "there is no busybox: install Debian's busybox-static"
    if cni_directory() is None:
        return "there are no CNI plugins: install Debian's containernetworking-plugins"
    return None


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


def cni_directory() -> str | None:
    """Where CNI's plugins are."""
    return next((path for path in _CNI_PLUGINS if os.path.exists(f"{path}/bridge")), None)


def _command_lines() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                yield (
                    int(name),
                    Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                )
