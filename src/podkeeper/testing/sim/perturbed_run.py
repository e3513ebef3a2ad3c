"""Run a scenario with and without one perturbation, and compare the results.

    baseline = baseline_of(scenario)                          # snapshots, and all points that can be perturbed
    failure = run_with(perturbation, scenario, baseline)      # None: same result

All randomness is seeded, so both runs are identical up to the perturbation. A number is therefore enough to identify
its place. The perturbed run must reach the same snapshots. No additional container may run, and none may end
differently. Ready and phase may miss changes of the baseline, but may not have additional ones. All invariants are
checked, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import Operation
from podkeeper.testing.sim.agent_process import Side
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.records import CallStarted, PodChanged
from podkeeper.testing.sim.scenario import Scenario, ScenarioRun, WorldSnapshot
from podkeeper.testing.sim.world import World

RUNTIME_SECONDS: dict[str, float] = {
    Operation.RUN_SANDBOX: 0.2,
    Operation.STOP_SANDBOX: 0.1,
    Operation.REMOVE_SANDBOX: 0.05,
    Operation.CREATE_CONTAINER: 0.05,
    Operation.START_CONTAINER: 0.1,
    Operation.REMOVE_CONTAINER: 0.05,
    Operation.PULL_IMAGE: 0.3,
}
API_SECONDS = {"get": 0.01, "create": 0.02, "patch_status": 0.02, "delete": 0.02, "list": 0.02}
SYNC_SECONDS = 0.005
"""Durations of calls. If calls took no time, none could be in flight during a crash."""


class Perturbation(Protocol):
    """One disturbance. A frozen value with a short `str`."""

    def install(self, world: World) -> None:
        """Prepare the world so that the disturbance happens at its place."""


@dataclass(frozen=True, slots=True)
class CrashSite:
    """One side of a write, at which the agent can crash."""

    number: int  # from 0
    call: str
    side: Side
    others_in_flight: bool
    unsynced: bool  # the journal has writes that a crash can lose
    version: int  # of the API at this point


@dataclass(slots=True)
class Baseline:
    """The undisturbed run, with all points that can be perturbed."""

    snapshots: tuple[WorldSnapshot, ...] = ()
    ends: dict[str, list[str]] = field(default_factory=dict)
    ready: dict[str, list[str]] = field(default_factory=dict)
    phases: dict[str, list[str]] = field(default_factory=dict)
    points: list[CrashSite] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of the API's pods, starting with the initial one
    events: int = 0  # number of runtime events
    seconds: float = 0.0


def baseline_of(scenario: Scenario) -> Baseline:
    """Run a scenario undisturbed."""
    world, baseline = _world(), Baseline()
    run = ScenarioRun(world)
    baseline.versions.append(world.api.version)

    def record_point(call: CallStarted, side: Side) -> bool:
        assert world.process is not None
        others, unsynced = world.process.calls_in_flight > 0, world.journal.unsynced_writes > 0
        name = " ".join(filter(None, (call.port, call.operation, call.subject)))
        baseline.points.append(CrashSite(len(baseline.points), name, side, others, unsynced, world.api.version))
        return False

    def count_events(event: RuntimeEvent) -> Iterable[tuple[float, RuntimeEvent]]:
        baseline.events += 1
        yield 0.0, event

    world.crash_point = record_point
    world.runtime.filter_events(count_events)
    world.bus.subscribe(PodChanged, lambda it: baseline.versions.append(_version_of(it)))
    result = world.run(lambda: scenario.script(run))
    if result.violation is not None:
        raise AssertionError(_report(world, f"{scenario.name}, undisturbed", str(result.violation)))
    baseline.snapshots, baseline.seconds = tuple(run.snapshots), result.seconds
    baseline.ends = run.log.ends()
    baseline.ready, baseline.phases = dict(run.log.ready), dict(run.log.phases)
    return baseline


def run_with(perturbation: Perturbation, scenario: Scenario, baseline: Baseline) -> str | None:
    """Run a scenario with a perturbation. Return what differs, with the whole trace. None: nothing."""
    world = _world()
    run = ScenarioRun(world, baseline.snapshots)
    perturbation.install(world)
    result = world.run(lambda: scenario.script(run))
    problems = str(result.violation) if result.violation is not None else _difference(baseline, run)
    return _report(world, f"{scenario.name}, {perturbation}", problems) if problems else None


def _world() -> World:
    world = World("sieve")
    watch(world)
    world.runtime.delays.update(RUNTIME_SECONDS)
    world.api.delays.update(API_SECONDS)
    world.journal.sync_seconds = SYNC_SECONDS
    return world


def _difference(baseline: Baseline, run: ScenarioRun) -> str:
    """Describe what happened during the run and should not have happened."""
    log = run.log
    problems = list(run.world.runtime.violations)
    if (ends := log.ends()) != baseline.ends:
        problems.append(f"containers ran and ended as {ends}, in the baseline as {baseline.ends}")
    for what, actual, expected in (
        ("Ready", log.ready, baseline.ready),
        ("phase", log.phases, baseline.phases),
    ):
        for pod, changes in actual.items():
            if not _is_subsequence(changes, expected.get(pod, [])):
                problems.append(f"{what} of {pod} was {changes}, undisturbed {expected.get(pod)}")
    return "; ".join(problems)


def _is_subsequence(some: list[str], whole: list[str]) -> bool:
    """Whether `whole` contains all elements of `some`, in this order."""
    rest = iter(whole)
    return all(each in rest for each in some)


def _report(world: World, what: str, problems: str) -> str:
    timeline = "\n".join(map(str, world.trace.lines()))
    return f"{what}: {problems}\n{timeline}"


def _version_of(change: PodChanged) -> int:
    pod = change.new or change.old
    assert pod is not None
    return int(pod.metadata.resource_version or 0)
