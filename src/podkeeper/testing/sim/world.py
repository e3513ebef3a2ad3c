"""The simulated world: everything that outlives the agent.

The agent processes run in it.

    world = World(seed=7)
    async def scenario() -> None:
        world.api.put(pod("web")); await asyncio.sleep(30)
        world.crash(downtime_seconds=2); await asyncio.sleep(60)
    result = world.run(scenario)          # in virtual time, on the simulation's own loop

The agent is wired as in production (`app.build`). The world starts it at once and again after each exit or crash. All
calls of the agent pass through the proxies of its process (`agent_process`). Everything that happens is published as a
record on the bus. Invariants subscribe to the bus and report to `World.violated`, which ends the run.
"""

import asyncio
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine, Ports, Settings, simple_node
from podkeeper.app.sources import api_source, stored_manifests
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
from podkeeper.testing.sim.active_faults import ActiveFault, FaultLog
from podkeeper.testing.sim.agent_process import (
    API,
    CGROUPS,
    JOURNAL,
    PROBER,
    RUNTIME,
    VOLUMES,
    AgentProcess,
    CrashPoint,
    PortProxy,
    ProcessClock,
    Side,
    SourceProxy,
)
from podkeeper.testing.sim.ground_truth import GroundTruth
from podkeeper.testing.sim.loop import AGENT_PROCESS, SimLoop
from podkeeper.testing.sim.records import (
    AgentStarted,
    AgentStopped,
    Bus,
    CallStarted,
    ContainerChanged,
    PodChanged,
    SandboxChanged,
)
from podkeeper.testing.sim.trace import Trace
from podkeeper.testing.sim.trace_writer import TraceWriter
from podkeeper.testing.virtual_time import VirtualClock, simulate

NODE = "n1"
HOST_IP = "192.0.2.1"
RUN_IS_OVER = "the run is over"  # why the last agent process ends


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant."""

    invariant: str  # I1 to I22, or another problem that the simulation found
    at: float
    uid: PodUID
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} violated after {self.at:.3f} s: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashOptions:
    """The effects of a crash. None: a random choice."""

    downtime_seconds: float = 1.0
    calls_continue: bool | None = None  # whether writes in flight still take effect
    keep_unsynced: bool | None = None  # whether unsynced journal writes survive


@dataclass(slots=True)
class WorldResult:
    """The result of a run."""

    violation: Violation | None
    trace: Trace
    seconds: float  # virtual
    checks: Counter[str] = field(default_factory=Counter)  # how often each invariant was really checked
    fault_counts: Counter[str] = field(default_factory=Counter)  # how often each kind of fault happened
    agents: int = 0  # agent processes that were started


class World:
    """One node and everything around its agent."""

    def __init__(self, seed: int | str = 0, *, cpu: str = "8", pods: int = 110) -> None:
        self.seed = seed
        self.loop = SimLoop(self.random("loop"))
        self.clock = VirtualClock(self.loop)  # the node's clock; its wall time may jump
        self.bus = Bus()
        self.trace = Trace()
        self.truth = GroundTruth(self.bus)
        self.fault_log = FaultLog(self.bus)
        TraceWriter(self.bus, self.trace)
        self.api = MemoryApi(VirtualClock(self.loop), history_limit=100_000, call_log_size=0)
        self.runtime = FakeRuntime(self.clock, call_log_size=0)
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
        self.crash_options = CrashOptions()
        # Delays of the open `WatchStale` windows. The last one is in force; 0 means stalled.
        self.watch_delays: dict[object, float] = {}
        self.agent: Agent | None = None
        self.process: AgentProcess | None = None
        self._agents = 0
        self._root: asyncio.Task[None] | None = None
        self._agent_tasks: dict[asyncio.Task[None], None] = {}  # in start order
        self._downtime_seconds = 1.0
        self._undo: dict[ActiveFault, Callable[[], None]] = {}
        self._ended = asyncio.Event()
        self._random = self.random("world")
        self.runtime.observe_changes(self._on_runtime_change)
        self.api.on_change(Pod, self._on_pod_change)

    # Time and randomness.

    def now(self) -> float:
        """Return the virtual seconds since the start of the run."""
        return self.loop.time()

    def random(self, name: str) -> Random:
        """Return a random source for one purpose. Draws from it do not affect other sources."""
        return Random(f"{self.seed}/{name}")

    # Agent processes.

    @property
    def is_up(self) -> bool:
        """Whether an agent process is alive."""
        return self.process is not None and self.process.alive

    def crash(self, why: str = "killed", downtime_seconds: float = 1.0) -> None:
        """Kill the agent (`kill -9`). The journal keeps all synced writes and maybe some unsynced ones."""
        if not self.is_up or self._root is None:
            return
        self._downtime_seconds = downtime_seconds
        self._end_agent(why)
        # After the proxies are disconnected and before the tasks are cancelled: their cleanup code must not reach the
        # journal.
        written, kept = self.journal.unsynced_writes, self.crash_options.keep_unsynced
        self.journal.crash(keep=self._random.randint(0, written) if kept is None else written * kept)
        self._root.cancel()

    async def stop_gracefully(self, within_seconds: float = 10.0, downtime_seconds: float = 1.0) -> None:
        """Stop the agent as a service manager does. It first sends its unsent statuses."""
        process, root, agent = self.process, self._root, self.agent
        if process is None or not process.alive or root is None or agent is None:
            return
        context = contextvars.copy_context()
        context.run(AGENT_PROCESS.set, process)
        flush = self.loop.create_task(agent.flush(within_seconds), context=context)
        # The agent may be killed during the flush.
        await asyncio.wait([flush, root], return_when=asyncio.FIRST_COMPLETED)
        if process is self.process and self.is_up:
            self._downtime_seconds = downtime_seconds
            root.cancel()
            await asyncio.wait([root])

    def reboot(self, downtime_seconds: float = 30.0) -> None:
        """Reboot the machine. All containers, mounts and cgroups are lost."""
        # The agent first: it must not see its containers disappear one by one.
        self.crash("the machine went down", downtime_seconds)
        self.runtime.reboot()
        self.volumes.reboot()
        self.cgroups.reboot()

    def in_agent(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the current agent process. It is cancelled with the process. `TryLater` is ignored."""
        if self.process is None or not self.is_up:
            work.close()
            return
        context = contextvars.copy_context()
        context.run(AGENT_PROCESS.set, self.process)
        task = self.loop.create_task(work, context=context)
        self._agent_tasks[task] = None
        task.add_done_callback(self._on_agent_task_done)

    def _on_agent_task_done(self, task: "asyncio.Task[None]") -> None:
        self._agent_tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TryLater):
            self.violated("alive", "", f"a task in the agent failed unexpectedly: {error!r}")

    # Faults.

    def begin_fault(
        self, kind: str, seconds: float, undo: Callable[[], None], uid: PodUID | None = None
    ) -> ActiveFault:
        """Log a fault that has just begun. Call `undo` after some seconds, or when calm begins."""
        fault = self.fault_log.begin(self.now(), kind, uid)
        self._undo[fault] = undo
        self.loop.call_later(seconds, self._end_fault, fault)
        return fault

    def end_faults(self) -> None:
        """End all faults now."""
        for fault in tuple(self._undo):
            self._end_fault(fault)

    def _end_fault(self, fault: ActiveFault) -> None:
        undo = self._undo.pop(fault, None)
        if undo is not None:
            undo()
            self.fault_log.end(self.now(), fault)

    # Invariants.

    def violated(self, invariant: str, uid: str, message: str) -> None:
        """Report a violation. Only the first one is kept, and it ends the run."""
        # Later violations are often consequences of the first one.
        if self.violation is None:
            self.violation = Violation(invariant, self.now(), PodUID(uid), message)
            self._ended.set()

    def checked(self, invariant: str) -> None:
        """Count one real check of an invariant."""
        self.checks[invariant] += 1

    def run(self, scenario: Callable[[], Awaitable[None]]) -> WorldResult:
        """Run a scenario next to the agent, until the scenario ends or an invariant is violated."""
        _, seconds = simulate(self._run(scenario), self.loop)
        return WorldResult(self.violation, self.trace, seconds, self.checks, self.fault_log.counts, self._agents)

    async def _run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        coroutines = (_as_coroutine(scenario), self._supervise(), self._ended.wait())
        tasks = [self.loop.create_task(each) for each in coroutines]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._root is not None:
            if self.process is not None and self.process.alive:
                self._end_agent(RUN_IS_OVER)
            self._root.cancel()
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _supervise(self) -> None:
        """Start the agent, and start it again whenever it has ended."""
        while True:
            root = self._start_agent()
            await asyncio.wait([root])
            process = self.process
            if not root.cancelled() and (error := root.exception()) is not None:
                self.violated("alive", "", f"the agent ended with an unexpected error: {error!r}")
            if process is not None and process.alive:
                self._end_agent("stopped")
            await asyncio.sleep(self._downtime_seconds)

    def _start_agent(self) -> "asyncio.Task[None]":
        self._agents += 1
        # Do not change this name: it seeds the random source, so another name would change the run of every seed.
        random = self.random(f"life {self._agents}")
        process = AgentProcess(self._agents, self.bus, self.truth, random, self._crashes_here)
        self.process = process
        self.bus.publish(AgentStarted(self.now(), process.number))
        context = contextvars.copy_context()
        context.run(AGENT_PROCESS.set, process)
        self.agent = Agent(context.run(Engine, self._ports(process), self.settings))
        self._root = self.loop.create_task(self.agent.run(), name=f"agent {process.number}", context=context)
        return self._root

    def _ports(self, process: AgentProcess) -> Ports:
        clock = ProcessClock(self.clock, self.loop, process)
        api = cast(Api, PortProxy(process, "api", self.api, API))
        journal = cast(Journal, PortProxy(process, "journal", self.journal, JOURNAL))
        pods = api_source(api=api, node_name=NODE, clock=clock, journal=journal)
        statics = [
            places.source(stored_manifests(journal, places.name, NODE, keep_secrets=True))
            for places in (self.files, self.web)
        ]
        return Ports(
            runtime=cast(Runtime, PortProxy(process, "runtime", self.runtime, RUNTIME)),
            volumes=cast(Volumes, PortProxy(process, "volumes", self.volumes, VOLUMES)),
            cgroups=cast(Cgroups, PortProxy(process, "cgroups", self.cgroups, CGROUPS)),
            prober=cast(Prober, PortProxy(process, "prober", self.prober, PROBER)),
            journal=journal,
            clock=clock,
            sources=tuple(SourceProxy(source, process) for source in (pods, *statics)),
            api=api,
        )

    def _end_agent(self, how: str) -> None:
        assert self.process is not None
        self.process.end(self.crash_options.calls_continue)
        for task in tuple(self._agent_tasks):
            task.cancel()
        self.bus.publish(AgentStopped(self.now(), self.process.number, how))

    def _crashes_here(self, call: CallStarted, side: Side) -> bool:
        if not self.crash_point(call, side):
            return False
        why = f"killed {side.name.lower()} {call.port} {call.operation} {call.subject}"
        self.crash(why, self.crash_options.downtime_seconds)
        return True

    # Changes of the runtime and the API.

    def _on_runtime_change(
        self, uid: PodUID, record: SandboxRecord | ContainerRecord, happened: RuntimeEventType
    ) -> None:
        if isinstance(record, SandboxRecord):
            self.bus.publish(SandboxChanged(self.now(), uid, record, happened))
        else:
            self.bus.publish(ContainerChanged(self.now(), uid, record, happened))

    def _on_pod_change(self, change: Change) -> None:
        process = AGENT_PROCESS.get()
        by = process.number if isinstance(process, AgentProcess) else 0
        self.bus.publish(PodChanged(self.now(), cast("Pod | None", change.old), cast("Pod | None", change.new), by))


def _never(call: CallStarted, side: Side) -> bool:
    return False


async def _as_coroutine(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()
