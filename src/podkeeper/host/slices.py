"""Pod cgroups as systemd's slices, in the reference's layout (its systemd driver).

    <root>.slice / <root>-pod<uid>.slice                                          Guaranteed
    <root>.slice / <root>-burstable.slice  / <root>-burstable-pod<uid>.slice      share of CPU: what its pods request
    <root>.slice / <root>-besteffort.slice / <root>-besteffort-pod<uid>.slice     the least share

Pods come in, the path of their slice goes out; container runtimes put scopes into it. A slice is made by systemd, and
told its limits as properties; the kernel's files are written as well, for systemd puts it off. A slice that is there
already, ours or the reference's, is brought up to date. What is removed is killed first, so that systemd has nothing to
wait for; then the directories go that systemd knows nothing of: on a machine of version 1, container runtimes make some
in every hierarchy and leave them behind.

`Units` is what is asked of systemd, `Kernel` what is done to directories (`host/cgroups.py`). The Go ancestors are
pkg/kubelet/cm/{pod,qos}_container_manager_linux.go over opencontainers/cgroups/systemd.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from podkeeper.host.cgroup_survey import Offer, elsewhere, survey
from podkeeper.host.cgroups import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, REMOVE_PATIENCE_SECONDS, Kernel
from podkeeper.model.errors import BadInput, Problem, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.cgroup_limits import DEFAULT_POLICY, CpuPolicy, files_of, pod_cpu_request, pod_limits, share_files
from podkeeper.rules.cgroup_names import (
    BRANCHES,
    POD_PREFIX,
    Name,
    pod_name,
    pod_of_slice,
    slice_parts,
    slice_path,
    slice_trouble,
    slice_unit,
)
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, qos_of
from podkeeper.rules.slice_limits import (
    Property,
    accounting,
    limit_properties,
    rounded,
    share_properties,
    unit_properties,
)

P = TypeVar("P")


class Units(Protocol):
    """What is asked of systemd. Every call raises TryLater."""

    version: int

    async def start_transient(self, unit: str, properties: Sequence[Property]) -> bool:
        """Make a unit and start it; False: it is there already, and nothing was changed."""

    async def start(self, unit: str) -> None:
        """Start a unit that is there; nothing happens if it runs."""

    async def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Change a unit."""

    async def stop(self, unit: str) -> None:
        """Stop a unit and what is in it; unknown is stopped."""

    async def is_active(self, unit: str) -> bool:
        """Whether a unit runs; unknown does not."""

    async def close(self) -> None:
        """Hang up."""


async def open_slices(
    units: Units,
    kernel: Kernel[P],
    root: Name,
    *,
    policy: CpuPolicy = DEFAULT_POLICY,
    pod_pids_limit: int | None = None,
    proc: str = "/proc/self",
) -> "Slices[P]":
    """Pod cgroups below a root slice. Raises BadInput where the machine's cgroups cannot be had, TryLater."""
    offer = await asyncio.to_thread(lambda: survey(kernel.hierarchies(f"{proc}/mountinfo"), proc))
    base = kernel.place_at(dict(offer.directories))
    if base is None or offer.base != "/":
        why = offer.describe() if base is None else f"only those below {offer.base} can be had"
        raise BadInput(
            Problem(f"cannot use cgroups that systemd makes: {why}; run podkeeper as root, outside of any container")
        )
    others = await asyncio.to_thread(kernel.other_hierarchies, f"{proc}/mountinfo")
    slices = Slices(
        units,
        kernel,
        base,
        offer,
        root,
        elsewhere=kernel.place_at(elsewhere(offer, others)),
        policy=policy,
        pod_pids_limit=pod_pids_limit,
    )
    await slices.prepare()
    return slices


class Slices(Generic[P]):
    """Pod cgroups below one root slice. What is done to files is done in threads."""

    def __init__(
        self,
        units: Units,
        kernel: Kernel[P],
        base: P,
        offer: Offer,
        root: Name,
        *,
        elsewhere: P | None = None,
        policy: CpuPolicy = DEFAULT_POLICY,
        pod_pids_limit: int | None = None,
    ) -> None:
        """`base` is the top of the tree, `elsewhere` the same in hierarchies that nobody but runtimes has a use for."""
        self._units = units
        self._kernel = kernel
        self._base = base
        self._bases = (base,) if elsewhere is None else (base, elsewhere)
        self._offer = offer
        self._root = root
        self._policy = policy
        self._pod_pids_limit = pod_pids_limit if pod_pids_limit and pod_pids_limit > 0 else None
        self._burstable: dict[PodUID, int] = {}  # what each pod requests, in thousandths of a CPU
        self._shared: int | None = None  # the sum that systemd was told
        self._sharing = asyncio.Lock()

    async def ensure(self, pod: Pod) -> str:
        """Make a pod's slice, or bring it up to date. Returns its path below the mount points."""
        uid, qos = PodUID(pod.metadata.uid or ""), qos_of(pod)
        if trouble := slice_trouble(uid):
            raise TryLater(f"cannot make a slice for pod {pod.metadata.name}: its UID {uid!r} {trouble}")
        name, version = pod_name(self._root, pod), self._offer.version
        limits = rounded(pod_limits(pod, self._policy, self._pod_pids_limit))
        told = limit_properties(limits, version, self._units.version)
        if not await self._units.is_active(slice_unit(name[:-1])):
            # Systemd starts what a new slice stands on, if somebody stopped that, but does not tell it its share.
            await self._prepare(name[:-1])
        await self._bring_about(name, f"pod {pod.metadata.namespace}/{pod.metadata.name}", told)
        await self._write(name, files_of(limits, version))
        if qos == BURSTABLE:
            self._burstable[uid] = pod_cpu_request(pod)
            await self._share_out()
        return slice_path(name)

    async def remove(self, uid: PodUID) -> None:
        """Kill what is left in a pod's slice and remove it. Returns once it is gone; unknown is gone."""
        was_counted = self._burstable.pop(uid, None) is not None
        if slice_trouble(uid):
            return
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + REMOVE_PATIENCE_SECONDS, FIRST_PAUSE_SECONDS
        while obstacle := await self._take_away(uid):
            if loop.time() >= deadline:
                raise TryLater(f"cannot remove the slice of pod {uid}: {obstacle}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if was_counted:
            await self._share_out()

    async def throttle(self, uid: PodUID) -> None:
        """Leave a pod's slice the least share of CPU; unknown has none."""
        for branch in BRANCHES.values():
            name = (*self._root, *branch, f"{POD_PREFIX}{uid}")
            if not slice_trouble(uid) and self._kernel.exists(self._at(self._base, name)):
                await self._units.set_properties(slice_unit(name), share_properties(0, self._offer.version))
                await self._write(name, share_files(0, self._offer.version))

    async def list_pods(self) -> frozenset[PodUID]:
        """The pods that have a slice below our root, or a directory of that name in any hierarchy."""
        try:
            return await asyncio.to_thread(self._list)
        except OSError as error:
            raise TryLater(f"cannot list the slices of pods: {error}") from error

    def describe(self) -> str:
        """What is used, and what the machine lacks, in a line or two for a person."""
        made = f"systemd {self._units.version} makes them"
        return f"{self._offer.describe()}; {made}; pods are below {slice_path(self._root)}"

    async def prepare(self) -> None:
        """Make what all pods stand on."""
        for branch in BRANCHES.values():
            await self._prepare((*self._root, *branch))

    async def close(self) -> None:
        """Remove the root where no pod is left in it, and hang up. What is not empty stays, and nothing is killed."""
        try:
            for branch in reversed(tuple(BRANCHES.values())):
                await self._close((*self._root, *branch))
        finally:
            await self._units.close()

    # ---- slices ----

    async def _prepare(self, branch: Name) -> None:
        """Make what pods of one class stand on."""
        self._shared = None
        share = share_properties(0, self._offer.version) if branch == self._branch(BEST_EFFORT) else ()
        await self._bring_about(branch, f"{branch[-1]} pods", share)
        if share:
            await self._write(branch, share_files(0, self._offer.version))

    async def _bring_about(self, name: Name, description: str, told: Sequence[Property]) -> None:
        """Make a slice with these properties, or change one that is there."""
        unit, always = slice_unit(name), accounting(self._offer.version)
        new = unit_properties(f"{description} (podkeeper)", slice_unit(name[:-1]))
        if not await self._units.start_transient(unit, (*new, *always, *told)):
            await self._units.set_properties(unit, (*always, *told))
            await self._units.start(unit)  # it may be known and stopped: kept by what failed in it

    async def _share_out(self) -> None:
        """Give the burstable pods together the share that they request together."""
        async with self._sharing:  # the sum that is told last must be the newest
            total = sum(self._burstable.values())
            if total != self._shared:
                branch, version = self._branch(BURSTABLE), self._offer.version
                await self._units.set_properties(slice_unit(branch), share_properties(total, version))
                await self._write(branch, share_files(total, version))
                self._shared = total

    async def _take_away(self, uid: PodUID) -> str:
        """One try. Returns what stands in the way; empty: it is gone."""
        names = [(*self._root, *branch, f"{POD_PREFIX}{uid}") for branch in BRANCHES.values()]
        try:
            if left := await asyncio.to_thread(self._kill, names):
                return f"{left} killed processes have not ended"
            for name in names:
                await self._units.stop(slice_unit(name))
            await asyncio.to_thread(self._sweep, names)
        except (OSError, TryLater) as error:
            return str(error)
        return ""

    async def _close(self, branch: Name) -> None:
        children = await asyncio.to_thread(
            lambda: [name for base in self._bases for name in self._kernel.children(self._at(base, branch))]
        )
        if not children:
            with contextlib.suppress(OSError, TryLater):  # in use, then
                await self._units.stop(slice_unit(branch))
                await asyncio.to_thread(self._sweep, [branch])

    # ---- directories ----

    def _branch(self, qos: str) -> Name:
        return (*self._root, *BRANCHES[qos])

    def _at(self, base: P, name: Name) -> P:
        return self._kernel.lower(base, *slice_parts(name))

    def _places(self, names: Sequence[Name]) -> Iterator[P]:
        """Where there are directories of these names."""
        return filter(self._kernel.exists, (self._at(base, name) for name in names for base in self._bases))

    async def _write(self, name: Name, files: Mapping[str, str]) -> None:
        try:
            await asyncio.to_thread(self._kernel.write, self._at(self._base, name), files)
        except OSError as error:
            raise TryLater(f"cannot limit {slice_unit(name)}: {error}") from error

    def _kill(self, names: Sequence[Name]) -> int:
        """How many are left of those who were killed."""
        left = [place for place in self._places(names) if not self._kernel.kill_all(place, 0)]
        return len({pid for place in left for pid in self._kernel.processes(place)}) or len(left)

    def _sweep(self, names: Sequence[Name]) -> None:
        for place in self._places(names):
            self._kernel.remove(place, 0)

    def _list(self) -> frozenset[PodUID]:
        branches = [(*self._root, *branch) for branch in BRANCHES.values()]
        found = (
            pod_of_slice(unit, branch)
            for branch in branches
            for base in self._bases
            for unit in self._kernel.children(self._at(base, branch))
        )
        return frozenset(uid for uid in found if uid is not None)
