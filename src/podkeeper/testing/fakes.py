"""Fakes of the small ports: journal, volumes, cgroups and prober, with injected failures.

For tests and the simulation. The methods of a fake that takes a clock have delays, faults and a call log, like
those of the fake runtime (`podkeeper.runtimes.fake.calls`).
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.probing import (
    Endpoint,
    GrpcEnd,
    HealthAnswer,
    HttpAnswer,
    HttpEnd,
    HttpRequest,
    NoHttpAnswer,
    NotConnected,
)
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.fake.calls import Calls, FaultInjection
from podkeeper.runtimes.fake.faults import FakeFaults

SERVING = 1
"""The serving status of a healthy gRPC service."""


class FakeJournal:
    """A journal whose disk can be full and that loses unsynced writes in a crash."""

    def __init__(self, *, sync_seconds: float = 0.0) -> None:
        self.sync_seconds = sync_seconds
        self.disk_full = False
        self.syncs = 0
        self._durable: dict[str, bytes] = {}
        self._current: dict[str, bytes] = {}
        self._unsynced: list[tuple[str, bytes | None]] = []  # None: dropped
        self._settled = 0  # number of writes before those

    def load(self) -> Mapping[str, bytes]:
        """Return a copy of all current values."""
        return dict(self._current)

    def put(self, key: str, value: bytes) -> None:
        self._unsynced.append((key, bytes(value)))
        _apply(self._current, self._unsynced[-1:])

    def drop(self, key: str) -> None:
        self._unsynced.append((key, None))
        _apply(self._current, self._unsynced[-1:])

    def purge(self) -> None:
        """Do nothing, because the fake keeps no replaced values."""

    async def sync(self) -> None:
        """Make the writes before this call durable."""
        upto = self._settled + len(self._unsynced)
        if self.sync_seconds > 0:
            await asyncio.sleep(self.sync_seconds)
        if self.disk_full:
            raise TryLater("cannot sync the journal: no space left on the device")
        # The count is not positive if another sync has already settled these writes, or a crash has lost them.
        self._settle(upto - self._settled)
        self.syncs += 1

    def crash(self, keep: int = 0) -> None:
        """Lose all unsynced writes except the first `keep`, which the disk may already hold."""
        self._settle(keep)
        self._settled += len(self._unsynced)
        self._unsynced.clear()
        self._current = dict(self._durable)

    def _settle(self, count: int) -> None:
        """Make the first `count` unsynced writes durable."""
        if count > 0:
            _apply(self._durable, self._unsynced[:count])
            self._settled += len(self._unsynced[:count])
            del self._unsynced[:count]

    @property
    def unsynced_writes(self) -> int:
        """Return the number of writes that a crash could lose."""
        return len(self._unsynced)


def _apply(entries: dict[str, bytes], writes: Iterable[tuple[str, bytes | None]]) -> None:
    for key, value in writes:
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value


class FakeVolumes(FaultInjection):
    """Volumes without files. Faults match a UID and a method: `mount`, `unmount`, `directories`, `remove_directory`."""

    def __init__(self, clock: Clock, *, delays: Mapping[str, float] | None = None) -> None:
        faults = FakeFaults(failure=TryLater, lost_answer=TryLater)
        self._calls = Calls(clock, TryLater, faults, delays=delays)
        self._mounts: dict[PodUID, dict[str, str]] = {}
        self._directories: set[PodUID] = set()
        self.in_use: set[PodUID] = set()  # pods whose volumes are busy, so that unmounting fails

    async def mount(self, pod: Pod) -> Mapping[str, str]:
        uid = PodUID(pod.metadata.uid or "")
        async with self._calls.call("mount", uid, pod.metadata.name or ""):
            paths = {volume.name: f"/fake/pods/{uid}/volumes/{volume.name}" for volume in pod.spec.volumes or ()}
            self._directories.add(uid)
            if paths:
                self._mounts[uid] = paths
            return dict(paths)

    async def unmount(self, uid: PodUID) -> None:
        async with self._calls.call("unmount", uid):
            if uid in self.in_use:
                raise TryLater(f"cannot unmount the volumes of pod {uid}: device or resource busy")
            self._mounts.pop(uid, None)

    def mounted_pods(self) -> frozenset[PodUID]:
        return frozenset(self._mounts)

    async def directories(self) -> frozenset[PodUID]:
        async with self._calls.call("directories", ""):
            return frozenset(self._directories)

    async def remove_directory(self, uid: PodUID) -> None:
        async with self._calls.call("remove_directory", uid):
            if uid in self._mounts:
                raise TryLater(f"cannot remove the directory of pod {uid}: a volume is mounted below it")
            self._directories.discard(uid)

    def peek_directories(self) -> frozenset[PodUID]:
        """Return the pods with a directory, without delay, fault or entry in the call log."""
        return frozenset(self._directories)

    def reboot(self) -> None:
        """Simulate a reboot of the machine: mounts are lost, directories remain."""
        self._calls.reboot()
        self._mounts.clear()


class FakeCgroups(FaultInjection):
    """Cgroups without a kernel. Faults match a UID and a method: `ensure`, `remove`, `throttle`, `list_pods`."""

    def __init__(self, clock: Clock, *, delays: Mapping[str, float] | None = None) -> None:
        faults = FakeFaults(failure=TryLater, lost_answer=TryLater)
        self._calls = Calls(clock, TryLater, faults, delays=delays)
        self._parents: dict[PodUID, str] = {}
        self.throttled: set[PodUID] = set()

    async def ensure(self, pod: Pod) -> str:
        uid = PodUID(pod.metadata.uid or "")
        async with self._calls.call("ensure", uid):
            self.throttled.discard(uid)
            return self._parents.setdefault(uid, f"/kubepods/pod{uid}")

    async def remove(self, uid: PodUID) -> None:
        async with self._calls.call("remove", uid):
            self._parents.pop(uid, None)
            self.throttled.discard(uid)

    async def throttle(self, uid: PodUID) -> None:
        async with self._calls.call("throttle", uid):
            if uid in self._parents:
                self.throttled.add(uid)

    async def list_pods(self) -> frozenset[PodUID]:
        async with self._calls.call("list_pods", ""):
            return frozenset(self._parents)

    def peek_pods(self) -> frozenset[PodUID]:
        """Return the pods with a cgroup, without delay, fault or entry in the call log."""
        return frozenset(self._parents)

    def reboot(self) -> None:
        """Simulate a reboot of the machine: all cgroups are lost."""
        self._calls.reboot()
        self._parents.clear()
        self.throttled.clear()


HttpScript = Callable[[HttpRequest], HttpEnd | None]
TcpScript = Callable[[Endpoint], str | None]
GrpcScript = Callable[[Endpoint, str], GrpcEnd | None]


class FakeProber:
    """A prober with scripted results. Without a script, every probe succeeds.

    If the http or grpc script returns None, the probe succeeds, too. The tcp script returns the result of the port:
    None for success. A probe times out if the latency of the host exceeds the timeout. A silent host accepts
    connections and sends nothing.
    """

    def __init__(
        self, *, http: HttpScript | None = None, tcp: TcpScript | None = None, grpc: GrpcScript | None = None
    ) -> None:
        self.http_script = http
        self.tcp_script = tcp
        self.grpc_script = grpc
        self.latency_seconds: dict[str, float] = {}  # by host; infinite: unreachable
        self.silent_hosts: set[str] = set()
        self.requests: list[HttpRequest | Endpoint] = []

    async def http(self, request: HttpRequest, timeout_seconds: float) -> HttpEnd:
        """Return the scripted result. The default is status 200."""
        self.requests.append(request)
        if not await self._in_time(_host_of(request.url), timeout_seconds):
            return NoHttpAnswer(f"Get {request.url!r}: no answer within {timeout_seconds:g} s")
        end = self.http_script(request) if self.http_script is not None else None
        return end if end is not None else HttpAnswer(200)

    async def tcp(self, endpoint: Endpoint, timeout_seconds: float) -> str | None:
        """Return the scripted result. The default is None (connected)."""
        self.requests.append(endpoint)
        if not await self._in_time(endpoint.host, timeout_seconds, connect_only=True):
            return f"dial tcp {endpoint}: i/o timeout"
        return self.tcp_script(endpoint) if self.tcp_script is not None else None

    async def grpc(self, endpoint: Endpoint, service: str, timeout_seconds: float) -> GrpcEnd:
        """Return the scripted result. The default is SERVING."""
        self.requests.append(endpoint)
        if not await self._in_time(endpoint.host, timeout_seconds):
            return NotConnected(f"no answer from {endpoint} within {timeout_seconds:g} s", timed_out=True)
        end = self.grpc_script(endpoint, service) if self.grpc_script is not None else None
        return end if end is not None else HealthAnswer(SERVING)

    async def _in_time(self, host: str, timeout_seconds: float, *, connect_only: bool = False) -> bool:
        silent = host in self.silent_hosts and not connect_only
        latency = math.inf if silent else self.latency_seconds.get(host, 0.0)
        if latency > 0:
            await asyncio.sleep(min(latency, timeout_seconds))
        return latency <= timeout_seconds


def _host_of(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0]
    return authority.rpartition(":")[0].strip("[]") if ":" in authority else authority
