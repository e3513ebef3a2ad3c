"""Run many seeds in several processes, and collect the results.

    with WorkerPool(jobs=2) as pool:
        for result in pool.results(SimPlan(seed=seed) for seed in range(300)):
            totals.add(result)

One process runs a seed from start to end. A fork server with fixed string hashing starts the processes, so a seed gives
the same trace in each of them. The imports take half a second, and only the fork server needs them. The processes
return small results. The parent process runs no seed itself, because its own string hashing is not fixed.
"""

import gc
import hashlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice, takewhile
from math import inf
from multiprocessing.connection import wait as wait_for_any

from podkeeper.app.process import tune_garbage_collection
from podkeeper.model.messages import PodUID
from podkeeper.testing.sim.records import ReadEnded
from podkeeper.testing.sim.run import RunResult, SimPlan, run_schedule, schedule_of
from podkeeper.testing.sim.schedule import Schedule
from podkeeper.testing.sim.timeline import pod_lines
from podkeeper.testing.sim.trace import TraceLine
from podkeeper.testing.sim.world import RUN_IS_OVER, Violation, World

RUN_FAILED = "simulation"  # the name of the violation if the simulation itself raises an error
GIVEN_UP = "given up"  # not an invariant: the run was cut short
EVERYTHING = "all"
GC_THRESHOLD = 1_000_000
PRELOADED = [__name__]
"""Modules that the fork server imports. All pools of a process use the same fork server."""

Installer = Callable[[World], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """The result of one seed."""

    plan: SimPlan
    violation: Violation | None
    hash: str
    seconds: float  # virtual
    cpu_seconds: float
    actions: int
    length: int = 0
    agents: int = 0
    pods_alive: float = 0.0
    checks: Counter[str] = field(default_factory=Counter)
    fault_counts: Counter[str] = field(default_factory=Counter)
    lines: tuple[TraceLine, ...] = ()  # of the pod for which the invariant was violated
    timeline: tuple[TraceLine, ...] = ()  # the part of the trace that `keep` selects

    @property
    def cpu_seconds_per_hour(self) -> float:
        """CPU seconds per virtual hour."""
        return self.cpu_seconds * 3600.0 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a plan's schedule: its actions are in the plan (`only`), its length is here."""

    plan: SimPlan
    segments: int | None = None
    give_up_at: float = inf  # end the run here if nothing was violated

    def schedule(self) -> Schedule:
        """Draw the schedule and cut it."""
        schedule = schedule_of(self.plan)
        return replace(schedule, segments=schedule.segments[: self.segments])


def excerpt_of(schedule: Schedule, plan: SimPlan, give_up_at: float = inf) -> Excerpt:
    """Return a short description of a part of a plan's schedule, which can be sent to another process."""
    return Excerpt(
        replace(plan, only=frozenset(timed.number for timed in schedule.actions)), len(schedule.segments), give_up_at
    )


@dataclass(slots=True)
class CampaignTotals:
    """The results of all seeds so far."""

    results: dict[int, SeedResult] = field(default_factory=dict)  # by seed, in the order of their arrival
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    agents: int = 0
    actions: int = 0
    length: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    fault_counts: Counter[str] = field(default_factory=Counter)
    _pod_seconds: float = 0.0

    def add(self, result: SeedResult) -> None:
        """Add the result of a seed."""
        self.results[result.plan.seed] = result
        self.seconds += result.seconds
        self.cpu_seconds += result.cpu_seconds
        self.agents += result.agents
        self.actions += result.actions
        self.length += result.length
        self.checks += result.checks
        self.fault_counts += result.fault_counts
        self._pod_seconds += result.pods_alive * result.seconds

    @property
    def seeds(self) -> int:
        """Number of seeds that have a result."""
        return len(self.results)

    @property
    def failures(self) -> list[SeedResult]:
        """Seeds that violated an invariant, in order."""
        return [result for _, result in sorted(self.results.items()) if result.violation is not None]

    @property
    def pods_alive(self) -> float:
        """Average number of pods with a running container."""
        return self._pod_seconds / self.seconds if self.seconds else 0.0

    @property
    def hash(self) -> str:
        """Hash of the hashes of all seeds, in the order of the seeds."""
        lines = "".join(f"{seed} {result.hash}\n" for seed, result in sorted(self.results.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


class WorkerPool:
    """Processes that run seeds.

    `also` names a function ("module:function") that installs more invariants in each world. `log` is the level of the
    agent's log on stderr. Empty: no log.
    """

    def __init__(self, jobs: int, *, also: str = "", log: str = "") -> None:
        self._jobs = jobs
        self._installer = also
        self._log = log
        self._pool: ProcessPoolExecutor | None = None
        self._in_flight: set[Future[SeedResult]] = set()
        self._hash_seed: str | None = None
        self._others: list[multiprocessing.process.BaseProcess] = []

    def __enter__(self) -> "WorkerPool":
        self._others = multiprocessing.active_children()
        self._hash_seed = os.environ.get("PYTHONHASHSEED")
        os.environ["PYTHONHASHSEED"] = "0"  # for the fork server, which the first pool of this process starts
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pool = ProcessPoolExecutor(self._jobs, context, initializer=_set_up, initargs=(self._log,))
        return self

    def __exit__(self, *error: object) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=not self._in_flight, cancel_futures=True)
        if self._in_flight:  # their results are no longer needed
            for process in multiprocessing.active_children():
                if process not in self._others:
                    process.terminate()
        del os.environ["PYTHONHASHSEED"]
        if self._hash_seed is not None:
            os.environ["PYTHONHASHSEED"] = self._hash_seed

    def results(self, plans: Iterable[SimPlan], keep: str = "") -> Iterator[SeedResult]:
        """Run plans in all processes. Return each result as soon as it is available.

        Results that are ready together are returned in plan order, so that `--fail-fast` reports the lowest seed.
        `keep` selects the timeline in the results: the name or UID of a pod, or "all".
        """
        waiting = iter(plans)
        # One more than processes, so that none of them waits for the parent between two seeds.
        futures = [self._begin(Excerpt(plan), keep) for plan in islice(waiting, self._jobs + 1)]
        try:
            while futures:
                done, _ = wait(futures, return_when=FIRST_COMPLETED)
                done_futures = [future for future in futures if future in done]
                futures = [future for future in futures if future not in done]
                futures += [self._begin(Excerpt(plan), keep) for plan in islice(waiting, len(done_futures))]
                yield from (future.result() for future in done_futures)
        finally:
            for future in futures:
                future.cancel()

    def run(self, excerpt: Excerpt) -> SeedResult:
        """Run one schedule."""
        return self._begin(excerpt, "").result()

    def _begin(self, excerpt: Excerpt, keep: str) -> "Future[SeedResult]":
        assert self._pool is not None, "use a WorkerPool in a with statement"
        future = self._pool.submit(run_excerpt, excerpt, keep, self._installer)
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        return future


def run_excerpt(excerpt: Excerpt, keep: str = "", also: str = "") -> SeedResult:
    """Run a schedule in this process."""
    if sys.flags.hash_randomization:
        raise RuntimeError("cannot run: string hashing is not fixed (PYTHONHASHSEED=0 has no effect with python -E)")
    schedule = excerpt.schedule()
    began = time.process_time()
    try:
        outcome = run_schedule(schedule, also=_installer(excerpt.give_up_at, also))
    except Exception as error:
        return _failed_result(excerpt, schedule, error, time.process_time() - began)
    used = time.process_time() - began
    lines = () if outcome.violation is None else _timeline(outcome, outcome.violation.uid)
    timeline = tuple(outcome.trace.lines()) if keep == EVERYTHING else _timeline(outcome, keep) if keep else ()
    gc.collect()  # a world has many reference cycles
    return SeedResult(
        plan=excerpt.plan,
        violation=outcome.violation,
        hash=outcome.trace.hash,
        seconds=outcome.seconds,
        cpu_seconds=used,
        actions=outcome.actions,
        length=outcome.trace.length,
        agents=outcome.agents,
        pods_alive=outcome.pods_alive,
        checks=outcome.checks,
        fault_counts=outcome.fault_counts,
        lines=lines,
        timeline=timeline,
    )


def _installer(give_up_at: float, also: str) -> Installer:
    def install(world: World) -> None:
        # Check on each record instead of with a timer. One more timer could change the order of timers with equal
        # times.
        def stop_if_late(it: ReadEnded) -> None:
            if it.at > give_up_at:
                world.violated(GIVEN_UP, "", f"nothing was violated up to {give_up_at:.3f} s")

        if give_up_at < inf:
            world.bus.subscribe(ReadEnded, stop_if_late)
        if also:
            named_function(also)(world)

    return install


def _failed_result(excerpt: Excerpt, schedule: Schedule, error: Exception, used: float) -> SeedResult:
    """Return the result of a run that raised an error. It is a failure like any other, so it can be shrunk."""
    where = "".join(traceback.format_exception(error)[-4:]).rstrip()
    violation = Violation(
        RUN_FAILED, schedule.segments[-1].ends, PodUID(""), f"the simulation failed: {error!r}\n{where}"
    )
    return SeedResult(plan=excerpt.plan, violation=violation, hash="", seconds=0.0, cpu_seconds=used, actions=0)


def _timeline(outcome: RunResult, pod: str) -> tuple[TraceLine, ...]:
    return tuple(pod_lines(takewhile(_is_before_the_end, outcome.trace.lines()), pod))


def _is_before_the_end(line: TraceLine) -> bool:
    """Return False for lines after the end of the run. They only show how the last agent is stopped."""
    return not line.text.endswith(RUN_IS_OVER)


def named_function(name: str) -> Installer:
    """Return the function that "module:function" names."""
    module, _, function = name.partition(":")
    found = getattr(import_module(module), function)
    assert callable(found)
    return found  # type: ignore[no-any-return]  # its signature is unknown until it is called


def _set_up(log: str) -> None:
    """Prepare this process for running seeds."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit without a traceback on Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if log:
        logging.basicConfig(level=log.upper(), format="%(levelname)-7s %(name)s: %(message)s")
    else:
        logging.disable(logging.CRITICAL)
    tune_garbage_collection()
    # A run is short and creates few cycles, and `run_excerpt` collects after each. Collecting during the run would cost
    # a tenth of the CPU time and save about 30 MB.
    gc.set_threshold(GC_THRESHOLD)


def _end_with_parent() -> None:
    """Exit when the parent process is killed. The pool itself would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_any([parent.sentinel])
        os._exit(1)
