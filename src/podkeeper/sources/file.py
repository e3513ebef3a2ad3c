"""The file source: static pods, config maps and secrets from manifest files.

    inotify, or every 20 s --> survey (in a thread) --> shelf --> SET of all pods, if they have changed

Input: paths of directories and files, which may not exist. Output: a SET at the start, even if it is empty, and after
each change. A file may hold several documents in YAML or JSON, and lists. `rules/static.py` creates the pods.

Guarantees:

* The problems of a file (unreadable, malformed, invalid pod, duplicate name) are reported with line and reason, once
  per change. Its older objects stay in use until it is fixed. Other files are not affected.
* With notes, this also applies across restarts of the agent: see `static_teller.py`. Until all paths could be listed
  once, the source is not ready.
* If a file is removed, its pods are removed after 0.2 s.
* Incomplete files are not read: see `survey.py` and `watch.py`.
* A missing path is reported once and watched. If inotify is not available, the source polls every 20 s and logs that.

The event loop never waits for a file system. Kubelet counterparts: pkg/kubelet/config/file.go and file_linux.go.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from typing import Final

from podkeeper.model.errors import Problem
from podkeeper.model.messages import FILE_SOURCE
from podkeeper.ports.clock import Clock
from podkeeper.ports.source import Tell
from podkeeper.sources.complaints import Report
from podkeeper.sources.contents import Reader
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_notes import ManifestNotes
from podkeeper.sources.static_teller import Found, StaticTeller
from podkeeper.sources.survey import Survey, Surveyor, owner_of
from podkeeper.sources.watch import Watch

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 20.0
"""How often all files are inspected even without events."""

_BREATH_SECONDS: Final = 0.01  # minimum time between surveys, so that many quick changes result in few updates


class FileSource:
    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        node_name: str,
        clock: Clock,
        *,
        objects: LocalObjects | None = None,
        period_seconds: float = PERIOD_SECONDS,
        report: Report | None = None,
        notes: ManifestNotes | None = None,
        open_watch: Callable[[], Watch] = Watch,
    ) -> None:
        """`objects` holds the node's config maps and secrets. None: pods may not refer to any.

        `notes` store the manifests across restarts of the agent. None: nothing is stored.
        `open_watch` opens the watch for file changes.
        """
        self._paths = tuple(dict.fromkeys(os.path.abspath(path) for path in paths))
        self._reader = Reader(node_name, has_store=objects is not None)
        self._clock = clock
        self._open_watch = open_watch
        self._period_seconds = period_seconds
        self._teller = StaticTeller(FILE_SOURCE, objects, report, notes)
        self._news = asyncio.Event()
        self._watch_trouble: str | None = None

    @property
    def name(self) -> str:
        return FILE_SOURCE

    def problems(self) -> tuple[Problem, ...]:
        """Return the current problems of the files."""
        return self._teller.problems()

    async def run(self, tell: Tell) -> None:
        """Send the pods of all files, now and after each change, until cancelled."""
        self._teller.begin(lambda place: owner_of(place, self._paths) is not None)
        surveyor = Surveyor(self._paths, self._reader, self._teller.places(), self._open_watch)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._teller.run(tell))
                while True:
                    pause = await self._look(surveyor, tell)
                    await asyncio.sleep(min(_BREATH_SECONDS, pause))
                    await self._await_news(surveyor.watch, pause)
        finally:
            surveyor.close()

    async def _look(self, surveyor: Surveyor, tell: Tell) -> float:
        """Inspect all files and send changes. Returns the time until the next survey if no event comes before."""
        try:
            wall_ns = int(self._clock.now().timestamp() * 1e9)
            survey = await asyncio.to_thread(surveyor.survey, wall_ns, self._clock.monotonic())
            self._take(survey, tell)
        except Exception:
            log.exception("unexpected error while inspecting the manifests, will retry")
            return self._period_seconds
        return self._period_seconds if survey.again_in is None else min(survey.again_in, self._period_seconds)

    def _take(self, survey: Survey, tell: Tell) -> None:
        if survey.watch_trouble != self._watch_trouble:
            self._watch_trouble = survey.watch_trouble
            if survey.watch_trouble is not None:
                log.warning("%s; polling every %g s instead", survey.watch_trouble, self._period_seconds)
        found = {path: Found(seen.contents, seen.version) for path, seen in survey.files.items()}
        self._teller.take(found, survey.problems, tell, complete=survey.complete)

    async def _await_news(self, watch: Watch | None, seconds: float) -> None:
        """Wait for an event of the watch, but not longer than this."""
        loop = asyncio.get_running_loop()
        self._news.clear()
        try:
            async with asyncio.timeout(seconds) as deadline:
                if watch is not None:
                    loop.add_reader(watch.fileno(), self._drain, watch, deadline)
                await self._news.wait()
        except TimeoutError:
            return
        finally:
            if watch is not None:
                loop.remove_reader(watch.fileno())

    def _drain(self, watch: Watch, deadline: asyncio.Timeout) -> None:
        """Read the events. If files are still being written, wake up when they count as complete."""
        now = self._clock.monotonic()
        if watch.drain(now):
            self._news.set()
        elif waits := watch.unfinished(now):
            soon = asyncio.get_running_loop().time() + min(waits.values())
            deadline.reschedule(min(soon, deadline.when() or soon))
