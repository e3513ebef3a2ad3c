"""Pod cgroups on this machine, in the reference's layout (its cgroupfs driver).

    <base>/<root>/pod<uid>                Guaranteed
    <base>/<root>/burstable/pod<uid>      shares of CPU: the sum of what its pods request
    <base>/<root>/besteffort/pod<uid>     the least share

`base` is where this machine lets us (`host/cgroup_survey.py`). Pods come in, the path of their cgroup below the mount
points goes out: a container runtime takes it as cgroup parent, and keepers find the directories by it. Only directories
named `pod<uid>` below our root are ours: nothing else is ever listed, emptied or removed. So two agents on one machine
need two root names (`own_root`). On a machine of version 1, container runtimes make the same directories in hierarchies
that we have no use for, and leave them behind: `of_containers` removes them there too.

What is done to directories is done by `Kernel`, which the module `runtimes/process/keeper/cgroup` is: rooms do not
import each other. The Go ancestors are pkg/kubelet/cm/{pod,qos}_container_manager_linux.go.
"""

import asyncio
import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from podkeeper.host.cgroup_survey import Hierarchy, Offer, elsewhere, settle, survey
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.cgroup_limits import (
    DEFAULT_POLICY,
    CpuPolicy,
    files_of,
    pod_cpu_request,
    pod_limits,
    share_files,
)
from podkeeper.rules.cgroup_names import BRANCHES, POD_PREFIX
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, qos_of

log = logging.getLogger(__name__)

P = TypeVar("P")

DEFAULT_ROOT = "kubepods"
REMOVE_PATIENCE_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.002
LONGEST_PAUSE_SECONDS = 0.05


class Kernel(Protocol[P]):
    """What can be done to cgroup directories. `P` is one cgroup, in all hierarchies it exists in."""

    def hierarchies(self, mountinfo: str = ...) -> tuple[Hierarchy, ...]:
        """What is mounted, as a mountinfo file says."""

    def other_hierarchies(self, mountinfo: str = ...) -> tuple[Hierarchy, ...]:
        """What is mounted, and we limit nothing in."""

    def place_at(self, directories: Mapping[str, str]) -> P | None:
        """The cgroup made of these directories, by controller or `unified`; None if there are none."""

    def lower(self, place: P, *names: str) -> P:
        """The cgroup further down."""

    def make(self, place: P, settings: Mapping[str, str]) -> None:
        """Make it or bring it up to date."""

    def delegate(self, place: P) -> None:
        """Let those below it have limits of their own."""

    def write(self, place: P, settings: Mapping[str, str]) -> None:
        """Write texts to files that are there."""

    def exists(self, place: P) -> bool:
        """Whether it is there, in any hierarchy."""

    def children(self, place: P) -> frozenset[str]:
        """The names of those directly below."""

    def processes(self, place: P) -> frozenset[int]:
        """Who is in it or below it."""

    def kill_all(self, place: P, patience_seconds: float = ...) -> bool:
        """Kill those; tells whether it is empty."""

    def remove(self, place: P, patience_seconds: float = ...) -> None:
        """Remove it and those below it."""


def own_root(state_directory: str) -> str:
    """A root name for an agent that shares its machine with others: its own as long as its state directory is."""
    return f"podkeeper-{hashlib.sha256(state_directory.encode()).hexdigest()[:8]}"


def open_cgroups(
    kernel: Kernel[P],
    root: str = DEFAULT_ROOT,
    *,
    policy: CpuPolicy = DEFAULT_POLICY,
    pod_pids_limit: int | None = None,
    of_containers: bool = False,
    proc: str = "/proc/self",
) -> "HostCgroups[P] | NoCgroups":
    """Pod cgroups where the machine lets us make some; else what says why not."""
    offer = survey(kernel.hierarchies(f"{proc}/mountinfo"), proc)
    base = kernel.place_at(dict(offer.directories))
    if base is None:
        return NoCgroups(offer)
    others = kernel.other_hierarchies(f"{proc}/mountinfo") if of_containers else ()
    try:
        settle(offer, proc)
        cgroups = HostCgroups(
            kernel,
            base,
            offer,
            root,
            elsewhere=kernel.place_at(elsewhere(offer, others)),
            policy=policy,
            pod_pids_limit=pod_pids_limit,
        )
        cgroups.prepare()
    except OSError as error:
        return NoCgroups(offer.refused(f"cannot make {offer.base.rstrip('/')}/{root}: {error}"))
    return cgroups


class HostCgroups(Generic[P]):
    """Pod cgroups below one root. The work is done in threads: the kernel may take its time."""

    def __init__(
        self,
        kernel: Kernel[P],
        base: P,
        offer: Offer,
        root: str = DEFAULT_ROOT,
        *,
        elsewhere: P | None = None,
        policy: CpuPolicy = DEFAULT_POLICY,
        pod_pids_limit: int | None = None,
    ) -> None:
        """`elsewhere` is the same base in hierarchies where others make our pods' cgroups, and only we remove them."""
        self._kernel = kernel
        self._base = base
        self._bases = (base,) if elsewhere is None else (base, elsewhere)
        self._offer = offer
        self._root = root
        self._policy = policy
        self._pod_pids_limit = pod_pids_limit if pod_pids_limit and pod_pids_limit > 0 else None
        self._burstable: dict[PodUID, int] = {}  # what each pod requests, in thousandths of a CPU
        self._shared: int | None = None  # the sum that the kernel was told
        self._sharing = threading.Lock()

    async def ensure(self, pod: Pod) -> str:
        """Make a pod's cgroup, or bring it up to date. Returns its path below the mount points."""
        uid, qos = PodUID(pod.metadata.uid or ""), qos_of(pod)
        if not uid or "/" in uid or "\0" in uid:
            raise TryLater(f"cannot make a cgroup for pod {pod.metadata.name}: its UID {uid!r} is no file name")
        names = (self._root, *BRANCHES[qos], f"{POD_PREFIX}{uid}")
        files = files_of(pod_limits(pod, self._policy, self._pod_pids_limit), self._offer.version)
        if qos == BURSTABLE:
            self._burstable[uid] = pod_cpu_request(pod)
        try:
            await asyncio.to_thread(self._make, names, files)
        except OSError as error:
            raise TryLater(f"cannot make the cgroup of pod {uid}: {error}") from error
        return "/".join((self._offer.base.rstrip("/"), *names))

    async def remove(self, uid: PodUID) -> None:
        """Kill what is left in a pod's cgroup and remove it. Returns once it is gone; unknown is gone."""
        self._burstable.pop(uid, None)
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + REMOVE_PATIENCE_SECONDS, FIRST_PAUSE_SECONDS
        while obstacle := await asyncio.to_thread(self._take_away, uid):
            if loop.time() >= deadline:
                raise TryLater(f"cannot remove the cgroup of pod {uid}: {obstacle}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def throttle(self, uid: PodUID) -> None:
        """Leave a pod's cgroup the least share of CPU; unknown has none."""
        files = share_files(0, self._offer.version)
        try:
            await asyncio.to_thread(self._throttle, uid, files)
        except OSError as error:
            raise TryLater(f"cannot take CPU from the cgroup of pod {uid}: {error}") from error

    async def list_pods(self) -> frozenset[PodUID]:
        """The pods that have a cgroup below our root, in any hierarchy."""
        try:
            return await asyncio.to_thread(self._list)
        except OSError as error:
            raise TryLater(f"cannot list the pod cgroups: {error}") from error

    def describe(self) -> str:
        """What is used, and what the machine lacks, in a line or two for a person."""
        return f"{self._offer.describe()}; pods are below {self._offer.base.rstrip('/')}/{self._root}"

    def prepare(self) -> None:
        """Make what all pods stand on. Raises OSError."""
        kernel, version = self._kernel, self._offer.version
        kernel.delegate(self._base)
        self._shared = None
        for branch in BRANCHES.values():
            place = self._at(self._root, *branch)
            kernel.make(place, share_files(0, version) if branch == BRANCHES[BEST_EFFORT] else {})
            kernel.delegate(place)

    async def close(self) -> None:
        """Remove the root where no pod is left in it. What is not empty stays, and nothing is killed."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for branch in reversed(tuple(BRANCHES.values())):
            for place in self._everywhere(*branch):
                if not self._kernel.children(place):
                    with contextlib.suppress(OSError):  # in use, then
                        self._kernel.remove(place, 0)

    def _at(self, *names: str) -> P:
        return self._kernel.lower(self._base, *names)

    def _everywhere(self, *names: str) -> Iterator[P]:
        """Places below our root, ours and those that others make."""
        return (self._kernel.lower(base, self._root, *names) for base in self._bases)

    def _places_of(self, uid: PodUID) -> Iterator[P]:
        """Where a pod's cgroup is. Its class never changes, but we must find it without knowing the pod."""
        if uid and "/" not in uid:
            for branch in BRANCHES.values():
                yield from filter(self._kernel.exists, self._everywhere(*branch, f"{POD_PREFIX}{uid}"))

    def _make(self, names: tuple[str, ...], files: Mapping[str, str]) -> None:
        place = self._at(*names)
        try:
            self._kernel.make(place, files)
        except FileNotFoundError:  # somebody tidied up what all pods stand on
            self.prepare()
            self._kernel.make(place, files)
        self._kernel.delegate(place)
        self._share_out()

    def _throttle(self, uid: PodUID, files: Mapping[str, str]) -> None:
        for place in self._places_of(uid):
            self._kernel.write(place, files)

    def _take_away(self, uid: PodUID) -> str:
        """One try. Returns what stands in the way; empty: it is gone."""
        try:
            for place in self._places_of(uid):
                if not self._kernel.kill_all(place, 0):
                    return f"{len(self._kernel.processes(place))} killed processes have not ended"
                self._kernel.remove(place, 0)
            self._share_out()
        except OSError as error:
            return str(error)
        return ""

    def _list(self) -> frozenset[PodUID]:
        places = (place for branch in BRANCHES.values() for place in self._everywhere(*branch))
        names = {name for place in places for name in self._kernel.children(place)}
        return frozenset(PodUID(name.removeprefix(POD_PREFIX)) for name in names if name.startswith(POD_PREFIX)) - {""}

    def _share_out(self) -> None:
        """Give the burstable pods together the share that they request together."""
        with self._sharing:  # the sum that is written last must be the newest
            total = sum(tuple(self._burstable.values()))
            if total != self._shared:
                files = share_files(total, self._offer.version)
                self._kernel.write(self._at(self._root, *BRANCHES[BURSTABLE]), files)
                self._shared = total


class NoCgroups:
    """A machine that has no cgroups for us: pods run without limits, and we say so once."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._said = False

    async def ensure(self, pod: Pod) -> str:
        """Nothing to make."""
        if not self._said:
            self._said = True
            log.warning("pods run without cgroups, so limits are not enforced: %s", self.describe())
        return ""

    async def remove(self, uid: PodUID) -> None:
        """Nothing to remove."""

    async def throttle(self, uid: PodUID) -> None:
        """Nothing to throttle."""

    async def list_pods(self) -> frozenset[PodUID]:
        """None."""
        return frozenset()

    async def close(self) -> None:
        """Nothing to close."""

    def describe(self) -> str:
        """Why there are none, and how to get them."""
        return self._offer.describe()
