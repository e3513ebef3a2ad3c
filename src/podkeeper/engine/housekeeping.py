"""Housekeeping: every two seconds, finds what must go and what must be started again, and sees to it.

    list cgroups and directories -> sweep the workers -> list the runtime -> decide at one moment -> act

The order, and everything that is decided, is explained in `rules.housekeeping`. The loop goes on meanwhile. Until all
sources are ready, a round only restarts static pods that were removed and added again. It drops the status of their
former run first (`Housekeeping.restart_static_pods`).

Slow calls are kept apart. A listing that does not answer in time is done without: of cgroups and directories, its late
answer serves a later round; the runtime is asked anew each round, with more patience each time. Whatever is removed is
removed in the background, one call at a time per pod and thing, so a stuck one delays neither the rest nor the next
round. The culprit is named, once. What fails is found again by the next round, and its error is told once. The Go
ancestor is `HandlePodCleanups` in pkg/kubelet/kubelet_pods.go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, filterfalse

from podkeeper.engine.admission import Admission
from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirrors import MirrorClient
from podkeeper.engine.orphans import OrphanCheck
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import PodListing
from podkeeper.ports.volumes import Volumes
from podkeeper.rules.housekeeping import Plan, Sight, is_running, plan_of, restart_of
from podkeeper.rules.mirror import is_static_pod
from podkeeper.rules.phase import is_terminal
from podkeeper.rules.worker.updates import Update
from podkeeper.rules.worker.workers import KnownPod

log = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0
QUIET_SECONDS = 30.0  # rounds are left out for so long while nothing happens
LISTING_PATIENCE_SECONDS = 1.0  # for cgroups and directories; a late answer is not lost
RUNTIME_PATIENCE_SECONDS = 2.0  # doubled each time the runtime does not answer, up to
LONGEST_RUNTIME_PATIENCE_SECONDS = 30.0
SLOW_SECONDS = 10.0  # after this a removal is named, and no longer counted as one of
REMOVALS_AT_A_TIME = 256


async def _none() -> frozenset[PodUID]:
    """What there is not has no list."""
    return frozenset()


Observe = Callable[[Sight, Plan], None]


def _unobserved(sight: Sight, plan: Plan) -> None:
    """Nobody measures."""


def _ignore(uid: PodUID) -> None:
    """Drop nothing of a pod's former run."""


class _Listing:
    """A list that may be slow in coming: at most one call is under way, and a late answer is kept."""

    def __init__(self, what: str, ask: Callable[[], Awaitable[frozenset[PodUID]]]) -> None:
        self._what = what
        self._ask = ask
        self._task: asyncio.Task[frozenset[PodUID] | None] | None = None
        self._trouble_told = False

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Ask, unless an earlier question is still open."""
        if self._task is None:
            self._task = group.create_task(self._asked())

    async def take(self) -> frozenset[PodUID] | None:
        """The list that was asked for; None when it cannot be had in time."""
        if (task := self._task) is None:
            return None
        await asyncio.wait({task}, timeout=LISTING_PATIENCE_SECONDS)
        if not task.done():
            self._tell_once("it does not answer")
            return None
        self._task = None
        answer = task.result()
        if answer is not None:
            self._trouble_told = False
        return answer

    async def _asked(self) -> frozenset[PodUID] | None:
        try:
            return await self._ask()
        except TryLater as error:
            self._tell_once(str(error))
        except Exception:
            log.exception("cannot list %s", self._what)
        return None

    def _tell_once(self, why: str) -> None:
        if not self._trouble_told:
            log.warning("cannot list %s, housekeeping goes on without: %s", self._what, why)
        self._trouble_told = True


class Housekeeping:
    """Keeps what there is in line with what is wanted. One round at a time."""

    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        runtime: PodListing,
        status: StatusManager,
        probes: ProbeManager,
        mirrors: MirrorClient,
        admission: Admission,
        clock: Clock,
        volumes: Volumes | None = None,
        cgroups: Cgroups | None = None,
        remove_remains: Callable[[PodRecord], Awaitable[None]] | None = None,
        orphans: OrphanCheck | None = None,
        held: Callable[[], Collection[PodUID]] = tuple,
        collect: Sequence[Callable[[], None]] = (),
        observe: Observe = _unobserved,
        happenings: Callable[[], int] | None = None,
        start_over: Callable[[PodUID], None] = _ignore,
    ) -> None:
        """`happenings` counts what could give housekeeping something to do; None: always.

        `start_over` drops the status of an ended pod. The next sync removes the dead containers before it starts new
        ones.
        """
        self._pods = pods
        self._workers = workers
        self._runtime = runtime
        self._status = status
        self._probes = probes
        self._mirrors = mirrors
        self._admission = admission
        self._clock = clock
        self._volumes = volumes
        self._cgroups = cgroups
        self._remove_remains = remove_remains
        self._orphans = orphans
        self._held = held  # desired pods that the loop has not told the workers of yet, on purpose
        self._collect = collect  # whatever else wants to forget something now and then: back-offs
        self._observe = observe
        self._listings = (
            _Listing("pod cgroups", _none if cgroups is None else cgroups.list_pods),
            _Listing("pod directories", _none if volumes is None else volumes.directories),
        )
        self._runtime_patience = RUNTIME_PATIENCE_SECONDS
        self._removals = _Removals(clock)
        self._happenings = happenings or count().__next__
        self._start_over = start_over
        self._idle_since: tuple[int, float] | None = None  # the count of happenings, and when
        self._hurry = asyncio.Event()

    async def run(self, is_well: Callable[[], bool], all_sources_ready: Callable[[], bool]) -> None:
        """Tidy up every two seconds until cancelled.

        Do nothing while the runtime is not well. Until all sources are ready, only start static pods again.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                await self._pause()
                if not is_well():
                    continue
                try:
                    if not all_sources_ready():
                        self.restart_static_pods()
                    elif not self._has_nothing_new():
                        await self.tidy(group)
                except Exception:
                    log.exception("housekeeping failed, next round in %g s", PERIOD_SECONDS)

    def hurry(self) -> None:
        """Make the next round at once: somebody waits for what it removes."""
        self._hurry.set()

    def is_removing(self, uid: PodUID) -> bool:
        """Whether something is being taken from a pod."""
        return uid in self._removals.subjects()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_SECONDS):
                await self._hurry.wait()
        self._hurry.clear()

    def _has_nothing_new(self) -> bool:
        """Whether the last round had nothing to do and nothing has happened since; in case we err, not for ever."""
        if self._idle_since is None or self._removals.under_way:
            return False
        happenings, at = self._idle_since
        return happenings == self._happenings() and self._clock.monotonic() - at < QUIET_SECONDS

    def restart_static_pods(self) -> None:
        """Start the static pods again that have ended and that their source names again.

        This must not wait for the API: the pod may be the API server.
        """
        static = {_uid(pod): pod for pod in self._pods.pods() if is_static_pod(pod)}
        held = self._held()
        candidates = [uid for uid in static if uid not in held]
        for uid in candidates:
            # No `tidy` has run since the pod was removed, so the status and the exits of its former run are still
            # there. They would end the new run at once.
            if self._workers.is_restartable(uid) and is_terminal(self._published_phase(uid)):
                _isolated(f"drop the former run of pod {uid}", partial(self._start_over, uid))
        for uid in self._workers.forget_restartable(candidates):
            pod = static[uid]
            update = restart_of(pod, self._pods.mirror_of_pod(pod), self._published_phase(uid), self._workers)
            if update is not None:
                _isolated(f"start pod {uid} again", partial(self._restart, update))

    def _published_phase(self, uid: PodUID) -> str | None:
        published = self._status.get_pod_status(uid)
        return None if published is None else published.phase

    async def tidy(self, group: asyncio.TaskGroup) -> None:
        """Make one round; what takes long goes on in the group."""
        begun = (self._happenings(), self._clock.monotonic())
        self._idle_since = None
        self._removals.name_the_slow()
        for listing in self._listings:
            listing.begin(group)
        cgroups, directories = [await listing.take() or frozenset() for listing in self._listings]
        known = self._workers.sync_known_pods({_uid(pod) for pod in self._pods.pods()})
        listed = await self._list_runtime()
        # From here to the last update nothing awaits: what is decided is still true when it is done.
        if self._orphans is not None and listed is not None:
            self._orphans.keep_only({PodUID(record.uid) for record in listed})
        sight = self._sight(known, listed, cgroups, directories)
        plan = plan_of(sight, self._workers)
        _isolated("be measured", partial(self._observe, sight, plan))
        self._carry_out(plan, group)
        if listed is not None and not plan.has_work:
            self._idle_since = begun

    def _sight(
        self,
        known: Mapping[PodUID, KnownPod],
        listed: Sequence[PodRecord] | None,
        cgroups: frozenset[PodUID],
        directories: frozenset[PodUID],
    ) -> Sight:
        mirrors = self._pods.mirrors()
        # Most nodes have many pods and no mirror: then nobody is asked for one.
        mirror_of = self._pods.mirror_of_pod if mirrors else lambda _: None
        desired = [(pod, mirror_of(pod)) for pod in self._pods.pods()]
        told_since = {*self._workers.told_since_sweep(), *self._held()}
        unknown = [uid for pod, _ in desired if (uid := _uid(pod)) not in known and uid not in told_since]
        published = {uid: self._status.get_pod_status(uid) for uid in unknown}
        return Sight(
            desired=desired,
            mirrors=mirrors,
            orphaned_mirrors=self._pods.orphaned_mirror_full_names(),
            known=known,
            told_since=told_since,
            runtime_pods=None if listed is None else list(filter(is_running, listed)),
            stopped_pods=list(filterfalse(is_running, listed or ())),
            phases={uid: status.phase for uid, status in published.items() if status is not None and status.phase},
            cgroups=cgroups,
            directories=directories,
            with_volumes=frozenset() if self._volumes is None else self._volumes.mounted_pods(),
            absent=None if self._orphans is None else self._orphans.confirmed,
        )

    async def _list_runtime(self) -> Sequence[PodRecord] | None:
        """What there is now; None when the runtime cannot tell in time. Old news would not do here."""
        try:
            async with asyncio.timeout(self._runtime_patience):
                listed = await self._runtime.list_pods()
        except (TryLater, TimeoutError) as error:
            why = str(error) or f"no answer within {self._runtime_patience:g} s"
            log.warning("cannot list the runtime's pods, housekeeping goes on without: %s", why)
            self._runtime_patience = min(self._runtime_patience * 2, LONGEST_RUNTIME_PATIENCE_SECONDS)
            return None
        self._runtime_patience = RUNTIME_PATIENCE_SECONDS
        return listed

    def _carry_out(self, plan: Plan, group: asyncio.TaskGroup) -> None:
        _isolated("stop probes", partial(self._probes.keep_only, plan.could_run))
        _isolated("drop statuses", partial(self._status.remove_orphaned_statuses, plan.statuses_to_keep))
        for update in plan.restarts:
            _isolated(f"start pod {update.uid} again", partial(self._restart, update))
        for update in (*plan.endings, *plan.orphan_kills):
            _isolated(f"end pod {update.uid}", partial(self._end, update))
        for collect in self._collect:
            _isolated("collect what has expired", collect)
        if self._orphans is not None:
            self._orphans.ask(plan.to_confirm, group, self.hurry)
        self._removals.keep_at(self._removals_of(plan), group)

    def _restart(self, update: Update) -> None:
        log.info("pod %s is desired but has no worker: starting it again", update.uid)
        if update.pod is not None:
            self._admission.add(update.pod)
        self._workers.update_pod(update)

    def _end(self, update: Update) -> None:
        log.info("pod %s is wanted by nobody: ending it", update.uid)
        self._workers.update_pod(update)

    def _removals_of(self, plan: Plan) -> "dict[_Removal, _Call]":
        removals: dict[_Removal, _Call] = {}
        for name in plan.mirrors_to_delete:
            removals["the mirror", name] = partial(self._mirrors.delete, name)
        if self._remove_remains is not None:
            for record in plan.remains_to_remove:
                # Also of a pod that was added again: the exits of its former run must not end the new one.
                removals["the remains", record.uid] = partial(self._remove_remains, record)
        for (what, uid), call in self._removals_from_pods(plan).items():
            removals[what, uid] = partial(self._remove_unless_it_may_run, PodUID(uid), call)
        return removals

    async def _remove_unless_it_may_run(self, uid: PodUID, remove: "_Call") -> None:
        """Remove something of a pod, unless its containers may run by now.

        A source may have added the pod again since the plan was made.
        """
        if not self._workers.could_have_running_containers(uid):
            await remove()

    def _removals_from_pods(self, plan: Plan) -> "dict[_Removal, _Call]":
        removals: dict[_Removal, _Call] = {}
        if (volumes := self._volumes) is not None:
            for uid in plan.volumes_to_unmount:
                removals["the volumes", uid] = partial(volumes.unmount, uid)
            for uid in plan.directories_to_remove:
                removals["the directory", uid] = partial(volumes.remove_directory, uid)
        if (cgroups := self._cgroups) is not None:
            for uid in plan.cgroups_to_throttle:
                removals["the CPU share", uid] = partial(cgroups.throttle, uid)
            for uid in plan.cgroups_to_remove:
                removals["the cgroup", uid] = partial(cgroups.remove, uid)
        return removals


_Removal = tuple[str, str]
"""What is taken from whom."""

_Call = Callable[[], Awaitable[object]]


class _Removals:
    """Removals under way: one at a time per pod and thing. A stuck one takes nobody's place."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._under_way: dict[_Removal, float] = {}  # since when
        self._told: set[_Removal] = set()  # whose trouble is known

    @property
    def under_way(self) -> int:
        """How many there are."""
        return len(self._under_way)

    def subjects(self) -> set[str]:
        """From whom something is being taken."""
        return {whom for _, whom in self._under_way}

    def keep_at(self, wanted: Mapping[_Removal, _Call], group: asyncio.TaskGroup) -> None:
        """Begin what is wanted and not under way, as much as goes at a time; the rest is for the next round."""
        self._told &= {*wanted, *self._under_way}
        now = self._clock.monotonic()
        places = REMOVALS_AT_A_TIME - sum(now - since < SLOW_SECONDS for since in self._under_way.values())
        for removal, call in wanted.items():
            if removal in self._under_way:
                continue
            if places <= 0:
                break
            places -= 1
            self._under_way[removal] = now
            group.create_task(self._remove(removal, call))

    def name_the_slow(self) -> None:
        """Say, once, which removals do not come to an end."""
        now = self._clock.monotonic()
        for removal, since in self._under_way.items():
            if now - since >= SLOW_SECONDS:
                self._tell_once(removal, f"the call has been under way for {now - since:.0f} s")

    async def _remove(self, removal: _Removal, call: _Call) -> None:
        what, whom = removal
        try:
            await call()
        except TryLater as error:
            self._tell_once(removal, str(error))
        except Exception:
            log.exception("cannot take %s from pod %s, which nobody wants", what, whom)
        else:
            self._told.discard(removal)
            log.debug("took %s from pod %s, which nobody wants", what, whom)
        finally:
            del self._under_way[removal]

    def _tell_once(self, removal: _Removal, why: str) -> None:
        what, whom = removal
        if removal not in self._told:
            log.warning("cannot take %s from pod %s, which nobody wants, yet: %s", what, whom, why)
        self._told.add(removal)


def _isolated(what: str, act: Callable[[], None]) -> None:
    """Do one part of a round: its failure is its own."""
    try:
        act()
    except Exception:
        log.exception("housekeeping cannot %s", what)


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
