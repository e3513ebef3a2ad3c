"""Backoff that survives a restart of the agent.

It consists of a `BackoffTable` and one checkpoint per pod.

    begin_restart, pull_failed, collect --> BackoffTable --changed pods--> Checkpoints
    start of the agent: Checkpoints --decode_checkpoint--> BackoffTable

Inputs: requests of the starter and the image manager. Output: `BackoffWait` with its end in wall time, or None if the
start or pull is allowed.

A checkpoint is written when a start is allowed, when an exit is first seen and when a pull fails. So the backoff itself
limits the write rate. The starter waits with `settle` until the checkpoint is durable before it starts a container
again. A checkpoint is dropped with its pod, or after its entries have expired. If it cannot be decoded, it is dropped
and the pod has no backoff. The kubelet has no counterpart: it keeps backoff in memory only.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.rules.backoff.checkpoint import decode_checkpoint, encode_checkpoint
from podkeeper.rules.backoff.table import BackoffTable, BackoffWait, Curve, steady

log = logging.getLogger(__name__)


class DurableBackoff:
    """One kind of backoff (restarts or pulls)."""

    def __init__(self, *, table: BackoffTable, clock: Clock, checkpoints: Checkpoints) -> None:
        self._table = table
        self._clock = clock
        self._checkpoints = checkpoints
        self._restore()

    def begin_restart(
        self, pod: Pod, container: Container | EphemeralContainer, record: PodRecord, curve: Curve
    ) -> BackoffWait | None:
        """Return how long a container must wait.

        None: it may start after `settle`, and its next restart waits longer.
        """
        now = steady(self._clock.monotonic())
        # The table uses only monotonic time. After the wall clock was set back, a container would otherwise wait for
        # hours.
        wall_ahead = self._clock.now() - now
        held = self._table.begin_restart(pod, container, record, now, curve, wall_ahead)
        self._write_changes()
        return None if held is None else replace(held, until=held.until + wall_ahead)

    def hold_pull(self, pod: Pod, image: str, curve: Curve) -> BackoffWait | None:
        """Return how long a pull must wait. None: it may start."""
        now = steady(self._clock.monotonic())
        held = self._table.hold_pull(pod, image, now, curve)
        return None if held is None else replace(held, until=self._clock.now() + (held.until - now))

    def pull_failed(self, pod: Pod, image: str, cause: str, curve: Curve) -> None:
        """Record a failed pull. The next one waits longer."""
        self._table.pull_failed(pod, image, cause, steady(self._clock.monotonic()), curve)
        self._write_changes()

    async def settle(self, uid: PodUID) -> None:
        """Return when the checkpoint of a pod is durable, or the disk took too long."""
        await self._checkpoints.settle(uid)

    def collect(self, is_removed: Callable[[PodUID], bool]) -> None:
        """Drop expired entries and the entries of removed pods."""
        self._table.collect(steady(self._clock.monotonic()), is_removed)
        self._write_changes()

    def _write_changes(self) -> None:
        """Write or drop the checkpoints of all pods whose entries have changed."""
        for uid in self._table.take_changed():
            entries = self._table.records(uid)
            if entries:
                self._checkpoints.write(
                    uid, encode_checkpoint(entries, steady(self._clock.monotonic()), self._clock.now())
                )
            else:
                self._checkpoints.drop(uid)

    def _restore(self) -> None:
        now, wall = steady(self._clock.monotonic()), self._clock.now()
        for uid in tuple(self._checkpoints.old_keys()):
            entries = decode_checkpoint(self._checkpoints.take(uid) or b"", now, wall)
            if entries:
                self._table.restore(PodUID(uid), entries)
            else:
                log.warning("cannot decode the backoff of pod %s, dropping it", uid)
                self._checkpoints.drop(uid)
