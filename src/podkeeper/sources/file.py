"""The file source: static pods, config maps and secrets from manifest files.

    inotify, or every 20 s --> scan (in a thread) --> active objects --> SET of all pods, if they have changed

Input: paths of directories and files, which may not exist. Output: a SET at the start, even if it is empty, and after
each change. A file may hold several documents in YAML or JSON, and lists. `rules/static/pod.py` creates the pods.

Guarantees:

* The problems of a file (unreadable, malformed, invalid pod, duplicate name) are reported with line and reason, once
  per change. Its older objects stay in use until it is fixed. Other files are not affected.
* With `stored_manifests`, this also applies across restarts of the agent: see `static_publisher.py`. Until all
  paths could be listed once, the source is not ready.
* If a file is removed, its pods are removed after 0.2 s.
* Incomplete files are not read: see `manifest_scan.py` and `watch.py`.
* A missing path is reported once and watched. If inotify is not available, the source logs a warning and polls every 20
  s.

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
from podkeeper.ports.source import SendUpdate
from podkeeper.sources.local_objects import LocalObjects
from podkeeper.sources.manifest_content import ManifestReader
from podkeeper.sources.manifest_errors import ReportProblems
from podkeeper.sources.manifest_scan import ManifestScan, ManifestScanner, owner_of
from podkeeper.sources.static_publisher import LocationContent, StaticPublisher
from podkeeper.sources.stored_manifests import StoredManifests
from podkeeper.sources.watch import ManifestWatch

log = logging.getLogger(__name__)

# The default of the kubelet's fileCheckFrequency.
PERIOD_SECONDS: Final = 20.0
"""How often all files are inspected even without events."""

_MIN_SCAN_SECONDS: Final = 0.01  # minimum time between scans, so that many quick changes result in few updates


class FileSource:
    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        node_name: str,
        clock: Clock,
        *,
        objects: LocalObjects | None = None,
        period_seconds: float = PERIOD_SECONDS,
        report: ReportProblems | None = None,
        stored_manifests: StoredManifests | None = None,
        open_watch: Callable[[], ManifestWatch] = ManifestWatch,
    ) -> None:
        """`objects` holds the node's config maps and secrets. None: pods may not refer to any.

        `stored_manifests` store the manifests across restarts of the agent. None: nothing is stored.
        `open_watch` opens the watch for file changes.
        """
        self._paths = tuple(dict.fromkeys(os.path.abspath(path) for path in paths))
        self._reader = ManifestReader(node_name, has_store=objects is not None)
        self._clock = clock
        self._open_watch = open_watch
        self._period_seconds = period_seconds
        self._publisher = StaticPublisher(FILE_SOURCE, objects, report, stored_manifests)
        self._changed = asyncio.Event()
        self._watch_error: str | None = None

    @property
    def name(self) -> str:
        return FILE_SOURCE

    def problems(self) -> tuple[Problem, ...]:
        """Return the current problems of the files."""
        return self._publisher.problems()

    async def run(self, send: SendUpdate) -> None:
        """Send the pods of all files, now and after each change, until cancelled."""
        self._publisher.begin(lambda location: owner_of(location, self._paths) is not None)
        scanner = ManifestScanner(self._paths, self._reader, self._publisher.locations(), self._open_watch)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publisher.run(send))
                while True:
                    pause = await self._scan(scanner, send)
                    await asyncio.sleep(min(_MIN_SCAN_SECONDS, pause))
                    await self._wait_for_change(scanner.watch, pause)
        finally:
            scanner.close()

    async def _scan(self, scanner: ManifestScanner, send: SendUpdate) -> float:
        """Inspect all files and send changes. Returns the time until the next scan if no event comes before."""
        try:
            # Both clocks: file times are wall times, pauses are not.
            wall_ns = int(self._clock.now().timestamp() * 1e9)
            scan = await asyncio.to_thread(scanner.scan, wall_ns, self._clock.monotonic())
            self._take(scan, send)
        except Exception:
            log.exception("unexpected error while inspecting the manifests, will retry")
            return self._period_seconds
        return self._period_seconds if scan.rescan_seconds is None else min(scan.rescan_seconds, self._period_seconds)

    def _take(self, scan: ManifestScan, send: SendUpdate) -> None:
        if scan.watch_error != self._watch_error:
            self._watch_error = scan.watch_error
            if scan.watch_error is not None:
                log.warning("%s; polling every %g s instead", scan.watch_error, self._period_seconds)
        found = {path: LocationContent(file.content, file.version) for path, file in scan.files.items()}
        self._publisher.publish(found, scan.problems, send, complete=scan.complete)

    async def _wait_for_change(self, watch: ManifestWatch | None, seconds: float) -> None:
        """Wait for an event of the watch, but not longer than this."""
        loop = asyncio.get_running_loop()
        # Events since the scan are not lost: they stay in the kernel's queue until `_drain` reads them.
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds) as deadline:
                if watch is not None:
                    # Only while no scan runs: the scan uses the watch in its thread.
                    loop.add_reader(watch.fileno(), self._drain, watch, deadline)
                await self._changed.wait()
        except TimeoutError:
            return
        finally:
            if watch is not None:
                loop.remove_reader(watch.fileno())

    def _drain(self, watch: ManifestWatch, deadline: asyncio.Timeout) -> None:
        """Read the events. If files are still being written, wake up when they count as complete."""
        now = self._clock.monotonic()
        if watch.drain(now):
            self._changed.set()
        elif waits := watch.unfinished(now):
            soon = asyncio.get_running_loop().time() + min(waits.values())
            deadline.reschedule(min(soon, deadline.when() or soon))
