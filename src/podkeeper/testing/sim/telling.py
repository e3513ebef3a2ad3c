"""Telling a tale twice: once as it should go, and once more with something gone wrong; and what came out differently.

    original = undisturbed(tale)                        # the scenes, and all that can be disturbed, counted
    failure = told_with(perturbation, tale, original)   # None: the tale ended as it should

Since chance is seeded, a tale goes the same way up to the one thing that goes wrong: that is why counting is enough to
name that thing. Then it must come to the same scenes; no container may run that did not run undisturbed, nor end
otherwise; Ready and phase may leave out a change that nobody saw, but have none more. All invariants watch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.runtimes.fake import Operation
from podkeeper.testing.sim.invariants import watch
from podkeeper.testing.sim.life import Side
from podkeeper.testing.sim.records import Called, PodChanged
from podkeeper.testing.sim.scenes import Scene, Stage, Tale
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
"""How long calls take: were they over at once, none could be under way when the agent dies."""


class Perturbation(Protocol):
    """One thing that goes wrong. A frozen value; `str` names it."""

    def install(self, world: World) -> None:
        """Have it go wrong when its time comes."""


@dataclass(frozen=True, slots=True)
class Point:
    """A side of a changing call: here an agent can die."""

    number: int  # from 0
    call: str
    side: Side
    others_under_way: bool
    unsynced: bool  # the journal holds writes that a crash may lose
    version: int  # of the API, by then


@dataclass(slots=True)
class Original:
    """The tale undisturbed, and all that can be disturbed in it."""

    scenes: tuple[Scene, ...] = ()
    ends: dict[str, list[str]] = field(default_factory=dict)
    ready: dict[str, list[str]] = field(default_factory=dict)
    phases: dict[str, list[str]] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of the API's pods, the beginning first
    news: int = 0  # pieces of runtime news
    seconds: float = 0.0


def undisturbed(tale: Tale) -> Original:
    """Tell a tale as it should go."""
    world, original = _world(), Original()
    stage = Stage(world)
    original.versions.append(world.api.version)

    def note_point(call: Called, side: Side) -> bool:
        assert world.life is not None
        others, unsynced = world.life.calls_under_way > 0, world.journal.unsynced_writes > 0
        name = " ".join(filter(None, (call.room, call.operation, call.subject)))
        original.points.append(Point(len(original.points), name, side, others, unsynced, world.api.version))
        return False

    def count_news(event: RuntimeEvent) -> Iterable[tuple[float, RuntimeEvent]]:
        original.news += 1
        yield 0.0, event

    world.crash_point = note_point
    world.runtime.filter_events(count_news)
    world.bus.subscribe(PodChanged, lambda it: original.versions.append(_version_of(it)))
    verdict = world.play(lambda: tale.plot(stage))
    if verdict.violation is not None:
        raise AssertionError(_report(world, f"{tale.name}, undisturbed", str(verdict.violation)))
    original.scenes, original.seconds = tuple(stage.scenes), verdict.seconds
    original.ends = stage.chronicle.ends()
    original.ready, original.phases = dict(stage.chronicle.ready), dict(stage.chronicle.phases)
    return original


def told_with(perturbation: Perturbation, tale: Tale, original: Original) -> str | None:
    """Tell a tale with something gone wrong. Returns what came out differently, with the whole story; None: nothing."""
    world = _world()
    stage = Stage(world, original.scenes)
    perturbation.install(world)
    verdict = world.play(lambda: tale.plot(stage))
    wrong = str(verdict.violation) if verdict.violation is not None else _difference(original, stage)
    return _report(world, f"{tale.name}, {perturbation}", wrong) if wrong else None


def _world() -> World:
    world = World("sieve")
    watch(world)
    world.runtime.delays.update(RUNTIME_SECONDS)
    world.api.delays.update(API_SECONDS)
    world.journal.sync_seconds = SYNC_SECONDS
    return world


def _difference(original: Original, stage: Stage) -> str:
    """What happened along the way and should not have."""
    chronicle = stage.chronicle
    wrong = list(stage.world.runtime.violations)
    if (ends := chronicle.ends()) != original.ends:
        wrong.append(f"containers ran and ended as {ends}, undisturbed as {original.ends}")
    for what, told, untold in (
        ("Ready", chronicle.ready, original.ready),
        ("phase", chronicle.phases, original.phases),
    ):
        for pod, changes in told.items():
            if not _is_part_of(changes, untold.get(pod, [])):
                wrong.append(f"{what} of {pod} was {changes}, undisturbed {untold.get(pod)}")
    return "; ".join(wrong)


def _is_part_of(some: list[str], whole: list[str]) -> bool:
    """Whether all of these come in the whole, in this order."""
    rest = iter(whole)
    return all(each in rest for each in some)


def _report(world: World, what: str, wrong: str) -> str:
    timeline = "\n".join(map(str, world.trace.lines()))
    return f"{what}: {wrong}\n{timeline}"


def _version_of(change: PodChanged) -> int:
    pod = change.new or change.old
    assert pod is not None
    return int(pod.metadata.resource_version or 0)
