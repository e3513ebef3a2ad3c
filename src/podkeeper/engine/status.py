"""Status manager: accept pod statuses and write them to the API.

    set_pod_status, probes, terminate_pod -> accept -> record -> subscribers
                                                         |
                             checkpoint (durable first) -> sender -> get, merge, patch, delete

`rules.status.publish` decides which statuses are accepted, when they are sent and with which content. `ApiSender`
decides the order. Guarantees:

* A slow, hung or failing call for one pod does not delay the status of another pod, or a batch.
* Each API object has one call at a time and receives the newest version.
* A status that makes a pod ready or ends it is sent before the others.
* The checkpoint of a status is written before the status is sent. So a restarted agent is not behind the API.

Without an API, nothing is sent and everything else works. Each change wakes the sender. In addition, a batch checks all
pods every 10 s, for failed calls, new mirror pods, pods that can be deleted and overwritten statuses.
Kubelet counterpart: pkg/kubelet/status/status_manager.go.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import assert_never

from podkeeper.engine.api_sender import ApiSender
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.manager import PodManager, Translations
from podkeeper.engine.observer import Observer
from podkeeper.engine.status_records import StatusRecords
from podkeeper.model.errors import BadInput, NotFound, Problem
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import Op, PodUID, PodUpdate
from podkeeper.ports.api import ReadWriteApi
from podkeeper.ports.clock import Clock
from podkeeper.rules.dispatch import is_rejection
from podkeeper.rules.static.mirror import is_mirror_pod_of, is_static_pod, shown_uid
from podkeeper.rules.status.publish import (
    Acceptance,
    CachedStatus,
    IllegalTransition,
    SendReason,
    Stored,
    StoreMode,
    Unchanged,
    accept,
    accept_status,
    can_be_deleted,
    is_behind,
    is_urgent,
    merged_status,
    send_reason,
    snapshot_of,
    status_digest,
    status_patch,
    versions_to_keep,
)
from podkeeper.rules.status.revise import is_container_running, terminated_status, with_readiness, with_startup

log = logging.getLogger(__name__)

# The kubelet's syncPeriod of the status manager.
BATCH_SECONDS = 10.0
# With 10,000 pods, a batch in one piece would delay everything else on the event loop.
BATCH_SLICE = 500
Subscriber = Callable[[PodUID, PodStatus], None]


class StatusManager:
    def __init__(
        self,
        *,
        api: ReadWriteApi | None,
        pods: PodManager,
        could_run: Callable[[PodUID], bool],
        clock: Clock,
        sender: ApiSender[PodUID],
        checkpoints: Checkpoints,
        observer: Observer | None = None,
        is_outdated: Callable[[Pod, Pod], bool] = lambda mirror, static: False,
        is_needed: Callable[[PodUID], bool] = lambda uid: False,
        would_revive: Callable[[Pod, PodStatus], bool] = lambda in_api, ours: False,
        align: Callable[[Pod, PodStatus, bool], PodStatus] = lambda in_api, ours, first: ours,
        only_running_is_ready: bool = False,
    ) -> None:
        """The defaults of these arguments are the behaviour of the kubelet:

        * `is_outdated`: whether the spec of a mirror pod differs from its static pod. Such a mirror pod receives no
          status.
        * `is_needed`: whether to keep the status of a pod that no source has, whose API object is deleted, or whose
          name belongs to another object. See `PodFacts.needs_status`.
        * `would_revive`: whether a status reports a pod as running that the API shows as finished. Such a status is
          not sent.
        * `align`: adds to a status what a restarted agent may have lost. Its last argument is True for the first
          status of a pod since the agent started or forgot the pod.
        * `only_running_is_ready`: whether to ignore a successful readiness probe unless the container runs.
        """
        self._api = api
        self._pods = pods
        self._could_run = could_run
        self._clock = clock
        self._sender = sender
        self._checkpoints = checkpoints
        self._observer = observer or Observer()
        self._is_outdated = is_outdated
        self._is_needed = is_needed
        self._would_revive = would_revive
        self._align = align
        self._only_running_is_ready = only_running_is_ready
        self._records = StatusRecords(checkpoints)
        # Keep the versions outside the records, because a static pod may have several mirror pods in turn. As in the
        # kubelet, a version stays until the next batch after its pod is forgotten.
        self._sent: dict[str, int] = {}  # by UID of the API object
        self._subscribers: list[Subscriber] = []
        self._changed: dict[PodUID, bool] = {}  # pods to offer to the sender, and whether urgently
        self._wake = asyncio.Event()

    # Queries.

    @property
    def cached(self) -> Mapping[PodUID, CachedStatus]:
        """Return the accepted statuses with their versions."""
        return self._records.cached()

    @property
    def sent_versions(self) -> Mapping[str, int]:
        """Return the version last sent to each API object, by its UID."""
        return MappingProxyType(self._sent)

    @property
    def has_changes(self) -> bool:
        """Return whether a change was accepted that was not offered to the sender yet."""
        return bool(self._changed)

    def phases(self) -> Mapping[PodUID, str]:
        """Return the published phase of every pod that has a status."""
        return {uid: cached.status.phase or "" for uid, cached in self._records.cached().items()}

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        """Return the last accepted status of a pod, including one from before a restart."""
        cached = self._records.load(uid)
        return None if cached is None else cached.status

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with every status that is accepted from now on."""
        self._subscribers.append(subscriber)

    # Updates.

    def set_pod_status(self, pod: Pod, status: PodStatus) -> bool:
        """Process a computed status. Return whether it is a new version."""
        uid, mirror = _uid_of(pod), self._mirror_of_this_run(pod)
        return self._apply(pod, accept_status(pod, status, self._records.load(uid), mirror, self._clock.now()))

    def set_container_readiness(self, uid: PodUID, container_id: str, ready: bool) -> bool:
        """Process the result of a readiness probe (container ID of the API). Return whether it is a new version."""
        found = self._pod_with_status(uid, f"readiness of container {container_id}")
        if found is None:
            return False
        pod, cached = found
        # Seed 92: a probe succeeded just before its pod ended, and the API showed a terminated container as ready
        # forever.
        if ready and self._only_running_is_ready and not is_container_running(cached.status, container_id):
            return False
        return self._revise(pod, cached, with_readiness(pod, cached.status, container_id, ready), container_id)

    def set_container_startup(self, uid: PodUID, container_id: str, started: bool) -> bool:
        """Process the result of a startup probe (container ID of the API). Return whether it is a new version."""
        found = self._pod_with_status(uid, f"startup of container {container_id}")
        if found is None:
            return False
        return self._revise(*found, with_startup(found[1].status, container_id, started), container_id)

    def terminate_pod(self, pod: Pod) -> None:
        """Set the last status of a pod that is cleaned up. Afterwards its API object can be deleted."""
        cached, mirror = self._records.load(_uid_of(pod)), self._mirror_of_this_run(pod)
        # The last status gets a new version even if it is unchanged, because only that version allows the deletion.
        last = terminated_status(pod, None if cached is None else cached.status)
        self._apply(pod, accept(pod, last, cached, mirror, self._clock.now(), StoreMode.AS_LAST))

    def mirror_changed(self, uid: PodUID) -> None:
        """Send the status of a static pod to its new mirror pod without waiting for the batch."""
        if self._api is not None and self._records.load(uid) is not None:
            self._changed.setdefault(uid, False)
            self._wake.set()

    def forget_rejection(self, pod: Pod) -> bool:
        """Forget the status of a static pod if it was rejected, so that it is admitted again. Return whether it was.

        The rejection is from before a restart, or from before the manifest was added again.
        """
        uid = _uid_of(pod)
        cached = self._records.load(uid) if is_static_pod(pod) else None
        if cached is None or not is_rejection(cached.status):
            return False
        log.info("static pod %s/%s was rejected before, admitting it again", cached.namespace, cached.name)
        self.forget(uid)
        return True

    def forget(self, uid: PodUID) -> None:
        """Remove the status of a pod and its checkpoint."""
        self._sender.forget(uid)
        self._records.forget(uid)

    def start_over(self, uid: PodUID) -> None:
        """Forget the status of a finished static pod that runs again, and ignore the status of its mirror pod."""
        self.forget(uid)
        # The mirror pod still shows the former run. Its start time would end the new run at its deadline at once.
        self._records.open(uid).started_over = True

    def remove_orphaned_statuses(self, keep: Collection[PodUID]) -> None:
        """Forget all other pods, except those whose status is still needed."""
        for uid in self._records.uids().difference(keep):
            if not self._is_needed(uid):
                self.forget(uid)

    def restore(self, pods: Iterable[Pod]) -> None:
        """Load the checkpoints of these pods. Replace those that are behind the API, because the disk was full.

        Other checkpoints are loaded when they are first needed.
        """
        for pod in pods:
            uid = shown_uid(pod)
            cached = self._records.load(uid)
            # Only checkpoints of the last agent process. A status of this process is newer than any list.
            if cached is not None and self._records[uid].is_restored and is_behind(cached, pod):
                self._replace_outdated(uid, cached, pod)

    def restore_added(self, update: PodUpdate) -> None:
        """Restore the statuses of added pods from the journal of the previous agent."""
        if update.op is Op.ADD:
            self.restore(update.pods)

    async def is_saved(self, uid: PodUID) -> bool:
        """Wait briefly until the checkpoint of a pod is durable. Return whether the status survives a crash.

        A status in the API survives as well.
        """
        await self._checkpoints.settle(uid)
        cached = self._records.get(uid)
        if cached is None or self._checkpoints.is_durable(uid):
            return True
        if not self._records[uid].is_aligned:
            return False  # `_sent` may have the same version from before the pod was forgotten
        api_uid = self._pods.translations().pod_to_mirror.get(uid, uid)
        return api_uid is not None and self._sent.get(api_uid) == cached.version

    # Sending.

    async def run(self) -> None:
        """Send changes, and check all pods every 10 s, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._offer_changes())
            group.create_task(self._run_batches())
            group.create_task(self._sender.run(self._send))

    async def sync_batch(self, every: bool) -> int:
        """Send all due statuses and wait for the calls. Return the number of due pods.

        `every`: check everything that the periodic batch checks, otherwise send only new versions. Pods in backoff are
        tried as well. Works with or without a concurrent `run`. At shutdown, the caller sets a timeout.
        """
        if self._api is None:
            return 0
        changed, self._changed = self._changed, {}
        translations, cached = self._pods.translations(), self._records.cached()
        if every:
            self._sent = versions_to_keep(self._sent, cached, translations.mirror_to_pod)
        due = self._due(cached, translations, every)
        await self._checkpoints.settle()
        for uid in due:
            self._offer(uid, urgent=changed.get(uid, False), at_once=True)
        await self._sender.drain(due, self._send)
        return len(due)

    async def _offer_changes(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, {}
            await self._checkpoints.settle()
            for uid, urgent in changed.items():
                self._offer(uid, urgent=urgent)

    async def _run_batches(self) -> None:
        while True:
            await asyncio.sleep(BATCH_SECONDS)
            try:
                if self._api is not None:
                    await self._run_batch()
                await self._checkpoints.try_again()
            except Exception:
                log.exception("unexpected error in a status batch, the next batch will retry")

    async def _run_batch(self) -> None:
        translations, cached = self._pods.translations(), self._records.cached()
        self._sent = versions_to_keep(self._sent, cached, translations.mirror_to_pod)
        uids = tuple(cached)
        # In slices, so that other tasks can run in between.
        for begin in range(0, len(uids), BATCH_SLICE):
            for uid in self._due(uids[begin : begin + BATCH_SLICE], translations, every=True):
                self._offer(uid)
            await asyncio.sleep(0)

    def _due(self, uids: Iterable[PodUID], translations: Translations, every: bool) -> list[PodUID]:
        """Return the pods whose status has to be sent now."""
        due = []
        for uid in uids:
            cached = self._records.get(uid)
            if cached is None:
                continue
            api_uid = translations.pod_to_mirror.get(uid, uid)
            if api_uid is None:
                continue  # a static pod without a mirror pod
            record, static, pod = self._records[uid], self._static_pod(uid), self._pods.pod_by_uid(api_uid)
            in_api = self._pods.pod_by_uid(uid) if static is None else self._pods.mirror_of_pod(static)
            if in_api is not None and record.agrees_with(in_api, cached.status):
                # Comparing two statuses is expensive. If neither has changed since they were found equal, skip it.
                in_api = None
            reason = send_reason(cached, self._sent.get(api_uid), every=every, pod=pod, api_pod=in_api)
            if reason is None and every and in_api is not None:
                record.agreed = (in_api, cached.status)
            if reason is SendReason.OVERWRITTEN:
                log.info("another client changed the status of pod %s/%s", cached.namespace, cached.name)
                # As if this version was never sent. Otherwise `send_reason` would skip it as up to date.
                self._sent.pop(api_uid, None)
            if reason is not None:
                due.append(uid)
        return due

    def _static_pod(self, uid: PodUID) -> Pod | None:
        pod = self._pods.pod_by_uid(uid)
        return pod if pod is not None and is_static_pod(pod) else None

    def _offer(self, uid: PodUID, *, urgent: bool = False, at_once: bool = False) -> None:
        cached = self._records.get(uid)
        if cached is None:
            return
        static = self._static_pod(uid)
        if static is not None and self._pods.mirror_of_pod(static) is None:
            return  # `mirror_changed` or the batch offers it later
        self._sender.offer(uid, (cached.namespace, cached.name), urgent=urgent, at_once=at_once)

    async def _send(self, uid: PodUID) -> None:
        """Send the newest version of a status, and delete the API object of a finished pod."""
        cached = self._records.get(uid)
        if self._api is None or cached is None:
            return
        # Clear the time, because a status that is accepted from now on has its own lag and is sent by another call.
        record, version, is_sent = self._records[uid], replace(cached, changed_at=None), False
        record.cached, record.in_flight = version, version.status
        try:
            await self._checkpoints.settle(uid)
            is_sent = await self._send_version(self._api, uid, version)
        finally:
            record = self._records[uid]
            if not is_sent and record.cached is not None and cached.changed_at is not None:
                record.cached = replace(record.cached, changed_at=cached.changed_at)
            self._records.end_call(uid)
        if is_sent and cached.changed_at is not None:
            self._observer.status_synced(max(0.0, (self._clock.now() - cached.changed_at).total_seconds()))

    async def _send_version(self, api: ReadWriteApi, uid: PodUID, cached: CachedStatus) -> bool:
        """Send one version. Return False if the API must not have it."""
        try:
            # The kubelet also reads before it patches: the pod may have been recreated, and conditions of other writers
            # must be kept.
            pod = await api.get(Pod, cached.name, cached.namespace)
        except NotFound:
            log.debug("pod %s/%s is not in the API, its status is not sent", cached.namespace, cached.name)
            return False
        if not self._may_send(uid, cached, pod):
            return False
        record = self._records[uid]
        # A terminal phase is held back while a container could still run. Controllers would otherwise start a
        # replacement.
        could_run = self._could_run(_api_uid(pod))
        first = not record.is_aligned and not record.started_over
        ours = self._align(pod, cached.status, first)
        # Before the patch: if its answer is lost, the next agent must recognize this status in the API as its own (seed
        # 34).
        record.api = snapshot_of(pod, (status_digest(ours),))
        merged = merged_status(pod, ours, could_run=could_run, now=self._clock.now())
        # Compare the object, not its version: a pod that was forgotten and came back starts from version 1 again.
        if record.cached is cached:
            record.cached = replace(cached, status=merged.cached)
            record.is_aligned = True
        # The patch contains the UID, so it fails if the pod was recreated since the read.
        patch = status_patch(pod, merged.to_send)
        if patch is not None:
            pod = await api.patch_status(Pod, cached.name, patch, cached.namespace)
            record = self._records[uid]  # another one if the pod was forgotten during the call
        if record.cached is not None:
            record.api = snapshot_of(pod)
        # Before the deletion: if that fails, only the deletion is repeated.
        self._sent[_api_uid(pod)] = cached.version
        if can_be_deleted(pod, cached):
            await self._delete(api, pod)
            # After a restart, the agent may start the pods that the source last reported. The stored status prevents
            # that for this pod.
            if not self._is_needed(uid):
                self.forget(uid)
        return True

    def _may_send(self, uid: PodUID, cached: CachedStatus, in_api: Pod) -> bool:
        """Return whether the API object under the name of a pod may receive its status."""
        record = self._records[uid]
        if record.cached is None:
            return False  # forgotten during the call
        static = self._static_pod(uid)
        owner = self._pods.translate_uid(_api_uid(in_api))
        # The GET may return a mirror pod that the watch has not delivered yet.
        is_new_mirror = static is not None and owner == _api_uid(in_api) and is_mirror_pod_of(in_api, static)
        # Seed 583: a status that was dropped here let housekeeping start a rejected pod. See `_handle_foreign_object`.
        if owner and owner != uid and not is_new_mirror:
            self._handle_foreign_object(uid, owner)
            return False
        if static is not None and self._is_outdated(in_api, static):
            return False  # it has the spec of an old manifest, and `mirror_changed` is called for its replacement
        # An agent that lost its state on a full disk and got an old list would publish a finished pod as running.
        if self._would_revive(in_api, cached.status):
            return False  # our view of the pod is older than the API's, and the source will deliver the newer one
        if record.is_restored and is_behind(cached, in_api):
            # `restore` compared the checkpoint with a list, which may be old. The answer to a GET is not.
            self._replace_outdated(uid, cached, in_api)
            return False
        return True

    def _replace_outdated(self, uid: PodUID, restored: CachedStatus, in_api: Pod) -> None:
        log.warning("dropping the stored status of pod %s: the API has a newer one", uid)
        self.forget(uid)
        self._records.restore_from_mirror(uid, restored, in_api)

    def _handle_foreign_object(self, uid: PodUID, owner: PodUID) -> None:
        """Handle an API object that belongs to another pod of the same name."""
        if self._static_pod(uid) is not None:
            log.debug("static pod %s has no mirror pod, its status is sent to the next one", uid)
        elif self._is_needed(uid):
            log.debug("pod %s was recreated as %s, its status is not sent", uid, owner)
        else:
            log.info("pod %s was recreated as %s, dropping its status", uid, owner)
            self.forget(uid)

    async def _delete(self, api: ReadWriteApi, pod: Pod) -> None:
        name, namespace, uid = pod.metadata.name or "", pod.metadata.namespace or "", _api_uid(pod)
        try:
            # Grace period 0 removes the object at once. The UID keeps a recreated pod of the same name from being
            # deleted.
            await api.delete(Pod, name, namespace, grace_seconds=0, uid=uid)
        except NotFound:
            log.debug("another client deleted pod %s/%s", namespace, name)
        else:
            log.info("deleted finished pod %s/%s (%s)", namespace, name, uid)

    # Accepting.

    def _mirror_of_this_run(self, pod: Pod) -> Pod | None:
        """Return the mirror pod of a static pod, unless it may show a previous run."""
        return None if self._records.has_started_over(_uid_of(pod)) else self._pods.mirror_of_pod(pod)

    def _pod_with_status(self, uid: PodUID, what: str) -> tuple[Pod, CachedStatus] | None:
        """Return a desired pod and its status. `what` names the ignored result if there is none."""
        pod, cached = self._pods.pod_by_uid(uid), self._records.load(uid)
        if pod is None or cached is None:
            log.warning("ignoring %s: pod %s %s", what, uid, "is unknown" if pod is None else "has no status yet")
            return None
        return pod, cached

    def _revise(self, pod: Pod, cached: CachedStatus, revised: PodStatus | None, container_id: str) -> bool:
        if revised is None:
            log.debug("probe result of container %s of pod %s changes nothing", container_id, _api_uid(pod))
            return False
        mirror = self._mirror_of_this_run(pod)
        return self._apply(pod, accept(pod, revised, cached, mirror, self._clock.now()))

    def _apply(self, pod: Pod, acceptance: Acceptance) -> bool:
        """Store an accepted status. Return whether it is a new version."""
        uid = _uid_of(pod)
        match acceptance:
            case Stored(cached):
                record = self._records.open(uid)
                # Compare with the previous status before it is replaced below.
                urgent = is_urgent(None if record.cached is None else record.cached.status, cached.status)
                if record.api is None:
                    in_api = self._pods.mirror_of_pod(pod) if is_static_pod(pod) else pod
                    record.api = None if self._api is None or in_api is None else snapshot_of(in_api)
                self._records.store(uid, cached)
                if self._api is not None:
                    self._changed[uid] = urgent or self._changed.get(uid, False)
                self._wake.set()
                # Last, because a subscriber may call back and must find the new status.
                self._notify(uid, cached.status)
                return True
            case IllegalTransition(reason):
                log.warning("ignoring status of pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, reason)
                return False
            case Unchanged():
                if self._records.confirm(uid):
                    # Send a restored status once, because the last agent process may not have sent it.
                    self._changed.setdefault(uid, False)
                    self._wake.set()
                return False
            case _:
                assert_never(acceptance)

    def _notify(self, uid: PodUID, status: PodStatus) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(uid, status)
            except Exception:
                log.exception("unexpected error in a subscriber to the status of pod %s", uid)


def _uid_of(pod: Pod) -> PodUID:
    if not pod.metadata.uid:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        raise BadInput(Problem(f"Required value: cannot store the status of pod {name} without a UID", "metadata.uid"))
    return PodUID(pod.metadata.uid)


def _api_uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")
