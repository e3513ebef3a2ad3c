"""The volumes of this machine behind the volumes port.

    mount    --> plans (objects are read) --> one thread sets up all volumes of the pod --> host paths
    run      --> every minute or so, and when told: what objects say now is swapped in where it differs
             --> every ten seconds: what grew beyond its limit is told
    prepare_sub_path --> a part of a volume, bound to a place of its own, for runtimes that take paths
    unmount  --> whatever is mounted below the pod's directory, then its volumes
    remove_directory --> the rest of it

A pod of which something is there to be taken down has a `volumes` directory, or a mount below its own: that is looked
up, not remembered, so it is as true after a crash as before. What is remembered (pods to refresh and to measure) is
told anew by the first `mount` after a restart.
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

from podkeeper.model.errors import AgentError, BadInput, CallTimedOut, NotConfigurable, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import Mount
from podkeeper.ports.api import Reader
from podkeeper.rules.resources import Amounts
from podkeeper.volumes.empty_dir import EmptyDir
from podkeeper.volumes.helper import Helper, still_ours
from podkeeper.volumes.kernel import mounts_below, unmount
from podkeeper.volumes.kinds import Plan, Supply, group_of, payload_kind, payload_of, plan_of
from podkeeper.volumes.memory import Memory, shared_memory
from podkeeper.volumes.payload import Payload
from podkeeper.volumes.place import PODS, VOLUMES, PodPlaces, checked
from podkeeper.volumes.projected import Tokens
from podkeeper.volumes.remembered_reads import RememberedReads
from podkeeper.volumes.subpath_mounts import SUB_PATHS, bind_subpath
from podkeeper.volumes.threads import PATIENCE_SECONDS, Start, Threads, start_daemon
from podkeeper.volumes.tree import make_directory, open_directory, opened, remove_tree
from podkeeper.volumes.usage import PERIOD_SECONDS, Limited, OverUse, measured

log = logging.getLogger(__name__)

T = TypeVar("T")

REFRESH_SECONDS = 60.0
REFRESH_JITTER = 0.5  # a refresh comes after one to one and a half periods, so that nodes do not ask all at once
MOST_MOUNTS = 1000


@dataclass(slots=True)
class _Ready:
    """A pod whose volumes are ready."""

    pod: Pod
    paths: Mapping[str, str]
    shown: dict[str, bytes] = field(default_factory=dict)  # fingerprints of payloads by volume
    limited: tuple[Limited, ...] = ()


class HostVolumes:
    """Sets up and takes down the volumes of pods below one directory."""

    def __init__(
        self,
        root: str | Path,
        objects: Reader,
        *,
        allocatable: Callable[[], Amounts] = dict,
        tokens: Tokens | None = None,
        over_use: Callable[[OverUse], None] | None = None,
        helper: Helper | None = None,
        shared: Sequence[str] | None = None,
        fraction: Callable[[], float] = random.random,
        refresh_seconds: float = REFRESH_SECONDS,
        measure_seconds: float = PERIOD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        start_thread: Start = start_daemon,
    ) -> None:
        """Volumes lie below `root`. `shared` are the directories in memory for when we may not mount.

        `helper` does for an ordinary user what takes its subordinate ids.
        """
        self._root = os.path.realpath(root)  # as the kernel's list of mounts has it
        self._objects = objects
        self._allocatable = allocatable
        self._tokens = tokens
        self._over_use = over_use
        self._helper = helper
        self._fraction = fraction
        self._refresh_seconds = refresh_seconds
        self._measure_seconds = measure_seconds
        self._memory = Memory(self._root, tuple(shared_memory(os.environ) if shared is None else shared))
        self._patience_seconds = patience_seconds
        self._threads = Threads(patience_seconds, start_thread)
        self._ready: dict[PodUID, _Ready] = {}
        self._kept: set[str] = set()  # volumes that keep our group though they should not
        self._changed = asyncio.Event()

    # The port.

    async def mount(self, pod: Pod) -> Mapping[str, str]:
        """Make all volumes of a pod ready."""
        uid = _uid(pod)
        places = PodPlaces(self._root, checked(uid, "pod UID"))
        supply = self._supply(self._objects)
        plans: list[Plan] = []
        failures: dict[str, str] = {}
        for volume in pod.spec.volumes or ():
            try:
                plans.append(await plan_of(volume, pod, supply))
            except AgentError as error:
                failures[volume.name] = str(error)
        work = partial(_translated, "make its directory", partial(_set_up, plans, places, self._memory))
        paths, more_failures = await self._threads.run(uid, f"mount the volumes of pod {uid}", work)
        if failures or more_failures:
            raise TryLater(_told({**failures, **more_failures}))
        shown = {plan.name: plan.fingerprint() for plan in plans if isinstance(plan, Payload)}
        made = [paths[plan.name] for plan in plans if isinstance(plan, EmptyDir | Payload)]
        await self._give(uid, group_of(pod), made)
        self._ready[uid] = _Ready(pod, paths, shown, tuple(_limited(uid, places, plans, paths)))
        return paths

    async def prepare_sub_path(self, uid: PodUID, mount: Mount, container: str, index: int) -> str:
        """The host path of a mount's part of a volume, safe from what containers do; `index` is the mount's.

        Idempotent. Raises NotConfigurable without details, as the reference does: they tell of the host's files.
        """
        parts = (mount.volume, mount.host_path, mount.sub_path, container, index)
        what = f"bind sub-path {index} of container {container} of pod {uid}"
        work = partial(_translated, what, partial(bind_subpath, self._root, uid, *parts))
        try:
            return await self._threads.run(uid, what, work)
        except CallTimedOut:
            raise
        except TryLater as error:
            log.warning("%s failed, will retry: %s", what, error)
            raise NotConfigurable(
                f'failed to prepare subPath for volumeMount "{mount.volume}" of container "{container}"'
            ) from error

    async def unmount(self, uid: PodUID) -> None:
        """Take down all volumes of a pod."""
        if (ready := self._ready.pop(uid, None)) is not None:
            self._kept.difference_update(ready.paths.values())
        work = partial(_take_down, self._root, checked(uid, "pod UID"), self._memory)
        what = f"unmount the volumes of pod {uid}"
        try:
            await self._threads.run(uid, what, work)
        except TryLater as error:
            if self._helper is None or not isinstance(error.__cause__, PermissionError):
                raise
            await self._clear(uid, what, self._helper)
            await self._threads.run(uid, what, work)

    def mounted_pods(self) -> frozenset[PodUID]:
        """The pods that have volumes on disk, or anything mounted below their directory. Quick: one look per pod."""
        pods = os.path.join(self._root, PODS)
        names = _translated("list the directories of pods", partial(_names_in, pods))
        found = {name for name in names if os.path.lexists(os.path.join(pods, name, VOLUMES))}
        found.update(path[len(pods) + 1 :].partition("/")[0] for path in mounts_below(pods) if path != pods)
        return frozenset(map(PodUID, found | self._memory.pods()))

    async def directories(self) -> frozenset[PodUID]:
        """The pods that have a data directory."""
        pods = os.path.join(self._root, PODS)
        what = "list the directories of pods"
        names = await self._threads.run("/directories", what, partial(_translated, what, partial(_names_in, pods)))
        return frozenset(map(PodUID, names))

    async def remove_directory(self, uid: PodUID) -> None:
        """Remove a pod's data directory."""
        work = partial(_remove, self._root, checked(uid, "pod UID"))
        await self._threads.run(uid, f"remove the directory of pod {uid}", work)

    # Keeping up.

    def objects_changed(self) -> None:
        """Some config map or secret is not what it was: refresh soon."""
        self._changed.set()

    def tell_over_use(self, listener: Callable[[PodUID, str], None]) -> None:
        """Tell somebody, from now on, of pods with a volume beyond its limit, and in which words to say so."""
        self._over_use = lambda found: listener(found.uid, found.message)

    async def run(self) -> None:
        """Refresh and measure, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_fresh())
            group.create_task(self._keep_measuring())

    async def refresh(self) -> None:
        """Read objects again, each once, and show what is new. What cannot be read stays as it is."""
        supply = self._supply(RememberedReads(self._objects))
        async with asyncio.TaskGroup() as group:
            for uid, ready in tuple(self._ready.items()):
                for payload in await self._news(ready, supply):
                    group.create_task(self._update(uid, ready, payload))

    async def measure(self) -> float:
        """Tell which volumes are too large. Returns how many seconds to wait before measuring again."""
        limited = [directory for ready in self._ready.values() for directory in ready.limited]
        if not limited or self._over_use is None:
            return self._measure_seconds
        look = partial(measured, limited, self._measure_seconds)
        found, pause = await self._threads.run("/usage", "measure volumes", look)
        for over_use in found:
            if over_use.uid in self._ready:
                self._over_use(over_use)
        return pause

    async def _keep_fresh(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_seconds * (1 + REFRESH_JITTER * self._fraction())):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.refresh()
            except Exception:
                log.exception("volumes could not be refreshed, next round in %g s", self._refresh_seconds)

    async def _keep_measuring(self) -> None:
        pause = self._measure_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await self.measure()
            except TryLater as error:
                log.warning("volumes could not be measured, next round in %g s: %s", pause, error)
            except Exception:
                log.exception("volumes could not be measured, next round in %g s", pause)

    async def _news(self, ready: _Ready, supply: Supply) -> list[Payload]:
        """The payloads of a pod that differ from what it was last shown."""
        news = []
        for volume in ready.pod.spec.volumes or ():
            if payload_kind(volume) is None:
                continue
            try:
                payload = await payload_of(volume, ready.pod, supply)
            except (TryLater, BadInput) as error:
                log.warning("volume %s of pod %s stays as it is: %s", volume.name, _uid(ready.pod), error)
                continue
            if payload.fingerprint() != ready.shown.get(volume.name):
                news.append(payload)
        return news

    async def _update(self, uid: PodUID, ready: _Ready, payload: Payload) -> None:
        def work() -> bool:
            # A pod that was mounted anew or unmounted meanwhile has newer files, or none.
            update = partial(payload.update, PodPlaces(self._root, uid), self._memory)
            return self._ready.get(uid) is ready and _translated("show new content", update)

        try:
            if await self._threads.run(uid, f"update volume {payload.name} of pod {uid}", work):
                await self._give(uid, payload.group, [ready.paths[payload.name]])
                log.info("volume %s of pod %s shows new content", payload.name, uid)
            ready.shown[payload.name] = payload.fingerprint()
        except TryLater as error:
            log.warning("volume %s of pod %s stays as it is: %s", payload.name, uid, error)

    async def _clear(self, uid: PodUID, what: str, helper: Helper) -> None:
        """Have all directories of a pod deleted in which containers of other users wrote."""
        try:
            async with asyncio.timeout(self._patience_seconds):
                for directory in (os.path.join(self._root, PODS, uid, VOLUMES), *self._memory.places_of(uid)):
                    await helper.clear(directory)
        except TimeoutError:
            text = f"cannot {what}: others wrote there, and no end in {self._patience_seconds:g} s"
            raise CallTimedOut(text) from None

    async def _give(self, uid: PodUID, group: int | None, paths: Sequence[str]) -> None:
        """Have volumes given to the pod's group where we could not; as in the reference, pods run without it, too."""
        if group is None or os.geteuid() == 0:
            return
        look = partial(still_ours, paths, group)
        for path in await self._threads.run(uid, f"look at the volumes of pod {uid}", look):
            try:
                if self._helper is None:
                    raise TryLater(f"cannot give {path} to group {group}: not permitted")
                async with asyncio.timeout(self._patience_seconds):
                    await self._helper.give(path, group)
            except (TryLater, TimeoutError) as error:
                if path not in self._kept:  # said once
                    log.warning(
                        "a volume of pod %s keeps the agent's group: %s", uid, str(error) or "no end of giving it"
                    )
                self._kept.add(path)

    def _supply(self, objects: Reader) -> Supply:
        return Supply(objects, self._tokens, self._allocatable())


def _set_up(plans: Sequence[Plan], places: PodPlaces, memory: Memory) -> tuple[dict[str, str], dict[str, str]]:
    """Paths by volume, and what went wrong by volume: one that fails does not hold up the others."""
    os.makedirs(places.root, exist_ok=True)
    with opened(make_directory(places.root, PODS, places.uid)):
        paths, failures = {}, {}
        for plan in plans:
            try:
                paths[plan.name] = _translated("set it up", partial(plan.set_up, places, memory))
            except AgentError as error:
                failures[plan.name] = str(error)
        return paths, failures


def _take_down(root: str, uid: str, memory: Memory) -> None:
    directory = os.path.join(root, PODS, uid)
    for _ in range(MOST_MOUNTS):
        mounts = mounts_below(directory)
        if not mounts:
            break
        deepest = max(mounts, key=lambda path: path.count("/"))
        try:
            unmount(deepest)
        except OSError as error:
            raise TryLater(f"cannot unmount {deepest} of pod {uid}: {(error.strerror or '').lower()}") from error
    what = f"remove the volumes of pod {uid}"
    _translated(what, partial(memory.remove, uid))
    _translated(what, partial(remove_tree, root, PODS, uid, SUB_PATHS))
    _translated(what, partial(remove_tree, root, PODS, uid, VOLUMES))


def _remove(root: str, uid: str) -> None:
    directory = os.path.join(root, PODS, uid)
    if mounts := mounts_below(directory):
        raise TryLater(f"cannot remove the directory of pod {uid}: {mounts[0]} is mounted")
    if os.path.lexists(os.path.join(directory, VOLUMES)):
        raise TryLater(f"cannot remove the directory of pod {uid}: its volumes are still there")
    _translated(f"remove the directory of pod {uid}", partial(remove_tree, root, PODS, uid))


def _translated(what: str, work: Callable[[], T]) -> T:
    """Do some file work; what the system refuses may be granted later."""
    try:
        return work()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise TryLater(f"cannot {what}: {where}{(error.strerror or str(error)).lower()}") from error


def _limited(uid: PodUID, places: PodPlaces, plans: Sequence[Plan], paths: Mapping[str, str]) -> "list[Limited]":
    return [
        Limited(uid, plan.name, paths[plan.name], plan.limit)
        for plan in plans
        if isinstance(plan, EmptyDir) and plan.limit is not None and plan.must_be_measured(places, paths[plan.name])
    ]


def _told(failures: Mapping[str, str]) -> str:
    return "; ".join(f'MountVolume.SetUp failed for volume "{name}" : {why}' for name, why in failures.items())


def _names_in(directory: str) -> frozenset[str]:
    try:
        with opened(open_directory(directory)) as descriptor:
            return frozenset(os.listdir(descriptor))
    except FileNotFoundError:
        return frozenset()


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
