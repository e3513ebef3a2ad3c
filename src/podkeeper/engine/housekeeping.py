"""Housekeeping: remove leftovers of removed pods, restart missing pods.

It runs every two seconds.

    list cgroups and directories -> sync the known pods -> list the runtime -> decide at one moment -> act

`rules.housekeeping` takes all decisions. The sync loop runs concurrently. Until all sources are ready, a round only
restarts static pods that their source removed and added again. It first drops the status of their former run
(`Housekeeping.restart_static_pods`).

Slow calls delay nothing else:

* A round continues without a listing that does not answer in time. A late listing of cgroups or directories serves a
  later round. The runtime is listed again in each round, with a longer timeout each time.
* Removals run in the background, one call at a time per pod and kind. A hung removal delays neither other removals nor
  the next round. It is logged once.
* The next round retries failed removals. Each error is logged once.

Kubelet counterpart: `HandlePodCleanups` in pkg/kubelet/kubelet_pods.go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import filterfalse

from podkeeper.concurrency.backoff import GrowingDelay
from podkeeper.concurrency.once import LogOnce
from podkeeper.concurrency.slots import Slots
from podkeeper.engine.admission import Admission
from podkeeper.engine.bounded_runtime import SlowCall
from podkeeper.engine.inbox import LoopInbox
from podkeeper.engine.manager import PodManager
from podkeeper.engine.mirror_client import MirrorClient
from podkeeper.engine.observer import Observer
from podkeeper.engine.orphans import OrphanCheck
from podkeeper.engine.probes import ProbeManager
from podkeeper.engine.state_gc import StateGC
from podkeeper.engine.status import StatusManager
from podkeeper.engine.workers import PodWorkers
from podkeeper.model.errors import TryLater
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import PodListing
from podkeeper.ports.volumes import Volumes
from podkeeper.rules.housekeeping import CleanupInput, CleanupPlan, cleanup_plan, is_running, restart_of
from podkeeper.rules.static.mirror import is_static_pod
from podkeeper.rules.status.phase import is_terminal
from podkeeper.rules.worker.updates import Update
from podkeeper.rules.worker.workers import PodWorkerSync

log = logging.getLogger(__name__)

# The kubelet's housekeepingPeriod.
PERIOD_SECONDS = 2.0
# Without skipped rounds, housekeeping took 5 % of a core with 10,000 pods at rest.
QUIET_SECONDS = 30.0  # without changes, rounds are skipped for this time
# A hung listing must not stop the other work of a round.
LISTING_TIMEOUT_SECONDS = 1.0  # for cgroups and directories. A late answer is kept.
RUNTIME_TIMEOUT = GrowingDelay(first_seconds=2.0, longest_seconds=30.0)  # grows while the runtime does not answer
SLOW_SECONDS = 10.0  # after this time, a removal is logged and does not count as concurrent any more
# Only a bound on tasks. The calls below have their own limits: 16 stops in the runtime, 4 calls on volumes.
CONCURRENT_REMOVALS = 256


async def _none() -> frozenset[PodUID]:
    return frozenset()


def _ignore(uid: PodUID) -> None: ...


class _SlowListing:
    """A listing that may be slow: at most one call is running, and a late answer is kept."""

    def __init__(self, what: str, call: Callable[[], Awaitable[frozenset[PodUID]]]) -> None:
        self._what = what
        self._call = call
        self._task: asyncio.Task[frozenset[PodUID] | None] | None = None
        self._problems: LogOnce[str] = LogOnce(log)

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Start the call, unless an earlier one is still running."""
        if self._task is None:
            self._task = group.create_task(self._list())

    async def take(self) -> frozenset[PodUID] | None:
        """Return the listing, or None if it failed or is late."""
        if (task := self._task) is None:
            return None
        await asyncio.wait({task}, timeout=LISTING_TIMEOUT_SECONDS)
        # The call continues, and a later round uses its answer. A second call would hang at the same place.
        if not task.done():
            self._log_once(f"no answer within {LISTING_TIMEOUT_SECONDS:g} s")
            return None
        self._task = None
        answer = task.result()
        if answer is not None:
            self._problems.solved(self._what)
        return answer

    async def _list(self) -> frozenset[PodUID] | None:
        try:
            return await self._call()
        except TryLater as error:
            self._log_once(str(error))
        except Exception:
            log.exception("cannot list %s", self._what)
        return None

    def _log_once(self, why: str) -> None:
        text = "cannot list %s, housekeeping continues without the list: %s"
        self._problems.first(self._what, text, self._what, why)


class Housekeeping:
    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        runtime: PodListing,
        statuses: StatusManager,
        probes: ProbeManager,
        mirrors: MirrorClient,
        admission: Admission,
        clock: Clock,
        volumes: Volumes | None = None,
        cgroups: Cgroups | None = None,
        remove_containers: Callable[[PodRecord], Awaitable[None]] | None = None,
        orphans: OrphanCheck | None = None,
        held: Callable[[], Collection[PodUID]] = tuple,
        state_gc: StateGC | None = None,
        observer: Observer | None = None,
        slow_calls: Callable[[], Sequence[SlowCall]] = tuple,
        inbox: LoopInbox | None = None,
        start_over: Callable[[PodUID], None] = _ignore,
    ) -> None:
        """`slow_calls` returns the slow runtime calls, only for metrics.

        `inbox` counts the changes that may require housekeeping. None: no round is skipped.

        `held` returns desired pods that deliberately have no worker yet. `start_over` drops the status of an ended
        pod. Its next sync removes the dead containers before it starts new ones.
        """
        self._pods = pods
        self._workers = workers
        self._runtime = runtime
        self._statuses = statuses
        self._probes = probes
        self._mirrors = mirrors
        self._admission = admission
        self._clock = clock
        self._volumes = volumes
        self._cgroups = cgroups
        self._remove_containers = remove_containers
        self._orphans = orphans
        self._held = held
        self._state_gc = state_gc
        self._observer = observer or Observer()
        self._slow_calls = slow_calls
        self._listings = (
            _SlowListing("pod cgroups", _none if cgroups is None else cgroups.list_pods),
            _SlowListing("pod directories", _none if volumes is None else volumes.directories),
        )
        self._runtime_failures = 0  # failed listings in a row
        self._removals = _Removals(clock)
        self._inbox = inbox
        self._start_over = start_over
        # The change count at the last idle round, and the time of that round.
        self._idle_since: tuple[int, float] | None = None
        self._requested = asyncio.Event()

    async def run(self, is_healthy: Callable[[], bool], all_sources_ready: Callable[[], bool]) -> None:
        """Run a round every two seconds until cancelled.

        Do nothing while the runtime is unhealthy. Until all sources are ready, only restart static pods.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                await self._pause()
                # As in the kubelet, whose whole loop waits while the runtime is unhealthy.
                if not is_healthy():
                    continue
                try:
                    if not all_sources_ready():
                        self.restart_static_pods()
                    elif not self._can_skip():
                        await self.clean_up_pods(group)
                except Exception:
                    log.exception("housekeeping failed, next round in %g s", PERIOD_SECONDS)

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        """Call the subscriber after each removal, even if it failed."""
        self._removals.subscribe(subscriber)

    def request(self) -> None:
        """Run the next round at once, because a caller waits for its removals."""
        self._requested.set()

    def is_removing(self, uid: PodUID) -> bool:
        """Return whether something of a pod is being removed."""
        return uid in self._removals.subjects()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_SECONDS):
                await self._requested.wait()
        # After the wait, and before the round reads anything, so that a request during the round starts another one.
        self._requested.clear()

    def _can_skip(self) -> bool:
        """Return whether the last round had nothing to do and nothing has changed since."""
        # Skip at most QUIET_SECONDS, in case a change was not counted.
        if self._inbox is None or self._idle_since is None or self._removals.running:
            return False
        changes, at = self._idle_since
        return changes == self._changes() and self._clock.monotonic() - at < QUIET_SECONDS

    def _changes(self) -> int:
        """Count the events that may require housekeeping: updates, lifecycle events and state changes of pods."""
        return 0 if self._inbox is None else self._inbox.changes + self._workers.moves

    def restart_static_pods(self) -> None:
        """Restart static pods that have ended and that their source has added again.

        This must not wait for the API, because the pod may be the API server.
        """
        static = {uid_of(pod): pod for pod in self._pods.pods() if is_static_pod(pod)}
        held = self._held()
        candidates = [uid for uid in static if uid not in held]
        for uid in candidates:
            # No `clean_up_pods` has run since the pod was removed, so the status and the exited containers of its
            # former run still exist. They would end the new run at once.
            if self._workers.is_restartable(uid) and is_terminal(self._published_phase(uid)):
                _isolated(f"drop the former run of pod {uid}", partial(self._start_over, uid))
        for uid in self._workers.forget_restartable(candidates):
            pod = static[uid]
            update = restart_of(pod, self._pods.mirror_of_pod(pod), self._published_phase(uid), self._workers)
            if update is not None:
                _isolated(f"start pod {uid} again", partial(self._restart, update))

    def _published_phase(self, uid: PodUID) -> str | None:
        published = self._statuses.get_pod_status(uid)
        return None if published is None else published.phase

    async def clean_up_pods(self, group: asyncio.TaskGroup) -> None:
        """Run one round. Removals continue in the group."""
        # Count before the listings: a change during this round may be missing from them and must not be skipped.
        begun = (self._changes(), self._clock.monotonic())
        self._idle_since = None
        self._removals.log_slow_ones()
        # List cgroups before `sync_known_pods`, so that they cannot belong to a pod that has no worker yet. List the
        # runtime afterwards, so that a pod which has just finished does not look like a running orphan.
        for listing in self._listings:
            listing.begin(group)
        # An unknown listing counts as empty: nothing is removed that was not listed.
        cgroups, directories = [await listing.take() or frozenset() for listing in self._listings]
        known = self._workers.sync_known_pods({uid_of(pod) for pod in self._pods.pods()})
        listed = await self._list_runtime()
        # No await from here to the last update, so that the decisions are still true when they are executed.
        if self._orphans is not None and listed is not None:
            self._orphans.keep_only({PodUID(record.uid) for record in listed})
        seen = self._view(known, listed, cgroups, directories)
        plan = cleanup_plan(seen, self._workers)
        _isolated("report metrics", partial(self._report_metrics, seen, plan))
        self._execute(plan, group)
        # A round without the list of the runtime has not shown that there is nothing to do.
        if listed is not None and not plan.has_work:
            self._idle_since = begun

    def _report_metrics(self, seen: CleanupInput, plan: CleanupPlan) -> None:
        self._observer.pods_cleaned_up(seen, plan)
        self._observer.slow_calls(len(self._slow_calls()))

    def _view(
        self,
        known: Mapping[PodUID, PodWorkerSync],
        listed: Sequence[PodRecord] | None,
        cgroups: frozenset[PodUID],
        directories: frozenset[PodUID],
    ) -> CleanupInput:
        mirrors = self._pods.mirrors()
        # Skip the lookups on nodes without mirror pods, because there may be many pods.
        mirror_of = self._pods.mirror_of_pod if mirrors else lambda _: None
        desired = [(pod, mirror_of(pod)) for pod in self._pods.pods()]
        updated_since = {*self._workers.updated_since_housekeeping(), *self._held()}
        # Only pods without a worker need a phase: a finished pod must not be started again.
        unknown = [uid for pod, _ in desired if (uid := uid_of(pod)) not in known and uid not in updated_since]
        published = {uid: self._statuses.get_pod_status(uid) for uid in unknown}
        return CleanupInput(
            desired=desired,
            mirrors=mirrors,
            orphaned_mirrors=self._pods.orphaned_mirror_full_names(),
            known=known,
            updated_since=updated_since,
            runtime_pods=None if listed is None else list(filter(is_running, listed)),
            stopped_pods=list(filterfalse(is_running, listed or ())),
            phases={uid: status.phase for uid, status in published.items() if status is not None and status.phase},
            cgroups=cgroups,
            directories=directories,
            with_volumes=frozenset() if self._volumes is None else self._volumes.mounted_pods(),
            absent=None if self._orphans is None else self._orphans.confirmed,
        )

    async def _list_runtime(self) -> Sequence[PodRecord] | None:
        """Return the runtime's pods, or None after a timeout. An old list cannot be used here."""
        # Not kept like the other listings: a runtime list from before `sync_known_pods` would show finished pods as
        # running. So a slow runtime gets more time in each round.
        seconds = RUNTIME_TIMEOUT.after(self._runtime_failures + 1)
        try:
            async with asyncio.timeout(seconds):
                listed = await self._runtime.list_pods()
        except (TryLater, TimeoutError) as error:
            why = str(error) or f"no answer within {seconds:g} s"
            log.warning("cannot list the runtime's pods, housekeeping continues without the list: %s", why)
            self._runtime_failures += 1
            return None
        self._runtime_failures = 0
        return listed

    def _execute(self, plan: CleanupPlan, group: asyncio.TaskGroup) -> None:
        _isolated("stop probes", partial(self._probes.keep_only, plan.could_run))
        _isolated("drop statuses", partial(self._statuses.remove_orphaned_statuses, plan.statuses_to_keep))
        # The kubelet's order: restarts, then kills, then removals. Each removal queries the workers when it begins. It
        # must already see the pods that this round has restarted (seed 732 lost the directory of a running pod).
        for update in plan.restarts:
            _isolated(f"start pod {update.uid} again", partial(self._restart, update))
        for update in (*plan.terminations, *plan.orphan_kills):
            _isolated(f"end pod {update.uid}", partial(self._stop_pod, update))
        if self._state_gc is not None:
            _isolated("drop the state of removed pods", self._state_gc.collect)
        if self._orphans is not None:
            self._orphans.check(plan.to_confirm, group, self.request)
        self._removals.start(self._removals_of(plan), group)

    def _restart(self, update: Update) -> None:
        log.info("pod %s is desired but has no worker, starting it again", update.uid)
        if update.pod is not None:
            # As in the kubelet, a restarted pod is not admitted again.
            self._admission.add(update.pod)
        self._workers.update_pod(update)

    def _stop_pod(self, update: Update) -> None:
        log.info("stopping pod %s, which is orphaned or deleted", update.uid)
        self._workers.update_pod(update)

    def _removals_of(self, plan: CleanupPlan) -> "dict[_Removal, _Call]":
        removals: dict[_Removal, _Call] = {}
        for name in plan.mirrors_to_delete:
            removals["the mirror pod", name] = partial(self._mirrors.delete, name)
        if self._remove_containers is not None:
            for record in plan.dead_pods_to_remove:
                # Also for a pod that was added again, because the exits of its former run must not end the new one.
                removals["the dead containers", record.uid] = partial(self._remove_containers, record)
        for (what, uid), call in self._removals_from_pods(plan).items():
            removals[what, uid] = partial(self._remove_unless_it_may_run, PodUID(uid), call)
        return removals

    async def _remove_unless_it_may_run(self, uid: PodUID, remove: "_Call") -> object:
        """Remove something of a pod. Return `_SKIPPED` if a source has added the pod again since the plan was made."""
        # Seed 732: a manifest was changed back between plan and removal, and the running pod lost its directory. The
        # kubelet does not check again.
        if self._workers.could_have_running_containers(uid):
            return _SKIPPED
        return await remove()

    def _removals_from_pods(self, plan: CleanupPlan) -> "dict[_Removal, _Call]":
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
"""The kind of object to remove, and the UID or full name of its pod."""

_Call = Callable[[], Awaitable[object]]
_SKIPPED = object()


class _Removals:
    """Running removals: one at a time per pod and kind. A hung one does not count against the limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[_Removal, float] = {}  # start time of each
        self._slots: Slots[_Removal] = Slots(CONCURRENT_REMOVALS, lease_seconds=SLOW_SECONDS)
        self._problems: LogOnce[_Removal] = LogOnce(log)
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        self._subscribers.append(subscriber)

    @property
    def running(self) -> int:
        return len(self._running)

    def subjects(self) -> set[str]:
        """Return the pods of which something is being removed."""
        return {pod for _, pod in self._running}

    def start(self, wanted: Mapping[_Removal, _Call], group: asyncio.TaskGroup) -> None:
        """Start removals that are not running, up to the limit. The next round starts the others."""
        # Also keep running ones that are not planned any more. Otherwise a hung one would be logged every 2 s (k/k
        # 60987).
        self._problems.keep_only({*wanted, *self._running})
        now = self._clock.monotonic()
        for removal, call in wanted.items():
            if removal in self._running:
                continue
            if not self._slots.take(removal):
                break
            self._running[removal] = now
            group.create_task(self._remove(removal, call))

    def log_slow_ones(self) -> None:
        """Log each removal that takes longer than `SLOW_SECONDS`, once."""
        now = self._clock.monotonic()
        for removal, since in self._running.items():
            if now - since >= SLOW_SECONDS:
                self._log_once(removal, f"the call has been running for {now - since:.0f} s")

    async def _remove(self, removal: _Removal, call: _Call) -> None:
        what, pod = removal
        try:
            result = await call()
        except TryLater as error:
            self._log_once(removal, str(error))
        except Exception:
            log.exception("cannot remove %s of orphaned pod %s", what, pod)
        else:
            self._problems.solved(removal)
            if result is _SKIPPED:
                log.debug("did not remove %s of pod %s: its containers may run", what, pod)
            else:
                log.debug("removed %s of orphaned pod %s", what, pod)
        finally:
            del self._running[removal]
            self._slots.give_back(removal)
            for subscriber in self._subscribers:
                subscriber()

    def _log_once(self, removal: _Removal, why: str) -> None:
        what, pod = removal
        self._problems.first(removal, "cannot remove %s of orphaned pod %s yet: %s", what, pod, why)


def _isolated(what: str, act: Callable[[], None]) -> None:
    """Run one part of a round. Log its exceptions, so that the other parts run."""
    try:
        act()
    except Exception:
        log.exception("housekeeping cannot %s", what)
