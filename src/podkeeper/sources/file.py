"""Manifests in files as a source: the static pods of this node, and the config maps and secrets beside them.

    inotify, or every 20 s --> survey (in a thread) --> shelf --> SET of all pods, if they differ from those last told

In: paths of directories and files, there or not. Out: a SET at first, even an empty one, and after each change. A file
may hold many documents, YAML or JSON, and lists. What a pod becomes is decided in `rules/static.py`.

What may be relied on:

* A file that cannot be used (unreadable, broken, an invalid pod, a name that is taken) is named with line and reason,
  once per change, and takes nothing away: what it held before stays until it is mended. Other files do not notice.
* With notes this also holds for what an earlier life of the agent read: see `static_teller.py`. While a named path
  cannot be listed since the start (it is there and cannot be read), the source does not count as ready.
* A file that is removed takes its pods with it, after a moment in which it may come back.
* No half of a file is read: see `survey.py` and `watch.py`.
* A path that is not there is told once, and looked for all the time. Where the kernel cannot watch, looking every 20 s
  must do, and that is said.

The loop never waits for a file system. The Go ancestors are pkg/kubelet/config/file.go and file_linux.go.
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
"""How often all files are looked at, whatever the kernel says."""

_BREATH_SECONDS: Final = 0.01  # between two surveys: many files that come one by one are told in a few words


class FileSource:
    """Static pods from files."""

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
        """`objects` holds the node's config maps and secrets; None: it has none, and pods may not refer to any.

        `notes` keep what the files held for the next life of the agent; None: nothing is kept.
        `open_watch` opens what reports changes of files.
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
        """`file`."""
        return FILE_SOURCE

    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the files now, each with its place."""
        return self._teller.problems()

    async def run(self, tell: Tell) -> None:
        """Tell the pods of all files, now and whenever they change, until cancelled."""
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
        """Look at all files and tell what is news. Returns when to look again, if nothing happens before."""
        try:
            wall_ns = int(self._clock.now().timestamp() * 1e9)
            survey = await asyncio.to_thread(surveyor.survey, wall_ns, self._clock.monotonic())
            self._take(survey, tell)
        except Exception:
            log.exception("cannot look at the manifests for an unforeseen reason, will try again")
            return self._period_seconds
        return self._period_seconds if survey.again_in is None else min(survey.again_in, self._period_seconds)

    def _take(self, survey: Survey, tell: Tell) -> None:
        if survey.watch_trouble != self._watch_trouble:
            self._watch_trouble = survey.watch_trouble
            if survey.watch_trouble is not None:
                log.warning("%s; looking every %g s instead", survey.watch_trouble, self._period_seconds)
        found = {path: Found(seen.contents, seen.version) for path, seen in survey.files.items()}
        self._teller.take(found, survey.problems, tell, complete=survey.complete)

    async def _await_news(self, watch: Watch | None, seconds: float) -> None:
        """Wait until the kernel tells of a change, or for so long."""
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
        """Take the kernel's news; a file begun and not finished is looked at when its writer falls silent."""
        now = self._clock.monotonic()
        if watch.drain(now):
            self._news.set()
        elif waits := watch.unfinished(now):
            soon = asyncio.get_running_loop().time() + min(waits.values())
            deadline.reschedule(min(soon, deadline.when() or soon))
