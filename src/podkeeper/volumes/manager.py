"""The volume manager: mount, refresh, measure and unmount volumes of pods.

    mount    --> plans (API objects are read) --> one thread sets up all volumes of the pod --> host paths
    run      --> every minute, and after `objects_changed`: write the changed content of API objects
             --> every ten seconds: report volumes that exceed their limit
    prepare_sub_path --> bind a sub-path of a volume to a directory of ours, for runtimes that take paths
    unmount  --> unmount everything below the pod's directory, then remove its volumes
    remove_directory --> remove the rest of it

A pod has volumes if it has a `volumes` directory on disk, or a mount below its directory. So this is also correct after
a crash. Only the pods to refresh and to measure are kept in memory. After a restart, the first `mount` of each pod
restores them. Kubelet counterpart: pkg/kubelet/volumemanager.
"""

import asyncio
import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from podkeeper.concurrency.once import LogOnce
from podkeeper.concurrency.threads import Start, start_daemon
from podkeeper.linux.mounts import mounts_below, unmount
from podkeeper.linux.tree import make_directory, open_directory, opened, remove_tree
from podkeeper.model.errors import AgentError, BadInput, CallTimedOut, NotConfigurable, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime_calls import Mount
from podkeeper.ports.api import ObjectReader, TokenProvider
from podkeeper.rules.resources import Amounts
from podkeeper.volumes.empty_dir import EmptyDir
from podkeeper.volumes.kinds import PlanInputs, VolumePlan, group_of, payload_kind, payload_of, plan_of
from podkeeper.volumes.memory import MemoryDirectories, shared_memory
from podkeeper.volumes.paths import PODS, VOLUMES, PodDirectory, checked
from podkeeper.volumes.payload import Payload
from podkeeper.volumes.read_cache import ReadCache
from podkeeper.volumes.subpath_mounts import SUB_PATHS, bind_subpath
from podkeeper.volumes.threads import TIMEOUT_SECONDS, Threads
from podkeeper.volumes.usage import PERIOD_SECONDS, LimitedVolume, Overuse, measure
from podkeeper.volumes.user_namespace import NamespaceHelper, in_our_group

log = logging.getLogger(__name__)

T = TypeVar("T")

# The kubelet's syncFrequency.
REFRESH_SECONDS = 60.0
REFRESH_JITTER = 0.5  # random extra time, as a fraction of the period, so that nodes do not read at the same time
# A bound, in case another process keeps mounting.
MAX_MOUNTS = 1000


@dataclass(slots=True)
class _MountedPod:
    """A pod whose volumes are mounted."""

    pod: Pod
    paths: Mapping[str, str]
    written: dict[str, bytes] = field(default_factory=dict)  # fingerprints of payloads, by volume
    limited: tuple[LimitedVolume, ...] = ()


class HostVolumes:
    """Mounts and unmounts the volumes of pods below one directory."""

    def __init__(
        self,
        root: str | Path,
        objects: ObjectReader,
        *,
        allocatable: Callable[[], Amounts] = dict,
        tokens: TokenProvider | None = None,
        overuse: Callable[[Overuse], None] | None = None,
        helper: NamespaceHelper | None = None,
        shared: Sequence[str] | None = None,
        fraction: Callable[[], float] = random.random,
        refresh_seconds: float = REFRESH_SECONDS,
        measure_seconds: float = PERIOD_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        start_thread: Start = start_daemon,
    ) -> None:
        """Create the manager for volumes below `root`.

        `shared` are directories in memory, for an agent without permission to mount. `helper` changes files that belong
        to the subordinate ids of an ordinary user.
        """
        self._root = os.path.realpath(root)  # without links, as in the mount table
        self._objects = objects
        self._allocatable = allocatable
        self._tokens = tokens
        self._overuse = overuse
        self._helper = helper
        self._fraction = fraction
        self._refresh_seconds = refresh_seconds
        self._measure_seconds = measure_seconds
        self._memory = MemoryDirectories(self._root, tuple(shared_memory(os.environ) if shared is None else shared))
        self._timeout_seconds = timeout_seconds
        self._threads = Threads(timeout_seconds, start_thread)
        self._mounted: dict[PodUID, _MountedPod] = {}
        self._problems: LogOnce[str] = LogOnce(log)  # by volume
        self._changed = asyncio.Event()

    # ---- the port ----

    async def mount(self, pod: Pod) -> Mapping[str, str]:
        """Mount all volumes of a pod. Return their host paths. Raises TryLater."""
        uid = uid_of(pod)
        directory = PodDirectory(self._root, checked(uid, "pod UID"))
        inputs = self._inputs(self._objects)
        plans: list[VolumePlan] = []
        failures: dict[str, str] = {}
        for volume in pod.spec.volumes or ():
            try:
                plans.append(await plan_of(volume, pod, inputs))
            except AgentError as error:
                failures[volume.name] = str(error)
        work = partial(_translated, "create its directory", partial(_set_up, plans, directory, self._memory))
        # Set up the other volumes even if one failed, so that one message names all problems.
        paths, more_failures = await self._threads.run(uid, f"mount the volumes of pod {uid}", work)
        if failures or more_failures:
            raise TryLater(_mount_error({**failures, **more_failures}))
        written = {plan.name: plan.fingerprint() for plan in plans if isinstance(plan, Payload)}
        created = [paths[plan.name] for plan in plans if isinstance(plan, EmptyDir | Payload)]
        await self._change_group(uid, group_of(pod), created)
        self._mounted[uid] = _MountedPod(pod, paths, written, tuple(_limited(uid, directory, plans, paths)))
        return paths

    async def prepare_sub_path(self, uid: PodUID, mount: Mount, container: str, index: int) -> str:
        """Bind the sub-path of a mount to a path that containers cannot change. Return that path.

        Idempotent. Raises NotConfigurable without details, as the kubelet does, because they reveal files of the host.
        """
        parts = (mount.volume, mount.host_path, mount.sub_path, container, index)
        what = f"bind sub-path {index} of container {container} of pod {uid}"
        work = partial(_translated, what, partial(bind_subpath, self._root, uid, *parts))
        try:
            return await self._threads.run(uid, what, work)
        except CallTimedOut:
            raise
        except TryLater as error:
            log.warning("cannot %s, will retry: %s", what, error)
            raise NotConfigurable(
                f'failed to prepare subPath for volumeMount "{mount.volume}" of container "{container}"'
            ) from error

    async def unmount(self, uid: PodUID) -> None:
        """Unmount and remove all volumes of a pod. A pod without volumes is no error. Raises TryLater."""
        # First, so that a refresh that is under way writes nothing more (`_update`).
        if (mounted := self._mounted.pop(uid, None)) is not None:
            for path in mounted.paths.values():
                self._problems.solved(path)
        work = partial(_unmount_and_remove, self._root, checked(uid, "pod UID"), self._memory)
        what = f"unmount the volumes of pod {uid}"
        try:
            await self._threads.run(uid, what, work)
        except TryLater as error:
            if self._helper is None or not isinstance(error.__cause__, PermissionError):
                raise
            # Containers of an ordinary user's subordinate IDs wrote files that the agent may not delete. The helper
            # deletes the files, the second run removes what is left.
            await self._clear(uid, what, self._helper)
            await self._threads.run(uid, what, work)

    def mounted_pods(self) -> frozenset[PodUID]:
        """Return the pods that have volumes on disk or mounts below their directory. Fast: one system call per pod."""
        pods = os.path.join(self._root, PODS)
        names = _translated("list the directories of pods", partial(_names_in, pods))
        found = {name for name in names if os.path.lexists(os.path.join(pods, name, VOLUMES))}
        found.update(path[len(pods) + 1 :].partition("/")[0] for path in mounts_below(pods) if path != pods)
        return frozenset(map(PodUID, found | self._memory.pods()))

    async def directories(self) -> frozenset[PodUID]:
        """Return the pods that have a directory. Raises TryLater."""
        pods = os.path.join(self._root, PODS)
        what = "list the directories of pods"
        names = await self._threads.run("/directories", what, partial(_translated, what, partial(_names_in, pods)))
        return frozenset(map(PodUID, names))

    async def remove_directory(self, uid: PodUID) -> None:
        """Remove the directory of a pod without volumes. Raises TryLater."""
        work = partial(_remove, self._root, checked(uid, "pod UID"))
        await self._threads.run(uid, f"remove the directory of pod {uid}", work)

    # ---- refreshing and measuring ----

    def objects_changed(self) -> None:
        """Refresh soon, because a ConfigMap or Secret changed."""
        self._changed.set()

    def on_overuse(self, listener: Callable[[PodUID, str], None]) -> None:
        """Call the listener with each pod whose volume exceeds its limit, and with the message for its status."""
        self._overuse = lambda found: listener(found.uid, found.message)

    async def run(self) -> None:
        """Refresh and measure, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_fresh())
            group.create_task(self._keep_measuring())

    async def refresh(self) -> None:
        """Read each API object once and write changed content. A volume whose objects cannot be read stays as it is."""
        inputs = self._inputs(ReadCache(self._objects))
        async with asyncio.TaskGroup() as group:
            for uid, mounted in tuple(self._mounted.items()):
                for payload in await self._changed_payloads(mounted, inputs):
                    group.create_task(self._update(uid, mounted, payload))

    async def measure(self) -> float:
        """Report the volumes that exceed their limit. Return the seconds until the next measurement."""
        limited = [volume for mounted in self._mounted.values() for volume in mounted.limited]
        if not limited or self._overuse is None:
            return self._measure_seconds
        work = partial(measure, limited, self._measure_seconds)
        found, pause = await self._threads.run("/usage", "measure volumes", work)
        # The pod may have been unmounted during the measurement.
        for overuse in found:
            if overuse.uid in self._mounted:
                self._overuse(overuse)
        return pause

    async def _keep_fresh(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_seconds * (1 + REFRESH_JITTER * self._fraction())):
                    await self._changed.wait()
            # Before the refresh, because a change during it must cause another one.
            self._changed.clear()
            try:
                await self.refresh()
            except Exception:
                log.exception("cannot refresh volumes, will retry in %g s", self._refresh_seconds)

    async def _keep_measuring(self) -> None:
        pause = self._measure_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await self.measure()
            except TryLater as error:
                log.warning("cannot measure volumes, will retry in %g s: %s", pause, error)
            except Exception:
                log.exception("cannot measure volumes, will retry in %g s", pause)

    async def _changed_payloads(self, mounted: _MountedPod, inputs: PlanInputs) -> list[Payload]:
        """Return the payloads of a pod that differ from the written ones."""
        changed = []
        for volume in mounted.pod.spec.volumes or ():
            if payload_kind(volume) is None:
                continue
            try:
                payload = await payload_of(volume, mounted.pod, inputs)
            except (TryLater, BadInput) as error:
                log.warning("volume %s of pod %s is not updated: %s", volume.name, uid_of(mounted.pod), error)
                continue
            if payload.fingerprint() != mounted.written.get(volume.name):
                changed.append(payload)
        return changed

    async def _update(self, uid: PodUID, mounted: _MountedPod, payload: Payload) -> None:
        def work() -> bool:
            # Skip a pod that was mounted again or unmounted meanwhile, because its files are newer or removed.
            update = partial(payload.update, PodDirectory(self._root, uid), self._memory)
            return self._mounted.get(uid) is mounted and _translated("write new content", update)

        try:
            if await self._threads.run(uid, f"update volume {payload.name} of pod {uid}", work):
                await self._change_group(uid, payload.group, [mounted.paths[payload.name]])
                log.info("volume %s of pod %s updated", payload.name, uid)
            # Only after success, so that a failed update is repeated.
            mounted.written[payload.name] = payload.fingerprint()
        except TryLater as error:
            log.warning("volume %s of pod %s is not updated: %s", payload.name, uid, error)

    async def _clear(self, uid: PodUID, what: str, helper: NamespaceHelper) -> None:
        """Delete all directories of a pod through the helper, because containers of other users wrote to them."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                for directory in (os.path.join(self._root, PODS, uid, VOLUMES), *self._memory.shared_directories(uid)):
                    await helper.clear(directory)
        except TimeoutError:
            text = f"cannot {what}: deleting files of other users did not end in {self._timeout_seconds:g} s"
            raise CallTimedOut(text) from None

    async def _change_group(self, uid: PodUID, group: int | None, paths: Sequence[str]) -> None:
        """Change the group of volumes through the helper. As in the kubelet, the pod starts even if this fails."""
        # Root has changed the group already (`make_child_of`, `AtomicWriter`).
        if group is None or os.geteuid() == 0:
            return
        work = partial(in_our_group, paths, group)
        for path in await self._threads.run(uid, f"inspect the volumes of pod {uid}", work):
            try:
                if self._helper is None:
                    raise TryLater(f"cannot change the group of {path} to {group}: not permitted")
                async with asyncio.timeout(self._timeout_seconds):
                    await self._helper.give(path, group)
            except (TryLater, TimeoutError) as error:
                reason = str(error) or "timed out"
                self._problems.first(path, "a volume of pod %s keeps the agent's group: %s", uid, reason)

    def _inputs(self, objects: ObjectReader) -> PlanInputs:
        return PlanInputs(objects, self._tokens, self._allocatable())


def _set_up(
    plans: Sequence[VolumePlan], directory: PodDirectory, memory: MemoryDirectories
) -> tuple[dict[str, str], dict[str, str]]:
    """Set up all volumes. Return paths and errors by volume, because one failure does not stop the others."""
    os.makedirs(directory.root, exist_ok=True)
    with opened(make_directory(directory.root, PODS, directory.uid)):
        paths, failures = {}, {}
        for plan in plans:
            try:
                paths[plan.name] = _translated("set it up", partial(plan.set_up, directory, memory))
            except AgentError as error:
                failures[plan.name] = str(error)
        return paths, failures


def _unmount_and_remove(root: str, uid: str, memory: MemoryDirectories) -> None:
    directory = os.path.join(root, PODS, uid)
    for _ in range(MAX_MOUNTS):
        # Read the table again after each step, because mounts can be stacked on one path.
        mounts = mounts_below(directory)
        if not mounts:
            break
        # The kernel refuses to unmount a file system that has mounts below it.
        deepest = max(mounts, key=lambda path: path.count("/"))
        try:
            unmount(deepest)
        except OSError as error:
            raise TryLater(f"cannot unmount {deepest} of pod {uid}: {(error.strerror or '').lower()}") from error
    what = f"remove the volumes of pod {uid}"
    # The `volumes` directory comes last: while it exists, the pod counts as mounted, so an interrupted removal is
    # repeated.
    _translated(what, partial(memory.remove, uid))
    _translated(what, partial(remove_tree, root, PODS, uid, SUB_PATHS))
    _translated(what, partial(remove_tree, root, PODS, uid, VOLUMES))


def _remove(root: str, uid: str) -> None:
    directory = os.path.join(root, PODS, uid)
    # Never delete through a mount: the files behind it may be the host's (k/k issue 60987).
    if mounts := mounts_below(directory):
        raise TryLater(f"cannot remove the directory of pod {uid}: {mounts[0]} is mounted")
    if os.path.lexists(os.path.join(directory, VOLUMES)):
        raise TryLater(f"cannot remove the directory of pod {uid}: its volumes still exist")
    _translated(f"remove the directory of pod {uid}", partial(remove_tree, root, PODS, uid))


def _translated(what: str, work: Callable[[], T]) -> T:
    """Run a function and turn its OSErrors into TryLater."""
    try:
        return work()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise TryLater(f"cannot {what}: {where}{(error.strerror or str(error)).lower()}") from error


def _limited(
    uid: PodUID, directory: PodDirectory, plans: Sequence[VolumePlan], paths: Mapping[str, str]
) -> list[LimitedVolume]:
    return [
        LimitedVolume(uid, plan.name, paths[plan.name], plan.limit)
        for plan in plans
        if isinstance(plan, EmptyDir) and plan.limit is not None and plan.must_be_measured(directory, paths[plan.name])
    ]


def _mount_error(failures: Mapping[str, str]) -> str:
    return "; ".join(f'MountVolume.SetUp failed for volume "{name}" : {why}' for name, why in failures.items())


def _names_in(directory: str) -> frozenset[str]:
    try:
        with opened(open_directory(directory)) as descriptor:
            return frozenset(os.listdir(descriptor))
    except FileNotFoundError:
        return frozenset()
