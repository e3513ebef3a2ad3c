"""News of a runtime in virtual time: when each event is told, what is asked before, and what is never told."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.message import Message

from podkeeper.model.errors import AgentError, CallTimedOut, RuntimeUnavailable
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime_calls import RuntimeEvent, RuntimeEventType
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.events import EventFeed
from podkeeper.runtimes.cri.index import Index, Kind
from podkeeper.runtimes.cri.schema import containerd_events, cri
from podkeeper.testing.virtual_time import simulate
from tests.runtimes.cri.fake_server import told
from tests.runtimes.cri.scripted_transport import ScriptedTransport

AT = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=7, microseconds=5)
CREATED, RUNNING, EXITED = cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING, cri.CONTAINER_EXITED
BROKEN = CallTimedOut("no answer")
POD_LABEL = {"io.kubernetes.pod.uid": "u"}


def envelope(topic: str, message: Message) -> Any:
    made: Any = told(topic, message)
    made.timestamp.seconds, made.timestamp.nanos = 7, 5_999
    return made


def start(thing: str) -> Any:
    return envelope("/tasks/start", containerd_events.TaskStart(container_id=thing))


def stop(thing: str, process: str = "") -> Any:
    return envelope("/tasks/exit", containerd_events.TaskExit(container_id=thing, id=process or thing))


def oom(thing: str) -> Any:
    return envelope("/tasks/oom", containerd_events.TaskOOM(container_id=thing))


def delete(thing: str) -> Any:
    return envelope("/containers/delete", containerd_events.ContainerDelete(id=thing))


class Stage:
    """A feed over a runtime whose states the test sets. The pod `u` has the container `c` and the sandbox `b`."""

    def __init__(self, *, cri_stream: bool = False, containerd_stream: bool = True) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport = ScriptedTransport()
        self.news: asyncio.Queue[Message | Exception | None] = asyncio.Queue()
        self.containerd: asyncio.Queue[Message | Exception | None] = asyncio.Queue()
        if cri_stream:
            self.transport.streams["GetContainerEvents"] = self.news
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
        self.index = Index()
        self.index.saw("c", "u", Kind.CONTAINER)
        self.index.saw("b", "u", Kind.SANDBOX)
        self.forgotten: list[str] = []
        self.looked_at = -1.0
        self.asked_of_looks: list[tuple[str, float]] = []
        self.feed = EventFeed(Calls(self.transport), self.index, self.forgotten.append, self._looked_since)
        self.told: list[tuple[float, RuntimeEvent]] = []
        self.ends: list[tuple[float, str]] = []
        self.tasks = [asyncio.ensure_future(self.feed.run())]

    def _looked_since(self, uid: PodUID, moment: float) -> bool:
        self.asked_of_looks.append((uid, moment))
        return self.looked_at >= moment

    def _status(self, thing: str) -> Message | Exception:
        state = self.states.get(thing)
        if isinstance(state, Exception):
            return state
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(id=thing, state=state))

    def _box(self, thing: str) -> Message | Exception:
        state = self.states[thing]
        if isinstance(state, Exception):
            return state
        return cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id=thing, state=state))

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
        """Collect what is told, until the stream ends."""
        stream = self.feed.listen()

        async def collect() -> None:
            try:
                async for event in stream:
                    self.told.append((round(self.loop.time(), 3), event))
                self.ends.append((round(self.loop.time(), 3), "end"))
            except AgentError as error:
                self.ends.append((round(self.loop.time(), 3), str(error)))

        self.tasks.append(asyncio.ensure_future(collect()))
        for _ in range(5):
            await asyncio.sleep(0)

    def at(self, seconds: float, thing: str, state: Any) -> None:
        """Change a state later."""
        self.loop.call_at(seconds, self.states.__setitem__, thing, state)

    @property
    def types(self) -> list[tuple[float, str, str]]:
        return [(at, event.container_id, event.type.name) for at, event in self.told]

    def count(self, method: str) -> int:
        return sum(each[0].endswith("/" + method) for each in self.transport.requests)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


def play(work: Callable[[Stage], Awaitable[None]], **options: bool) -> None:
    async def scenario() -> None:
        stage = Stage(**options)
        try:
            await work(stage)
        finally:
            await stage.close()

    simulate(scenario())


def test_an_event_is_told_whole_and_its_status_forgotten() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        stage.containerd.put_nowait(stop("c"))
        await asyncio.sleep(5)
        assert stage.told == [(0.0, RuntimeEvent(PodUID("u"), "c", RuntimeEventType.STOPPED, AT))]
        assert stage.forgotten == ["c"]
        assert [request[0].rpartition("/")[2] for request in stage.transport.requests] == ["ContainerStatus"]
        filters = [
            f'namespace==k8s.io,topic=="{topic}"'
            for topic in ("/tasks/start", "/tasks/exit", "/tasks/oom", "/containers/delete")
        ]
        assert stage.transport.opened[1:] == [
            (
                "/containerd.services.events.v1.Events/Subscribe",
                containerd_events.SubscribeRequest(filters=filters),
            )
        ]

    play(work)


LATE: dict[str, tuple[Any, Any, str, list[tuple[float, Any]], float]] = {
    "an exit that the status shows late": (stop("c"), RUNNING, "c", [(0.035, EXITED)], 0.04),
    "an exit of what seems not to have started": (stop("c"), CREATED, "c", [(0.015, RUNNING), (0.035, EXITED)], 0.04),
    "an exit that the status shows after 100 ms": (stop("c"), RUNNING, "c", [(0.11, EXITED)], 0.15),
    "an exit that the status shows after 600 ms": (stop("c"), RUNNING, "c", [(0.61, EXITED)], 0.85),
    "an exit that the status never shows": (stop("c"), RUNNING, "c", [], 2.1),
    "an exit of unknown state": (stop("c"), cri.CONTAINER_UNKNOWN, "c", [], 0.0),
    "an exit that cannot be confirmed": (stop("c"), BROKEN, "c", [], 0.0),
    "a start that the status shows late": (start("c"), CREATED, "c", [(0.035, RUNNING)], 0.04),
    "a start of what has ended since": (start("c"), EXITED, "c", [], 0.0),
    "a start that the status never shows": (start("c"), CREATED, "c", [], 2.1),
    "the end of a sandbox that the status shows late": (
        stop("b"), cri.SANDBOX_READY, "b", [(0.035, cri.SANDBOX_NOTREADY)], 0.04),
    "the start of a sandbox that the status shows late": (
        start("b"), cri.SANDBOX_NOTREADY, "b", [(0.035, cri.SANDBOX_READY)], 0.04),
}  # fmt: skip


@pytest.mark.parametrize("news, state, thing, changes, expected", LATE.values(), ids=LATE.keys())
def test_news_is_told_once_the_status_shows_it(
    news: containerd_events.Envelope, state: Any, thing: str, changes: list[tuple[float, Any]], expected: float
) -> None:
    async def work(stage: Stage) -> None:
        stage.states[thing] = state
        for at, changed in changes:
            stage.at(at, thing, changed)
        await stage.listen()
        stage.containerd.put_nowait(news)
        await asyncio.sleep(5)
        happened = "STARTED" if news.topic == "/tasks/start" else "STOPPED"
        assert stage.types == [(expected, thing, happened)]
        assert stage.forgotten == [thing]

    play(work)


def test_a_status_that_is_gone_confirms_everything() -> None:
    async def work(stage: Stage) -> None:
        del stage.transport.answers["ContainerStatus"], stage.transport.answers["PodSandboxStatus"]
        await stage.listen()
        stage.containerd.put_nowait(stop("c"))
        stage.containerd.put_nowait(stop("b"))
        await asyncio.sleep(5)
        assert stage.types == [(0.0, "c", "STOPPED"), (0.0, "b", "STOPPED")]

    play(work)


def test_an_unconfirmed_exit_is_asked_26_times() -> None:
    async def work(stage: Stage) -> None:
        stage.states["c"] = RUNNING
        await stage.listen()
        stage.containerd.put_nowait(stop("c"))
        await asyncio.sleep(5)
        assert stage.count("ContainerStatus") == 26

    play(work)


STRANGERS: dict[str, tuple[Any, dict[str, str] | None, dict[str, str] | None, list[tuple[float, str, str]]]] = {
    "a container of a pod": (stop("x"), POD_LABEL, None, [(1.0, "x", "STOPPED")]),
    "a start of a container of a pod": (start("x"), POD_LABEL, None, [(1.0, "x", "STARTED")]),
    "a sandbox of a pod": (stop("x"), None, POD_LABEL, [(1.0, "x", "STOPPED")]),
    "a container of no pod": (stop("x"), {"a": "b"}, None, []),
    "nothing that the runtime knows": (stop("x"), None, None, []),
    "something that cannot be looked up": (stop("x"), {"broken": ""}, None, []),
}


@pytest.mark.parametrize("news, labels, box_labels, expected", STRANGERS.values(), ids=STRANGERS.keys())
def test_an_id_that_was_not_seen_is_looked_up_after_a_second(
    news: Any, labels: dict[str, str] | None, box_labels: dict[str, str] | None, expected: list[tuple[float, str, str]]
) -> None:
    async def work(stage: Stage) -> None:
        stage.states["x"] = cri.SANDBOX_NOTREADY if box_labels else EXITED
        if labels is not None:
            stage.strangers["x"] = labels
        if box_labels is not None:
            stage.strange_boxes["x"] = box_labels
        await stage.listen()
        stage.containerd.put_nowait(news)
        await asyncio.sleep(0.9)
        assert stage.transport.requests == []
        await asyncio.sleep(5)
        assert stage.types == expected
        owner = stage.index.get("x")
        kind = Kind.CONTAINER if labels else Kind.SANDBOX
        assert (None if owner is None else (owner.uid, owner.kind)) == (("u", kind) if expected else None)

    play(work)


@pytest.mark.parametrize("news, expected", [(start("x"), []), (stop("x"), [(1.0, "x", "STOPPED")])])
def test_an_id_that_our_own_call_returned_meanwhile_is_not_looked_up(
    news: Any, expected: list[tuple[float, str, str]]
) -> None:
    async def work(stage: Stage) -> None:
        stage.states["x"] = EXITED
        await stage.listen()
        stage.containerd.put_nowait(news)
        stage.loop.call_at(0.5, stage.index.made, "x", "u", Kind.CONTAINER)
        await asyncio.sleep(5)
        assert (stage.types, stage.count("ListContainers")) == (expected, 0)

    play(work)


def test_news_that_needs_no_confirmation() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        for news in (oom("c"), oom("unknown"), stop("c", "command"), delete("unknown"), delete("c"), oom("c")):
            stage.containerd.put_nowait(news)
        stage.containerd.put_nowait(envelope("/images/create", containerd_events.TaskOOM(container_id="b")))
        await asyncio.sleep(5)
        assert stage.types == [(0.0, "c", "STOPPED"), (0.0, "c", "DELETED")]
        assert [event.at for _, event in stage.told] == [AT, AT]
        assert (stage.forgotten, stage.transport.requests) == (["c", "c"], [])
        assert (stage.index.get("c"), stage.index.get("b") is None) == (None, False)

    play(work)


# Our own calls.


@pytest.mark.parametrize("looked_at, expected", [(1.9, [(3.0, "c", "STARTED")]), (2.0, []), (2.9, [])])
def test_a_start_of_ours_is_told_a_second_later_unless_somebody_looked(
    looked_at: float, expected: list[tuple[float, str, str]]
) -> None:
    async def work(stage: Stage) -> None:
        stage.looked_at = looked_at
        await stage.listen()
        with stage.feed.starting("c"):
            stage.containerd.put_nowait(start("c"))
            await asyncio.sleep(2)
        await asyncio.sleep(5)
        assert (stage.types, stage.asked_of_looks, stage.transport.requests) == (expected, [("u", 2.0)], [])

    play(work)


def test_a_start_of_ours_is_told_before_the_end_and_once() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        with stage.feed.starting("c"):
            await asyncio.sleep(2)
        stage.containerd.put_nowait(stop("c"))
        await asyncio.sleep(5)
        assert stage.types == [(2.0, "c", "STARTED"), (2.0, "c", "STOPPED")]

    play(work)


def test_starts_that_nobody_can_be_told_of() -> None:
    async def work(stage: Stage) -> None:
        with stage.feed.starting("c"):  # before somebody listens
            pass
        await stage.listen()
        with stage.feed.starting("unknown"):
            pass
        with pytest.raises(ZeroDivisionError), stage.feed.starting("c"):
            raise ZeroDivisionError
        await asyncio.sleep(5)
        assert (stage.types, stage.asked_of_looks) == ([], [])
        stage.containerd.put_nowait(start("c"))  # the call is over
        await asyncio.sleep(5)
        assert stage.types == [(5.0, "c", "STARTED")]

    play(work)


def test_starts_of_sandboxes_that_we_made_are_not_told() -> None:
    async def work(stage: Stage) -> None:
        stage.index.made("b", "u", Kind.SANDBOX)
        stage.index.made("c", "u", Kind.CONTAINER)
        await stage.listen()
        stage.containerd.put_nowait(start("b"))
        stage.containerd.put_nowait(start("c"))
        await asyncio.sleep(5)
        assert stage.types == [(0.0, "c", "STARTED")]

    play(work)


ENDINGS: dict[str, tuple[Any, float, float, list[tuple[float, str, str]]]] = {
    "a stop that nobody looked at is told a second after the call": (stop("c"), 0.5, -1, [(1.5, "c", "STOPPED")]),
    "a stop that somebody looked at is not told": (stop("c"), 0.5, 0.5, []),
    "a stop is not waited for longer than a second": (stop("c"), 1.5, -1, [(1.5, "c", "STOPPED")]),
    "nor longer than two": (stop("c"), 2.5, -1, [(2.0, "c", "STOPPED")]),
    "a removal that nobody looked at is told 100 ms after the call": (delete("c"), 0.5, -1, [(0.6, "c", "DELETED")]),
    "a removal that somebody looked at is not told": (delete("c"), 0.5, 0.5, []),
    "a removal is not waited for longer than a second": (delete("c"), 1.5, 9, [(1.0, "c", "DELETED")]),
}


@pytest.mark.parametrize("news, lasts, looked_at, expected", ENDINGS.values(), ids=ENDINGS.keys())
def test_ends_of_our_own_calls(
    news: Any, lasts: float, looked_at: float, expected: list[tuple[float, str, str]]
) -> None:
    async def work(stage: Stage) -> None:
        stage.looked_at = looked_at
        await stage.listen()
        stage.containerd.put_nowait(news)
        with stage.feed.ending("c"):
            await asyncio.sleep(lasts)
        await asyncio.sleep(5)
        assert stage.types == expected

    play(work)


def test_an_exit_during_a_start_of_ours_is_confirmed_after_the_call() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        with stage.feed.starting("c"):
            stage.containerd.put_nowait(stop("c"))
            await asyncio.sleep(0.7)
        await asyncio.sleep(0.01)
        assert stage.types == [(0.7, "c", "STARTED"), (0.7, "c", "STOPPED")]

    play(work)


def test_calls_are_over_when_the_last_one_returns() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        stage.containerd.put_nowait(delete("c"))
        with stage.feed.ending("c"):
            with stage.feed.ending("c"):
                await asyncio.sleep(0.3)
            await asyncio.sleep(0.3)
        await asyncio.sleep(5)
        assert (stage.types, stage.asked_of_looks) == ([(0.7, "c", "DELETED")], [("u", 0.6)])

    play(work)


# The end of a stream.

ENDS: dict[str, tuple[Any, str]] = {
    "it ends": (None, "cannot hear of containers any more: the runtime ended its stream of events"),
    "it breaks": (RuntimeUnavailable("reset"), "cannot hear of containers any more: reset"),
    "it fails unexpectedly": (ZeroDivisionError("odd"), "cannot hear of containers any more"),
}


@pytest.mark.parametrize("end, message", ENDS.values(), ids=ENDS.keys())
def test_listeners_learn_that_the_stream_of_containerd(end: Any, message: str) -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        stage.states["c"] = RUNNING
        stage.containerd.put_nowait(end)
        await asyncio.sleep(5)
        ((at, why),) = stage.ends
        assert at == 0.0
        assert why.startswith(message)
        opened = len(stage.transport.opened)
        await asyncio.sleep(50)
        assert len(stage.transport.opened) == opened  # nobody listens
        await stage.listen()
        stage.containerd.put_nowait(oom("c"))
        await asyncio.sleep(1)
        assert stage.types == [(55.0, "c", "STOPPED")]

    play(work)


def test_what_was_not_told_when_the_stream_broke_is_given_up() -> None:
    async def work(stage: Stage) -> None:
        stage.states["c"] = RUNNING
        await stage.listen()
        stage.containerd.put_nowait(stop("c"))
        with stage.feed.starting("c"):
            pass
        await asyncio.sleep(0.5)
        stage.containerd.put_nowait(RuntimeUnavailable("reset"))
        await asyncio.sleep(0.1)
        await stage.listen()
        stage.containerd.put_nowait(oom("c"))
        await asyncio.sleep(5)
        assert stage.types == [(0.6, "c", "STOPPED")]
        assert stage.ends == [(0.5, "cannot hear of containers any more: reset")]

    play(work)


def test_a_runtime_without_streams_says_so() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        await asyncio.sleep(1)
        assert stage.ends == [
            (
                0.0,
                "cannot hear of containers: the runtime serves no stream of events (CRI-O does with enable_pod_events)",
            )
        ]

    play(work, containerd_stream=False)


def test_nobody_is_told_after_the_feed_is_closed() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        stage.feed.close()
        stage.containerd.put_nowait(oom("c"))
        await asyncio.sleep(1)
        assert (stage.ends, stage.types) == ([(0.0, "end")], [])

    play(work)


# CRI's own stream.


def news(kind: Any, thing: str = "c", labels: dict[str, str] | None = None, uid: str = "") -> Message:
    box = cri.PodSandboxStatus(id="b", labels=labels or {}, metadata=cri.PodSandboxMetadata(uid=uid))
    return cri.ContainerEventResponse(
        container_id=thing, container_event_type=kind, created_at=7_000_005_999, pod_sandbox_status=box
    )


def test_news_of_cri_is_told_at_once() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        for each in (
            news(cri.CONTAINER_CREATED_EVENT, "n", {"io.kubernetes.pod.uid": "by label"}, "by name"),
            news(cri.CONTAINER_STARTED_EVENT, "n", None, "by name"),
            news(cri.CONTAINER_STOPPED_EVENT, "c", None, "not asked"),
            news(99, "c"),
            news(cri.CONTAINER_STOPPED_EVENT, "of nobody"),
            news(cri.CONTAINER_DELETED_EVENT, "c", None, "not asked"),
            news(cri.CONTAINER_DELETED_EVENT, "c"),
        ):
            stage.news.put_nowait(each)
        await asyncio.sleep(1)
        assert [(event.uid, event.container_id, event.type.name, event.at) for _, event in stage.told] == [
            ("by label", "n", "CREATED", AT),
            ("by name", "n", "STARTED", AT),
            ("u", "c", "STOPPED", AT),
            ("u", "c", "DELETED", AT),
        ]
        assert stage.forgotten == ["n", "n", "c", "c"]
        assert (stage.index.get("c"), stage.index.get("b") is None) == (None, False)
        with stage.feed.starting("b"):
            pass
        await asyncio.sleep(5)
        assert len(stage.told) == 4  # this stream tells of our own starts by itself
        stage.news.put_nowait(None)
        await asyncio.sleep(1)
        assert [why for _, why in stage.ends] == [
            "cannot hear of containers any more: the runtime ended its stream of events"
        ]
        assert len(stage.transport.opened) == 1

    play(work, cri_stream=True)


def test_a_stream_of_cri_that_ends_without_news_is_taken_for_none() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        stage.news.put_nowait(None)
        stage.containerd.put_nowait(oom("c"))
        await asyncio.sleep(1)
        assert (stage.types, stage.ends) == ([(0.0, "c", "STOPPED")], [])

    play(work, cri_stream=True)


def test_a_broken_stream_of_cri_is_not_replaced() -> None:
    async def work(stage: Stage) -> None:
        await stage.listen()
        stage.news.put_nowait(RuntimeUnavailable("reset"))
        await asyncio.sleep(1)
        assert stage.ends == [(0.0, "cannot hear of containers any more: reset")]
        assert len(stage.transport.opened) == 1

    play(work, cri_stream=True)
