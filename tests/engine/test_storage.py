"""The storage as a whole: several sources, three modes, and what a consumer can rely on."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.engine.storage import PodStorage
from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Pod, PodSpec, PodStatus
from podkeeper.model.k8s.meta import ObjectMeta
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

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def pod(name: str, *, uid: str | None = None, node: str = "n1", message: str = "", deleted: bool = False) -> Pod:
    deletion = "2024-01-01T00:00:00Z" if deleted else None
    metadata = ObjectMeta(name=name, namespace="ns", uid=uid or f"uid-{name}", deletion_timestamp=deletion)
    return Pod(metadata=metadata, spec=PodSpec(node_name=node), status=PodStatus(message=message))


class Listener:
    """A storage and all that it has told so far."""

    def __init__(self, mode: NotificationMode = NotificationMode.INCREMENTAL) -> None:
        self.updates: list[PodUpdate] = []
        self.events: list[PodEvent] = []
        self.storage = PodStorage(emit=self.updates.append, record=self.events.append, now=lambda: NOW, mode=mode)

    def tell(self, op: Op, source: str, *pods: Pod) -> list[str]:
        """Merge one change; the answer is what it led to: `ADD web db`."""
        self.updates.clear()
        self.storage.merge(PodUpdate(op, pods, source))
        return [" ".join([update.op, *(pod.metadata.name or "" for pod in update.pods)]) for update in self.updates]


def names(pods: tuple[Pod, ...]) -> list[str]:
    return sorted(pod.metadata.name or "" for pod in pods)


def test_the_first_set_of_a_source_is_told_even_if_it_is_empty() -> None:
    listener = Listener()
    assert listener.tell(Op.SET, "file") == ["ADD"]
    assert listener.updates == [PodUpdate(Op.ADD, (), "file")]
    assert listener.tell(Op.SET, "file") == []


def test_a_pod_is_wanted_from_its_first_update_until_its_end_is_asked_for() -> None:
    listener = Listener()
    uid = PodUID("uid-web")
    assert not listener.storage.wants(uid)
    listener.tell(Op.ADD, "file", pod("other"))
    listener.tell(Op.ADD, "api", pod("web"))
    assert listener.storage.wants(uid)
    listener.tell(Op.DELETE, "api", pod("web", deleted=True))
    assert not listener.storage.wants(uid)
    listener.tell(Op.SET, "api", pod("web", uid="uid-web-2"))
    listener.tell(Op.REMOVE, "api", pod("web", uid="uid-web-2"))
    assert [listener.storage.wants(PodUID(each)) for each in ("uid-web-2", "uid-other")] == [False, True]


def test_a_stored_pod_carries_its_source_and_when_it_was_first_seen() -> None:
    listener = Listener()
    listener.tell(Op.ADD, "api", pod("web"))
    (stored,) = listener.storage.merged_state()
    assert listener.updates == [PodUpdate(Op.ADD, (stored,), "api")]
    assert (stored.metadata.annotations or {}) == {
        CONFIG_SOURCE_ANNOTATION: "api",
        CONFIG_FIRST_SEEN_ANNOTATION: "2024-01-01T00:00:00.000000000Z",
    }


def test_a_mode_may_be_given_by_its_name() -> None:
    updates: list[PodUpdate] = []
    storage = PodStorage(emit=updates.append, record=print, now=lambda: NOW, mode="snapshot")
    for source in ("file", "api"):
        storage.merge(PodUpdate(Op.SET, (pod(source),), source))
    assert [(update.op, update.source, names(update.pods)) for update in updates] == [
        (Op.SET, "file", ["file"]),
        (Op.SET, "api", ["api", "file"]),
    ]


def test_pods_are_kept_in_the_order_of_the_last_set() -> None:
    listener = Listener()
    for order in (("web", "db"), ("db", "new", "web")):
        listener.tell(Op.SET, "api", *map(pod, order))
        assert [each.metadata.name for each in listener.storage.merged_state()] == list(order)


def test_a_removed_pod_is_forgotten_and_the_others_of_its_source_stay() -> None:
    listener = Listener()
    listener.tell(Op.SET, "api", pod("web"), pod("db"))
    assert listener.tell(Op.REMOVE, "api", pod("web"), pod("unknown")) == ["REMOVE web"]
    assert names(listener.storage.merged_state()) == ["db"]
    assert listener.tell(Op.ADD, "api", pod("web")) == ["ADD web"]
    assert names(listener.storage.merged_state()) == ["db", "web"]


def test_a_source_is_seen_with_its_first_set_not_before() -> None:
    listener = Listener()
    listener.tell(Op.ADD, "api", pod("web"))
    assert listener.storage.seen_sources == frozenset()
    assert listener.tell(Op.SET, "api", pod("web")) == ["ADD"]
    assert listener.storage.seen_sources == {"api"}
    assert not listener.storage.has_seen(["api", "file"])
    listener.tell(Op.SET, "file")
    assert listener.storage.has_seen(["api", "file"])


def test_changes_are_told_in_strict_order() -> None:
    listener = Listener()
    listener.tell(Op.SET, "api", pod("gone"), pod("changed"), pod("deleted"), pod("status"), pod("same"))
    changed = pod("status", message="x"), pod("deleted", deleted=True), pod("changed", node="n2")
    told = listener.tell(Op.SET, "api", *changed, pod("new"), pod("same"))
    assert told == ["REMOVE gone", "ADD new", "UPDATE changed", "DELETE deleted", "RECONCILE status"]


def test_snapshots_hold_the_pods_of_all_sources_under_the_name_of_the_one_that_spoke() -> None:
    listener = Listener(NotificationMode.SNAPSHOT)
    listener.tell(Op.SET, "file", pod("static"))
    assert listener.tell(Op.SET, "api", pod("web")) == ["SET static web"]
    assert listener.updates[0].source == "api"
    assert listener.tell(Op.SET, "api", pod("web", message="x")) == []
    assert listener.tell(Op.SET, "api", pod("web", node="n2")) == ["SET static web"]


def test_snapshot_and_updates_tells_changes_of_known_pods_as_such() -> None:
    listener = Listener(NotificationMode.SNAPSHOT_AND_UPDATES)
    assert listener.tell(Op.SET, "api", pod("web"), pod("db")) == ["SET web db"]
    assert listener.tell(Op.SET, "api", pod("web", node="n2"), pod("db", deleted=True)) == ["UPDATE web", "DELETE db"]
    assert listener.tell(Op.SET, "api", pod("web", node="n3")) == ["SET web", "UPDATE web"]


def test_sync_tells_everything_once_more_from_the_pseudo_source() -> None:
    listener = Listener()
    listener.tell(Op.SET, "file", pod("static"))
    listener.tell(Op.SET, "api", pod("web"))
    listener.updates.clear()
    listener.storage.sync()
    (update,) = listener.updates
    assert (update.op, update.source, names(update.pods)) == (Op.SET, ALL_SOURCES, ["static", "web"])


def test_a_duplicate_is_dropped_with_a_warning() -> None:
    listener = Listener()
    assert listener.tell(Op.SET, "api", pod("web", uid="1"), pod("web", uid="2")) == ["ADD web"]
    assert listener.events == [duplicate_warning(pod("web", uid="2"), "api")]


def test_the_same_uid_in_two_sources_is_two_pods() -> None:
    listener = Listener()
    listener.tell(Op.SET, "file", pod("web", uid="1"))
    listener.tell(Op.SET, "api", pod("web", uid="1"))
    assert listener.tell(Op.SET, "file") == ["REMOVE web"]
    (left,) = listener.storage.merged_state()
    assert (left.metadata.annotations or {})[CONFIG_SOURCE_ANNOTATION] == "api"


def test_a_refused_change_changes_and_tells_nothing() -> None:
    listener = Listener()
    listener.tell(Op.SET, "api", pod("web"))
    before = listener.storage.merged_state()
    nameless = Pod(metadata=ObjectMeta(name="nobody", namespace="ns"))
    with pytest.raises(BadInput, match="cannot merge pod nobody_ns from file without a uid"):
        listener.tell(Op.SET, "file", pod("good"), nameless)
    assert (listener.storage.merged_state(), listener.updates) == (before, [])
    assert listener.storage.seen_sources == {"api"}


def test_an_unknown_mode_is_refused_at_construction() -> None:
    with pytest.raises(
        BadInput, match="'everything'; right would be one of: incremental, snapshot_and_updates, snapshot"
    ):
        PodStorage(emit=print, record=print, now=lambda: NOW, mode="everything")


# Laws.

pods = st.builds(
    pod,
    st.sampled_from(["a", "b", "c"]),
    uid=st.sampled_from(["1", "2", "3"]),
    node=st.sampled_from(["n1", "n2"]),
    message=st.sampled_from(["", "x"]),
    deleted=st.booleans(),
)
changes = st.builds(
    PodUpdate, st.sampled_from(list(Op)), st.lists(pods, max_size=4).map(tuple), st.sampled_from(["file", "api"])
)
histories = st.lists(changes, max_size=8)


def by_source(pods: tuple[Pod, ...]) -> dict[tuple[str, str], Pod]:
    return {((pod.metadata.annotations or {})[CONFIG_SOURCE_ANNOTATION], pod.metadata.uid or ""): pod for pod in pods}


@settings(deadline=None, derandomize=True)
@given(histories)
def test_replaying_the_incremental_updates_gives_the_merged_state(history: list[PodUpdate]) -> None:
    listener = Listener()
    view: dict[tuple[str, str], Pod] = {}
    for change in history:
        listener.tell(change.op, change.source, *change.pods)
        for update in listener.updates:
            for changed in update.pods:
                key = (update.source, changed.metadata.uid or "")
                if update.op is Op.REMOVE:
                    del view[key]
                else:
                    view[key] = changed
        assert view == by_source(listener.storage.merged_state())


@settings(deadline=None, derandomize=True)
@given(histories, changes)
def test_a_change_leaves_the_other_sources_untouched(history: list[PodUpdate], last: PodUpdate) -> None:
    listener = Listener()
    for change in history:
        listener.storage.merge(change)
    before = by_source(listener.storage.merged_state())
    listener.storage.merge(last)
    after = by_source(listener.storage.merged_state())
    assert {key: pod for key, pod in before.items() if key[0] != last.source} == {
        key: pod for key, pod in after.items() if key[0] != last.source
    }


@settings(deadline=None, derandomize=True)
@given(histories, st.sampled_from(NotificationMode))
def test_no_update_is_empty_but_the_one_that_makes_a_source_seen(
    history: list[PodUpdate], mode: NotificationMode
) -> None:
    listener = Listener(mode)
    for change in history:
        seen = change.source in listener.storage.seen_sources
        listener.tell(change.op, change.source, *change.pods)
        empty = [update for update in listener.updates if not update.pods and update.op is not Op.SET]
        assert not empty or (not seen and change.op is Op.SET and [update.op for update in empty] == [Op.ADD])
        assert all(update.source == change.source for update in listener.updates)


@settings(deadline=None, derandomize=True)
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
