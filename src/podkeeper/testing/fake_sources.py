"""Fakes of the file and http sources: places that hold manifests, told as the static pods of a node.

    files = fake_file_source("n1")
    files.write("/etc/podkeeper/web.yaml", pod)     # told as a SET as soon as the source runs
    files.fail(); files.recover()                   # unreadable for a while: what was told stays true
    files.reader(notes).run(tell)                   # as an agent reads them that keeps notes for its next life

What is written becomes a static pod by the same rules as a real manifest: its name ends with the node's, its UID is a
hash of what it means and where it lies, and what those rules refuse is refused here, to the writer. What is told when
is decided by `sources.static_teller`, as for real manifests.
"""

import asyncio
from collections.abc import Callable

from podkeeper.model.k8s.core import Pod
from podkeeper.model.manifest import Document, Text
from podkeeper.model.messages import FILE_SOURCE, HTTP_SOURCE
from podkeeper.ports.source import Source, Tell
from podkeeper.rules.static import FromFile, FromURL, Origin, References, static_pod
from podkeeper.sources.contents import Contents, pod_item
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.static_teller import Found, StaticTeller


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
        await self.reader(None).run(tell)

    def reader(self, notes: ManifestNotes | None) -> Source:
        """The source as one life of an agent has it; `notes` outlive that life."""
        return _Reader(self, notes)

    async def follow(self, teller: StaticTeller, tell: Tell) -> None:
        """Let a teller take all places, at first and after each change, whenever they can be read."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._readable:
                teller.take({place: self._found(place, pods) for place, pods in self._places.items()}, {}, tell)

    def _found(self, place: str, pods: tuple[Pod, ...]) -> Found:
        document = Document({}, Text("", place, 1))
        return Found(Contents(tuple(pod_item(pod, self._node_name, document) for pod in pods)), pods)

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


class _Reader:
    """A source of static pods as one life of an agent has it."""

    def __init__(self, places: FakeStaticSource, notes: ManifestNotes | None) -> None:
        self._places = places
        self._teller = StaticTeller(places.name, None, None, notes)

    @property
    def name(self) -> str:
        return self._places.name

    async def run(self, tell: Tell) -> None:
        self._teller.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._teller.run(tell))
            await self._places.follow(self._teller, tell)


def fake_file_source(node_name: str) -> FakeStaticSource:
    """A directory of manifests; places are paths."""
    return FakeStaticSource(FILE_SOURCE, node_name, FromFile)


def fake_http_source(node_name: str) -> FakeStaticSource:
    """A web server with manifests; places are URLs."""
    return FakeStaticSource(HTTP_SOURCE, node_name, FromURL)
