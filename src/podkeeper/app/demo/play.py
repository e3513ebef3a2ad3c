"""Run a story on a simulated node and pass on each recorded table."""

import asyncio
from collections.abc import Callable
from functools import partial

from podkeeper.app.demo.node import DemoNode
from podkeeper.app.demo.recorder import Picture, Recorder
from podkeeper.app.demo.story import STORY_MINUTES, Act, Story
from podkeeper.testing.virtual_time import simulate

Show = Callable[[Picture], None]

_GLANCES = 6  # samples of the pods per simulated minute, for the overview


def play(story: Story, *, seed: int, pod_name: str, show: Show) -> Recorder:
    """Run a story in virtual time with one table per simulated minute. Returns the recorder."""
    return simulate(_play(story, seed, pod_name, show))[0]


async def _play(story: Story, seed: int, pod_name: str, show: Show) -> Recorder:
    node = DemoNode(seed)
    node.runtime.exec_script = story.answer
    recorder = Recorder(node, pod_name)

    def perform(act: Act) -> None:
        recorder.hear(act)
        act.do(node)

    def take_picture() -> None:
        show(recorder.look())

    glance_seconds = story.seconds / STORY_MINUTES / _GLANCES
    todo: list[tuple[float, Callable[[], None]]] = [
        *((act.at_seconds, partial(perform, act)) for act in story.acts if act.at_seconds < story.seconds),
        *((number * glance_seconds, recorder.glance) for number in range(1, STORY_MINUTES * _GLANCES)),
        *(
            (number * glance_seconds, take_picture)
            for number in range(_GLANCES, STORY_MINUTES * _GLANCES + 1, _GLANCES)
        ),
    ]
    async with asyncio.TaskGroup() as group:
        node.live(group)
        for at_seconds, do in sorted(todo, key=lambda each: each[0]):
            await asyncio.sleep(at_seconds - asyncio.get_running_loop().time())
            do()
        node.crash_agent()
    return recorder
