"""Fakes of the small ports: journal, volumes, cgroups, prober. Dictionaries, with trouble on order.

They ship for tests and the simulation. Where a fake takes a clock, its methods go through the same door as the fake
runtime's: delays, faults and a ledger (`podkeeper.runtimes.fake.calls`).
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import (
    Answered,
    Endpoint,
    GrpcEnd,
    HttpAnswer,
    HttpEnd,
    HttpRequest,
    NoAnswer,
    NotConnected,
)
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.fake.calls import Call, Calls
from podkeeper.runtimes.fake.faults import FakeFaults

SERVING = 1
"""What a healthy gRPC service answers."""


class FakeJournal:
    """A journal whose disk can be full, and which forgets on a crash what it never synced."""

    def __init__(self, *, sync_seconds: float = 0.0) -> None:
        self.sync_seconds = sync_seconds
        self.disk_full = False
        self.syncs = 0
        self._durable: dict[str, bytes] = {}
        self._current: dict[str, bytes] = {}
        self._unsynced: list[tuple[str, bytes | None]] = []  # None: dropped
        self._settled = 0  # how many writes came before those

    def load(self) -> Mapping[str, bytes]:
        """All there is, as a copy."""
        return dict(self._current)

    def put(self, key: str, value: bytes) -> None:
        """Write."""
        self._unsynced.append((key, bytes(value)))
        _apply(self._current, self._unsynced[-1:])

    def drop(self, key: str) -> None:
        """Forget."""
        self._unsynced.append((key, None))
        _apply(self._current, self._unsynced[-1:])

    def purge(self) -> None:
        """Do nothing: no replaced value is kept."""

    async def sync(self) -> None:
        """Make durable what was written before this call."""
        upto = self._settled + len(self._unsynced)
        if self.sync_seconds > 0:
            await asyncio.sleep(self.sync_seconds)
        if self.disk_full:
            raise TryLater("cannot sync the journal: no space left on the device")
        self._settle(upto - self._settled)  # none or less: another sync did it meanwhile, or a crash lost them
        self.syncs += 1

    def crash(self, keep: int = 0) -> None:
        """Lose what was never synced, save the first `keep` writes of it: the disk may have had them already."""
        self._settle(keep)
        self._settled += len(self._unsynced)
        self._unsynced.clear()
        self._current = dict(self._durable)

    def _settle(self, count: int) -> None:
        """Make the first unsynced writes durable."""
        if count > 0:
            _apply(self._durable, self._unsynced[:count])
            self._settled += len(self._unsynced[:count])
            del self._unsynced[:count]

    @property
    def unsynced_writes(self) -> int:
        """How many writes a crash could lose."""
        return len(self._unsynced)


def _apply(entries: dict[str, bytes], writes: Iterable[tuple[str, bytes | None]]) -> None:
    for key, value in writes:
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value


class FakeVolumes:
    """Volumes that are only names. Faults go by `mount`, `unmount`, `directories`, `remove_directory` and the UID."""

    def __init__(self, clock: Clock, *, delays: Mapping[str, float] | None = None) -> None:
        faults = FakeFaults(failure=TryLater, lost_answer=TryLater)
        self._calls = Calls(clock, TryLater, faults, delays=delays)
        self._mounts: dict[PodUID, dict[str, str]] = {}
        self._directories: set[PodUID] = set()
        self.in_use: set[PodUID] = set()  # pods whose volumes somebody still holds open

    async def mount(self, pod: Pod) -> Mapping[str, str]:
        """Pretend to mount all volumes of a pod."""
        uid = PodUID(pod.metadata.uid or "")
        async with self._calls.call("mount", uid, pod.metadata.name or ""):
            paths = {volume.name: f"/fake/pods/{uid}/volumes/{volume.name}" for volume in pod.spec.volumes or ()}
            self._directories.add(uid)
            if paths:
                self._mounts[uid] = paths
            return dict(paths)

    async def unmount(self, uid: PodUID) -> None:
        """Pretend to unmount all volumes of a pod."""
        async with self._calls.call("unmount", uid):
            if uid in self.in_use:
                raise TryLater(f"cannot unmount the volumes of pod {uid}: device or resource busy")
            self._mounts.pop(uid, None)

    def mounted_pods(self) -> frozenset[PodUID]:
        """Whose volumes are mounted."""
        return frozenset(self._mounts)

    async def directories(self) -> frozenset[PodUID]:
        """Who has a directory."""
        async with self._calls.call("directories", ""):
            return frozenset(self._directories)

    async def remove_directory(self, uid: PodUID) -> None:
        """Forget a pod's directory, unless something is mounted below it."""
        async with self._calls.call("remove_directory", uid):
            if uid in self._mounts:
                raise TryLater(f"cannot remove the directory of pod {uid}: a volume is mounted below it")
            self._directories.discard(uid)

    def peek_directories(self) -> frozenset[PodUID]:
        """Who has a directory; nobody notices."""
        return frozenset(self._directories)

    def reboot(self) -> None:
        """Let the machine start anew: nothing is mounted, directories stay."""
        self._calls.reboot()
        self._mounts.clear()

    @property
    def faults(self) -> FakeFaults:
        """Trouble on order."""
        return self._calls.faults

    @property
    def delays(self) -> dict[str, float]:
        """How long each method takes, in seconds."""
        return self._calls.delays

    @property
    def ledger(self) -> Sequence[Call]:
        """The newest calls, oldest first."""
        return self._calls.ledger


class FakeCgroups:
    """Cgroups that are only names. Faults go by `ensure`, `remove`, `throttle`, `list_pods` and the UID."""

    def __init__(self, clock: Clock, *, delays: Mapping[str, float] | None = None) -> None:
        faults = FakeFaults(failure=TryLater, lost_answer=TryLater)
        self._calls = Calls(clock, TryLater, faults, delays=delays)
        self._parents: dict[PodUID, str] = {}
        self.throttled: set[PodUID] = set()

    async def ensure(self, pod: Pod) -> str:
        """Pretend to make a pod's cgroup."""
        uid = PodUID(pod.metadata.uid or "")
        async with self._calls.call("ensure", uid):
            self.throttled.discard(uid)
            return self._parents.setdefault(uid, f"/kubepods/pod{uid}")

    async def remove(self, uid: PodUID) -> None:
        """Forget a pod's cgroup."""
        async with self._calls.call("remove", uid):
            self._parents.pop(uid, None)
            self.throttled.discard(uid)

    async def throttle(self, uid: PodUID) -> None:
        """Note that a pod's cgroup got little."""
        async with self._calls.call("throttle", uid):
            if uid in self._parents:
                self.throttled.add(uid)

    async def list_pods(self) -> frozenset[PodUID]:
        """Who has a cgroup."""
        async with self._calls.call("list_pods", ""):
            return frozenset(self._parents)

    def peek_pods(self) -> frozenset[PodUID]:
        """Who has a cgroup; nobody notices."""
        return frozenset(self._parents)

    def reboot(self) -> None:
        """Let the machine start anew: there are no cgroups."""
        self._calls.reboot()
        self._parents.clear()
        self.throttled.clear()

    @property
    def faults(self) -> FakeFaults:
        """Trouble on order."""
        return self._calls.faults

    @property
    def ledger(self) -> Sequence[Call]:
        """The newest calls, oldest first."""
        return self._calls.ledger


HttpScript = Callable[[HttpRequest], HttpEnd | None]
TcpScript = Callable[[Endpoint], str | None]
GrpcScript = Callable[[Endpoint, str], GrpcEnd | None]


class FakeProber:
    """Answers what the scripts say; with no script, and when one says None, all is well.

    For TCP, where None is the good answer, the script's word is final. A host whose latency is longer than the caller's
    timeout shows as a timeout; a silent host accepts connections and never says a word.
    """

    def __init__(
        self, *, http: HttpScript | None = None, tcp: TcpScript | None = None, grpc: GrpcScript | None = None
    ) -> None:
        self.http_script = http
        self.tcp_script = tcp
        self.grpc_script = grpc
        self.latency_seconds: dict[str, float] = {}  # by host; infinite: cannot be reached
        self.silent_hosts: set[str] = set()
        self.requests: list[HttpRequest | Endpoint] = []

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        """Answer as scripted, 200 by default."""
        self.requests.append(request)
        if not await self._in_time(_host_of(request.url), timeout_seconds):
            return NoAnswer(f"Get {request.url!r}: no answer within {timeout_seconds:g} s")
        end = self.http_script(request) if self.http_script is not None else None
        return end if end is not None else HttpAnswer(200)

    async def tcp(self, endpoint: Endpoint, timeout_seconds: float) -> str | None:
        """Answer as scripted; connected by default."""
        self.requests.append(endpoint)
        if not await self._in_time(endpoint.host, timeout_seconds, connect_only=True):
            return f"dial tcp {endpoint}: i/o timeout"
        return self.tcp_script(endpoint) if self.tcp_script is not None else None

    async def grpc(self, endpoint: Endpoint, service: str, timeout_seconds: float) -> GrpcEnd:
        """Answer as scripted; serving by default."""
        self.requests.append(endpoint)
        if not await self._in_time(endpoint.host, timeout_seconds):
            return NotConnected(f"no answer from {endpoint} within {timeout_seconds:g} s", timed_out=True)
        end = self.grpc_script(endpoint, service) if self.grpc_script is not None else None
        return end if end is not None else Answered(SERVING)

    async def _in_time(self, host: str, timeout_seconds: float, *, connect_only: bool = False) -> bool:
        silent = host in self.silent_hosts and not connect_only
        latency = math.inf if silent else self.latency_seconds.get(host, 0.0)
        if latency > 0:
            await asyncio.sleep(min(latency, timeout_seconds))
        return latency <= timeout_seconds


def _host_of(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0]
    return authority.rpartition(":")[0].strip("[]") if ":" in authority else authority
