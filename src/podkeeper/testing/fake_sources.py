"""Fakes of the file and http sources: places that hold manifests, told as the static pods of a node.

    files = fake_file_source("n1")
    files.write("/etc/podkeeper/web.yaml", pod)     # told as a SET as soon as the source runs
    files.fail(); files.recover()                   # unreadable for a while: what was told stays true

What is written becomes a static pod by the same rules as a real manifest: its name ends with the node's, its UID is a
hash of what it means and where it lies, and what those rules refuse is refused here, to the writer.
"""

import asyncio
from collections.abc import Callable

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import FILE_SOURCE, HTTP_SOURCE, Op, PodUpdate
from podkeeper.ports.source import Tell
from podkeeper.rules.static import FromFile, FromURL, Origin, References, static_pod


class FakeStaticSource:
    """A source of static pods, by place."""

    def __init__(self, name: str, node_name: str, origin: Callable[[str], Origin]) -> None:
        self._name = name
        self._node_name = node_name
        self._origin = origin
        self._places: dict[str, tuple[Pod, ...]] = {}
        self._readable = True
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        """`file` or `http`."""
        return self._name

    async def run(self, tell: Tell) -> None:
        """Tell all pods, at first and after each change, whenever they can be read."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._readable:
                tell(PodUpdate(Op.SET, self.pods(), self._name))

    def write(self, place: str, *pods: Pod, allowed: References = References.NONE) -> tuple[Pod, ...]:
        """Put manifests at a path or URL, instead of what was there. Returns the pods they become; raises BadInput."""
        made = tuple(static_pod(pod, self._origin(place), self._node_name, allowed) for pod in pods)
        self._places[place] = made
        self._changed.set()
        return made

    def erase(self, place: str) -> None:
        """Take away what is at a place."""
        self._places.pop(place, None)
        self._changed.set()

    def fail(self) -> None:
        """Nothing can be read from now on."""
        self._readable = False

    def recover(self) -> None:
        """It can be read again."""
        self._readable = True
        self._changed.set()

    def pods(self) -> tuple[Pod, ...]:
        """All pods of all places."""
        return tuple(pod for pods in self._places.values() for pod in pods)


def fake_file_source(node_name: str) -> FakeStaticSource:
    """A directory of manifests; places are paths."""
    return FakeStaticSource(FILE_SOURCE, node_name, FromFile)


def fake_http_source(node_name: str) -> FakeStaticSource:
    """A web server with manifests; places are URLs."""
    return FakeStaticSource(HTTP_SOURCE, node_name, FromURL)
