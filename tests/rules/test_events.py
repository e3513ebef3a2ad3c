"""Kubernetes events: their fields, and which are created, counted, combined or dropped."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Event, EventSource, ObjectReference, Pod
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.events import Correlator, EventLimits, api_event, count_patch, event_name, reference_to

NOW = datetime(2026, 11, 15, 6, 30, 46, 123456, tzinfo=UTC)
SOURCE = EventSource(component="kubelet", host="node-1")
WEB = Pod(metadata=ObjectMeta(name="web", namespace="ns", uid="u1", resource_version="402"))


def event_of(
    message: str = "m", *, reason: str = "Started", type_: EventType = EventType.NORMAL, path: str = "", stamp: int = 1
) -> Event:
    about = reference_to(WEB, path)
    return api_event(PodEvent(type_, reason, message), about, SOURCE, NOW, stamp)


def test_an_event_equals_that_of_the_kubelet() -> None:
    event = PodEvent(EventType.NORMAL, "Created", "Container created", "u1", "spec.containers{c}")
    made = api_event(event, reference_to(WEB, event.container_path), SOURCE, NOW, 0x18E824319825C79E)
    assert msgspec.json.decode(msgspec.json.encode(made)) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.18e824319825c79e", "namespace": "ns"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "web",
            "namespace": "ns",
            "uid": "u1",
            "resourceVersion": "402",
            "fieldPath": "spec.containers{c}",
        },
        "type": "Normal",
        "reason": "Created",
        "message": "Container created",
        "count": 1,
        "eventTime": None,
        "firstTimestamp": "2026-11-15T06:30:46Z",
        "lastTimestamp": "2026-11-15T06:30:46Z",
        "source": {"component": "kubelet", "host": "node-1"},
        "reportingComponent": "kubelet",
        "reportingInstance": "node-1",
    }


def test_a_runtime_record_is_referred_to_without_a_version() -> None:
    record = PodRecord(uid="u1", name="web", namespace="ns")
    assert reference_to(record) == ObjectReference(api_version="v1", kind="Pod", name="web", namespace="ns", uid="u1")


def test_a_reference_omits_empty_fields() -> None:
    nothing = ObjectReference(api_version="v1", kind="Pod")
    assert reference_to(PodRecord(uid="", name="", namespace="")) == nothing
    assert reference_to(Pod(metadata=ObjectMeta(name="", namespace="", uid="", resource_version=""))) == nothing


def test_an_event_without_a_namespace_is_in_the_default_namespace() -> None:
    node = ObjectReference(api_version="v1", kind="Node", name="node-1")
    made = api_event(PodEvent(EventType.NORMAL, "Starting", ""), node, SOURCE, NOW, 1)
    assert (made.metadata.namespace, made.involved_object.namespace) == ("default", None)


@pytest.mark.parametrize("name", ["", "UPPER", "a_b", ".a", "a" * 252], ids=["none", "upper", "sign", "dot", "long"])
def test_an_invalid_event_name_is_replaced(name: str) -> None:
    made = {event_name(name, stamp) for stamp in range(3)}
    assert len(made) == 3
    assert all(len(each) == 36 and each.lower() == each for each in made)


def written(events: Iterable[tuple[float, Event]], limits: EventLimits | None = None) -> list[tuple[int, str] | None]:
    """(count, message) of each written event. None: dropped."""
    correlator = Correlator(limits or EventLimits())
    made = [correlator.correlate(event, at, stamp) for stamp, (at, event) in enumerate(events, 1000)]
    return [None if event is None else (event.count or 0, event.message or "") for event in made]


def combined(message: str) -> str:
    return f"(combined from similar events): {message}"


CASES: dict[str, tuple[list[tuple[float, Event]], list[tuple[int, str] | None]]] = {
    "an equal event is counted": (
        [(0, event_of()), (1, event_of()), (5000, event_of())],
        [(1, "m"), (2, "m"), (3, "m")],
    ),
    "another container, reason or type is another event": (
        [
            (0, event_of()),
            (0, event_of(path="spec.containers{a}")),
            (0, event_of(path="spec.containers{b}")),
            (0, event_of(reason="Killing")),
            (0, event_of(type_=EventType.WARNING)),
        ],
        [(1, "m")] * 5,
    ),
    "nine messages are separate, the tenth and all new ones are combined and counted": (
        [(at, event_of(f"m{at}")) for at in range(13)],
        [*((1, f"m{at}") for at in range(9)), *((at - 8, combined(f"m{at}")) for at in range(9, 13))],
    ),
    "the first nine messages stay separate": (
        [*((at, event_of(f"m{at}")) for at in range(11)), (11, event_of("m0")), (12, event_of("m9"))],
        [
            *((1, f"m{at}") for at in range(9)),
            (1, combined("m9")),
            (2, combined("m10")),
            (2, "m0"),
            (3, combined("m9")),
        ],
    ),
    "messages of several containers are combined, too": (
        [(at, event_of(f"m{at}", path=f"spec.containers{{c{at}}}")) for at in range(11)],
        [*((1, f"m{at}") for at in range(9)), (1, combined("m9")), (2, combined("m10"))],
    ),
    "after exactly ten quiet minutes they are still similar": (
        [*((at, event_of(f"m{at}")) for at in range(9)), (608, event_of("new"))],
        [*((1, f"m{at}") for at in range(9)), (1, combined("new"))],
    ),
    "after more than ten quiet minutes all messages are new": (
        [*((at, event_of(f"m{at}")) for at in range(9)), (608.5, event_of("new"))],
        [*((1, f"m{at}") for at in range(9)), (1, "new")],
    ),
    "the 26th write at once is dropped and counted by the next write": (
        [*((0, event_of()) for _ in range(27)), (300, event_of()), (301, event_of())],
        [*((count, "m") for count in range(1, 26)), None, None, (28, "m"), None],
    ),
    "normal events do not use the tokens of warnings": (
        [*((0, event_of()) for _ in range(26)), (0, event_of("w", type_=EventType.WARNING))],
        [*((count, "m") for count in range(1, 26)), None, (1, "w")],
    ),
    "after a long pause there are only the tokens of one burst": (
        [(0, event_of()), *((1e6, event_of()) for _ in range(26))],
        [(1, "m"), *((count, "m") for count in range(2, 27)), None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("events, expected", CASES.values(), ids=CASES.keys())
def test_correlate(events: list[tuple[float, Event]], expected: list[tuple[int, str] | None]) -> None:
    assert written(events) == expected


def test_a_counted_event_keeps_its_name_and_first_time() -> None:
    correlator = Correlator()
    first = correlator.correlate(event_of(stamp=0xA), 0, 0xA)
    later = msgspec.structs.replace(
        event_of(stamp=0xB), first_timestamp="2027-01-01T00:00:00Z", last_timestamp="2027-01-01T00:00:00Z"
    )
    again = correlator.correlate(later, 9, 0xB)
    assert first is not None
    assert again is not None
    assert (again.metadata.name, again.first_timestamp) == (first.metadata.name, first.first_timestamp) != (None, None)
    assert count_patch(again) == {"count": 2, "lastTimestamp": "2027-01-01T00:00:00Z", "message": "m"}


def test_a_combined_event_has_its_own_name_and_keeps_it() -> None:
    correlator = Correlator()
    made = [correlator.correlate(event_of(f"m{number}", stamp=number), 0, number) for number in range(12)]
    names = [event.metadata.name for event in made if event is not None]
    assert names == [*(f"web.{number:x}" for number in range(9)), *["web.9"] * 3]


def test_the_least_recently_used_entry_is_dropped_first() -> None:
    few = EventLimits(table_size=2)
    events = [(0.0, event_of(message)) for message in ("a", "b", "a", "c", "a", "b")]
    assert written(events, few) == [(1, "a"), (1, "b"), (2, "a"), (1, "c"), (3, "a"), (1, "b")]


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from((0, 1, 400, 700))), max_size=80))
def test_no_history_writes_more_than_its_tokens_and_combines_before_ten(history: list[tuple[int, int]]) -> None:
    at, events = 0.0, []
    for message, pause in history:
        at += pause
        events.append((at, event_of(f"m{message}")))
    found = written(events)
    assert sum(each is not None for each in found) <= 25 + at / 300
    counts: dict[str, int] = {}
    for each in found:
        if each is not None:
            count, text = each
            group = "combined" if text.startswith("(combined") else text
            assert count > counts.get(group, 0)
            counts[group] = count
