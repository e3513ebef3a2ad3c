"""Status records: one per pod, with a checkpoint of its accepted status.

The checkpoints are in the journal.

    store   status -> record and checkpoint (durable after `Checkpoints.settle`)
    load    the record, or the checkpoint of the last agent process
    forget  removes both

A record holds everything that `engine.status` stores about the status of one pod. The kubelet counterpart is
`podStatuses` in pkg/kubelet/status/status_manager.go, which is lost when the kubelet restarts.
"""

import logging
from dataclasses import dataclass, replace

import msgspec

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.model.errors import UNDECODABLE
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.rules.static.mirror import is_mirror_pod
from podkeeper.rules.status.publish import ApiSnapshot, CachedStatus, continues, snapshot_of, status_digest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StatusRecord:
    """The status of one pod.

    `cached` is None only if the pod was forgotten during a call, or starts over and has no new status yet.
    """

    cached: CachedStatus | None = None
    api: ApiSnapshot | None = None  # the last known API object, and what was sent to it since
    in_flight: PodStatus | None = None  # the status that a call is sending
    is_restored: bool = False  # from a checkpoint and not confirmed by a sync: the API may not have it
    is_aligned: bool = False  # a status was aligned with the API object
    started_over: bool = False  # a static pod whose mirror may still show its previous run
    agreed: tuple[Pod, PodStatus] | None = None  # API object and status found equal, so that a batch compares them once

    def agrees_with(self, in_api: Pod, status: PodStatus) -> bool:
        """Return whether `agreed` consists of exactly these two objects."""
        pair = self.agreed
        return pair is not None and pair[0] is in_api and pair[1] is status


class StatusRecords:
    """The records of all pods. Every record with a call in flight exists until `end_call`."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._records: dict[PodUID, StatusRecord] = {}

    def __getitem__(self, uid: PodUID) -> StatusRecord:
        return self._records[uid]

    def cached(self) -> dict[PodUID, CachedStatus]:
        """Return the accepted statuses, without checkpoints that were not loaded."""
        return {uid: record.cached for uid, record in self._records.items() if record.cached is not None}

    def uids(self) -> set[PodUID]:
        """Return the pods that have a status, including checkpoints that were not loaded."""
        return {*self.cached(), *map(PodUID, self._checkpoints.old_keys())}

    def get(self, uid: PodUID) -> CachedStatus | None:
        """Return the accepted status. Ignore a checkpoint that was not loaded."""
        record = self._records.get(uid)
        return None if record is None else record.cached

    def has_started_over(self, uid: PodUID) -> bool:
        record = self._records.get(uid)
        return record is not None and record.started_over

    def load(self, uid: PodUID) -> CachedStatus | None:
        """Return the accepted status, or else the one in the checkpoint."""
        cached = self.get(uid)
        data = None if cached is not None else self._checkpoints.take(uid)
        if data is None:
            return cached
        try:
            restored = msgspec.json.decode(data, type=CachedStatus)
        except UNDECODABLE as error:
            log.warning("cannot decode the stored status of pod %s, dropping it: %s", uid, error)
            self._checkpoints.drop(uid)
            return None
        record = self.open(uid)
        record.cached = restored
        record.is_restored = True
        if restored.shown is not None:
            # The checkpoint was written before its status was sent.
            unanswered = (*restored.shown.unanswered, status_digest(restored.status))
            record.api = replace(restored.shown, unanswered=unanswered)
        return restored

    def open(self, uid: PodUID) -> StatusRecord:
        """Return the record of a pod. Add an empty one if there is none."""
        return self._records.setdefault(uid, StatusRecord())

    def store(self, uid: PodUID, cached: CachedStatus) -> None:
        """Store a new status and write its checkpoint."""
        record = self.open(uid)
        record.cached = cached
        # The status was computed by this process, so it is not compared with the API any more.
        record.is_restored = False
        shown = record.api
        # The call in flight may reach the API after this checkpoint is written. After a crash, its status must not look
        # newer than the checkpoint.
        if shown is not None and record.in_flight is not None:
            shown = replace(shown, unanswered=(*shown.unanswered, status_digest(record.in_flight)))
        self._write(uid, replace(cached, shown=shown))

    def confirm(self, uid: PodUID) -> bool:
        """Mark the status of a pod as confirmed by a sync. Return whether it was restored and not confirmed before."""
        record = self._records[uid]
        was_restored, record.is_restored = record.is_restored, False
        return was_restored

    def restore_from_mirror(self, uid: PodUID, outdated: CachedStatus, in_api: Pod) -> None:
        """Store the status of a mirror pod, in place of a checkpoint that is behind it. Ignore other pods.

        Without it, restart counts, last exit codes and the Ready condition of the static pod would be lost. The next
        status of an API pod is made from the one in the API.
        """
        if is_mirror_pod(in_api) and continues(outdated.status, in_api.status):
            record = self.open(uid)
            record.api = snapshot_of(in_api)
            record.cached = replace(outdated, status=in_api.status, shown=record.api)
            record.is_restored = True
            self._write(uid, record.cached)

    def forget(self, uid: PodUID) -> None:
        record = self._records.pop(uid, None)
        if record is not None and record.in_flight is not None:
            # The call continues. If the pod gets a new status meanwhile, the API may still show the one in flight.
            self._records[uid] = StatusRecord(in_flight=record.in_flight)
        self._checkpoints.drop(uid)

    def end_call(self, uid: PodUID) -> None:
        """Clear `in_flight`, and remove the record if the pod was forgotten during the call."""
        record = self._records[uid]
        record.in_flight = None
        if record.cached is None and not record.started_over:
            del self._records[uid]

    def _write(self, uid: PodUID, cached: CachedStatus) -> None:
        self._checkpoints.write(uid, msgspec.json.encode(cached))
