"""Container garbage collection: what is removed and what never is."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.container_gc import Garbage, all_garbage_of, all_init_containers, garbage_of, old_init_containers
from podkeeper.testing.build import container
from tests.rules.plan.planning import CREATED, EXITED, RUNNING, UNKNOWN, pod


def record(*containers: tuple[str, RecordState], sandboxes: tuple[SandboxRecord, ...] = ()) -> PodRecord:
    """Containers, newest first. The ID is the name and the number of older ones."""
    found = tuple(
        ContainerRecord(id=f"{name}{len(containers) - number}", name=name, state=state, sandbox_id="new")
        for number, (name, state) in enumerate(containers, 1)
    )
    return PodRecord(uid="uid", containers=found, sandboxes=sandboxes)


def box(name: str, *, ready: bool = False) -> SandboxRecord:
    return SandboxRecord(id=name, ready=ready)


def test_the_newest_exit_of_each_container_is_kept() -> None:
    found = record(("a", RUNNING), ("b", EXITED), ("a", EXITED), ("a", EXITED), ("b", EXITED))
    assert garbage_of(found) == Garbage(("a1", "b0"))
    assert garbage_of(found, like="b3") == Garbage(("b0",))
    assert garbage_of(found, like="nosuch") == Garbage()
    assert garbage_of(found, kept_exits=2) == Garbage()


def test_a_container_that_never_started_is_removed_if_there_is_a_newer_one() -> None:
    assert garbage_of(record(("a", CREATED), ("a", EXITED))) == Garbage()
    assert garbage_of(record(("a", RUNNING), ("a", CREATED))) == Garbage(("a0",))


def test_the_highest_attempt_stays_until_it_starts_even_if_it_seems_older() -> None:
    exited, created = (
        ContainerRecord(id=name, name="a", state=state, restart_count=count)
        for name, state, count in (("old", EXITED, 1), ("next", CREATED, 2))
    )
    other = ContainerRecord(id="other", name="b", state=EXITED, restart_count=7)
    assert garbage_of(PodRecord(uid="uid", containers=(other, exited, created))) == Garbage()
    running = structs.replace(exited, state=RUNNING)
    assert garbage_of(PodRecord(uid="uid", containers=(other, running, created))) == Garbage(("next",))
    again = structs.replace(created, restart_count=1)
    assert garbage_of(PodRecord(uid="uid", containers=(other, exited, again))) == Garbage(("next",))


def test_a_container_in_unknown_state_is_removed_if_there_is_a_newer_one() -> None:
    assert garbage_of(record(("a", UNKNOWN), ("a", EXITED))) == Garbage()
    assert garbage_of(record(("a", EXITED), ("a", UNKNOWN))) == Garbage(("a0",))
    assert garbage_of(record(("a", RUNNING), ("a", UNKNOWN), ("a", EXITED), ("a", UNKNOWN))) == Garbage(("a2", "a0"))


def test_old_sandboxes_are_removed_when_they_are_empty() -> None:
    in_old = ContainerRecord(id="a", name="a", state=EXITED, sandbox_id="old")
    found = PodRecord(uid="uid", containers=(in_old,), sandboxes=(box("new"), box("older"), box("old")))
    assert garbage_of(found) == Garbage((), ("older",))
    assert garbage_of(found, kept_exits=0) == Garbage(("a",), ("older", "old"))


def test_a_container_without_a_sandbox_id_belongs_to_the_newest_sandbox() -> None:
    nowhere = ContainerRecord(id="a", name="a", state=RUNNING)
    found = PodRecord(uid="uid", containers=(nowhere,), sandboxes=(box("new"), box("old")))
    assert all_garbage_of(found) == Garbage((), ("old",))


def test_all_but_running_containers_of_a_deleted_pod_are_removed_oldest_first() -> None:
    found = record(("a", EXITED), ("b", UNKNOWN), ("c", CREATED), sandboxes=(box("new"), box("old", ready=True)))
    assert all_garbage_of(found) == Garbage(("c0", "b1", "a2"), ("new",))


def test_only_the_latest_exited_init_container_of_a_name_is_kept() -> None:
    spec = pod(container("web"), init=(container("setup"), container("more")))
    found = record(
        ("setup", RUNNING), ("setup", EXITED), ("web", EXITED), ("setup", UNKNOWN), ("more", EXITED), ("web", EXITED)
    )
    assert old_init_containers(spec, found) == ("setup2",)
    assert all_init_containers(spec, found) == ("setup5", "setup4", "setup2", "more1")
    assert old_init_containers(pod(container("setup")), found) == ()


RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(RecordState)), max_size=8)


@given(RECORDS)
def test_no_newest_container_and_no_newest_exit_is_ever_removed(containers: list[tuple[str, RecordState]]) -> None:
    found = record(*containers)
    gone = set(garbage_of(found).container_ids)
    for name in "abc":
        newest = found.container(name)
        assert newest is None or newest.id not in gone
        exits = [each.id for each in found.containers if each.name == name and each.state is EXITED]
        assert not exits or exits[0] not in gone
        assert gone.issuperset(exits[1:])


@given(RECORDS)
def test_after_garbage_collection_each_name_has_one_dead_container_besides_its_newest(
    containers: list[tuple[str, RecordState]],
) -> None:
    found = record(*containers)
    gone = set(garbage_of(found).container_ids)
    left = PodRecord(uid="uid", containers=tuple(each for each in found.containers if each.id not in gone))
    assert garbage_of(left) == Garbage(), "one round is enough"
    for name in "abc":
        older = [each.state for each in left.containers if each.name == name and each is not left.container(name)]
        assert [state for state in older if state is not RUNNING] in ([], [EXITED])


@given(RECORDS)
def test_running_containers_are_never_removed(containers: list[tuple[str, RecordState]]) -> None:
    found = record(*containers)
    running = {each.id for each in found.containers if each.state is RUNNING}
    assert not running & {*garbage_of(found).container_ids, *all_garbage_of(found).container_ids}
