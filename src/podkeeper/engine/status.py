"""The status manager: the truth about every pod's status, and the only writer of it to the API.

    set_pod_status, probes, terminate_pod -> accepted? -> cache -> subscribers
                                                            |
                                  notebook (durable first) -> postman -> get, merge, patch, delete

In: statuses as others compute them. Out: the accepted ones, to whoever asks or subscribes, and to the API. What is
accepted, when it is sent and as what is decided in `rules.status.publish`; the postman decides whose turn it is.
Promises:

* one pod's slow, hung or failing call delays no other pod's status and no batch;
* an API object has one writer at a time, and is always told the newest version there is;
* what makes a pod ready or ends it is sent before the rest;
* a status is in the notebook, and safe there, before it is sent: after a restart we know at least as much as the API.

Without an API nothing is sent and all else works. Every change wakes the sender; besides, a batch looks at all pods
every 10 s: at failed calls, mirrors that came late, deletions that are due and statuses that others overwrote.
The Go ancestor is pkg/kubelet/status/status_manager.go.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Protocol, assert_never

import msgspec

from podkeeper.engine.manager import PodManager, Translations
from podkeeper.engine.notebook import Notebook
from podkeeper.engine.postman import Postman
from podkeeper.model.errors import UNDECODABLE, BadInput, NotFound, Problem
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.ports.api import Reader, Writer
from podkeeper.ports.clock import Clock
from podkeeper.rules.dispatch import is_rejection
from podkeeper.rules.mirror import is_mirror_pod, is_mirror_pod_of, is_static_pod, shown_uid
from podkeeper.rules.status.publish import (
    Acceptance,
    CachedStatus,
    Refused,
    Sending,
    Shown,
    Store,
    Stored,
    Unchanged,
    accept,
    accept_status,
    as_shown,
    can_be_deleted,
    continues,
    is_behind,
    is_urgent,
    merged_status,
    sending,
    status_digest,
    status_patch,
    versions_to_keep,
)
from podkeeper.rules.status.revise import ended_status, is_container_running, with_readiness, with_startup

log = logging.getLogger(__name__)

BATCH_SECONDS = 10.0
BATCH_SLICE = 500
Subscriber = Callable[[PodUID, PodStatus], None]


class Api(Reader, Writer, Protocol):
    """What this room asks of the API."""


class StatusManager:
    """Keeps, tells and sends the statuses of pods."""

    def __init__(
        self,
        *,
        api: Api | None,
        pods: PodManager,
        could_run: Callable[[PodUID], bool],
        clock: Clock,
        postman: Postman[PodUID],
        notebook: Notebook,
        observe_lag: Callable[[float], None] = lambda seconds: None,
        is_outdated: Callable[[Pod, Pod], bool] = lambda mirror, static: False,
        is_needed: Callable[[PodUID], bool] = lambda uid: False,
        takes_back: Callable[[Pod, PodStatus], bool] = lambda in_api, ours: False,
        align: Callable[[Pod, PodStatus, bool], PodStatus] = lambda in_api, ours, first: ours,
        only_running_is_ready: bool = False,
    ) -> None:
        """What the reference lacks, and its traces with it:

        `is_outdated`: whether a mirror shows another spec than its static pod's, so that its status is not told.
        `is_needed`: whether to keep a status although no source names the pod, its API object is gone, or another
        object has its name. The status of a terminating pod has its restart counts, in case its source
        names it again. A pod without a status is started, so a rejected or deleted pod needs its status until its
        source drops it.
        `takes_back`: whether a status would undo what the API shows, and must not be told.
        `align`: adds to a status what a restarted agent may have lost. Its last argument: no status of this pod was
        aligned since the agent started or forgot the pod.
        `only_running_is_ready`: whether a successful readiness probe is ignored unless the container runs.
        """
        self._api = api
        self._pods = pods
        self._could_run = could_run
        self._clock = clock
        self._postman = postman
        self._notebook = notebook
        self._observe_lag = observe_lag
        self._is_outdated = is_outdated
        self._is_needed = is_needed
        self._takes_back = takes_back
        self._align = align
        self._only_running_is_ready = only_running_is_ready
        self._cache: dict[PodUID, CachedStatus] = {}
        self._phases: dict[PodUID, str] = {}
        self._sent: dict[str, int] = {}  # by UID of the API object
        self._recalled: set[PodUID] = set()  # noted before a restart and not confirmed since: the API may not know them
        self._being_sent: dict[PodUID, PodStatus] = {}
        self._shown: dict[PodUID, Shown] = {}  # the API's last answer about each pod, and what was sent since
        self._aligned: set[PodUID] = set()  # a status was aligned with the API since the start, or since `forget`
        self._started_over: set[PodUID] = set()  # static pods whose mirror may still show their former run
        self._agreed: dict[PodUID, tuple[Pod, PodStatus]] = {}  # pairs found alike: the batch compares them once
        self._subscribers: list[Subscriber] = []
        self._changed: dict[PodUID, bool] = {}  # since the last pass; whether urgently
        self._news = asyncio.Event()

    # Reading.

    @property
    def cached(self) -> Mapping[PodUID, CachedStatus]:
        """The accepted statuses, with versions: a live view."""
        return MappingProxyType(self._cache)

    @property
    def sent_versions(self) -> Mapping[str, int]:
        """The version last sent to each API object, by its UID."""
        return MappingProxyType(self._sent)

    @property
    def has_news(self) -> bool:
        """Whether something was accepted that no pass has taken up yet."""
        return bool(self._changed)

    def phases(self) -> Mapping[PodUID, str]:
        """The published phase of every pod that has a status: a live view."""
        return MappingProxyType(self._phases)

    def get_pod_status(self, uid: PodUID) -> PodStatus | None:
        """The last accepted status of a pod, even if that was before a restart."""
        cached = self._recall(uid)
        return None if cached is None else cached.status

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell somebody about every status from now on, as soon as it is accepted."""
        self._subscribers.append(subscriber)

    # Writing.

    def set_pod_status(self, pod: Pod, status: PodStatus) -> bool:
        """Take a status that was just computed. Returns whether it is a new version."""
        uid, mirror = _uid_of(pod), self._mirror_of_this_run(pod)
        return self._keep(pod, accept_status(pod, status, self._recall(uid), mirror, self._clock.now()))

    def set_container_readiness(self, uid: PodUID, container_id: str, ready: bool) -> bool:
        """Take a readiness probe's word on a container (API id). Returns whether that is a new version."""
        found = self._known(uid, f"readiness of container {container_id}")
        if found is None:
            return False
        pod, cached = found
        if ready and self._only_running_is_ready and not is_container_running(cached.status, container_id):
            return False
        return self._revise(pod, cached, with_readiness(pod, cached.status, container_id, ready), container_id)

    def set_container_startup(self, uid: PodUID, container_id: str, started: bool) -> bool:
        """Take a startup probe's word on a container (API id). Returns whether that is a new version."""
        found = self._known(uid, f"start of container {container_id}")
        if found is None:
            return False
        return self._revise(*found, with_startup(found[1].status, container_id, started), container_id)

    def terminate_pod(self, pod: Pod) -> None:
        """Give a pod of which nothing is left its last status; after that its API object may go."""
        cached, mirror = self._recall(_uid_of(pod)), self._mirror_of_this_run(pod)
        last = ended_status(pod, None if cached is None else cached.status)
        self._keep(pod, accept(pod, last, cached, mirror, self._clock.now(), Store.AS_LAST))

    def mirror_changed(self, uid: PodUID) -> None:
        """Tell the status to a static pod's mirror that is new, or another one, without waiting for the batch."""
        if self._api is not None and self._recall(uid) is not None:
            self._changed.setdefault(uid, False)
            self._news.set()

    def ask_anew(self, pod: Pod) -> bool:
        """Forget that a static pod was turned away, in a former life of the agent or before its manifest came back.

        Returns whether it had been.
        """
        uid = _uid_of(pod)
        cached = self._recall(uid) if is_static_pod(pod) else None
        if cached is None or not is_rejection(cached.status):
            return False
        log.info("static pod %s/%s was turned away before, and is judged anew", cached.namespace, cached.name)
        self.forget(uid)
        return True

    def forget(self, uid: PodUID) -> None:
        """Forget the status of a pod, and its note."""
        for book in (self._cache, self._phases, self._agreed, self._shown):
            book.pop(uid, None)
        self._recalled.discard(uid)
        self._aligned.discard(uid)
        self._started_over.discard(uid)
        self._postman.forget(uid)
        self._notebook.drop(uid)

    def start_over(self, uid: PodUID) -> None:
        """Forget the status of a static pod that has ended and runs again, and ignore what its mirror shows of it."""
        self.forget(uid)
        self._started_over.add(uid)

    def remove_orphaned_statuses(self, keep: Collection[PodUID]) -> None:
        """Forget all pods but these, and those whose status is still needed."""
        for uid in {*self._cache, *map(PodUID, self._notebook.old_keys())}.difference(keep):
            if not self._is_needed(uid):
                self.forget(uid)

    def restore(self, pods: Iterable[Pod]) -> None:
        """Take up what was noted of these pods before a restart; otherwise that waits until somebody asks.

        A note that the disk refused to replace is behind the API, and of no use.
        """
        for pod in pods:
            uid = shown_uid(pod)
            cached = self._recall(uid)
            if cached is not None and uid in self._recalled and is_behind(cached, pod):
                self._replace_note(uid, cached, pod)

    async def is_saved(self, uid: PodUID) -> bool:
        """Wait until a pod's last status is in the journal, but not for long. Return whether a crash would keep it.

        It would also if the API has it.
        """
        await self._notebook.settle(uid)
        cached = self._cache.get(uid)
        if cached is None or self._notebook.is_durable(uid):
            return True
        if uid not in self._aligned:
            return False  # `_sent` may have a version from before the pod was forgotten; versions start from 1 again
        api_uid = self._pods.translations().pod_to_mirror.get(uid, uid)
        return api_uid is not None and self._sent.get(api_uid) == cached.version

    # Sending.

    async def run(self) -> None:
        """Send what changes, and look at everything every 10 s, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take_news())
            group.create_task(self._batches())
            group.create_task(self._postman.run(self._send))

    async def sync_batch(self, every: bool) -> int:
        """Make one pass and wait for its end. Returns for how many pods a sending was tried.

        `every`: as the periodic pass does; otherwise only versions that were not sent yet. A pod waiting after a
        failure is tried as well. Works beside `run` and without it; who calls this at shutdown sets a time limit.
        """
        if self._api is None:
            return 0
        changed, self._changed = self._changed, {}
        translations = self._pods.translations()
        if every:
            self._sent = versions_to_keep(self._sent, self._cache, translations.mirror_to_pod)
        due = self._due(tuple(self._cache), translations, every)
        await self._notebook.settle()
        for uid in due:
            self._offer(uid, urgent=changed.get(uid, False), at_once=True)
        await self._postman.drain(due, self._send)
        return len(due)

    async def _take_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            changed, self._changed = self._changed, {}
            await self._notebook.settle()
            for uid, urgent in changed.items():
                self._offer(uid, urgent=urgent)

    async def _batches(self) -> None:
        while True:
            await asyncio.sleep(BATCH_SECONDS)
            try:
                if self._api is not None:
                    await self._make_batch()
                await self._notebook.try_again()
            except Exception:
                log.exception("cannot look for statuses to send, the next batch will")

    async def _make_batch(self) -> None:
        """Look at all pods, some at a time: everybody else has the loop in between."""
        translations, uids = self._pods.translations(), tuple(self._cache)
        self._sent = versions_to_keep(self._sent, self._cache, translations.mirror_to_pod)
        for begin in range(0, len(uids), BATCH_SLICE):
            for uid in self._due(uids[begin : begin + BATCH_SLICE], translations, every=True):
                self._offer(uid)
            await asyncio.sleep(0)

    def _due(self, uids: Iterable[PodUID], translations: Translations, every: bool) -> list[PodUID]:
        """Those pods whose status has to be sent now."""
        due = []
        for uid in uids:
            cached = self._cache.get(uid)
            if cached is None:
                continue
            api_uid = translations.pod_to_mirror.get(uid, uid)
            if api_uid is None:
                continue  # a static pod whose mirror is still to come
            pod, shown = self._pods.pod_by_uid(api_uid), self._shown_pod(uid)
            if shown is not None and _are(self._agreed.get(uid), shown, cached.status):
                reason = sending(cached, self._sent.get(api_uid), every=every, pod=pod, api_pod=None)
            else:
                reason = sending(cached, self._sent.get(api_uid), every=every, pod=pod, api_pod=shown)
                if reason is None and every and shown is not None:
                    self._agreed[uid] = (shown, cached.status)
            if reason is Sending.OVERWRITTEN:
                log.info("status of pod %s/%s was changed by somebody else", cached.namespace, cached.name)
                self._sent.pop(api_uid, None)
            if reason is not None:
                due.append(uid)
        return due

    def _shown_pod(self, uid: PodUID) -> Pod | None:
        """The pod whose status the API shows, as we last saw it: a static pod's is its mirror."""
        pod = self._pods.pod_by_uid(uid)
        return self._pods.mirror_of_pod(pod) if pod is not None and is_static_pod(pod) else pod

    def _offer(self, uid: PodUID, *, urgent: bool = False, at_once: bool = False) -> None:
        cached = self._cache.get(uid)
        if cached is None:
            return
        pod = self._pods.pod_by_uid(uid)
        if pod is not None and is_static_pod(pod) and self._pods.mirror_of_pod(pod) is None:
            return  # `mirror_changed` or the batch will tell
        self._postman.offer(uid, (cached.namespace, cached.name), urgent=urgent, at_once=at_once)

    async def _send(self, uid: PodUID) -> None:
        """Bring the API's status of a pod to ours, and delete its object if the pod is over."""
        cached = self._cache.get(uid)
        if self._api is None or cached is None:
            return
        # What is accepted from here on counts its lag anew, and is sent after this.
        version = self._cache[uid] = replace(cached, changed_at=None)
        told = False
        self._being_sent[uid] = version.status
        try:
            await self._notebook.settle(uid)
            told = await self._send_version(self._api, uid, version)
        finally:
            del self._being_sent[uid]
            if not told:
                self._still_untold(uid, cached.changed_at)
        if told and cached.changed_at is not None:
            self._observe_lag(max(0.0, (self._clock.now() - cached.changed_at).total_seconds()))

    async def _send_version(self, api: Api, uid: PodUID, cached: CachedStatus) -> bool:
        """Send one version. Returns whether the API has it now; False: it has no use for it."""
        try:
            pod = await api.get(Pod, cached.name, cached.namespace)
        except NotFound:
            log.debug("pod %s/%s is not in the API, nobody is told its status", cached.namespace, cached.name)
            return False
        if uid not in self._cache:
            return False  # forgotten while we asked
        owner = self._pods.translate_uid(_api_uid(pod))
        if owner and owner != uid and not self._is_new_mirror(pod, uid):
            self._lose_object(uid, owner)
            return False
        if self._is_outdated_mirror(pod, uid):
            return False  # it shows another spec, and is about to be replaced: `mirror_changed` will tell
        if self._takes_back(pod, cached.status):
            return False  # our view of the pod is older than the API's: the source will tell
        if uid in self._recalled and is_behind(cached, pod):
            # `restore` compared the note with a list, which may be old. This answer is not.
            self._replace_note(uid, cached, pod)
            return False
        could_run = self._could_run(_api_uid(pod))
        first = uid not in self._aligned and uid not in self._started_over
        ours = self._align(pod, cached.status, first)
        self._shown[uid] = as_shown(pod, (status_digest(ours),))
        merged = merged_status(pod, ours, could_run=could_run, now=self._clock.now())
        # Compare the object, not its number: a pod that was forgotten and came back counts from 1 again.
        if self._cache[uid] is cached:
            self._cache[uid] = replace(cached, status=merged.cached)
            self._aligned.add(uid)
        patch = status_patch(pod, merged.to_send)
        if patch is not None:
            pod = await api.patch_status(Pod, cached.name, patch, cached.namespace)
        if uid in self._cache:
            self._shown[uid] = as_shown(pod)
        self._sent[_api_uid(pod)] = cached.version
        if can_be_deleted(pod, cached):
            await self._delete(api, pod)
            # After a restart, the agent may start the pods that the source last reported. The stored status prevents
            # that for this pod.
            if not self._is_needed(uid):
                self.forget(uid)
        return True

    def _is_new_mirror(self, api_pod: Pod, uid: PodUID) -> bool:
        """Whether an object is the mirror of a static pod of ours that the watch has not shown us yet."""
        static = self._pods.pod_by_uid(uid)
        if static is None or not is_static_pod(static) or not is_mirror_pod_of(api_pod, static):
            return False
        return self._pods.translate_uid(_api_uid(api_pod)) == _api_uid(api_pod)

    def _is_outdated_mirror(self, api_pod: Pod, uid: PodUID) -> bool:
        """Whether an object is the mirror of what a static pod of ours was before its manifest changed."""
        static = self._pods.pod_by_uid(uid)
        return static is not None and is_static_pod(static) and self._is_outdated(api_pod, static)

    def _lose_object(self, uid: PodUID, owner: PodUID) -> None:
        """An object of that name is another pod's. A static pod that is desired lives on: it gets a new mirror."""
        pod = self._pods.pod_by_uid(uid)
        if pod is not None and is_static_pod(pod):
            log.debug("static pod %s has no mirror now: its status is told to the next one", uid)
        elif self._is_needed(uid):
            log.debug("pod %s was recreated as %s: its status is not sent", uid, owner)
        else:
            log.info("pod %s was recreated as %s: its status is dropped", uid, owner)
            self.forget(uid)

    def _still_untold(self, uid: PodUID, changed_at: datetime | None) -> None:
        """Give a status back the time of its oldest change."""
        current = self._cache.get(uid)
        if current is not None and changed_at is not None:
            self._cache[uid] = replace(current, changed_at=changed_at)

    async def _delete(self, api: Api, pod: Pod) -> None:
        name, namespace, uid = pod.metadata.name or "", pod.metadata.namespace or "", _api_uid(pod)
        try:
            await api.delete(Pod, name, namespace, grace_seconds=0, uid=uid)
        except NotFound:
            log.debug("pod %s/%s was deleted by somebody else", namespace, name)
        else:
            log.info("pod %s/%s (%s) is over and was deleted", namespace, name, uid)

    # Keeping.

    def _mirror_of_this_run(self, pod: Pod) -> Pod | None:
        """The mirror of a static pod, unless it may show a former run: no status may be compared with that."""
        return None if pod.metadata.uid in self._started_over else self._pods.mirror_of_pod(pod)

    def _known(self, uid: PodUID, news: str) -> tuple[Pod, CachedStatus] | None:
        """A desired pod that has a status; others have no use for the news."""
        pod, cached = self._pods.pod_by_uid(uid), self._recall(uid)
        if pod is None or cached is None:
            log.warning("%s refused: pod %s %s", news, uid, "is not known" if pod is None else "has no status yet")
            return None
        return pod, cached

    def _revise(self, pod: Pod, cached: CachedStatus, revised: PodStatus | None, container_id: str) -> bool:
        if revised is None:
            log.debug("probe's word on container %s of pod %s changes nothing", container_id, _api_uid(pod))
            return False
        mirror = self._mirror_of_this_run(pod)
        return self._keep(pod, accept(pod, revised, cached, mirror, self._clock.now()))

    def _keep(self, pod: Pod, acceptance: Acceptance) -> bool:
        """Obey what was decided about a status. Returns whether it is a new version."""
        uid = _uid_of(pod)
        match acceptance:
            case Stored(cached):
                before = self._cache.get(uid)
                self._recalled.discard(uid)
                self._cache[uid] = cached
                self._phases[uid] = cached.status.phase or ""
                noted = replace(cached, shown=self._shown_when_noted(pod))
                self._notebook.write(uid, msgspec.json.encode(noted))
                if self._api is not None:
                    urgent = is_urgent(None if before is None else before.status, cached.status)
                    self._changed[uid] = urgent or self._changed.get(uid, False)
                self._news.set()
                self._tell(uid, cached.status)
                return True
            case Refused(reason):
                log.warning("status of pod %s/%s refused: %s", pod.metadata.namespace, pod.metadata.name, reason)
                return False
            case Unchanged():
                self._confirm(uid)
                return False
            case _:
                assert_never(acceptance)

    def _shown_when_noted(self, pod: Pod) -> Shown | None:
        """What the API may show of a pod: its last answer (or else the pod of the source), and the status in flight."""
        uid = _uid_of(pod)
        shown, sent = self._shown.get(uid), self._being_sent.get(uid)
        if shown is None:
            in_api = self._pods.mirror_of_pod(pod) if is_static_pod(pod) else pod
            if self._api is None or in_api is None:
                return None
            shown = self._shown[uid] = as_shown(in_api)
        return shown if sent is None else replace(shown, unanswered=(*shown.unanswered, status_digest(sent)))

    def _confirm(self, uid: PodUID) -> None:
        """A status is as it was. One from before a restart is sent once: the former life may not have come to it."""
        if uid in self._recalled:
            self._recalled.discard(uid)
            self._changed.setdefault(uid, False)
            self._news.set()

    def _tell(self, uid: PodUID, status: PodStatus) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(uid, status)
            except Exception:
                log.exception("a subscriber failed over the status of pod %s", uid)

    def _replace_note(self, uid: PodUID, noted: CachedStatus, in_api: Pod) -> None:
        """Drop a note that is behind the API.

        The next status of an API pod is made from the one in the API. A static pod has none: its mirror's is kept.
        Without it, restart counts, last exit codes and the Ready condition would be lost.
        """
        log.warning("noted status of pod %s is dropped: the API knows more", uid)
        self.forget(uid)
        if is_mirror_pod(in_api) and continues(noted.status, in_api.status):
            shown = self._shown[uid] = as_shown(in_api)
            kept = self._cache[uid] = replace(noted, status=in_api.status, shown=shown)
            self._recalled.add(uid)
            self._phases[uid] = kept.status.phase or ""
            self._notebook.write(uid, msgspec.json.encode(kept))

    def _recall(self, uid: PodUID) -> CachedStatus | None:
        """The status of a pod: the accepted one, or else the one noted before a restart."""
        cached = self._cache.get(uid)
        note = None if cached is not None else self._notebook.take(uid)
        if note is None:
            return cached
        try:
            recalled = msgspec.json.decode(note, type=CachedStatus)
        except UNDECODABLE as error:
            log.warning("noted status of pod %s is dropped: cannot read it: %s", uid, error)
            self._notebook.drop(uid)
            return None
        self._cache[uid] = recalled
        if recalled.shown is not None:
            # The note was written before its status was sent.
            unanswered = (*recalled.shown.unanswered, status_digest(recalled.status))
            self._shown[uid] = replace(recalled.shown, unanswered=unanswered)
        self._recalled.add(uid)
        self._phases[uid] = recalled.status.phase or ""
        return recalled


def _uid_of(pod: Pod) -> PodUID:
    """The UID of a pod that somebody gave us."""
    if not pod.metadata.uid:
        shown = f"{pod.metadata.namespace}/{pod.metadata.name}"
        raise BadInput(
            Problem(f"cannot keep a status for pod {shown}: a pod with a UID would be right", "metadata.uid")
        )
    return PodUID(pod.metadata.uid)


def _api_uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")


def _are(pair: tuple[Pod, PodStatus] | None, pod: Pod, status: PodStatus) -> bool:
    """Whether a remembered pair is these very objects."""
    return pair is not None and pair[0] is pod and pair[1] is status
