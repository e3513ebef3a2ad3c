"""Send the objects of manifests to the agent, for the file and HTTP sources.

    content by location --active_objects--> objects in use --objects, then pods--> the node's store, the storage
                                             `-----problems-------------------> manifest_errors

The node's store receives its objects before the pods are sent, so that pods find them. A SET is sent at the start and
when the pods have changed. If the receiver fails, it is sent again.

With `stored_manifests`, static pods survive a restart of the agent while their manifests are unreadable:

* The objects from before the restart stay in use while their location is unreadable or invalid. Once the location is
  readable, its content replaces them: if a manifest was removed in the meantime, its pods are removed.
* Until the whole source was read once, pods are sent as ADD and REMOVE. A SET would declare the source as ready, and
  housekeeping would then kill the pods of the unread part.
* If the source has read nothing within `timeout_seconds` (no answer, a hung file system), the stored pods are sent.
  They are not sent earlier, because the manifest of a stored pod may have been removed, and the pod would start
  briefly.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podkeeper.model.errors import AgentError, Problem
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import SendUpdate
from podkeeper.sources.active_objects import ActiveObjects, ActiveSet
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_content import ManifestContent
from podkeeper.sources.manifest_errors import LocationProblems, ProblemReporter, ReportProblems
from podkeeper.sources.stored_manifests import StoredManifests

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocationContent:
    """The contents of a location, and a version that changes whenever the text changes."""

    content: ManifestContent
    version: object


class StaticPublisher:
    def __init__(
        self,
        source: str,
        objects: LocalObjects | None,
        report: ReportProblems | None,
        stored_manifests: StoredManifests | None = None,
    ) -> None:
        """`stored_manifests` store the manifests across restarts of the agent. None: nothing is stored."""
        self._source = source
        self._objects = objects
        self._stored_manifests = stored_manifests
        self._active = ActiveObjects()
        self._reporter = ProblemReporter(report)
        self._found: Mapping[str, LocationContent] | None = None
        self._path_problems: Mapping[str, Problem] = {}
        self._sent: tuple[Pod, ...] | None = None
        self._possibly_sent: dict[str | None, Pod] = {}  # by UID: pods sent since `begin`, including refused ones
        self._is_ready = False  # a SET was sent

    def begin(self, is_own_location: Callable[[str], bool] = lambda _: True) -> None:
        """Start for a new receiver. `is_own_location` returns whether a location still belongs to the source."""
        self._sent, self._is_ready, self._possibly_sent = None, False, {}
        loaded = {} if self._stored_manifests is None else self._stored_manifests.load()
        if loaded:
            self._active.restore({location: items for location, items in loaded.items() if is_own_location(location)})

    def locations(self) -> tuple[str, ...]:
        """Return the locations with objects in use, in order."""
        return tuple(location for location, items in self._active.by_location.items() if items)

    async def run(self, send: SendUpdate) -> None:
        """Make the stored manifests durable. Send the stored pods if the source reads nothing in time."""
        if self._stored_manifests is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stored_manifests.run())
            await asyncio.sleep(self._stored_manifests.timeout_seconds)
            while (
                self._sent is None and self.locations()
            ):  # retry a refused update, because the source may never answer
                log.warning("cannot read source %s: using its stored pods", self._source)
                self._send_changes(self._active.current(), send, complete=False)
                await asyncio.sleep(self._stored_manifests.timeout_seconds)

    def problems(self) -> tuple[Problem, ...]:
        return self._reporter.current()

    def publish(
        self,
        found: Mapping[str, LocationContent],
        path_problems: Mapping[str, Problem],
        send: SendUpdate,
        *,
        complete: bool = True,
    ) -> None:
        """Process the content of all locations and the problems of unreadable ones, and send changes.

        `complete` is false while the source may have locations that it could not list yet.
        """
        is_sent = self._sent is not None and self._is_ready >= complete
        if is_sent and found == self._found and path_problems == self._path_problems:
            return
        active = self._active.update({location: each.content for location, each in found.items()})
        if self._stored_manifests is not None:
            self._stored_manifests.save(self._active.by_location)
        by_location = {location: LocationProblems((problem,)) for location, problem in path_problems.items()}
        for location, problems in active.problems.items():
            both = by_location[location].problems + problems if location in by_location else problems
            by_location[location] = LocationProblems(both, found[location].version, active.retained.get(location, 0))
        self._reporter.update(by_location)
        self._send_changes(active, send, complete=complete)
        # Set these fields last. If a step above raises, the next call must process the same content again.
        self._found, self._path_problems = found, path_problems

    def report_unreadable(self, location: str, problem: Problem, version: object = None) -> None:
        """Report that a location is unreadable. The pods stay as they are."""
        self._found = None
        self._reporter.update({location: LocationProblems((problem,), version)})

    def _send_changes(self, active: ActiveSet, send: SendUpdate, *, complete: bool) -> None:
        """Send the objects, then the pods if they have changed."""
        if self._objects is not None:
            self._objects.replace(self._source, active.objects)
        if active.pods != self._sent or complete > self._is_ready:
            self._send(active.pods, send, is_ready=complete or self._is_ready)

    def _send(self, pods: tuple[Pod, ...], send: SendUpdate, *, is_ready: bool) -> None:
        updates = (PodUpdate(Op.SET, pods, self._source),) if is_ready else self._partial(pods)
        now = {pod.metadata.uid: pod for pod in pods}
        # If a REMOVE is refused, the next update must contain it again, because the next SET may be far away.
        self._possibly_sent |= now
        try:
            for update in updates:
                send(update)
            self._sent, self._is_ready, self._possibly_sent = pods, is_ready, now
            return
        except AgentError as error:
            log.error("the agent rejected %d pods from source %s: %s", len(pods), self._source, error)
        except Exception:
            log.exception("unexpected error while sending %d pods from source %s", len(pods), self._source)
        self._sent = None  # it is unknown whether the receiver processed the update, so send all pods again

    def _partial(self, pods: tuple[Pod, ...]) -> tuple[PodUpdate, ...]:
        """Return the changes since the last update as REMOVE and ADD, which do not make the source ready."""
        uids = {pod.metadata.uid for pod in pods}
        removed = tuple(pod for uid, pod in self._possibly_sent.items() if uid not in uids)
        removals = (PodUpdate(Op.REMOVE, removed, self._source),) if removed else ()
        return (*removals, PodUpdate(Op.ADD, pods, self._source)) if pods else removals
