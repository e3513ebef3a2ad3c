"""Fakes of the file and http sources: manifests by path or URL, sent as static pods of a node.

    files = fake_file_source("n1")
    files.write("/etc/podkeeper/web.yaml", pod)     # sent in a SET while the source runs
    files.fail(); files.recover()                   # unreadable for a while; pods that were sent stay valid
    files.source(stored).run(send)                  # for an agent that stores manifests across restarts

Manifests become static pods by the same rules as real ones: the node name is appended to the pod's name, and the UID is
a hash of the content and the location. `write` raises BadInput for a manifest that these rules reject. As for real
manifests, `sources.static_publisher` decides which updates are sent and when.
"""

import asyncio
from collections.abc import Callable

from podkeeper.model.k8s.core import Pod
from podkeeper.model.manifest import Document, Text
from podkeeper.model.messages import FILE_SOURCE, HTTP_SOURCE
from podkeeper.ports.source import SendUpdate, Source
from podkeeper.rules.static.pod import FromFile, FromURL, Origin, References, static_pod
from podkeeper.sources.manifest_content import ManifestContent, pod_item
from podkeeper.sources.static_publisher import LocationContent, StaticPublisher
from podkeeper.sources.stored_manifests import StoredManifests


class FakeStaticSource:
    """A source of static pods. A location is a path or a URL."""

    def __init__(self, name: str, node_name: str, origin: Callable[[str], Origin]) -> None:
        self._name = name
        self._node_name = node_name
        self._origin = origin
        self._locations: dict[str, tuple[Pod, ...]] = {}
        self._readable = True
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        return self._name

    async def run(self, send: SendUpdate) -> None:
        """Send all pods at the start and after each change, while the locations are readable."""
        await self.source(None).run(send)

    def source(self, stored: StoredManifests | None) -> Source:
        """Return the source for one run of an agent. `stored` holds the manifests across restarts of the agent."""
        return _AgentSource(self, stored)

    async def publish_to(self, publisher: StaticPublisher, send: SendUpdate) -> None:
        """Pass the content of all locations to a publisher at the start and after each change, while readable."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._readable:
                publisher.publish(
                    {location: self._content(location, pods) for location, pods in self._locations.items()}, {}, send
                )

    def _content(self, location: str, pods: tuple[Pod, ...]) -> LocationContent:
        document = Document({}, Text("", location, 1))
        return LocationContent(ManifestContent(tuple(pod_item(pod, self._node_name, document) for pod in pods)), pods)

    def write(self, location: str, *pods: Pod, allowed: References = References.NONE) -> tuple[Pod, ...]:
        """Replace the manifests at a location. Return the static pods. Raise BadInput for an invalid manifest."""
        made = tuple(static_pod(pod, self._origin(location), self._node_name, allowed) for pod in pods)
        self._locations[location] = made
        self._changed.set()
        return made

    def erase(self, location: str) -> None:
        """Remove the manifests at a location."""
        self._locations.pop(location, None)
        self._changed.set()

    def fail(self) -> None:
        """Make all locations unreadable until `recover`."""
        self._readable = False

    def recover(self) -> None:
        self._readable = True
        self._changed.set()

    def pods(self) -> tuple[Pod, ...]:
        """Return the static pods of all locations."""
        return tuple(pod for pods in self._locations.values() for pod in pods)


class _AgentSource:
    """The source for one run of an agent."""

    def __init__(self, locations: FakeStaticSource, stored: StoredManifests | None) -> None:
        self._locations = locations
        self._publisher = StaticPublisher(locations.name, None, None, stored)

    @property
    def name(self) -> str:
        return self._locations.name

    async def run(self, send: SendUpdate) -> None:
        self._publisher.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run(send))
            await self._locations.publish_to(self._publisher, send)


def fake_file_source(node_name: str) -> FakeStaticSource:
    """Return a fake file source. Its locations are paths."""
    return FakeStaticSource(FILE_SOURCE, node_name, FromFile)


def fake_http_source(node_name: str) -> FakeStaticSource:
    """Return a fake http source. Its locations are URLs."""
    return FakeStaticSource(HTTP_SOURCE, node_name, FromURL)
