"""Draw the pod worker's state machine from the machine itself.

    python -m tools.worker_diagram > docs/worker-states.md

Starting from an unknown pod, every event of a small alphabet is tried in every state that can be reached,
until nothing new turns up. What `step` did is what is drawn; nothing here knows how it should be. The
laws in `tests/rules/test_worker_laws.py` are checked over the same walk.
"""

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping

import msgspec

from podkeeper.model.k8s.core import Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import API_SOURCE, CONFIG_SOURCE_ANNOTATION, FILE_SOURCE
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.events import (
    Event,
    Failed,
    IllegalStep,
    MayStart,
    MustWait,
    Passed,
    StatusRead,
    StatusUnreadable,
    Step,
    Swept,
    Told,
)
from podkeeper.rules.worker.passes import taken
from podkeeper.rules.worker.states import (
    Ending,
    Finished,
    NeverStarted,
    State,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    Unknown,
    Waiting,
    Work,
)
from podkeeper.rules.worker.step import step
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType

Transition = tuple[State, str, Step]
"""(state before, name of the event, what the machine made of it)."""

RUNTIME_ONLY = "TerminatingRuntimeOnly"
PLACES = {
    **{state.__name__: state.__doc__ for state in (Unknown, Waiting, Syncing, TerminationRequested, Terminating)},
    RUNTIME_ONLY: "Terminating, but only the runtime knows the pod. There is nothing to clean up afterwards.",
    **{state.__name__: state.__doc__ for state in (Terminated, Finished, NeverStarted)},
}
"""Name -> meaning, from left to right."""

PROGRESS: Mapping[str, Event] = {
    "its turn": MayStart(),
    "not its turn": MustWait(),
    "status read": StatusRead(),
    "status unreadable": StatusUnreadable("cache unavailable"),
    "sync succeeded": Passed(1.0),
    "pod completed": Passed(1.0, ended=True),
    "sync failed": Failed(1.0),
    "housekeeping": Swept(desired=True),
    "orphaned": Swept(desired=False),
}


def pod_from(source: str, *, deleting: bool = False, phase: str = "Running") -> Pod:
    """A small pod of one source."""
    return Pod(
        metadata=ObjectMeta(
            uid="uid",
            name="web",
            namespace="default",
            annotations={CONFIG_SOURCE_ANNOTATION: source},
            deletion_timestamp="2000-01-01T00:00:00Z" if deleting else None,
        ),
        spec=PodSpec(termination_grace_period_seconds=30),
        status=PodStatus(phase=phase),
    )


def alphabet(source: str) -> dict[str, Event]:
    """One of every kind of event that a pod of this source can meet, by name."""
    pod, failed = pod_from(source), pod_from(source, phase="Failed")
    return {
        "create": Told(Update(type=UpdateType.CREATE, pod=pod)),
        "update": Told(Update(type=UpdateType.UPDATE, pod=pod)),
        "deletion": Told(Update(type=UpdateType.UPDATE, pod=pod_from(source, deleting=True))),
        "terminal phase": Told(Update(type=UpdateType.UPDATE, pod=failed)),
        "terminal phase with nothing running": Told(Update(type=UpdateType.UPDATE, pod=failed), PodRecord(uid="uid")),
        "kill": Told(Update(type=UpdateType.KILL, pod=pod)),
        "eviction": Told(Update(type=UpdateType.KILL, pod=pod, kill=KillOptions(evict=True))),
        "runtime kill": Told(Update(type=UpdateType.KILL, running_pod=PodRecord(uid="uid"))),
        **PROGRESS,
    }


def transitions(events: Mapping[str, Event]) -> Iterator[Transition]:
    """Every legal step from every state that these events can lead to."""
    states: list[State] = [Unknown()]
    seen = {_key(states[0])}
    while states:
        state = states.pop()
        for name, event in events.items():
            try:
                result = step(state, event)
            except IllegalStep:
                continue
            yield state, name, result
            if (key := _key(result.state)) not in seen:
                seen.add(key)
                states.append(result.state)


def _key(value: object) -> Hashable:
    """Tells states apart as far as the machine can: the rest is only carried."""
    match value:
        case Work(subject=subject, grace_seconds=grace_seconds):
            return (type(subject), grace_seconds)
        case Ending(cause=cause, grace_seconds=grace_seconds, restart_requested=restart_requested):
            return (cause, grace_seconds, restart_requested)
        case Pod():
            return Pod
        case msgspec.Struct():
            return (type(value), *(_key(getattr(value, name)) for name in value.__struct_fields__))
        case Hashable():
            return value
        case _:
            raise TypeError(f"cannot tell {value!r} from others")


def arrows(source: str, place: Callable[[State], str | None]) -> dict[tuple[str, str], list[str]]:
    """(from, to) -> the events that lead there, where the place changes."""
    found: dict[tuple[str, str], list[str]] = {}
    for before, event, after in transitions(alphabet(source)):
        here, there = place(before), place(after.state)
        if here is not None and there is not None and here != there:
            names = found.setdefault((here, there), [])
            if event not in names:
                names.append(event)
    return found


def _position(state: State) -> str:
    match state:
        case Terminating(activity=activity) if isinstance(taken(activity).subject, PodRecord):
            return RUNTIME_ONLY
        case _:
            return type(state).__name__


def _activity(state: State) -> str | None:
    match state:
        case Syncing(activity=activity) | Terminated(activity=activity):
            return type(activity).__name__
        case TerminationRequested(activity=activity) | Terminating(activity=activity):
            return type(activity).__name__
        case _:
            return None


def mermaid(found: Mapping[tuple[str, str], list[str]]) -> str:
    """A state diagram; the order of its lines depends on nothing but their content."""
    places, names = list(PLACES), list(alphabet(API_SOURCE))

    def rank(ends: tuple[str, str]) -> list[tuple[int, str]]:
        return [(places.index(end) if end in places else 0, end) for end in ends]

    lines = [
        f"    {here} --> {there}: {', '.join(sorted(found[here, there], key=names.index))}"
        for here, there in sorted(found, key=rank)
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def page() -> str:
    """The whole of `docs/worker-states.md`."""
    meanings = [f"- **{name}**: {meaning}" for name, meaning in PLACES.items()]
    return "\n\n".join(
        [
            "# The states of a pod worker",
            "`python -m tools.worker_diagram` generates this page from the decisions in `rules/worker`. Do not edit it "
            "by hand.",
            "\n".join(meanings),
            "## A pod from the API",
            "A pod from the API leaves Waiting at once, because only static pods wait for their turn.",
            mermaid(arrows(API_SOURCE, _position)),
            "## A static pod",
            "Static pods with the same full name start one after the other. If a pod must stop before its turn, it "
            "never starts.",
            mermaid(arrows(FILE_SOURCE, _position)),
            "## Activity of a worker",
            "A busy worker reads the pod's status (Reading) or runs a sync function (Calling). Meanwhile only the "
            "latest update waits. When the pod changes its state, the next sync starts at once.",
            mermaid(arrows(API_SOURCE, _activity)),
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(page() + "\n")
