"""The workers of a whole node: whose turn it is, and what housekeeping learns."""

import msgspec

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import API_SOURCE, FILE_SOURCE, PodUID
from podkeeper.model.runtime import PodRecord
from podkeeper.rules.worker.events import (
    Enqueue,
    Failed,
    Passed,
    ReadStatus,
    StatusRead,
    SyncPod,
    SyncTerminatingPod,
    SyncTerminatingRuntimePod,
)
from podkeeper.rules.worker.states import Cause, Finished, NeverStarted, Syncing, TerminationRequested, Unknown, Waiting
from podkeeper.rules.worker.static_order import StaticOrder
from podkeeper.rules.worker.updates import Update, UpdateType
from podkeeper.rules.worker.workers import KnownPod, Orders, Stage, Workers
from tools.worker_diagram import pod_from

CREATE, SYNC, KILL = UpdateType.CREATE, UpdateType.SYNC, UpdateType.KILL
WEB, OLD, NEW, NEWER, STRAY = (PodUID(uid) for uid in ("web", "old", "new", "newer", "stray"))
RETRY = Enqueue(10)
STATIC = "static_default"


def pod(uid: PodUID) -> Pod:
    """`web` comes from the API; the others are static and share a name."""
    bare = pod_from(API_SOURCE if uid == WEB else FILE_SOURCE)
    name = "web" if uid == WEB else "static"
    return msgspec.structs.replace(bare, metadata=msgspec.structs.replace(bare.metadata, uid=uid, name=name))


def tell(workers: Workers, update_type: UpdateType, uid: PodUID) -> Orders:
    return workers.update(Update(type=update_type, pod=pod(uid)), PodRecord(uid=uid))


def succeed(workers: Workers, uid: PodUID) -> None:
    """Let the pass that is about to begin for a pod go well."""
    workers.report(uid, StatusRead())
    workers.report(uid, Passed(1.0))


def killed(workers: Workers, *uids: PodUID) -> None:
    """End pods that rest, to the very end."""
    for uid in uids:
        tell(workers, KILL, uid)
        succeed(workers, uid)
        succeed(workers, uid)


def node_with(*uids: PodUID) -> Workers:
    """Pods that were created, one after the other, and rest if they could start."""
    workers = Workers()
    for uid in uids:
        tell(workers, CREATE, uid)
        if isinstance(workers.state(uid), Syncing):
            succeed(workers, uid)
    return workers


def test_a_pod_of_the_api_starts_at_once() -> None:
    workers = Workers()
    assert tell(workers, CREATE, WEB) == (ReadStatus(None),)
    assert workers.report(WEB, StatusRead()) == (SyncPod(CREATE, pod(WEB), None),)


def test_a_static_pod_waits_until_the_one_before_has_left() -> None:
    workers = node_with(OLD)
    assert tell(workers, CREATE, NEW) == (RETRY,)
    assert tell(workers, SYNC, NEW) == (RETRY,)
    killed(workers, OLD)
    assert tell(workers, SYNC, NEW) == (ReadStatus(None),)


def test_the_owner_learns_whom_to_wake() -> None:
    workers = node_with(OLD, NEW, NEWER)
    assert workers.next_in_line(STATIC) is None
    killed(workers, OLD)
    assert workers.next_in_line(STATIC) == NEW
    tell(workers, KILL, NEW)
    assert workers.next_in_line(STATIC) == NEWER
    assert tell(workers, SYNC, NEWER) == (ReadStatus(None),)
    assert workers.next_in_line(STATIC) is None


def test_who_comes_later_does_not_jump_the_queue() -> None:
    workers = node_with(OLD, NEW, NEWER)
    killed(workers, OLD)
    assert tell(workers, SYNC, NEWER) == (RETRY,)
    assert tell(workers, SYNC, NEW) == (ReadStatus(None),)


def test_killed_before_its_turn_it_finishes_without_a_sync() -> None:
    workers = node_with(OLD, NEW)
    assert tell(workers, KILL, NEW) == ()
    assert workers.state(NEW) == NeverStarted(Cause.KILLED)


def test_who_has_slipped_out_of_the_line_is_waited_for_all_the_same() -> None:
    workers = node_with(OLD, NEW, NEWER)
    killed(workers, OLD)
    moved = pod_from(API_SOURCE)  # under the same UID its source is now the API: no turn is needed
    moved = msgspec.structs.replace(moved, metadata=msgspec.structs.replace(moved.metadata, uid=NEW, name="static"))
    assert workers.update(Update(type=SYNC, pod=moved), None) == (ReadStatus(None),)
    assert tell(workers, SYNC, NEWER) == (RETRY,)
    assert workers.next_in_line(STATIC) is None


def test_a_mirror_is_kept_while_its_static_pod_stops() -> None:
    workers = node_with(OLD, NEW)
    seen = [workers.is_pod_for_mirror_pod_terminating(STATIC)]
    tell(workers, KILL, OLD)
    seen.append(workers.is_pod_for_mirror_pod_terminating(STATIC))
    succeed(workers, OLD)
    seen.append(workers.is_pod_for_mirror_pod_terminating(STATIC))
    assert seen == [False, True, False]
    assert not workers.is_pod_for_mirror_pod_terminating("nobody_default")


def test_housekeeping_sees_who_is_known_and_how() -> None:
    workers = node_with(WEB, OLD, NEW)
    workers.update(Update(type=KILL, running_pod=PodRecord(uid=STRAY)), None)
    sweep = workers.sync_known_pods({WEB, OLD, NEW, STRAY})
    assert sweep.known == {
        WEB: KnownPod(Stage.SYNC, orphan=False, has_config=True, static=False),
        OLD: KnownPod(Stage.SYNC, orphan=False, has_config=True, static=True),
        NEW: KnownPod(Stage.SYNC, orphan=False, has_config=True, static=True),
        STRAY: KnownPod(Stage.TERMINATING, orphan=False, has_config=False, static=False),
    }
    assert sweep.orders == {}


def test_housekeeping_ends_what_nobody_wants_and_forgets_what_never_started() -> None:
    workers = node_with(WEB, OLD, NEW)
    sweep = workers.sync_known_pods(set())
    assert sweep.known == {
        WEB: KnownPod(Stage.TERMINATING, orphan=True, has_config=True, static=False),
        OLD: KnownPod(Stage.TERMINATING, orphan=True, has_config=True, static=True),
    }
    assert sweep.orders == {WEB: (ReadStatus(1.0),), OLD: (ReadStatus(1.0),)}
    assert isinstance(workers.state(NEW), Unknown)
    assert workers.report(WEB, StatusRead()) == (SyncTerminatingPod(pod(WEB), None, None),)


def test_a_finished_pod_is_remembered_while_it_is_desired() -> None:
    workers = node_with(WEB)
    killed(workers, WEB)
    known = {WEB: KnownPod(Stage.TERMINATED, orphan=False, has_config=True, static=False)}
    assert workers.sync_known_pods({WEB}).known == known
    assert tell(workers, SYNC, WEB) == ()
    assert workers.sync_known_pods(set()).known == {}
    assert tell(workers, CREATE, WEB) == (ReadStatus(None),)


def test_a_pod_that_comes_back_while_it_ends_is_started_afresh_after_housekeeping() -> None:
    workers = node_with(OLD)
    tell(workers, KILL, OLD)
    assert tell(workers, CREATE, OLD) == ()
    assert OLD in workers.sync_known_pods({OLD}).known
    succeed(workers, OLD)
    succeed(workers, OLD)
    assert isinstance(workers.state(OLD), Finished)
    assert workers.sync_known_pods({OLD}).known == {}
    assert tell(workers, CREATE, OLD) == (ReadStatus(None),)


def test_pods_that_are_over_and_wanted_again_are_forgotten_without_a_sweep() -> None:
    workers = node_with(WEB, OLD, NEW, NEWER)
    killed(workers, WEB, OLD)
    tell(workers, KILL, NEW)
    for uid in (OLD, NEW):
        tell(workers, CREATE, uid)
    before = {uid: workers.state(uid) for uid in (OLD, NEW)}
    assert [uid for uid in (WEB, OLD, NEW, NEWER, STRAY) if workers.is_restartable(uid)] == [OLD, NEW]
    assert workers.forget_restartable((WEB, OLD, NEW, NEWER, STRAY)) == before
    assert [type(workers.state(uid)) for uid in (WEB, OLD, NEW, NEWER)] == [Finished, Unknown, Unknown, Waiting]
    assert not workers.synced, "an unknown pod may still run"
    assert tell(workers, CREATE, OLD) == (RETRY,)  # it waits behind the one that came meanwhile
    assert workers.next_in_line(STATIC) == NEWER


def test_a_pod_that_still_ends_is_not_forgotten_though_it_is_wanted_again() -> None:
    workers = node_with(OLD)
    tell(workers, KILL, OLD)
    tell(workers, CREATE, OLD)
    assert not workers.is_restartable(OLD)
    assert workers.forget_restartable((OLD,)) == {}
    assert workers.forget_restartable(()) == {}
    assert isinstance(workers.state(OLD), TerminationRequested)


def test_a_runtime_pod_is_killed_until_it_is_gone() -> None:
    workers = Workers()
    record = PodRecord(uid=STRAY, name="stray", namespace="default")
    kill = SyncTerminatingRuntimePod(record)
    assert workers.update(Update(type=KILL, running_pod=record), record) == (kill,)
    assert workers.report(STRAY, Failed(1.0)) == (RETRY,)
    assert workers.sync_known_pods(set()).orders == {STRAY: (kill,)}
    assert workers.report(STRAY, Passed(2.0)) == ()
    assert isinstance(workers.state(STRAY), Unknown)


def test_an_update_that_is_ignored_leaves_no_trace() -> None:
    workers = node_with(OLD, NEW)
    assert workers.update(Update(type=SYNC, running_pod=PodRecord(uid=STRAY)), None) == ()
    assert workers.update(Update(type=SYNC, running_pod=PodRecord(uid=NEW)), None) == ()
    assert isinstance(workers.state(NEW), Waiting)
    assert set(workers.sync_known_pods({OLD, NEW}).known) == {OLD, NEW}


def test_the_line_passes_over_who_is_no_longer_wanted() -> None:
    order = StaticOrder()
    for uid in (OLD, NEW, NEWER):
        order.join("web", uid)
    wanted = {NEW, NEWER}.__contains__
    assert order.next("web", wanted) == NEW
    assert not order.start("web", NEWER, wanted)
    assert order.start("web", NEW, wanted)
    assert order.started("web") == NEW
    order.leave("web", OLD)
    assert order.started("web") == NEW
    order.leave("web", NEW)
    assert order.start("web", NEWER, wanted)
    order.leave("web", NEWER)
    assert order.next("web", wanted) is None
