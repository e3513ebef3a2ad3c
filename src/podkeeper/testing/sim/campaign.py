"""A campaign: many seeds played by several processes, and what came of all of them.

    with Crew(jobs=2) as crew:
        for result in crew.results(Plan(seed=seed) for seed in range(300)):
            totals.add(result)

Each seed is played from beginning to end by one process. The processes are new ones (spawned) with fixed string
hashing, so that a seed gives the same trace whoever plays it; what comes back is small. Who started them reads no
trace of its own: also a single seed is played by a crew of one.
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
from podkeeper.testing.sim.history import History
from podkeeper.testing.sim.play import Outcome, Plan, history_of, play
from podkeeper.testing.sim.records import Asked
from podkeeper.testing.sim.timeline import concerned
from podkeeper.testing.sim.trace import Line
from podkeeper.testing.sim.world import Violation, World

FELL_OVER = "play"  # the name of the promise that the simulation itself does not fall over
GIVEN_UP = "given up"  # the name of no promise: the play was cut short
EVERYTHING = "all"
PLAY_IS_OVER = "the play is over"  # as the world says it
GC_THRESHOLD = 1_000_000

Also = Callable[[World], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What came of one seed."""

    plan: Plan
    violation: Violation | None
    hash: str
    seconds: float  # virtual ones
    cpu_seconds: float
    acts: int
    length: int = 0
    lives: int = 0
    pods_alive: float = 0.0
    checks: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    lines: tuple[Line, ...] = ()  # of the pod whose promise was broken
    timeline: tuple[Line, ...] = ()  # the part of the trace that was asked for

    @property
    def cpu_seconds_per_hour(self) -> float:
        """What a virtual hour costs."""
        return self.cpu_seconds * 3600.0 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A plan's history cut short: its acts are in the plan (`only`), here is how much of it is played."""

    plan: Plan
    chapters: int | None = None
    give_up_at: float = inf  # if nothing was broken by then, nothing will be

    def history(self) -> History:
        """Draw it."""
        history = history_of(self.plan)
        return replace(history, chapters=history.chapters[: self.chapters])


def excerpt_of(history: History, plan: Plan, give_up_at: float = inf) -> Excerpt:
    """How to say in few words which part of a plan's history this is."""
    return Excerpt(replace(plan, only=frozenset(act.number for act in history.acts)), len(history.chapters), give_up_at)


@dataclass(slots=True)
class Totals:
    """What came of all seeds so far."""

    results: dict[int, SeedResult] = field(default_factory=dict)  # by seed, in the order in which they came
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    lives: int = 0
    acts: int = 0
    length: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    _pod_seconds: float = 0.0

    def add(self, result: SeedResult) -> None:
        """Count a seed in."""
        self.results[result.plan.seed] = result
        self.seconds += result.seconds
        self.cpu_seconds += result.cpu_seconds
        self.lives += result.lives
        self.acts += result.acts
        self.length += result.length
        self.checks += result.checks
        self.troubles += result.troubles
        self._pod_seconds += result.pods_alive * result.seconds

    @property
    def seeds(self) -> int:
        """How many were played."""
        return len(self.results)

    @property
    def failures(self) -> list[SeedResult]:
        """The seeds that broke a promise, in order."""
        return [result for _, result in sorted(self.results.items()) if result.violation is not None]

    @property
    def pods_alive(self) -> float:
        """The average over all time."""
        return self._pod_seconds / self.seconds if self.seconds else 0.0

    @property
    def hash(self) -> str:
        """The hash of all seeds' hashes in the order of the seeds, whoever came first."""
        lines = "".join(f"{seed} {result.hash}\n" for seed, result in sorted(self.results.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


class Crew:
    """Processes that play.

    `also` names a function ("module:function") that installs more invariants in each world; `log` the level of the
    agent's log, which goes to stderr; empty: none.
    """

    def __init__(self, jobs: int, *, also: str = "", log: str = "") -> None:
        self._jobs = jobs
        self._also = also
        self._log = log
        self._pool: ProcessPoolExecutor | None = None
        self._under_way: set[Future[SeedResult]] = set()
        self._hash_seed: str | None = None
        self._others: list[multiprocessing.process.BaseProcess] = []

    def __enter__(self) -> "Crew":
        self._others = multiprocessing.active_children()
        self._hash_seed = os.environ.get("PYTHONHASHSEED")
        os.environ["PYTHONHASHSEED"] = "0"  # for the processes to come
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._jobs, context, initializer=_set_up, initargs=(self._log,))
        return self

    def __exit__(self, *error: object) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=not self._under_way, cancel_futures=True)
        if self._under_way:  # nobody wants to know any more
            for process in multiprocessing.active_children():
                if process not in self._others:
                    process.terminate()
        del os.environ["PYTHONHASHSEED"]
        if self._hash_seed is not None:
            os.environ["PYTHONHASHSEED"] = self._hash_seed

    def results(self, plans: Iterable[Plan], keep: str = "") -> Iterator[SeedResult]:
        """Play plans, each as soon as somebody has time for it; results come as they are there.

        Results that are ready together are returned in plan order, so that `--fail-fast` reports the lowest seed.
        `keep` selects the timeline in the results: the name or UID of a pod, or "all".
        """
        waiting = iter(plans)
        playing = [self._begin(Excerpt(plan), keep) for plan in islice(waiting, self._jobs + 1)]
        try:
            while playing:
                done, _ = wait(playing, return_when=FIRST_COMPLETED)
                ended = [future for future in playing if future in done]
                playing = [future for future in playing if future not in done]
                playing += [self._begin(Excerpt(plan), keep) for plan in islice(waiting, len(ended))]
                yield from (future.result() for future in ended)
        finally:
            for future in playing:
                future.cancel()

    def play(self, excerpt: Excerpt) -> SeedResult:
        """Play one history."""
        return self._begin(excerpt, "").result()

    def _begin(self, excerpt: Excerpt, keep: str) -> "Future[SeedResult]":
        assert self._pool is not None, "a crew is used in a with statement"
        future = self._pool.submit(play_excerpt, excerpt, keep, self._also)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future


def play_excerpt(excerpt: Excerpt, keep: str = "", also: str = "") -> SeedResult:
    """Play a history in this process."""
    if sys.flags.hash_randomization:
        raise RuntimeError("cannot play: string hashing is not fixed (PYTHONHASHSEED=0 has no effect with python -E)")
    history = excerpt.history()
    began = time.process_time()
    try:
        outcome = play(history, also=_also(excerpt.give_up_at, also))
    except Exception as error:
        return _fallen(excerpt, history, error, time.process_time() - began)
    used = time.process_time() - began
    lines = () if outcome.violation is None else _timeline(outcome, outcome.violation.uid)
    timeline = tuple(outcome.trace.lines()) if keep == EVERYTHING else _timeline(outcome, keep) if keep else ()
    gc.collect()  # a world is full of cycles
    return SeedResult(
        plan=excerpt.plan,
        violation=outcome.violation,
        hash=outcome.trace.hash,
        seconds=outcome.seconds,
        cpu_seconds=used,
        acts=outcome.acts,
        length=outcome.trace.length,
        lives=outcome.lives,
        pods_alive=outcome.pods_alive,
        checks=outcome.checks,
        troubles=outcome.troubles,
        lines=lines,
        timeline=timeline,
    )


def _also(give_up_at: float, also: str) -> Also:
    def install(world: World) -> None:
        # No timer for this: one more on the loop's heap could change the order of others that are due at once.
        def see(it: Asked) -> None:
            if it.at > give_up_at:
                world.broken(GIVEN_UP, "", f"nothing was broken up to {give_up_at:.3f} s")

        if give_up_at < inf:
            world.bus.subscribe(Asked, see)
        if also:
            named_function(also)(world)

    return install


def _fallen(excerpt: Excerpt, history: History, error: Exception, used: float) -> SeedResult:
    """What came of a play that fell over: a failure like any other, so that it can be shrunk and shown."""
    where = "".join(traceback.format_exception(error)[-4:]).rstrip()
    violation = Violation(FELL_OVER, history.chapters[-1].ends, PodUID(""), f"the play fell over: {error!r}\n{where}")
    return SeedResult(plan=excerpt.plan, violation=violation, hash="", seconds=0.0, cpu_seconds=used, acts=0)


def _timeline(outcome: Outcome, whom: str) -> tuple[Line, ...]:
    return tuple(concerned(takewhile(_is_before_the_end, outcome.trace.lines()), whom))


def _is_before_the_end(line: Line) -> bool:
    """False once the world has been told to stop: what follows is its last breath."""
    return not line.text.endswith(PLAY_IS_OVER)


def named_function(name: str) -> Also:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    found = getattr(import_module(module), function)
    assert callable(found)
    return found  # type: ignore[no-any-return]  # what it takes can only be seen when it is called


def _set_up(log: str) -> None:
    """Make this process one that plays."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: go without a word
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if log:
        logging.basicConfig(level=log.upper(), format="%(levelname)-7s %(name)s: %(message)s")
    else:
        logging.disable(logging.CRITICAL)
    tune_garbage_collection()
    # A play is short and makes few cycles, and `play_excerpt` collects after each: collecting meanwhile would cost a
    # tenth of the CPU time and save about 30 MB.
    gc.set_threshold(GC_THRESHOLD)


def _end_with_parent() -> None:
    """Exit when the parent is killed: the pool itself would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_any([parent.sentinel])
        os._exit(1)
