"""The agent's table of pods: records, their order, and the events of each change."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import (
    ContainerRecord,
    LinuxUser,
    NetworkMode,
    PodRecord,
    RecordState,
    SandboxRecord,
)
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.model.runtime_calls import RuntimeEventType as Type
from podkeeper.runtimes.process.records import (
    ContainerFacts,
    PodTable,
    ReportedContainer,
    Sandbox,
    SandboxFacts,
    SandboxState,
    container_record,
    decode_container,
    to_datetime,
)

UID = PodUID("uid-web")
SECOND = 10**9
T0 = datetime(1970, 1, 1, tzinfo=UTC)


def at(second: int) -> datetime:
    return T0 + timedelta(seconds=second)


def facts(box_id: str = "box", attempt: int = 0, created: int = 1, **more: Any) -> SandboxFacts:
    values = {"uid": UID, "name": "web", "namespace": "default", **more}
    return SandboxFacts(id=box_id, attempt=attempt, created_at=created * SECOND, **values)


def container(container_id: str = "c", state: str = "created", attempt: int = 0, **more: Any) -> ReportedContainer:
    created = more.pop("created", 2)
    about = ContainerFacts(
        name="app", attempt=attempt, image="busybox", image_id="host", spec_hash="cafe", created_at=created * SECOND
    )
    return ReportedContainer(id=container_id, facts=about, state=state, **more)


class Harness:
    """A table and the events that it sent."""

    def __init__(self, *ips: str) -> None:
        self.events: list[RuntimeEvent] = []
        self.host_ips_calls = 0
        self._ips = ips
        self.table = PodTable(self.events.append, self._host_ips)

    def _host_ips(self) -> tuple[str, ...]:
        self.host_ips_calls += 1
        return self._ips

    def add_sandbox(self, *, notify: bool = False, **about: Any) -> Sandbox:
        made = Sandbox(facts(**about), SandboxState.READY)
        self.table.add(made, notify=notify)
        return made

    def take_events(self) -> list[tuple[str, Type]]:
        """Return and clear the events."""
        found = [(event.container_id, event.type) for event in self.events]
        assert {event.uid for event in self.events} <= {UID}
        self.events.clear()
        return found


def test_times_are_cut_to_microseconds_and_zero_is_none() -> None:
    assert to_datetime(0) is None
    assert to_datetime(1) == T0
    assert to_datetime(1_000_002_999) == T0 + timedelta(seconds=1, microseconds=2)


def test_decode_container_fills_in_defaults() -> None:
    about: dict[str, Any] = {
        "name": "app",
        "attempt": 1,
        "image": "i",
        "image_id": "h",
        "spec_hash": "s",
        "created_at": 5,
    }
    assert decode_container({"id": "c", "facts": about, "state": "created", "unknown": 1}) == ReportedContainer(
        id="c", facts=ContainerFacts(**about), state="created"
    )
    with pytest.raises(msgspec.ValidationError):
        decode_container({"id": "c", "facts": about})


RECORDS: dict[str, tuple[ReportedContainer, dict[str, Any]]] = {
    "created": (container(), {"state": RecordState.CREATED}),
    "running": (
        container(state="running", pid=7, ticks=9, started_at=3 * SECOND),
        {"state": RecordState.RUNNING, "started_at": at(3)},
    ),
    "exited": (
        container(state="exited", code=3, reason="Error", message="why", started_at=3 * SECOND, finished_at=4 * SECOND),
        {
            "state": RecordState.EXITED,
            "started_at": at(3),
            "finished_at": at(4),
            "exit_code": 3,
            "reason": "Error",
            "message": "why",
        },
    ),
    "never started": (
        container(state="exited", code=128, finished_at=4 * SECOND),
        {"state": RecordState.EXITED, "started_at": T0, "finished_at": at(4), "exit_code": 128},
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_container_record(name: str) -> None:
    given, expected = RECORDS[name]
    values: dict[str, Any] = {"started_at": None, "finished_at": None, "exit_code": 0, "reason": "", "message": ""}
    assert container_record(given, "box") == ContainerRecord(
        id="c",
        name="app",
        image="busybox",
        image_id="host",
        spec_hash="cafe",
        sandbox_id="box",
        restart_count=0,
        created_at=at(2),
        user=None,
        **{**values, **expected},
    )


def test_a_record_has_the_attempt_and_the_user_of_its_container() -> None:
    user = LinuxUser(uid=1, gid=2, supplemental_groups=(2,))
    about = msgspec.structs.replace(container().facts, attempt=4, user=user)
    record = container_record(msgspec.structs.replace(container(), facts=about), "box")
    assert (record.restart_count, record.user) == (4, user)


def test_a_pod_record_lists_the_newest_first() -> None:
    harness = Harness("192.0.2.7", "2001:db8::7")
    old = harness.add_sandbox(box_id="old", attempt=0, created=1)
    harness.table.set_state(old, SandboxState.STOPPED)
    new = harness.add_sandbox(box_id="new", attempt=1, created=5, host_network=True)
    harness.table.put_container(old, container("a", attempt=0, created=2))
    harness.table.put_container(new, container("b", attempt=1, created=6))
    harness.table.put_container(new, container("d", attempt=3, created=6))
    record = harness.table.record(UID)
    assert record == PodRecord(
        uid=UID,
        name="web",
        namespace="default",
        ips=("192.0.2.7", "2001:db8::7"),
        sandboxes=(
            SandboxRecord(
                id="new",
                ready=True,
                attempt=1,
                network=NetworkMode.NODE,
                ip="192.0.2.7",
                additional_ips=("2001:db8::7",),
                created_at=at(5),
            ),
            SandboxRecord(
                id="old",
                ready=False,
                attempt=0,
                network=NetworkMode.POD,
                ip=None,
                additional_ips=(),
                created_at=at(1),
            ),
        ),
        containers=(
            container_record(container("d", attempt=3, created=6), "new"),
            container_record(container("b", attempt=1, created=6), "new"),
            container_record(container("a", created=2), "old"),
        ),
    )
    assert harness.table.records() == (record,)
    assert harness.table.sandboxes_of(UID) == (new, old)
    assert [harness.table.sandbox_of(name) for name in ("a", "b", "x")] == [old, new, None]
    assert old.pod == "default/web"


def test_sandboxes_of_one_attempt_are_ordered_by_age() -> None:
    harness = Harness()
    first, second = harness.add_sandbox(box_id="a", created=1), harness.add_sandbox(box_id="b", created=2)
    assert harness.table.sandboxes_of(UID) == (second, first)


@pytest.mark.parametrize("standing", [SandboxState.STOPPING, SandboxState.UNRESPONSIVE, SandboxState.STOPPED])
def test_a_pod_whose_newest_sandbox_is_not_ready_has_no_addresses(standing: SandboxState) -> None:
    harness = Harness("192.0.2.7")
    add_sandbox = harness.add_sandbox()
    assert harness.table.record(UID).ips == ("192.0.2.7",)
    harness.table.set_state(add_sandbox, standing)
    record = harness.table.record(UID)
    assert (record.ips, record.sandboxes[0].ready, record.sandboxes[0].ip) == ((), False, None)


def test_a_pod_on_a_host_without_ips_has_none() -> None:
    harness = Harness()
    harness.add_sandbox()
    (add_sandbox,) = harness.table.record(UID).sandboxes
    assert (add_sandbox.ready, add_sandbox.ip, add_sandbox.additional_ips) == (True, None, ())


def test_an_unknown_pod_has_an_empty_record() -> None:
    harness = Harness()
    assert harness.table.record(UID) == PodRecord(uid=UID)
    assert (harness.table.records(), harness.table.sandboxes_of(UID), harness.table.newest_creation(UID)) == ((), (), 0)


def test_a_record_is_built_once_for_each_change() -> None:
    harness = Harness()
    add_sandbox = harness.add_sandbox()
    builds = []
    for change in (
        lambda: None,
        lambda: harness.table.put_container(add_sandbox, container()),
        lambda: harness.table.put_container(add_sandbox, container(), notify=False),
        lambda: harness.table.set_state(add_sandbox, SandboxState.STOPPING),
        lambda: harness.table.remove_container(add_sandbox, "c"),
        lambda: harness.table.remove_container(add_sandbox, "c"),
        lambda: harness.add_sandbox(box_id="more", attempt=1),
        lambda: harness.table.remove(add_sandbox),
        lambda: harness.table.remove(add_sandbox),
    ):
        change()
        before = harness.host_ips_calls
        harness.table.record(UID)
        harness.table.record(UID)
        builds.append(harness.host_ips_calls - before)
    assert builds == [1, 1, 1, 1, 1, 0, 1, 1, 0]


def test_newest_creation_covers_sandboxes_and_containers() -> None:
    harness = Harness()
    add_sandbox = harness.add_sandbox(created=5)
    assert harness.table.newest_creation(UID) == 5 * SECOND
    harness.table.put_container(add_sandbox, container(created=4))
    assert harness.table.newest_creation(UID) == 5 * SECOND
    harness.table.put_container(add_sandbox, container("d", created=6))
    assert harness.table.newest_creation(UID) == 6 * SECOND


# ---- events ----------------------------------------------------------------------------------


def test_a_sandbox_sends_events_when_added_changed_and_removed() -> None:
    harness = Harness()
    add_sandbox = harness.add_sandbox(notify=True)
    assert harness.take_events() == [("box", Type.CREATED), ("box", Type.STARTED)]
    for standing, expected in (
        (SandboxState.READY, []),
        (SandboxState.STOPPING, [("box", Type.STOPPED)]),
        (SandboxState.STOPPED, []),
        (SandboxState.READY, [("box", Type.STARTED)]),
        (SandboxState.UNRESPONSIVE, [("box", Type.STOPPED)]),
    ):
        harness.table.set_state(add_sandbox, standing)
        assert (add_sandbox.state, harness.take_events()) == (standing, expected)
    harness.table.put_container(add_sandbox, container(), notify=False)
    assert harness.take_events() == []
    harness.table.remove(add_sandbox)
    assert harness.take_events() == [("c", Type.DELETED), ("box", Type.DELETED)]
    assert (harness.table.sandboxes, harness.table.sandbox_of("c"), harness.table.records()) == ({}, None, ())
    harness.table.remove(add_sandbox)
    harness.table.remove_container(add_sandbox, "c")
    assert harness.take_events() == []


def test_an_adopted_sandbox_sends_no_event() -> None:
    harness = Harness()
    harness.add_sandbox(notify=False)
    assert harness.take_events() == []


STEPS: dict[str, tuple[ReportedContainer | None, ReportedContainer, list[tuple[Type, int]]]] = {
    "created": (None, container(), [(Type.CREATED, 2)]),
    "seen running for the first time": (
        None,
        container(state="running", started_at=3 * SECOND),
        [(Type.CREATED, 2), (Type.STARTED, 3)],
    ),
    "all at once": (
        None,
        container(state="exited", started_at=3 * SECOND, finished_at=4 * SECOND),
        [(Type.CREATED, 2), (Type.STARTED, 3), (Type.STOPPED, 4)],
    ),
    "started": (container(), container(state="running", started_at=3 * SECOND), [(Type.STARTED, 3)]),
    "could not be started": (container(), container(state="exited", finished_at=4 * SECOND), [(Type.STOPPED, 4)]),
    "stopped": (
        container(state="running", started_at=3 * SECOND),
        container(state="exited", started_at=3 * SECOND, finished_at=4 * SECOND),
        [(Type.STOPPED, 4)],
    ),
    "the same again": (container(), container(), []),
    "a new message after the exit": (
        container(state="exited", finished_at=4 * SECOND),
        container(state="exited", finished_at=4 * SECOND, message="why"),
        [],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_each_container_change_sends_events_with_their_times(name: str) -> None:
    before, now, expected = STEPS[name]
    harness = Harness()
    add_sandbox = harness.add_sandbox()
    if before is not None:
        harness.table.put_container(add_sandbox, before, notify=False)
    harness.table.put_container(add_sandbox, now)
    assert harness.events == [RuntimeEvent(UID, "c", happened, at(second)) for happened, second in expected]
    assert add_sandbox.containers == {"c": now}
