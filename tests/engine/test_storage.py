"""Pod storage with several sources and all three modes."""

from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.engine.storage import PodStorage
from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.messages import (
    ALL_SOURCES,
    CONFIG_FIRST_SEEN_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    Op,
    PodEvent,
    PodUID,
    PodUpdate,
)
from podkeeper.rules.merge import NotificationMode, duplicate_warning
from podkeeper.testing import build

NOW = datetime(2024, 1, 1, tzinfo=UTC)


pod = partial(build.pod, namespace="ns", node="n1")


class Listener:
    """A storage, and the updates and events of its last merge."""

    def __init__(self, mode: NotificationMode = NotificationMode.INCREMENTAL) -> None:
        self.updates: list[PodUpdate] = []
        self.events: list[PodEvent] = []
        self.storage = PodStorage(emit=self.updates.append, record_event=self.events.append, now=lambda: NOW, mode=mode)

    def merge(self, op: Op, source: str, *pods: Pod) -> list[str]:
        """Merge one change. Return the emitted updates in the form `ADD web db`."""
        self.updates.clear()
        self.storage.merge(PodUpdate(op, pods, source))
        return [" ".join([update.op, *(pod.metadata.name or "" for pod in update.pods)]) for update in self.updates]


def names(pods: tuple[Pod, ...]) -> list[str]:
    return sorted(pod.metadata.name or "" for pod in pods)


def test_the_first_set_of_a_source_is_emitted_even_if_it_is_empty() -> None:
    listener = Listener()
    assert listener.merge(Op.SET, "file") == ["ADD"]
    assert listener.updates == [PodUpdate(Op.ADD, (), "file")]
    assert listener.merge(Op.SET, "file") == []


def test_subscribers_receive_every_update() -> None:
    listener, later = Listener(), list[PodUpdate]()
    listener.storage.subscribe(later.append)
    listener.merge(Op.SET, "file", pod("web"))
    assert later == listener.updates
    listener.storage.sync()
    assert later == listener.updates


def test_a_pod_is_desired_from_its_first_update_until_its_deletion() -> None:
    listener = Listener()
    uid = PodUID("uid-web")
    assert not listener.storage.is_desired(uid)
    listener.merge(Op.ADD, "file", pod("other"))
    listener.merge(Op.ADD, "api", pod("web"))
    assert listener.storage.is_desired(uid)
    listener.merge(Op.DELETE, "api", pod("web", deleted=True))
    assert not listener.storage.is_desired(uid)
    listener.merge(Op.SET, "api", pod("web", uid="uid-web-2"))
    listener.merge(Op.REMOVE, "api", pod("web", uid="uid-web-2"))
    assert [listener.storage.is_desired(PodUID(each)) for each in ("uid-web-2", "uid-other")] == [False, True]


def test_a_stored_pod_has_its_source_and_the_time_it_was_first_seen() -> None:
    listener = Listener()
    listener.merge(Op.ADD, "api", pod("web"))
    (stored,) = listener.storage.merged_state()
    assert listener.updates == [PodUpdate(Op.ADD, (stored,), "api")]
    assert (stored.metadata.annotations or {}) == {
        CONFIG_SOURCE_ANNOTATION: "api",
        CONFIG_FIRST_SEEN_ANNOTATION: "2024-01-01T00:00:00.000000000Z",
    }


def test_a_mode_can_be_a_string() -> None:
    updates: list[PodUpdate] = []
    storage = PodStorage(emit=updates.append, record_event=print, now=lambda: NOW, mode="snapshot")
    for source in ("file", "api"):
        storage.merge(PodUpdate(Op.SET, (pod(source),), source))
    assert [(update.op, update.source, names(update.pods)) for update in updates] == [
        (Op.SET, "file", ["file"]),
        (Op.SET, "api", ["api", "file"]),
    ]


def test_pods_are_kept_in_the_order_of_the_last_set() -> None:
    listener = Listener()
    for order in (("web", "db"), ("db", "new", "web")):
        listener.merge(Op.SET, "api", *map(pod, order))
        assert [each.metadata.name for each in listener.storage.merged_state()] == list(order)


def test_a_removed_pod_is_dropped_and_the_others_of_its_source_stay() -> None:
    listener = Listener()
    listener.merge(Op.SET, "api", pod("web"), pod("db"))
    assert listener.merge(Op.REMOVE, "api", pod("web"), pod("unknown")) == ["REMOVE web"]
    assert names(listener.storage.merged_state()) == ["db"]
    assert listener.merge(Op.ADD, "api", pod("web")) == ["ADD web"]
    assert names(listener.storage.merged_state()) == ["db", "web"]


def test_a_source_is_ready_after_its_first_set() -> None:
    listener = Listener()
    listener.merge(Op.ADD, "api", pod("web"))
    assert listener.storage.seen_sources == frozenset()
    assert listener.merge(Op.SET, "api", pod("web")) == ["ADD"]
    assert listener.storage.seen_sources == {"api"}
    assert not listener.storage.has_seen(["api", "file"])
    listener.merge(Op.SET, "file")
    assert listener.storage.has_seen(["api", "file"])


def test_changes_are_emitted_in_order() -> None:
    listener = Listener()
    listener.merge(Op.SET, "api", pod("gone"), pod("changed"), pod("deleted"), pod("status"), pod("same"))
    changed = pod("status", status=PodStatus(message="x")), pod("deleted", deleted=True), pod("changed", node="n2")
    emitted = listener.merge(Op.SET, "api", *changed, pod("new"), pod("same"))
    assert emitted == ["REMOVE gone", "ADD new", "UPDATE changed", "DELETE deleted", "RECONCILE status"]


def test_a_snapshot_has_the_pods_of_all_sources_and_the_name_of_the_sender() -> None:
    listener = Listener(NotificationMode.SNAPSHOT)
    listener.merge(Op.SET, "file", pod("static"))
    assert listener.merge(Op.SET, "api", pod("web")) == ["SET static web"]
    assert listener.updates[0].source == "api"
    assert listener.merge(Op.SET, "api", pod("web", status=PodStatus(message="x"))) == []
    assert listener.merge(Op.SET, "api", pod("web", node="n2")) == ["SET static web"]


def test_snapshot_and_updates_emits_changes_of_known_pods_as_updates() -> None:
    listener = Listener(NotificationMode.SNAPSHOT_AND_UPDATES)
    assert listener.merge(Op.SET, "api", pod("web"), pod("db")) == ["SET web db"]
    assert listener.merge(Op.SET, "api", pod("web", node="n2"), pod("db", deleted=True)) == ["UPDATE web", "DELETE db"]
    assert listener.merge(Op.SET, "api", pod("web", node="n3")) == ["SET web", "UPDATE web"]


def test_sync_emits_all_pods_from_the_pseudo_source() -> None:
    listener = Listener()
    listener.merge(Op.SET, "file", pod("static"))
    listener.merge(Op.SET, "api", pod("web"))
    listener.updates.clear()
    listener.storage.sync()
    (update,) = listener.updates
    assert (update.op, update.source, names(update.pods)) == (Op.SET, ALL_SOURCES, ["static", "web"])


def test_a_duplicate_is_dropped_with_a_warning() -> None:
    listener = Listener()
    assert listener.merge(Op.SET, "api", pod("web", uid="1"), pod("web", uid="2")) == ["ADD web"]
    assert listener.events == [duplicate_warning(pod("web", uid="2"), "api")]


def test_the_same_uid_in_two_sources_is_two_pods() -> None:
    listener = Listener()
    listener.merge(Op.SET, "file", pod("web", uid="1"))
    listener.merge(Op.SET, "api", pod("web", uid="1"))
    assert listener.merge(Op.SET, "file") == ["REMOVE web"]
    (left,) = listener.storage.merged_state()
    assert (left.metadata.annotations or {})[CONFIG_SOURCE_ANNOTATION] == "api"


def test_an_invalid_change_stores_and_emits_nothing() -> None:
    listener = Listener()
    listener.merge(Op.SET, "api", pod("web"))
    before = listener.storage.merged_state()
    without_uid = build.pod("web", namespace="ns", uid="")
    with pytest.raises(BadInput, match="cannot merge pod web_ns from file without a uid"):
        listener.merge(Op.SET, "file", pod("good"), without_uid)
    assert (listener.storage.merged_state(), listener.updates) == (before, [])
    assert listener.storage.seen_sources == {"api"}


def test_an_unknown_mode_is_rejected() -> None:
    with pytest.raises(
        BadInput, match='mode: Unsupported value: "everything": supported values: "incremental", "snapshot_and_updates"'
    ):
        PodStorage(emit=print, record_event=print, now=lambda: NOW, mode="everything")


# Laws.

pods = st.builds(
    pod,
    st.sampled_from(["a", "b", "c"]),
    uid=st.sampled_from(["1", "2", "3"]),
    node=st.sampled_from(["n1", "n2"]),
    status=st.sampled_from([PodStatus(message=""), PodStatus(message="x")]),
    deleted=st.booleans(),
)
changes = st.builds(
    PodUpdate, st.sampled_from(list(Op)), st.lists(pods, max_size=4).map(tuple), st.sampled_from(["file", "api"])
)
histories = st.lists(changes, max_size=8)


def by_source(pods: tuple[Pod, ...]) -> dict[tuple[str, str], Pod]:
    return {((pod.metadata.annotations or {})[CONFIG_SOURCE_ANNOTATION], pod.metadata.uid or ""): pod for pod in pods}


@given(histories)
def test_replaying_the_incremental_updates_gives_the_merged_state(history: list[PodUpdate]) -> None:
    listener = Listener()
    view: dict[tuple[str, str], Pod] = {}
    for change in history:
        listener.merge(change.op, change.source, *change.pods)
        for update in listener.updates:
            for changed in update.pods:
                key = (update.source, changed.metadata.uid or "")
                if update.op is Op.REMOVE:
                    del view[key]
                else:
                    view[key] = changed
        assert view == by_source(listener.storage.merged_state())


@given(histories, changes)
def test_a_change_does_not_change_other_sources(history: list[PodUpdate], last: PodUpdate) -> None:
    listener = Listener()
    for change in history:
        listener.storage.merge(change)
    before = by_source(listener.storage.merged_state())
    listener.storage.merge(last)
    after = by_source(listener.storage.merged_state())
    assert {key: pod for key, pod in before.items() if key[0] != last.source} == {
        key: pod for key, pod in after.items() if key[0] != last.source
    }


@given(histories, st.sampled_from(NotificationMode))
def test_only_the_update_that_makes_a_source_ready_can_be_empty(
    history: list[PodUpdate], mode: NotificationMode
) -> None:
    listener = Listener(mode)
    for change in history:
        seen = change.source in listener.storage.seen_sources
        listener.merge(change.op, change.source, *change.pods)
        empty = [update for update in listener.updates if not update.pods and update.op is not Op.SET]
        assert not empty or (not seen and change.op is Op.SET and [update.op for update in empty] == [Op.ADD])
        assert all(update.source == change.source for update in listener.updates)


@given(histories)
def test_all_modes_store_the_same(history: list[PodUpdate]) -> None:
    listeners = [Listener(mode) for mode in NotificationMode]
    for change in history:
        for listener in listeners:
            listener.storage.merge(change)
    first, *others = (listener.storage for listener in listeners)
    assert all(
        (other.merged_state(), other.seen_sources) == (first.merged_state(), first.seen_sources) for other in others
    )
