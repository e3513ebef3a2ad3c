"""Pod cgroups in the kubelet's layout, as directories (cgroupfs driver).

    <base>/<root>/pod<uid>                Guaranteed
    <base>/<root>/burstable/pod<uid>      CPU shares: the sum of the requests of its pods
    <base>/<root>/besteffort/pod<uid>     the minimum of CPU shares

`base` is the part of the hierarchy that the agent may use (`linux/cgroup_support.py`). Input: pods. Output: the path of
their cgroup below the mount points. Container runtimes use it as cgroup parent, and keepers find the directories by it.

Only directories named `pod<uid>` below our root are ours. No other directory is ever listed, killed or removed. So two
agents on one machine need two root names (`own_root`). On cgroup version 1, container runtimes also create these
directories in hierarchies that podkeeper does not use, and never remove them. With `of_containers`, podkeeper removes
them.

Kubelet counterparts: pkg/kubelet/cm/{pod,qos}_container_manager_linux.go.
"""

import asyncio
import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping

from podkeeper.concurrency.backoff import GrowingDelay, RetryCounter
from podkeeper.concurrency.once import LogOnce
from podkeeper.linux import cgroup
from podkeeper.linux.cgroup import Cgroup
from podkeeper.linux.cgroup_support import CgroupSupport, base_elsewhere, detect, vacate_base
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.rules.cgroup.limits import (
    DEFAULT_POLICY,
    CpuPolicy,
    files_of,
    pod_cpu_request,
    pod_limits,
    share_files,
)
from podkeeper.rules.cgroup.names import BRANCHES, POD_PREFIX
from podkeeper.rules.qos import BEST_EFFORT, BURSTABLE, qos_of

log = logging.getLogger(__name__)

DEFAULT_ROOT = "kubepods"
REMOVE_TIMEOUT_SECONDS = 5.0
REMOVE_DELAY = GrowingDelay(first_seconds=0.002, longest_seconds=0.05)


def own_root(state_directory: str) -> str:
    """Return a root name that is unique to a state directory, for agents that share a machine."""
    # Every kubelet kills processes below /kubepods that belong to none of its pods. One killed our sandboxes in tests.
    return f"podkeeper-{hashlib.sha256(state_directory.encode()).hexdigest()[:8]}"


def open_cgroups(
    root: str = DEFAULT_ROOT,
    *,
    policy: CpuPolicy = DEFAULT_POLICY,
    pod_pids_limit: int | None = None,
    of_containers: bool = False,
    proc: str = "/proc/self",
) -> "HostCgroups | NoCgroups":
    """Return the pod cgroups of this machine, or `NoCgroups` with the reason why there are none. Blocks."""
    support = detect(proc)
    base = support.base_cgroup
    if base is None:
        return NoCgroups(support)
    try:
        vacate_base(support, proc)
        cgroups = HostCgroups(
            base,
            support,
            root,
            # containerd never removes the directories that it creates below a cgroup parent. 640 pods left 11,520 of
            # them in one test.
            elsewhere=base_elsewhere(support, proc) if of_containers else None,
            policy=policy,
            pod_pids_limit=pod_pids_limit,
        )
        cgroups.prepare()
    except OSError as error:
        return NoCgroups(support.without_cgroups(f"cannot create {support.base.rstrip('/')}/{root}: {error}"))
    return cgroups


class HostCgroups:
    """Pod cgroups below one root. The calls to the kernel run in threads, because they can take long."""

    def __init__(
        self,
        base: Cgroup,
        support: CgroupSupport,
        root: str = DEFAULT_ROOT,
        *,
        elsewhere: Cgroup | None = None,
        policy: CpuPolicy = DEFAULT_POLICY,
        pod_pids_limit: int | None = None,
    ) -> None:
        """`elsewhere` is the base in hierarchies in which container runtimes create cgroups that we only remove."""
        self._base = base
        self._bases = (base,) if elsewhere is None else (base, elsewhere)
        self._support = support
        self._root = root
        self._policy = policy
        self._pod_pids_limit = pod_pids_limit if pod_pids_limit and pod_pids_limit > 0 else None
        self._burstable: dict[PodUID, int] = {}  # CPU request of each pod, in millicores
        self._written_request: int | None = None  # the sum of the requests when the shares were last written
        self._shares_lock = threading.Lock()

    async def ensure(self, pod: Pod) -> str:
        """Create or update the cgroup of a pod. Return its path below the mount points. Raises TryLater."""
        uid, qos = PodUID(pod.metadata.uid or ""), qos_of(pod)
        if not uid or "/" in uid or "\0" in uid:
            raise TryLater(f"cannot create a cgroup for pod {pod.metadata.name}: its UID {uid!r} is not a file name")
        names = (self._root, *BRANCHES[qos], f"{POD_PREFIX}{uid}")
        files = files_of(pod_limits(pod, self._policy, self._pod_pids_limit), self._support.version)
        if qos == BURSTABLE:
            self._burstable[uid] = pod_cpu_request(pod)
        try:
            await asyncio.to_thread(self._make, names, files)
        except OSError as error:
            raise TryLater(f"cannot create the cgroup of pod {uid}: {error}") from error
        return "/".join((self._support.base.rstrip("/"), *names))

    async def remove(self, uid: PodUID) -> None:
        """Kill the processes in the cgroup of a pod and remove it. An unknown pod is no error. Raises TryLater."""
        self._burstable.pop(uid, None)
        loop = asyncio.get_running_loop()
        deadline, retries = loop.time() + REMOVE_TIMEOUT_SECONDS, RetryCounter(REMOVE_DELAY)
        while obstacle := await asyncio.to_thread(self._try_to_remove, uid):
            if loop.time() >= deadline:
                raise TryLater(f"cannot remove the cgroup of pod {uid}: {obstacle}")
            await asyncio.sleep(retries.failed())

    async def throttle(self, uid: PodUID) -> None:
        """Reduce the cgroup of a pod to the minimum of CPU shares. An unknown pod is no error. Raises TryLater."""
        files = share_files(0, self._support.version)
        try:
            await asyncio.to_thread(self._throttle, uid, files)
        except OSError as error:
            raise TryLater(f"cannot reduce the CPU shares of pod {uid}: {error}") from error

    async def list_pods(self) -> frozenset[PodUID]:
        """Return the pods that have a cgroup below our root in any hierarchy. Raises TryLater."""
        try:
            return await asyncio.to_thread(self._list)
        except OSError as error:
            raise TryLater(f"cannot list the pod cgroups: {error}") from error

    def describe(self) -> str:
        """Return the cgroups in use and the missing controllers, as one line for the log."""
        return f"{self._support.describe()}; pods are below {self._support.base.rstrip('/')}/{self._root}"

    def prepare(self) -> None:
        """Create the root and the QoS cgroups. Raises OSError."""
        version = self._support.version
        cgroup.delegate(self._base)
        self._written_request = None
        for branch in BRANCHES.values():
            parent = self._at(self._root, *branch)
            cgroup.make(parent, share_files(0, version) if branch == BRANCHES[BEST_EFFORT] else {})
            cgroup.delegate(parent)

    async def close(self) -> None:
        """Remove the root and the QoS cgroups that have no pods. No process is killed."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        # The root is the first branch and can only be removed after the others.
        for branch in reversed(tuple(BRANCHES.values())):
            for parent in self._everywhere(*branch):
                if not cgroup.children(parent):
                    with contextlib.suppress(OSError):  # still in use
                        cgroup.remove(parent, 0)

    def _at(self, *names: str) -> Cgroup:
        return cgroup.descendant(self._base, *names)

    def _everywhere(self, *names: str) -> Iterator[Cgroup]:
        """Yield a cgroup below our root, and the same cgroup in the hierarchies that only runtimes use."""
        return (cgroup.descendant(base, self._root, *names) for base in self._bases)

    def _cgroups_of(self, uid: PodUID) -> Iterator[Cgroup]:
        """Yield the cgroups of a pod. Search all QoS classes, because the pod itself may be unknown."""
        if uid and "/" not in uid:
            for branch in BRANCHES.values():
                yield from filter(cgroup.exists, self._everywhere(*branch, f"{POD_PREFIX}{uid}"))

    def _make(self, names: tuple[str, ...], files: Mapping[str, str]) -> None:
        created = self._at(*names)
        try:
            cgroup.make(created, files)
        except FileNotFoundError:  # another process removed the empty root
            self.prepare()
            cgroup.make(created, files)
        cgroup.delegate(created)
        self._write_burstable_shares()

    def _throttle(self, uid: PodUID, files: Mapping[str, str]) -> None:
        for found in self._cgroups_of(uid):
            cgroup.write(found, files)

    def _try_to_remove(self, uid: PodUID) -> str:
        """Return the reason why the cgroup still exists, or "" once it is removed."""
        try:
            for found in self._cgroups_of(uid):
                # A timeout of 0, because `remove` waits between the attempts in the event loop. Waiting here would hold
                # a thread.
                if not cgroup.kill_all(found, 0):
                    return f"{len(cgroup.processes(found))} killed processes have not ended"
                cgroup.remove(found, 0)
            self._write_burstable_shares()
        except OSError as error:
            return str(error)
        return ""

    def _list(self) -> frozenset[PodUID]:
        parents = (parent for branch in BRANCHES.values() for parent in self._everywhere(*branch))
        names = {name for parent in parents for name in cgroup.children(parent)}
        return frozenset(PodUID(name.removeprefix(POD_PREFIX)) for name in names if name.startswith(POD_PREFIX)) - {""}

    def _write_burstable_shares(self) -> None:
        """Set the shares of the Burstable class to the sum of the requests of its pods."""
        with self._shares_lock:  # otherwise an older sum could overwrite a newer one
            total = sum(tuple(self._burstable.values()))
            if total != self._written_request:
                files = share_files(total, self._support.version)
                cgroup.write(self._at(self._root, *BRANCHES[BURSTABLE]), files)
                self._written_request = total


class NoCgroups:
    """Implements the port on a machine without usable cgroups. Pods run without limits, and one warning is logged."""

    def __init__(self, support: CgroupSupport) -> None:
        self._support = support
        self._problems: LogOnce[str] = LogOnce(log)

    async def ensure(self, pod: Pod) -> str:
        self._problems.first("cgroups", "pods run without cgroups, so limits are not enforced: %s", self.describe())
        return ""

    async def remove(self, uid: PodUID) -> None:
        pass

    async def throttle(self, uid: PodUID) -> None:
        pass

    async def list_pods(self) -> frozenset[PodUID]:
        return frozenset()

    async def close(self) -> None:
        pass

    def describe(self) -> str:
        """Return the reason why there are no cgroups, and how to enable them."""
        return self._support.describe()
