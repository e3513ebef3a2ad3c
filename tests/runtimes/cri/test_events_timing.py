"""Events of a runtime in virtual time: when each is forwarded, what is queried before, what is dropped."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.message import Message

from podkeeper.model.errors import AgentError, CallTimedOut, RuntimeUnavailable
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.events import EventFeed
from podkeeper.runtimes.cri.owners import Kind, OwnerIndex
from podkeeper.runtimes.cri.schema import containerd_events, cri
from podkeeper.testing.virtual_time import simulate
from tests.runtimes.cri.fake_server import containerd_event
from tests.runtimes.cri.scripted_transport import ScriptedTransport

AT = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=7, microseconds=5)
CREATED, RUNNING, EXITED = cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED
BROKEN = CallTimedOut("no answer")
POD_LABEL = {"io.kubernetes.pod.uid": "u"}


def envelope(topic: str, message: Message) -> Any:
    made: Any = containerd_event(topic, message)
    made.timestamp.seconds, made.timestamp.nanos = 7, 5_999
    return made


def start(object_id: str) -> Any:
    return envelope("/tasks/start", containerd_events.TaskStart(container_id=object_id))


def stop(object_id: str, process: str = "") -> Any:
    return envelope("/tasks/exit", containerd_events.TaskExit(container_id=object_id, id=process or object_id))


def oom(object_id: str) -> Any:
    return envelope("/tasks/oom", containerd_events.TaskOOM(container_id=object_id))


def delete(object_id: str) -> Any:
    return envelope("/containers/delete", containerd_events.ContainerDelete(id=object_id))


class Harness:
    """A feed over a runtime whose states the test sets. The pod `u` has the container `c` and the sandbox `b`."""

    def __init__(self, *, cri_stream: bool = False, containerd_stream: bool = True) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport = ScriptedTransport()
        self.cri_events: asyncio.Queue[Message | Exception | None] = asyncio.Queue()
        self.containerd: asyncio.Queue[Message | Exception | None] = asyncio.Queue()
        if cri_stream:
            self.transport.streams["GetContainerEvents"] = self.cri_events
        if containerd_stream:
            self.transport.streams["Subscribe"] = self.containerd
        self.states: dict[str, Any] = {"c": EXITED, "b": cri.SANDBOX_NOTREADY}
        self.strangers: dict[str, dict[str, str]] = {}  # labels of containers that a list shows
        self.strange_boxes: dict[str, dict[str, str]] = {}
        self.transport.answers = {
            "ContainerStatus": lambda request: self._status(request.container_id),
            "PodSandboxStatus": lambda request: self._box(request.pod_sandbox_id),
            "ListContainers": self._containers,
            "ListPodSandbox": self._boxes,
        }
        self.index = OwnerIndex()
        self.index.saw("c", "u", Kind.CONTAINER)
        self.index.saw("b", "u", Kind.SANDBOX)
        self.forgotten: list[str] = []
        self.inspected_at = -1.0
        self.confirmations: list[tuple[str, float]] = []
        self.feed = EventFeed(CriCalls(self.transport), self.index, self.forgotten.append, self._inspected_since)
        self.received: list[tuple[float, RuntimeEvent]] = []
        self.ends: list[tuple[float, str]] = []
        self.tasks = [asyncio.ensure_future(self.feed.run())]

    def _inspected_since(self, uid: PodUID, moment: float) -> bool:
        self.confirmations.append((uid, moment))
        return self.inspected_at >= moment

    def _status(self, object_id: str) -> Message | Exception:
        state = self.states.get(object_id)
        if isinstance(state, Exception):
            return state
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(id=object_id, state=state))

    def _box(self, object_id: str) -> Message | Exception:
        state = self.states[object_id]
        if isinstance(state, Exception):
            return state
        return cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id=object_id, state=state))

    def _containers(self, request: Any) -> Message | Exception:
        found = self.strangers.get(request.filter.id)
        if found is not None and "broken" in found:
            return BROKEN
        items = [] if found is None else [cri.Container(id=request.filter.id, labels=found)]
        return cri.ListContainersResponse(containers=items)

    def _boxes(self, request: Any) -> Message | Exception:
        found = self.strange_boxes.get(request.filter.id)
        items = [] if found is None else [cri.PodSandbox(id=request.filter.id, labels=found)]
        return cri.ListPodSandboxResponse(items=items)

    async def listen(self) -> None:
        """Collect the forwarded events until the stream ends."""
        stream = self.feed.listen()

        async def collect() -> None:
            try:
                async for event in stream:
                    self.received.append((round(self.loop.time(), 3), event))
                self.ends.append((round(self.loop.time(), 3), "end"))
            except AgentError as error:
                self.ends.append((round(self.loop.time(), 3), str(error)))

        self.tasks.append(asyncio.ensure_future(collect()))
        for _ in range(5):
            await asyncio.sleep(0)

    def at(self, seconds: float, object_id: str, state: Any) -> None:
        """Change a state later."""
        self.loop.call_at(seconds, self.states.__setitem__, object_id, state)

    @property
    def types(self) -> list[tuple[float, str, str]]:
        return [(at, event.container_id, event.type.name) for at, event in self.received]

    def count(self, method: str) -> int:
        return sum(each[0].endswith("/" + method) for each in self.transport.requests)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


def play(work: Callable[[Harness], Awaitable[None]], **options: bool) -> None:
    async def scenario() -> None:
        harness = Harness(**options)
        try:
            await work(harness)
        finally:
            await harness.close()

    simulate(scenario())


def test_an_event_is_complete_and_drops_the_cached_status() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        harness.containerd.put_nowait(stop("c"))
        await asyncio.sleep(5)
        assert harness.received == [(0.0, RuntimeEvent(PodUID("u"), "c", RuntimeEventType.STOPPED, AT))]
        assert harness.forgotten == ["c"]
        assert [request[0].rpartition("/")[2] for request in harness.transport.requests] == ["ContainerStatus"]
        filters = [
            f'namespace==k8s.io,topic=="{topic}"'
            for topic in ("/tasks/start", "/tasks/exit", "/tasks/oom", "/containers/delete")
        ]
        assert harness.transport.opened[1:] == [
            (
                "/containerd.services.events.v1.Events/Subscribe",
                containerd_events.SubscribeRequest(filters=filters),
            )
        ]

    play(work)


LATE: dict[str, tuple[Any, Any, str, list[tuple[float, Any]], float]] = {
    "an exit that the status shows late": (stop("c"), RUNNING, "c", [(0.035, EXITED)], 0.04),
    "an exit of a container whose start the status shows late": (
        stop("c"), CREATED, "c", [(0.015, RUNNING), (0.035, EXITED)], 0.04),
    "an exit that the status shows after 100 ms": (stop("c"), RUNNING, "c", [(0.11, EXITED)], 0.15),
    "an exit that the status shows after 600 ms": (stop("c"), RUNNING, "c", [(0.61, EXITED)], 0.85),
    "an exit that the status never shows": (stop("c"), RUNNING, "c", [], 2.1),
    "an exit of unknown state": (stop("c"), cri.CONTAINER_UNKNOWN, "c", [], 0.0),
    "an exit that cannot be confirmed": (stop("c"), BROKEN, "c", [], 0.0),
    "a start that the status shows late": (start("c"), CREATED, "c", [(0.035, RUNNING)], 0.04),
    "a start of a container that has exited since": (start("c"), EXITED, "c", [], 0.0),
    "a start that the status never shows": (start("c"), CREATED, "c", [], 2.1),
    "the end of a sandbox that the status shows late": (
        stop("b"), cri.SANDBOX_READY, "b", [(0.035, cri.SANDBOX_NOTREADY)], 0.04),
    "the start of a sandbox that the status shows late": (
        start("b"), cri.SANDBOX_NOTREADY, "b", [(0.035, cri.SANDBOX_READY)], 0.04),
}  # fmt: skip


@pytest.mark.parametrize("message, state, object_id, changes, expected", LATE.values(), ids=LATE.keys())
def test_events_are_forwarded_after_the_status_confirms_them(
    message: containerd_events.Envelope, state: Any, object_id: str, changes: list[tuple[float, Any]], expected: float
) -> None:
    async def work(harness: Harness) -> None:
        harness.states[object_id] = state
        for at, changed in changes:
            harness.at(at, object_id, changed)
        await harness.listen()
        harness.containerd.put_nowait(message)
        await asyncio.sleep(5)
        event_type = "STARTED" if message.topic == "/tasks/start" else "STOPPED"
        assert harness.types == [(expected, object_id, event_type)]
        assert harness.forgotten == [object_id]

    play(work)


def test_a_missing_status_confirms_an_event() -> None:
    async def work(harness: Harness) -> None:
        del harness.transport.answers["ContainerStatus"], harness.transport.answers["PodSandboxStatus"]
        await harness.listen()
        harness.containerd.put_nowait(stop("c"))
        harness.containerd.put_nowait(stop("b"))
        await asyncio.sleep(5)
        assert harness.types == [(0.0, "c", "STOPPED"), (0.0, "b", "STOPPED")]

    play(work)


def test_an_unconfirmed_exit_is_checked_26_times() -> None:
    async def work(harness: Harness) -> None:
        harness.states["c"] = RUNNING
        await harness.listen()
        harness.containerd.put_nowait(stop("c"))
        await asyncio.sleep(5)
        assert harness.count("ContainerStatus") == 26

    play(work)


STRANGERS: dict[str, tuple[Any, dict[str, str] | None, dict[str, str] | None, list[tuple[float, str, str]]]] = {
    "a container of a pod": (stop("x"), POD_LABEL, None, [(1.0, "x", "STOPPED")]),
    "a start of a container of a pod": (start("x"), POD_LABEL, None, [(1.0, "x", "STARTED")]),
    "a sandbox of a pod": (stop("x"), None, POD_LABEL, [(1.0, "x", "STOPPED")]),
    "a container of no pod": (stop("x"), {"a": "b"}, None, []),
    "unknown to the runtime": (stop("x"), None, None, []),
    "the lookup fails": (stop("x"), {"broken": ""}, None, []),
}


@pytest.mark.parametrize("message, labels, box_labels, expected", STRANGERS.values(), ids=STRANGERS.keys())
def test_an_unknown_id_is_looked_up_after_a_second(
    message: Any,
    labels: dict[str, str] | None,
    box_labels: dict[str, str] | None,
    expected: list[tuple[float, str, str]],
) -> None:
    async def work(harness: Harness) -> None:
        harness.states["x"] = cri.SANDBOX_NOTREADY if box_labels else EXITED
        if labels is not None:
            harness.strangers["x"] = labels
        if box_labels is not None:
            harness.strange_boxes["x"] = box_labels
        await harness.listen()
        harness.containerd.put_nowait(message)
        await asyncio.sleep(0.9)
        assert harness.transport.requests == []
        await asyncio.sleep(5)
        assert harness.types == expected
        owner = harness.index.get("x")
        kind = Kind.CONTAINER if labels else Kind.SANDBOX
        assert (None if owner is None else (owner.uid, owner.kind)) == (("u", kind) if expected else None)

    play(work)


@pytest.mark.parametrize("message, expected", [(start("x"), []), (stop("x"), [(1.0, "x", "STOPPED")])])
def test_an_id_returned_by_our_own_call_is_not_looked_up(message: Any, expected: list[tuple[float, str, str]]) -> None:
    async def work(harness: Harness) -> None:
        harness.states["x"] = EXITED
        await harness.listen()
        harness.containerd.put_nowait(message)
        harness.loop.call_at(0.5, harness.index.made, "x", "u", Kind.CONTAINER)
        await asyncio.sleep(5)
        assert (harness.types, harness.count("ListContainers")) == (expected, 0)

    play(work)


def test_events_that_need_no_confirmation() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        for message in (oom("c"), oom("unknown"), stop("c", "command"), delete("unknown"), delete("c"), oom("c")):
            harness.containerd.put_nowait(message)
        harness.containerd.put_nowait(envelope("/images/create", containerd_events.TaskOOM(container_id="b")))
        await asyncio.sleep(5)
        assert harness.types == [(0.0, "c", "STOPPED"), (0.0, "c", "DELETED")]
        assert [event.at for _, event in harness.received] == [AT, AT]
        assert (harness.forgotten, harness.transport.requests) == (["c", "c"], [])
        assert (harness.index.get("c"), harness.index.get("b") is None) == (None, False)

    play(work)


# Our own calls.


@pytest.mark.parametrize("inspected_at, expected", [(1.9, [(3.0, "c", "STARTED")]), (2.0, []), (2.9, [])])
def test_our_own_start_is_forwarded_after_a_second_without_an_inspection(
    inspected_at: float, expected: list[tuple[float, str, str]]
) -> None:
    async def work(harness: Harness) -> None:
        harness.inspected_at = inspected_at
        await harness.listen()
        with harness.feed.starting("c"):
            harness.containerd.put_nowait(start("c"))
            await asyncio.sleep(2)
        await asyncio.sleep(5)
        assert (harness.types, harness.confirmations, harness.transport.requests) == (expected, [("u", 2.0)], [])

    play(work)


def test_our_own_start_is_forwarded_once_and_before_the_exit() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        with harness.feed.starting("c"):
            await asyncio.sleep(2)
        harness.containerd.put_nowait(stop("c"))
        await asyncio.sleep(5)
        assert harness.types == [(2.0, "c", "STARTED"), (2.0, "c", "STOPPED")]

    play(work)


def test_starts_without_a_known_owner_are_dropped() -> None:
    async def work(harness: Harness) -> None:
        with harness.feed.starting("c"):  # before the subscription
            pass
        await harness.listen()
        with harness.feed.starting("unknown"):
            pass
        with pytest.raises(ZeroDivisionError), harness.feed.starting("c"):
            raise ZeroDivisionError
        await asyncio.sleep(5)
        assert (harness.types, harness.confirmations) == ([], [])
        harness.containerd.put_nowait(start("c"))  # the call is over
        await asyncio.sleep(5)
        assert harness.types == [(5.0, "c", "STARTED")]

    play(work)


def test_starts_of_our_own_sandboxes_are_not_forwarded() -> None:
    async def work(harness: Harness) -> None:
        harness.index.made("b", "u", Kind.SANDBOX)
        harness.index.made("c", "u", Kind.CONTAINER)
        await harness.listen()
        harness.containerd.put_nowait(start("b"))
        harness.containerd.put_nowait(start("c"))
        await asyncio.sleep(5)
        assert harness.types == [(0.0, "c", "STARTED")]

    play(work)


ENDINGS: dict[str, tuple[Any, float, float, list[tuple[float, str, str]]]] = {
    "a stop without inspection is forwarded a second after the call": (stop("c"), 0.5, -1, [(1.5, "c", "STOPPED")]),
    "a stop is dropped after an inspection": (stop("c"), 0.5, 0.5, []),
    "a stop is not waited for longer than a second": (stop("c"), 1.5, -1, [(1.5, "c", "STOPPED")]),
    "nor longer than two": (stop("c"), 2.5, -1, [(2.0, "c", "STOPPED")]),
    "a removal without inspection is forwarded 100 ms after the call": (delete("c"), 0.5, -1, [(0.6, "c", "DELETED")]),
    "a removal is dropped after an inspection": (delete("c"), 0.5, 0.5, []),
    "a removal is not waited for longer than a second": (delete("c"), 1.5, 9, [(1.0, "c", "DELETED")]),
}


@pytest.mark.parametrize("message, lasts, inspected_at, expected", ENDINGS.values(), ids=ENDINGS.keys())
def test_ends_of_our_own_calls(
    message: Any, lasts: float, inspected_at: float, expected: list[tuple[float, str, str]]
) -> None:
    async def work(harness: Harness) -> None:
        harness.inspected_at = inspected_at
        await harness.listen()
        harness.containerd.put_nowait(message)
        with harness.feed.stopping("c"):
            await asyncio.sleep(lasts)
        await asyncio.sleep(5)
        assert harness.types == expected

    play(work)


def test_an_exit_during_our_own_start_is_confirmed_after_the_call() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        with harness.feed.starting("c"):
            harness.containerd.put_nowait(stop("c"))
            await asyncio.sleep(0.7)
        await asyncio.sleep(0.01)
        assert harness.types == [(0.7, "c", "STARTED"), (0.7, "c", "STOPPED")]

    play(work)


def test_calls_are_over_when_the_last_one_returns() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        harness.containerd.put_nowait(delete("c"))
        with harness.feed.stopping("c"):
            with harness.feed.stopping("c"):
                await asyncio.sleep(0.3)
            await asyncio.sleep(0.3)
        await asyncio.sleep(5)
        assert (harness.types, harness.confirmations) == ([(0.7, "c", "DELETED")], [("u", 0.6)])

    play(work)


# The end of a stream.

ENDS: dict[str, tuple[Any, str]] = {
    "the stream ends": (None, "cannot receive events: the runtime ended its event stream"),
    "the stream breaks": (RuntimeUnavailable("reset"), "cannot receive events: reset"),
    "the stream fails unexpectedly": (ZeroDivisionError("odd"), "cannot receive events"),
}


@pytest.mark.parametrize("end, message", ENDS.values(), ids=ENDS.keys())
def test_consumers_are_notified_of_the_end_of_the_containerd_stream(end: Any, message: str) -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        harness.states["c"] = RUNNING
        harness.containerd.put_nowait(end)
        await asyncio.sleep(5)
        ((at, why),) = harness.ends
        assert at == 0.0
        assert why.startswith(message)
        opened = len(harness.transport.opened)
        await asyncio.sleep(50)
        assert len(harness.transport.opened) == opened  # no subscriber
        await harness.listen()
        harness.containerd.put_nowait(oom("c"))
        await asyncio.sleep(1)
        assert harness.types == [(55.0, "c", "STOPPED")]

    play(work)


def test_pending_events_are_dropped_when_the_stream_breaks() -> None:
    async def work(harness: Harness) -> None:
        harness.states["c"] = RUNNING
        await harness.listen()
        harness.containerd.put_nowait(stop("c"))
        with harness.feed.starting("c"):
            pass
        await asyncio.sleep(0.5)
        harness.containerd.put_nowait(RuntimeUnavailable("reset"))
        await asyncio.sleep(0.1)
        await harness.listen()
        harness.containerd.put_nowait(oom("c"))
        await asyncio.sleep(5)
        assert harness.types == [(0.6, "c", "STOPPED")]
        assert harness.ends == [(0.5, "cannot receive events: reset")]

    play(work)


def test_a_runtime_with_no_event_stream_is_reported() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        await asyncio.sleep(1)
        assert harness.ends == [
            (
                0.0,
                "cannot receive events: the runtime has no event stream (CRI-O needs enable_pod_events)",
            )
        ]

    play(work, containerd_stream=False)


def test_a_closed_feed_sends_nothing() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        harness.feed.close()
        harness.containerd.put_nowait(oom("c"))
        await asyncio.sleep(1)
        assert (harness.ends, harness.types) == ([(0.0, "end")], [])

    play(work)


# CRI's own stream.


def cri_event(kind: Any, object_id: str = "c", labels: dict[str, str] | None = None, uid: str = "") -> Message:
    box = cri.PodSandboxStatus(id="b", labels=labels or {}, metadata=cri.PodSandboxMetadata(uid=uid))
    return cri.ContainerEventResponse(
        container_id=object_id, container_event_type=kind, created_at=7_000_005_999, pod_sandbox_status=box
    )


def test_events_of_cri_are_forwarded_at_once() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        for each in (
            cri_event(cri.CONTAINER_CREATED_EVENT, "n", {"io.kubernetes.pod.uid": "by label"}, "by name"),
            cri_event(cri.CONTAINER_STARTED_EVENT, "n", None, "by name"),
            cri_event(cri.CONTAINER_STOPPED_EVENT, "c", None, "not queried"),
            cri_event(99, "c"),
            cri_event(cri.CONTAINER_STOPPED_EVENT, "without a pod"),
            cri_event(cri.CONTAINER_DELETED_EVENT, "c", None, "not queried"),
            cri_event(cri.CONTAINER_DELETED_EVENT, "c"),
        ):
            harness.cri_events.put_nowait(each)
        await asyncio.sleep(1)
        assert [(event.uid, event.container_id, event.type.name, event.at) for _, event in harness.received] == [
            ("by label", "n", "CREATED", AT),
            ("by name", "n", "STARTED", AT),
            ("u", "c", "STOPPED", AT),
            ("u", "c", "DELETED", AT),
        ]
        assert harness.forgotten == ["n", "n", "c", "c"]
        assert (harness.index.get("c"), harness.index.get("b") is None) == (None, False)
        with harness.feed.starting("b"):
            pass
        await asyncio.sleep(5)
        assert len(harness.received) == 4  # this stream reports our own starts, too
        harness.cri_events.put_nowait(None)
        await asyncio.sleep(1)
        assert [why for _, why in harness.ends] == ["cannot receive events: the runtime ended its event stream"]
        assert len(harness.transport.opened) == 1

    play(work, cri_stream=True)


def test_an_empty_cri_event_stream_counts_as_unsupported() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        harness.cri_events.put_nowait(None)
        harness.containerd.put_nowait(oom("c"))
        await asyncio.sleep(1)
        assert (harness.types, harness.ends) == ([(0.0, "c", "STOPPED")], [])

    play(work, cri_stream=True)


def test_a_broken_stream_of_cri_is_not_replaced() -> None:
    async def work(harness: Harness) -> None:
        await harness.listen()
        harness.cri_events.put_nowait(RuntimeUnavailable("reset"))
        await asyncio.sleep(1)
        assert harness.ends == [(0.0, "cannot receive events: reset")]
        assert len(harness.transport.opened) == 1

    play(work, cri_stream=True)
