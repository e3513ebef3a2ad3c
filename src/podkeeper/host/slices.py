"""Pod cgroups in the kubelet's layout, as systemd slices (systemd driver).

    <root>.slice / <root>-pod<uid>.slice                                          Guaranteed
    <root>.slice / <root>-burstable.slice  / <root>-burstable-pod<uid>.slice      CPU shares: the requests of its pods
    <root>.slice / <root>-besteffort.slice / <root>-besteffort-pod<uid>.slice     the minimum of CPU shares

Input: pods. Output: the path of their slice, in which container runtimes create scopes. Systemd creates the slices,
with their limits as properties. This module also writes the kernel's files. If a slice exists, from this agent or from
a kubelet, it is updated. When a slice is removed, its processes are killed, and this module removes the directories
that systemd does not manage.

Kubelet counterparts: pkg/kubelet/cm/{pod,qos}_container_manager_linux.go with opencontainers/cgroups/systemd.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from podkeeper.concurrency.backoff import RetryCounter
from podkeeper.host.cgroups import REMOVE_DELAY, REMOVE_TIMEOUT_SECONDS
from podkeeper.linux import cgroup
from podkeeper.linux.cgroup import Cgroup
from podkeeper.linux.cgroup_support import CgroupSupport, base_elsewhere, detect
from podkeeper.model.errors import BadInput, Problem, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.cgroup.limits import DEFAULT_POLICY, CpuPolicy, files_of, pod_cpu_request, pod_limits, share_files
from podkeeper.rules.cgroup.names import (
    BRANCHES,
    POD_PREFIX,
    Name,
    pod_name,
    pod_of_slice,
    slice_name_error,
    slice_parts,
    slice_path,
    slice_unit,
)
from podkeeper.rules.cgroup.slice_limits import (
    Property,
    accounting,
    limit_properties,
    rounded,
    share_properties,
    unit_properties,
)
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, qos_of


class Units(Protocol):
    """The part of `Systemd` that slices use. Every call may raise TryLater."""

    version: int

    async def start_transient(self, unit: str, properties: Sequence[Property]) -> bool:
        """Create and start a unit. Return False, and change nothing, if it exists."""

    async def start(self, unit: str) -> None:
        """Start an existing unit. Starting an active unit is a no-op."""

    async def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Change properties of a unit."""

    async def stop(self, unit: str) -> None:
        """Stop a unit and its processes. An unknown unit counts as stopped."""

    async def is_active(self, unit: str) -> bool:
        """Return whether a unit is active. An unknown unit is not."""

    async def close(self) -> None:
        """Close the connection."""


async def open_slices(
    units: Units,
    root: Name,
    *,
    policy: CpuPolicy = DEFAULT_POLICY,
    pod_pids_limit: int | None = None,
    proc: str = "/proc/self",
) -> "Slices":
    """Return the pod cgroups below a root slice. Raises BadInput if the cgroups cannot be used, TryLater."""
    support = await asyncio.to_thread(detect, proc)
    base = support.base_cgroup
    # systemd creates slices from the top of the hierarchy only.
    if base is None or support.base != "/":
        why = support.describe() if base is None else f"only cgroups below {support.base} are writable"
        raise BadInput(
            Problem(f"cannot create pod cgroups with systemd: {why}; run podkeeper as root, outside of any container")
        )
    slices = Slices(
        units,
        base,
        support,
        root,
        elsewhere=await asyncio.to_thread(base_elsewhere, support, proc),
        policy=policy,
        pod_pids_limit=pod_pids_limit,
    )
    await slices.prepare()
    return slices


class Slices:
    """Pod cgroups below one root slice. Files are accessed in threads."""

    def __init__(
        self,
        units: Units,
        base: Cgroup,
        support: CgroupSupport,
        root: Name,
        *,
        elsewhere: Cgroup | None = None,
        policy: CpuPolicy = DEFAULT_POLICY,
        pod_pids_limit: int | None = None,
    ) -> None:
        """`base` is the top of the hierarchy. `elsewhere` is the top of hierarchies that only runtimes use."""
        self._units = units
        self._base = base
        self._bases = (base,) if elsewhere is None else (base, elsewhere)
        self._support = support
        self._root = root
        self._policy = policy
        self._pod_pids_limit = pod_pids_limit if pod_pids_limit and pod_pids_limit > 0 else None
        self._burstable: dict[PodUID, int] = {}  # CPU request of each pod, in millicores
        self._written_request: int | None = None  # the sum of the requests when the shares were last written
        self._shares_lock = asyncio.Lock()

    async def ensure(self, pod: Pod) -> str:
        """Create or update the slice of a pod. Return its path below the mount points. Raises TryLater."""
        uid, qos = PodUID(pod.metadata.uid or ""), qos_of(pod)
        if problem := slice_name_error(uid):
            raise TryLater(f"cannot create a slice for pod {pod.metadata.name}: its UID {uid!r} {problem}")
        name, version = pod_name(self._root, pod), self._support.version
        limits = rounded(pod_limits(pod, self._policy, self._pod_pids_limit))
        properties = limit_properties(limits, version, self._units.version)
        if not await self._units.is_active(slice_unit(name[:-1])):
            # Systemd starts the parent of a new slice if it was stopped, but without its CPU shares.
            await self._prepare(name[:-1])
        await self._create_or_update(name, f"pod {pod.metadata.namespace}/{pod.metadata.name}", properties)
        # systemd applies properties some time later, and the first container may start before.
        await self._write(name, files_of(limits, version))
        if qos == BURSTABLE:
            self._burstable[uid] = pod_cpu_request(pod)
            await self._write_burstable_shares()
        return slice_path(name)

    async def remove(self, uid: PodUID) -> None:
        """Kill the processes in the slice of a pod and remove it. An unknown pod is no error. Raises TryLater."""
        had_request = self._burstable.pop(uid, None) is not None
        if slice_name_error(uid):
            return
        loop = asyncio.get_running_loop()
        deadline, retries = loop.time() + REMOVE_TIMEOUT_SECONDS, RetryCounter(REMOVE_DELAY)
        while obstacle := await self._try_to_remove(uid):
            if loop.time() >= deadline:
                raise TryLater(f"cannot remove the slice of pod {uid}: {obstacle}")
            await asyncio.sleep(retries.failed())
        if had_request:
            await self._write_burstable_shares()

    async def throttle(self, uid: PodUID) -> None:
        """Reduce the slice of a pod to the minimum of CPU shares. An unknown pod is no error. Raises TryLater."""
        for branch in BRANCHES.values():
            name = (*self._root, *branch, f"{POD_PREFIX}{uid}")
            if not slice_name_error(uid) and cgroup.exists(self._at(self._base, name)):
                await self._units.set_properties(slice_unit(name), share_properties(0, self._support.version))
                await self._write(name, share_files(0, self._support.version))

    async def list_pods(self) -> frozenset[PodUID]:
        """Return the pods that have a slice, or a directory of its name in any hierarchy. Raises TryLater."""
        try:
            return await asyncio.to_thread(self._list)
        except OSError as error:
            raise TryLater(f"cannot list the slices of pods: {error}") from error

    def describe(self) -> str:
        """Return the cgroups in use and the missing controllers, as one line for the log."""
        creator = f"systemd {self._units.version} creates them"
        return f"{self._support.describe()}; {creator}; pods are below {slice_path(self._root)}"

    async def prepare(self) -> None:
        """Create the root and QoS slices."""
        for branch in BRANCHES.values():
            await self._prepare((*self._root, *branch))

    async def close(self) -> None:
        """Remove the root and QoS slices that have no pods, and close the connection. No process is killed."""
        try:
            for branch in reversed(tuple(BRANCHES.values())):
                await self._close((*self._root, *branch))
        finally:
            await self._units.close()

    # ---- slices ----

    async def _prepare(self, branch: Name) -> None:
        """Create the root slice or the slice of a QoS class."""
        self._written_request = None
        shares = share_properties(0, self._support.version) if branch == self._branch(BEST_EFFORT) else ()
        await self._create_or_update(branch, f"{branch[-1]} pods", shares)
        if shares:
            await self._write(branch, share_files(0, self._support.version))

    async def _create_or_update(self, name: Name, description: str, properties: Sequence[Property]) -> None:
        unit, always = slice_unit(name), accounting(self._support.version)
        new = unit_properties(f"{description} (podkeeper)", slice_unit(name[:-1]))
        if not await self._units.start_transient(unit, (*new, *always, *properties)):
            await self._units.set_properties(unit, (*always, *properties))
            await self._units.start(unit)  # systemd keeps a stopped slice if a unit in it has failed, so start it again

    async def _write_burstable_shares(self) -> None:
        """Set the shares of the Burstable class to the sum of the requests of its pods."""
        async with self._shares_lock:  # otherwise an older sum could overwrite a newer one
            total = sum(self._burstable.values())
            if total != self._written_request:
                branch, version = self._branch(BURSTABLE), self._support.version
                await self._units.set_properties(slice_unit(branch), share_properties(total, version))
                await self._write(branch, share_files(total, version))
                self._written_request = total

    async def _try_to_remove(self, uid: PodUID) -> str:
        """Return the reason why the slice still exists, or "" once it is removed."""
        names = [(*self._root, *branch, f"{POD_PREFIX}{uid}") for branch in BRANCHES.values()]
        try:
            # Kill first. Otherwise the stop job would wait for the processes, up to systemd's own timeout.
            if left := await asyncio.to_thread(self._kill, names):
                return f"{left} killed processes have not ended"
            for name in names:
                await self._units.stop(slice_unit(name))
            # systemd removes only the directories of controllers that it manages. On cgroup version 1, container
            # runtimes create one in every hierarchy and never remove it.
            await asyncio.to_thread(self._remove_directories, names)
        except (OSError, TryLater) as error:
            return str(error)
        return ""

    async def _close(self, branch: Name) -> None:
        children = await asyncio.to_thread(
            lambda: [name for base in self._bases for name in cgroup.children(self._at(base, branch))]
        )
        if not children:
            with contextlib.suppress(OSError, TryLater):  # still in use
                await self._units.stop(slice_unit(branch))
                await asyncio.to_thread(self._remove_directories, [branch])

    # ---- directories ----

    def _branch(self, qos: str) -> Name:
        return (*self._root, *BRANCHES[qos])

    def _at(self, base: Cgroup, name: Name) -> Cgroup:
        return cgroup.descendant(base, *slice_parts(name))

    def _existing(self, names: Sequence[Name]) -> Iterator[Cgroup]:
        return filter(cgroup.exists, (self._at(base, name) for name in names for base in self._bases))

    async def _write(self, name: Name, files: Mapping[str, str]) -> None:
        try:
            await asyncio.to_thread(cgroup.write, self._at(self._base, name), files)
        except OSError as error:
            raise TryLater(f"cannot set the limits of {slice_unit(name)}: {error}") from error

    def _kill(self, names: Sequence[Name]) -> int:
        """Kill all processes. Return how many of them have not ended."""
        # A timeout of 0, because `remove` waits between the attempts in the event loop.
        left = [found for found in self._existing(names) if not cgroup.kill_all(found, 0)]
        return len({pid for found in left for pid in cgroup.processes(found)}) or len(left)

    def _remove_directories(self, names: Sequence[Name]) -> None:
        for found in self._existing(names):
            cgroup.remove(found, 0)

    def _list(self) -> frozenset[PodUID]:
        branches = [(*self._root, *branch) for branch in BRANCHES.values()]
        found = (
            pod_of_slice(unit, branch)
            for branch in branches
            for base in self._bases
            for unit in cgroup.children(self._at(base, branch))
        )
        return frozenset(uid for uid in found if uid is not None)
