"""The events of the demo. The same seed gives the same events.

Times are story minutes. A story has sixty of them, which are scaled to the simulated time.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from podkeeper.app.demo import pods
from podkeeper.app.demo.node import NODE_NAME, DemoNode
from podkeeper.model.k8s.core import Pod
from podkeeper.model.probing import CommandEnd, CommandExited
from podkeeper.runtimes.fake import ExecRequest, Operation

STORY_MINUTES = 60
STATIC_NAME = f"static-{NODE_NAME}"
NAMES = ("web", "pair", STATIC_NAME, "job", "crash", "late", "giant", "overtime", "leaver", "stuck")
_MANIFEST = "/manifests/static.yaml"
_READY_AFTER_SECONDS = 8.0
_API_DOWN, _API_UP = 34.0, 39.0  # in story minutes, like the next constants
_FIRST_VISIT, _LAST_VISIT = 1.5, 57.0
_MAX_DELAY = 0.5  # maximum random delay of an event

When = Callable[[float], float]  # converts a story minute to seconds


@dataclass(frozen=True, slots=True)
class StoryEvent:
    at_seconds: float
    action: Callable[[DemoNode], object]
    text: str = ""  # the line to print; empty: none
    about: str = ""  # the name of a pod; empty: about the node


@dataclass(frozen=True, slots=True)
class Story:
    seconds: float
    events: tuple[StoryEvent, ...]  # sorted by time
    visitors: tuple[str, ...]
    web_ill_seconds: float  # age in seconds at which the first web server stops responding

    @property
    def names(self) -> tuple[str, ...]:
        """All pods of the story."""
        return (*NAMES, *self.visitors)

    def answer(self, request: ExecRequest) -> CommandEnd | None:
        """Return the result of a command in a container. None: use the container's own script."""
        match request:
            case ExecRequest(command=pods.READY_CHECK, age_seconds=age) if age < _READY_AFTER_SECONDS:
                return CommandExited(1, b"still warming up")
            case ExecRequest(pod="web", attempt=0, age_seconds=age) if age >= self.web_ill_seconds:
                return CommandExited(1, b"no answer")
            case _:
                return None


def create_story(minutes: int, seed: int) -> Story:
    """Create a story of this length."""
    rng = random.Random(seed)
    minute = 60.0 * minutes / STORY_MINUTES  # a story minute, in seconds

    def when(story_minute: float) -> float:
        return (story_minute + rng.random() * _MAX_DELAY) * minute

    ill = StoryEvent(when(15), lambda node: None, "web stops responding: its probes begin to fail", "web")
    visits = tuple(_visitor_events(rng, minute))
    events = (
        *_arrivals(when, minute),
        *_changes(when),
        *_faults(when),
        ill,
        *(event for _, *coming_and_going in visits for event in coming_and_going),
    )
    return Story(
        seconds=minutes * 60.0,
        events=tuple(sorted(events, key=lambda event: event.at_seconds)),
        visitors=tuple(name for name, *_ in visits),
        web_ill_seconds=ill.at_seconds,
    )


def _arrivals(when: When, minute: float) -> Iterator[StoryEvent]:
    deadline_seconds = round(9 * minute)

    def start_node(node: DemoNode) -> None:
        node.runtime.missing_images.add(pods.LATE_IMAGE)
        node.write(_MANIFEST, pods.static("v1"))
        node.create(pods.web(NODE_NAME))
        node.create(pods.pair(NODE_NAME))

    def creation(story_minute: float, pod: Pod, text: str) -> StoryEvent:
        name = pod.metadata.name or ""
        return StoryEvent(when(story_minute), partial(DemoNode.create, pod=pod), f"{name} is created: {text}", name)

    yield StoryEvent(0.0, start_node, f"node {NODE_NAME} starts with a static pod; web and pair are created")
    yield creation(0.5, pods.job(NODE_NAME, 4 * minute), "it will succeed")
    yield creation(1, pods.crash(NODE_NAME), "it fails 4 s after each start")
    yield creation(2, pods.late(NODE_NAME), "its image cannot be pulled yet")
    yield creation(3, pods.giant(NODE_NAME), "it requests 64 CPUs, the node has 8")
    yield creation(
        4, pods.overtime(NODE_NAME, deadline_seconds), f"its active deadline is {deadline_seconds} s, it runs longer"
    )
    yield creation(5, pods.leaver(NODE_NAME), "its preStop hook drains connections")


def _changes(when: When) -> Iterator[StoryEvent]:
    def push(node: DemoNode) -> None:
        node.runtime.missing_images.discard(pods.LATE_IMAGE)

    yield StoryEvent(when(8), push, "late's image is pushed", "late")
    yield StoryEvent(
        when(30),
        partial(DemoNode.delete, name="leaver"),
        "leaver is deleted: its grace period is 45 s",
        "leaver",
    )
    yield StoryEvent(
        when(36),
        partial(DemoNode.write, path=_MANIFEST, pod=pods.static("v2")),
        "static's manifest is edited: the new pod starts when the old one has terminated",
        STATIC_NAME,
    )


def _faults(when: When) -> Iterator[StoryEvent]:
    def lose_events(node: DemoNode) -> None:
        node.runtime.filter_events(lambda event: ())
        node.runtime.break_events()

    def hang(node: DemoNode) -> None:
        node.runtime.faults.hang(Operation.RUN_SANDBOX, node.create(pods.stuck(NODE_NAME)))

    yield StoryEvent(when(19), lose_events, "fault: the runtime's event stream breaks; the next one sends no events")
    yield StoryEvent(when(23), lambda node: node.runtime.filter_events(None), "the event stream works again")
    yield StoryEvent(when(24), hang, "stuck is created, fault: the runtime hangs while it creates the sandbox", "stuck")
    yield StoryEvent(when(_API_DOWN), lambda node: node.api.go_down(), "fault: the API cannot be reached")
    yield StoryEvent(when(_API_UP), lambda node: node.api.come_up(), "the API can be reached again")
    yield StoryEvent(when(45), DemoNode.crash_agent, "fault: the agent crashes; the containers keep running")
    yield StoryEvent(when(46), DemoNode.start_agent, "a new agent starts and adopts the running containers")


def _visitor_events(rng: random.Random, minute: float) -> Iterator[tuple[str, StoryEvent, StoryEvent]]:
    """Yield random pods with their creation and deletion. Neither happens while the API is down."""
    number, now = 0, _FIRST_VISIT
    while (now := _with_api(now + rng.expovariate(1.0))) < _LAST_VISIT:
        number += 1
        name = f"visitor-{number:02}"
        stay, leave = rng.uniform(0.2, 3.0), _with_api(now + rng.uniform(0.5, 5.0))
        pod = pods.visitor(name, NODE_NAME, stay * minute, exit_code=rng.choice((0, 0, 0, 1)))
        yield (
            name,
            StoryEvent(now * minute, partial(DemoNode.create, pod=pod), about=name),
            StoryEvent(leave * minute, partial(DemoNode.delete, name=name), about=name),
        )


def _with_api(story_minute: float) -> float:
    """Return the time. If it is within the outage of the API, move it to the end of the outage."""
    is_down = _API_DOWN <= story_minute <= _API_UP + _MAX_DELAY
    return story_minute + _API_UP - _API_DOWN + _MAX_DELAY if is_down else story_minute
