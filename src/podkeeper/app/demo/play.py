"""Run a story on a simulated node and pass on each recorded table."""

import asyncio
from collections.abc import Callable
from functools import partial

from podkeeper.app.demo.node import DemoNode
from podkeeper.app.demo.recorder import Recorder, Snapshot
from podkeeper.app.demo.story import STORY_MINUTES, Story, StoryEvent
from podkeeper.testing.virtual_time import simulate

Show = Callable[[Snapshot], None]

_SAMPLES = 6  # samples of the pods per simulated minute, for the overview


def play(story: Story, *, seed: int, pod_name: str, show: Show) -> Recorder:
    """Run a story in virtual time with one table per simulated minute. Returns the recorder."""
    return simulate(_play(story, seed, pod_name, show))[0]


async def _play(story: Story, seed: int, pod_name: str, show: Show) -> Recorder:
    node = DemoNode(seed)
    node.runtime.exec_script = story.answer
    recorder = Recorder(node, pod_name)

    def execute(event: StoryEvent) -> None:
        recorder.record(event)
        event.action(node)

    def show_snapshot() -> None:
        show(recorder.take_snapshot())

    sample_seconds = story.seconds / STORY_MINUTES / _SAMPLES
    todo: list[tuple[float, Callable[[], None]]] = [
        *((event.at_seconds, partial(execute, event)) for event in story.events if event.at_seconds < story.seconds),
        *((number * sample_seconds, recorder.sample) for number in range(1, STORY_MINUTES * _SAMPLES)),
        *(
            (number * sample_seconds, show_snapshot)
            for number in range(_SAMPLES, STORY_MINUTES * _SAMPLES + 1, _SAMPLES)
        ),
    ]
    async with asyncio.TaskGroup() as group:
        node.start(group)
        for at_seconds, action in sorted(todo, key=lambda each: each[0]):
            await asyncio.sleep(at_seconds - asyncio.get_running_loop().time())
            action()
        node.crash_agent()
    return recorder
