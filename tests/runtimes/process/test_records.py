"""The agent's picture of what keepers keep: records, their order, and the events of each change."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import (
    ContainerRecord,
    ContainerState,
    LinuxUser,
    NetworkMode,
    PodRecord,
    SandboxRecord,
)
from podkeeper.model.runtime_calls import RuntimeEvent
from podkeeper.model.runtime_calls import RuntimeEventType as Type
from podkeeper.runtimes.process.records import (
    ContainerFacts,
    Mirror,
    Sandbox,
    SandboxFacts,
    Standing,
    ToldContainer,
    container_record,
    moment,
    told,
)

UID = PodUID("uid-web")
SECOND = 10**9
T0 = datetime(1970, 1, 1, tzinfo=UTC)


def at(second: int) -> datetime:
    return T0 + timedelta(seconds=second)


def facts(box_id: str = "box", attempt: int = 0, created: int = 1, **more: Any) -> SandboxFacts:
    values = {"uid": UID, "name": "web", "namespace": "default", **more}
    return SandboxFacts(id=box_id, attempt=attempt, created_at=created * SECOND, **values)


def container(container_id: str = "c", state: str = "created", attempt: int = 0, **more: Any) -> ToldContainer:
    created = more.pop("created", 2)
    about = ContainerFacts(
        name="app", attempt=attempt, image="busybox", image_id="host", spec_hash="cafe", created_at=created * SECOND
    )
    return ToldContainer(id=container_id, facts=about, state=state, **more)


class Scene:
    """A mirror, and the events it sent."""

    def __init__(self, *ips: str) -> None:
        self.events: list[RuntimeEvent] = []
        self.asked = 0
        self._ips = ips
        self.mirror = Mirror(self.events.append, self._host_ips)

    def _host_ips(self) -> tuple[str, ...]:
        self.asked += 1
        return self._ips

    def box(self, *, tell: bool = False, **about: Any) -> Sandbox:
        made = Sandbox(facts(**about), Standing.READY)
        self.mirror.add(made, tell=tell)
        return made

    def news(self) -> list[tuple[str, Type]]:
        """What was told since the last look."""
        found = [(event.container_id, event.type) for event in self.events]
        assert {event.uid for event in self.events} <= {UID}
        self.events.clear()
        return found


def test_an_instant_is_cut_to_microseconds_and_zero_is_none() -> None:
    assert moment(0) is None
    assert moment(1) == T0
    assert moment(1_000_002_999) == T0 + timedelta(seconds=1, microseconds=2)


def test_what_a_keeper_says_is_read_with_its_defaults() -> None:
    about: dict[str, Any] = {
        "name": "app",
        "attempt": 1,
        "image": "i",
        "image_id": "h",
        "spec_hash": "s",
        "created_at": 5,
    }
    assert told({"id": "c", "facts": about, "state": "created", "unknown": 1}) == ToldContainer(
        id="c", facts=ContainerFacts(**about), state="created"
    )
    with pytest.raises(msgspec.ValidationError):
        told({"id": "c", "facts": about})


RECORDS: dict[str, tuple[ToldContainer, dict[str, Any]]] = {
    "created": (container(), {"state": ContainerState.CREATED}),
    "running": (
        container(state="running", pid=7, ticks=9, started_at=3 * SECOND),
        {"state": ContainerState.RUNNING, "started_at": at(3)},
    ),
    "exited": (
        container(state="exited", code=3, reason="Error", message="why", started_at=3 * SECOND, finished_at=4 * SECOND),
        {
            "state": ContainerState.EXITED,
            "started_at": at(3),
            "finished_at": at(4),
            "exit_code": 3,
            "reason": "Error",
            "message": "why",
        },
    ),
    "never started": (
        container(state="exited", code=128, finished_at=4 * SECOND),
        {"state": ContainerState.EXITED, "started_at": T0, "finished_at": at(4), "exit_code": 128},
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_container_as_the_port_shows_it(name: str) -> None:
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


def test_a_pod_with_all_that_is_in_it_newest_first() -> None:
    scene = Scene("192.0.2.7", "2001:db8::7")
    old = scene.box(box_id="old", attempt=0, created=1)
    scene.mirror.stand(old, Standing.STOPPED)
    new = scene.box(box_id="new", attempt=1, created=5, host_network=True)
    scene.mirror.put(old, container("a", attempt=0, created=2))
    scene.mirror.put(new, container("b", attempt=1, created=6))
    scene.mirror.put(new, container("d", attempt=3, created=6))
    record = scene.mirror.record(UID)
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
    assert scene.mirror.records() == (record,)
    assert scene.mirror.of_pod(UID) == (new, old)
    assert [scene.mirror.home_of(name) for name in ("a", "b", "x")] == [old, new, None]
    assert old.pod == "default/web"


def test_sandboxes_of_one_attempt_are_ordered_by_age() -> None:
    scene = Scene()
    first, second = scene.box(box_id="a", created=1), scene.box(box_id="b", created=2)
    assert scene.mirror.of_pod(UID) == (second, first)


@pytest.mark.parametrize("standing", [Standing.LEAVING, Standing.SILENT, Standing.STOPPED])
def test_a_pod_whose_newest_sandbox_is_not_ready_has_no_addresses(standing: Standing) -> None:
    scene = Scene("192.0.2.7")
    box = scene.box()
    assert scene.mirror.record(UID).ips == ("192.0.2.7",)
    scene.mirror.stand(box, standing)
    record = scene.mirror.record(UID)
    assert (record.ips, record.sandboxes[0].ready, record.sandboxes[0].ip) == ((), False, None)


def test_a_host_without_addresses_gives_none() -> None:
    scene = Scene()
    scene.box()
    (box,) = scene.mirror.record(UID).sandboxes
    assert (box.ready, box.ip, box.additional_ips) == (True, None, ())


def test_a_pod_that_is_not_known_has_an_empty_record() -> None:
    scene = Scene()
    assert scene.mirror.record(UID) == PodRecord(uid=UID)
    assert (scene.mirror.records(), scene.mirror.of_pod(UID), scene.mirror.newest_instant(UID)) == ((), (), 0)


def test_a_record_is_built_once_for_each_change() -> None:
    scene = Scene()
    box = scene.box()
    builds = []
    for change in (
        lambda: None,
        lambda: scene.mirror.put(box, container()),
        lambda: scene.mirror.put(box, container(), tell=False),
        lambda: scene.mirror.stand(box, Standing.LEAVING),
        lambda: scene.mirror.remove_container(box, "c"),
        lambda: scene.mirror.remove_container(box, "c"),
        lambda: scene.box(box_id="more", attempt=1),
        lambda: scene.mirror.remove(box),
        lambda: scene.mirror.remove(box),
    ):
        change()
        before = scene.asked
        scene.mirror.record(UID)
        scene.mirror.record(UID)
        builds.append(scene.asked - before)
    assert builds == [1, 1, 1, 1, 1, 0, 1, 1, 0]


def test_the_newest_instant_is_that_of_a_sandbox_or_of_a_container() -> None:
    scene = Scene()
    box = scene.box(created=5)
    assert scene.mirror.newest_instant(UID) == 5 * SECOND
    scene.mirror.put(box, container(created=4))
    assert scene.mirror.newest_instant(UID) == 5 * SECOND
    scene.mirror.put(box, container("d", created=6))
    assert scene.mirror.newest_instant(UID) == 6 * SECOND


# ---- news ------------------------------------------------------------------------------------


def test_a_sandbox_is_news_when_it_comes_changes_and_goes() -> None:
    scene = Scene()
    box = scene.box(tell=True)
    assert scene.news() == [("box", Type.CREATED), ("box", Type.STARTED)]
    for standing, expected in (
        (Standing.READY, []),
        (Standing.LEAVING, [("box", Type.STOPPED)]),
        (Standing.STOPPED, []),
        (Standing.READY, [("box", Type.STARTED)]),
        (Standing.SILENT, [("box", Type.STOPPED)]),
    ):
        scene.mirror.stand(box, standing)
        assert (box.standing, scene.news()) == (standing, expected)
    scene.mirror.put(box, container(), tell=False)
    assert scene.news() == []
    scene.mirror.remove(box)
    assert scene.news() == [("c", Type.DELETED), ("box", Type.DELETED)]
    assert (scene.mirror.sandboxes, scene.mirror.home_of("c"), scene.mirror.records()) == ({}, None, ())
    scene.mirror.remove(box)
    scene.mirror.remove_container(box, "c")
    assert scene.news() == []


def test_a_sandbox_that_is_found_again_is_no_news() -> None:
    scene = Scene()
    scene.box(tell=False)
    assert scene.news() == []


STEPS: dict[str, tuple[ToldContainer | None, ToldContainer, list[tuple[Type, int]]]] = {
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
    "told again": (container(), container(), []),
    "a new message of one that has exited": (
        container(state="exited", finished_at=4 * SECOND),
        container(state="exited", finished_at=4 * SECOND, message="why"),
        [],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_each_step_of_a_container_is_news_with_its_time(name: str) -> None:
    before, now, expected = STEPS[name]
    scene = Scene()
    box = scene.box()
    if before is not None:
        scene.mirror.put(box, before, tell=False)
    scene.mirror.put(box, now)
    assert scene.events == [RuntimeEvent(UID, "c", happened, at(second)) for happened, second in expected]
    assert box.containers == {"c": now}
