"""Generate docs/worker-states.md from the state machine of the pod workers.

    python -m tools.worker_diagram > docs/worker-states.md

Beginning with an unknown pod, apply each event of a small alphabet to each reachable state, until there are no new
states. The diagram shows what `step` returns. The laws in `tests/rules/worker/test_laws.py` check the same steps.
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
    HousekeepingRan,
    IllegalStep,
    StartAllowed,
    StartDeferred,
    StatusRead,
    StatusUnreadable,
    Step,
    Synced,
    SyncFailed,
    Updated,
)
from podkeeper.rules.worker.states import (
    Finished,
    NeverStarted,
    State,
    Syncing,
    Terminated,
    Terminating,
    Termination,
    TerminationRequested,
    Unknown,
    Waiting,
    Work,
)
from podkeeper.rules.worker.step import step
from podkeeper.rules.worker.syncs import last_work
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType

Transition = tuple[State, str, Step]
"""(former state, name of the event, resulting step)."""

RUNTIME_ONLY = "TerminatingRuntimeOnly"
PLACES = {
    **{state.__name__: state.__doc__ for state in (Unknown, Waiting, Syncing, TerminationRequested, Terminating)},
    RUNTIME_ONLY: "Terminating, but only the runtime knows the pod. There is nothing to clean up afterwards.",
    **{state.__name__: state.__doc__ for state in (Terminated, Finished, NeverStarted)},
}
"""Name -> meaning, from left to right."""

PROGRESS: Mapping[str, Event] = {
    "its turn": StartAllowed(),
    "not its turn": StartDeferred(),
    "status read": StatusRead(),
    "status unreadable": StatusUnreadable("cache unavailable"),
    "sync succeeded": Synced(1.0),
    "pod completed": Synced(1.0, is_terminal=True),
    "sync failed": SyncFailed(1.0),
    "housekeeping": HousekeepingRan(desired=True),
    "orphaned": HousekeepingRan(desired=False),
}


def pod_from(source: str, *, deleting: bool = False, phase: str = "Running") -> Pod:
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
    """Return one event of every kind that a pod of this source can receive, by name."""
    pod, failed = pod_from(source), pod_from(source, phase="Failed")
    return {
        "create": Updated(Update(type=UpdateType.CREATE, pod=pod)),
        "update": Updated(Update(type=UpdateType.UPDATE, pod=pod)),
        "deletion": Updated(Update(type=UpdateType.UPDATE, pod=pod_from(source, deleting=True))),
        "terminal phase": Updated(Update(type=UpdateType.UPDATE, pod=failed)),
        "terminal phase with nothing running": Updated(
            Update(type=UpdateType.UPDATE, pod=failed), PodRecord(uid="uid")
        ),
        "kill": Updated(Update(type=UpdateType.KILL, pod=pod)),
        "eviction": Updated(Update(type=UpdateType.KILL, pod=pod, kill=KillOptions(evict=True))),
        "runtime kill": Updated(Update(type=UpdateType.KILL, running_pod=PodRecord(uid="uid"))),
        **PROGRESS,
    }


def transitions(events: Mapping[str, Event]) -> Iterator[Transition]:
    """Return every legal step from every state that these events can reach."""
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
    """Return a key without the values that never influence a step."""
    match value:
        case Work(subject=subject, grace_seconds=grace_seconds):
            return (type(subject), grace_seconds)
        case Termination(cause=cause, grace_seconds=grace_seconds, restart_requested=restart_requested):
            return (cause, grace_seconds, restart_requested)
        case Pod():
            return Pod
        case msgspec.Struct():
            return (type(value), *(_key(getattr(value, name)) for name in value.__struct_fields__))
        case Hashable():
            return value
        case _:
            raise TypeError(f"cannot make a key of {value!r}")


def arrows(source: str, place: Callable[[State], str | None]) -> dict[tuple[str, str], list[str]]:
    """Return the events that change the place, by (from, to)."""
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
        case Terminating(activity=activity) if isinstance(last_work(activity).subject, PodRecord):
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
    """Return a state diagram with its lines in a fixed order."""
    places, names = list(PLACES), list(alphabet(API_SOURCE))

    def rank(ends: tuple[str, str]) -> list[tuple[int, str]]:
        return [(places.index(end) if end in places else 0, end) for end in ends]

    lines = [
        f"    {here} --> {there}: {', '.join(sorted(found[here, there], key=names.index))}"
        for here, there in sorted(found, key=rank)
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def page() -> str:
    meanings = [f"- **{name}**: {meaning}" for name, meaning in PLACES.items()]
    return "\n\n".join(
        [
            "# The states of a pod worker",
            "`.venv/bin/python -m tools.worker_diagram > docs/worker-states.md` generates this page from the decisions "
            "in `rules/worker`. Do not edit it by hand.",
            "\n".join(meanings),
            "## A pod from the API",
            "A pod from the API leaves Waiting at once, because only static pods wait for their turn.",
            mermaid(arrows(API_SOURCE, _position)),
            "## A static pod",
            "Static pods with the same full name start one after the other. If a pod must stop before its turn, it "
            "never starts.",
            mermaid(arrows(FILE_SOURCE, _position)),
            "## Activity of a worker",
            "A busy worker reads the pod's status (ReadingStatus) or runs a sync function (RunningSync). Meanwhile "
            "only the latest update stays pending. When the pod changes its state, the next sync starts at once.",
            mermaid(arrows(API_SOURCE, _activity)),
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(page() + "\n")
