"""The world of a simulation: what survives the agent, the lives of the agent, and who watches.

    world = World(seed=7)
    async def story() -> None:
        world.api.put(pod("web")); await asyncio.sleep(30)
        world.crash(away_seconds=2); await asyncio.sleep(60)
    verdict = world.play(story)          # in virtual time, on the simulation's own loop

The agent is wired as in production (`app.build`). It is started at once, started again after each death, and everything
it does to the world goes through the cords of its life. Whatever happens is a record on the bus; invariants subscribe
to it and report to `broken`, which ends the play.
"""

import asyncio
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from podkeeper.app.build import Agent, Ports, Settings, simple_node
from podkeeper.app.sources import api_source, manifest_notes
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, SandboxRecord
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.ports.api import Api
from podkeeper.ports.cgroups import Cgroups
from podkeeper.ports.journal import Journal
from podkeeper.ports.prober import Prober
from podkeeper.ports.runtime import Runtime
from podkeeper.ports.volumes import Volumes
from podkeeper.runtimes.fake import FakeRuntime
from podkeeper.testing.fake_sources import fake_file_source, fake_http_source
from podkeeper.testing.fakes import FakeCgroups, FakeJournal, FakeProber, FakeVolumes
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.memory_watch import Change
from podkeeper.testing.sim.life import (
    API,
    CGROUPS,
    JOURNAL,
    PROBER,
    RUNTIME,
    VOLUMES,
    Cord,
    CrashPoint,
    Life,
    LifeClock,
    Side,
    TiedSource,
)
from podkeeper.testing.sim.loop import LIFE, SimLoop
from podkeeper.testing.sim.records import (
    Bus,
    Called,
    ContainerChanged,
    LifeBegan,
    LifeEnded,
    PodChanged,
    SandboxChanged,
)
from podkeeper.testing.sim.scribe import Scribe
from podkeeper.testing.sim.trace import Trace
from podkeeper.testing.sim.troubles import Trouble, Troubles
from podkeeper.testing.sim.truth import Truth
from podkeeper.testing.virtual_time import VirtualClock, simulate

NODE = "n1"
HOST_IP = "192.0.2.1"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    invariant: str  # I1 to I22, or what else the simulation itself found wrong
    at: float
    uid: PodUID
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} broken after {self.at:.3f} s: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of an agent that is killed at a crash point; None: chance decides."""

    away_seconds: float = 1.0
    calls_go_on: bool | None = None  # those under way
    notes_kept: bool | None = None  # what the journal had not synced


@dataclass(slots=True)
class Verdict:
    """What came of a play."""

    violation: Violation | None
    trace: Trace
    seconds: float  # virtual ones
    checks: Counter[str] = field(default_factory=Counter)  # how often each invariant was really put to the test
    troubles: Counter[str] = field(default_factory=Counter)  # how often each kind of trouble happened
    lives: int = 0


class World:
    """One node and everything around its agent."""

    def __init__(self, seed: int | str = 0, *, cpu: str = "8", pods: int = 110) -> None:
        self.seed = seed
        self.loop = SimLoop(self.random("loop"))
        self.clock = VirtualClock(self.loop)  # the node's; its wall time may jump
        self.bus = Bus()
        self.trace = Trace()
        self.truth = Truth(self.bus)
        self.troubles = Troubles(self.bus)
        Scribe(self.bus, self.trace)
        self.api = MemoryApi(VirtualClock(self.loop), history_limit=100_000, ledger_size=0)
        self.runtime = FakeRuntime(self.clock, ledger_size=0)
        self.volumes = FakeVolumes(self.clock)
        self.cgroups = FakeCgroups(self.clock)
        self.prober = FakeProber()
        self.journal = FakeJournal()
        self.files = fake_file_source(NODE)
        self.web = fake_http_source(NODE)
        self.settings = Settings(node=simple_node(NODE, cpu=cpu, pods=pods), host_ips=(HOST_IP,))
        self.checks: Counter[str] = Counter()
        self.violation: Violation | None = None
        self.crash_point: CrashPoint = _never
        self.fate = Fate()
        self.watch_delays: dict[object, float] = {}  # by open window of late watches, the last one counts; 0: stalled
        self.agent: Agent | None = None
        self.life: Life | None = None
        self._lives = 0
        self._root: asyncio.Task[None] | None = None
        self._errands: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._away_seconds = 1.0
        self._undo: dict[Trouble, Callable[[], None]] = {}
        self._over = asyncio.Event()
        self._chance = self.random("world")
        self.runtime.witness(self._see_runtime)
        self.api.witness(Pod, self._see_pod)

    # Time and chance.

    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.loop.time()

    def random(self, name: str) -> Random:
        """Chance for one purpose: what one does with it changes nobody else's."""
        return Random(f"{self.seed}/{name}")

    # The agent's lives.

    @property
    def is_up(self) -> bool:
        """Whether an agent lives now."""
        return self.life is not None and self.life.alive

    def crash(self, why: str = "killed", away_seconds: float = 1.0) -> None:
        """`kill -9`: nobody is asked; the journal keeps what was synced and perhaps some more."""
        if not self.is_up or self._root is None:
            return
        self._away_seconds = away_seconds
        self._end_life(why)
        written, kept = self.journal.unsynced_writes, self.fate.notes_kept
        self.journal.crash(keep=self._chance.randint(0, written) if kept is None else written * kept)
        self._root.cancel()

    async def stop_gracefully(self, within_seconds: float = 10.0, away_seconds: float = 1.0) -> None:
        """End the agent as a service manager does: it may tell the API what it has not told, then it goes."""
        life, root, agent = self.life, self._root, self.agent
        if life is None or not life.alive or root is None or agent is None:
            return
        context = contextvars.copy_context()
        context.run(LIFE.set, life)
        flush = self.loop.create_task(agent.flush(within_seconds), context=context)
        await asyncio.wait([flush, root], return_when=asyncio.FIRST_COMPLETED)
        if life is self.life and self.is_up:
            self._away_seconds = away_seconds
            root.cancel()
            await asyncio.wait([root])

    def reboot(self, away_seconds: float = 30.0) -> None:
        """Let the machine start anew: with the agent everything that ran is gone, mounts and cgroups too."""
        self.crash("the machine went down", away_seconds)
        self.runtime.reboot()
        self.volumes.reboot()
        self.cgroups.reboot()

    def in_agent(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the living agent do something more; it ends with that life. What it must try later is given up."""
        if self.life is None or not self.is_up:
            work.close()
            return
        context = contextvars.copy_context()
        context.run(LIFE.set, self.life)
        errand = self.loop.create_task(work, context=context)
        self._errands[errand] = None
        errand.add_done_callback(self._end_errand)

    def _end_errand(self, errand: "asyncio.Task[None]") -> None:
        self._errands.pop(errand, None)
        error = None if errand.cancelled() else errand.exception()
        if error is not None and not isinstance(error, TryLater):
            self.broken("alive", "", f"what the agent was to do fell over: {error!r}")

    # Trouble.

    def trouble(self, kind: str, seconds: float, undo: Callable[[], None], uid: PodUID | None = None) -> Trouble:
        """Book trouble that was just begun, and end it with `undo` after so long, or when calm comes."""
        trouble = self.troubles.begin(self.now(), kind, uid)
        self._undo[trouble] = undo
        self.loop.call_later(seconds, self._end_trouble, trouble)
        return trouble

    def calm(self) -> None:
        """End all trouble now."""
        for trouble in tuple(self._undo):
            self._end_trouble(trouble)

    def _end_trouble(self, trouble: Trouble) -> None:
        undo = self._undo.pop(trouble, None)
        if undo is not None:
            undo()
            self.troubles.end(self.now(), trouble)

    # Verdicts.

    def broken(self, invariant: str, uid: str, message: str) -> None:
        """Report that a promise was broken; the first one counts, and the play ends."""
        if self.violation is None:
            self.violation = Violation(invariant, self.now(), PodUID(uid), message)
            self._over.set()

    def checked(self, invariant: str) -> None:
        """Count that an invariant was really put to the test."""
        self.checks[invariant] += 1

    def play(self, story: Callable[[], Awaitable[None]]) -> Verdict:
        """Let the agent live while a story goes on; returns when it ends, or a promise is broken."""
        _, seconds = simulate(self._play(story), self.loop)
        return Verdict(self.violation, self.trace, seconds, self.checks, self.troubles.counts, self._lives)

    async def _play(self, story: Callable[[], Awaitable[None]]) -> None:
        tasks = [self.loop.create_task(each) for each in (_as_coroutine(story), self._supervise(), self._over.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._root is not None:
            if self.life is not None and self.life.alive:
                self._end_life("the play is over")
            self._root.cancel()
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _supervise(self) -> None:
        """Start the agent, and start it again whenever it is no more."""
        while True:
            root = self._begin_life()
            await asyncio.wait([root])
            life = self.life
            if not root.cancelled() and (error := root.exception()) is not None:
                self.broken("alive", "", f"the agent fell over: {error!r}")
            if life is not None and life.alive:
                self._end_life("stopped")
            await asyncio.sleep(self._away_seconds)

    def _begin_life(self) -> "asyncio.Task[None]":
        self._lives += 1
        life = Life(self._lives, self.bus, self.truth, self.random(f"life {self._lives}"), self._dies_here)
        self.life = life
        self.bus.tell(LifeBegan(self.now(), life.number))
        context = contextvars.copy_context()
        context.run(LIFE.set, life)
        self.agent = context.run(Agent, self._ports(life), self.settings)
        self._root = self.loop.create_task(self.agent.run(), name=f"agent {life.number}", context=context)
        return self._root

    def _ports(self, life: Life) -> Ports:
        clock = LifeClock(self.clock, self.loop, life)
        api = cast(Api, Cord(life, "api", self.api, API))
        journal = cast(Journal, Cord(life, "journal", self.journal, JOURNAL))
        pods = api_source(api=api, node_name=NODE, clock=clock, journal=journal)
        statics = [
            places.reader(manifest_notes(journal, places.name, NODE, keep_secrets=True))
            for places in (self.files, self.web)
        ]
        return Ports(
            runtime=cast(Runtime, Cord(life, "runtime", self.runtime, RUNTIME)),
            volumes=cast(Volumes, Cord(life, "volumes", self.volumes, VOLUMES)),
            cgroups=cast(Cgroups, Cord(life, "cgroups", self.cgroups, CGROUPS)),
            prober=cast(Prober, Cord(life, "prober", self.prober, PROBER)),
            journal=journal,
            clock=clock,
            sources=tuple(TiedSource(source, life) for source in (pods, *statics)),
            api=api,
        )

    def _end_life(self, how: str) -> None:
        assert self.life is not None
        self.life.end(self.fate.calls_go_on)
        for errand in tuple(self._errands):
            errand.cancel()
        self.bus.tell(LifeEnded(self.now(), self.life.number, how))

    def _dies_here(self, call: Called, side: Side) -> bool:
        if not self.crash_point(call, side):
            return False
        self.crash(f"killed {side.name.lower()} {call.room} {call.operation} {call.subject}", self.fate.away_seconds)
        return True

    # Witnesses.

    def _see_runtime(self, uid: PodUID, record: SandboxRecord | ContainerRecord, happened: RuntimeEventType) -> None:
        if isinstance(record, SandboxRecord):
            self.bus.tell(SandboxChanged(self.now(), uid, record, happened))
        else:
            self.bus.tell(ContainerChanged(self.now(), uid, record, happened))

    def _see_pod(self, change: Change) -> None:
        life = LIFE.get()
        by = life.number if isinstance(life, Life) else 0
        self.bus.tell(PodChanged(self.now(), cast("Pod | None", change.old), cast("Pod | None", change.new), by))


def _never(call: Called, side: Side) -> bool:
    return False


async def _as_coroutine(story: Callable[[], Awaitable[None]]) -> None:
    await story()
