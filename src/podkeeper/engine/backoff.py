"""Backoff that survives a restart of the agent: a `BackoffTable`, and one note per pod in the journal.

    begin_restart, pull_failed, collect --> BackoffTable --changed pods--> Notebook
    start of the agent: Notebook --decode_note--> BackoffTable

In: questions of the starter and the image manager. Out: `Held`, with its end in wall time, or None for "go".

A note is written when a start is allowed, when an exit is first seen and when a pull fails. So the backoff itself
limits the write rate. `settle` returns when a pod's note is durable; the starter waits for that before it starts a
container again. A note is dropped with its pod, or when its entries have expired. A note that cannot be decoded is
dropped, and the pod has no backoff. The kubelet has no counterpart: it keeps backoff in memory only.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from podkeeper.engine.notebook import Notebook
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.backoff import BackoffTable, Curve, Held, steady
from podkeeper.rules.backoff_notes import decode_note, encode_note

log = logging.getLogger(__name__)


class DurableBackoff:
    """One kind of backoff (restarts or pulls)."""

    def __init__(self, *, table: BackoffTable, clock: Clock, notebook: Notebook) -> None:
        self._table = table
        self._clock = clock
        self._notebook = notebook
        self._restore()

    def begin_restart(
        self, pod: Pod, container: Container | EphemeralContainer, record: PodRecord, curve: Curve
    ) -> Held | None:
        """Ask to start a container. None: it may start, after `settle`, and its next restart waits longer."""
        now = steady(self._clock.monotonic())
        wall_ahead = self._clock.now() - now
        held = self._table.begin_restart(pod, container, record, now, curve, wall_ahead)
        self._note()
        return None if held is None else replace(held, until=held.until + wall_ahead)

    def hold_pull(self, pod: Pod, image: str, curve: Curve) -> Held | None:
        """Ask to pull an image. None: the pull may begin."""
        now = steady(self._clock.monotonic())
        held = self._table.hold_pull(pod, image, now, curve)
        return None if held is None else replace(held, until=self._clock.now() + (held.until - now))

    def pull_failed(self, pod: Pod, image: str, cause: str, curve: Curve) -> None:
        """Record a failed pull. The next one waits longer."""
        self._table.pull_failed(pod, image, cause, steady(self._clock.monotonic()), curve)
        self._note()

    async def settle(self, uid: PodUID) -> None:
        """Return once a pod's note is durable, or the disk took too long."""
        await self._notebook.settle(uid)

    def collect(self, is_gone: Callable[[PodUID], bool]) -> None:
        """Drop expired entries and the entries of pods that are gone."""
        self._table.collect(steady(self._clock.monotonic()), is_gone)
        self._note()

    def _note(self) -> None:
        """Write or drop the notes of all pods whose entries have changed."""
        for uid in self._table.take_changed():
            entries = self._table.remembered(uid)
            if entries:
                self._notebook.write(uid, encode_note(entries, steady(self._clock.monotonic()), self._clock.now()))
            else:
                self._notebook.drop(uid)

    def _restore(self) -> None:
        now, wall = steady(self._clock.monotonic()), self._clock.now()
        for uid in tuple(self._notebook.old_keys()):
            entries = decode_note(self._notebook.take(uid) or b"", now, wall)
            if entries:
                self._table.restore(PodUID(uid), entries)
            else:
                log.warning("backoff of pod %s is dropped: cannot decode its note", uid)
                self._notebook.drop(uid)
