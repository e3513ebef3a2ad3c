"""Objects that are kept for a start without the API: what is stored, when it is used, and when it is removed."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from podkeeper.model.errors import ApiUnavailable, NotFound, TryLater
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    Node,
    Pod,
    PodSpec,
    ProjectedVolumeSource,
    Secret,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.sources.kept_objects import ANSWER_SECONDS, ASK_AGAIN_SECONDS, RETRY_SECONDS, KeptObjects
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.virtual_time import VirtualClock, simulate

META = ObjectMeta(name="settings", namespace="default")
SETTINGS = ConfigMap(metadata=META, data={"colour": "blue"})
PASSWORD = Secret(metadata=ObjectMeta(name="password", namespace="default"), data={"admin": "aHVudGVyMg=="})
TOKEN = ProjectedVolumeSource(
    sources=(VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="t")),)
)
POD = Pod(
    metadata=ObjectMeta(name="web", namespace="default", uid="uid-web"),
    spec=PodSpec(
        containers=(Container(name="app", image="app"),),
        volumes=(
            Volume(name="a", config_map=ConfigMapVolumeSource(name="settings")),
            Volume(name="b", secret=SecretVolumeSource(secret_name="password")),
            Volume(name="c", projected=TOKEN),
        ),
    ),
)


class Disk:
    """A store in memory that can refuse."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.refuses = False
        self.writes = 0

    def open(self) -> frozenset[str]:
        self._ask()
        return frozenset(self.files)

    def name_of(self, key: str) -> str:
        return key

    def read(self, name: str) -> bytes | None:
        self._ask()
        return self.files.get(name)

    def write(self, name: str, data: bytes) -> None:
        self._ask()
        self.writes += 1
        self.files[name] = data

    def remove(self, name: str) -> None:
        self._ask()
        self.files.pop(name, None)

    def _ask(self) -> None:
        if self.refuses:
            raise OSError("no space left on the device")


class Issuer:
    """Issues tokens while the API answers."""

    def __init__(self, api: "World") -> None:
        self._world = api
        self.issued = 0

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        if self._world.is_down:
            raise ApiUnavailable("connection refused")
        self.issued += 1
        return f"token-{self.issued}"


class World:
    """What outlives the agent."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.api = MemoryApi(self.clock)
        self.disk = Disk()
        self.is_down = False
        self.api.put(SETTINGS)
        self.api.put(PASSWORD)

    def go_down(self) -> None:
        self.is_down = True
        self.api.go_down()

    def come_up(self) -> None:
        self.is_down = False
        self.api.come_up()

    @asynccontextmanager
    async def life(self, *, keep_secrets: bool = True) -> AsyncIterator[KeptObjects]:
        async def at_once(call: Callable[..., Any], *given: object) -> Any:
            return call(*given)

        issuer = Issuer(self)
        kept = KeptObjects(self.api, self.disk, self.clock, keep_secrets=keep_secrets, tokens=issuer, in_thread=at_once)
        running = asyncio.create_task(kept.run())
        yield kept
        await asyncio.sleep(0.1)
        running.cancel()


async def read_all(kept: KeptObjects) -> list[str]:
    """What each object holds, or why it cannot be read."""
    found = []
    for read in (
        lambda: kept.get(ConfigMap, "settings", "default"),
        lambda: kept.get(Secret, "password", "default"),
        lambda: kept.token(POD, "", 3600),
    ):
        try:
            answer: Any = await read()
            found.append(answer if isinstance(answer, str) else next(iter((answer.data or {}).values())))
        except TryLater as error:
            found.append(type(error).__name__)
    return found


def play(story: Callable[[World], Awaitable[None]]) -> None:
    async def played() -> None:
        await story(World())

    simulate(played())


def test_what_was_read_is_found_again_while_the_api_does_not_answer() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            assert await read_all(kept) == ["blue", "aHVudGVyMg==", "token-1"]
        world.go_down()
        async with world.life() as kept:
            assert await read_all(kept) == ["blue", "aHVudGVyMg==", "token-1"]

    play(story)


def test_without_permission_secrets_and_tokens_are_neither_written_nor_read() -> None:
    async def story(world: World) -> None:
        async with world.life(keep_secrets=False) as kept:
            await read_all(kept)
        assert list(world.disk.files) == ["ConfigMap default/settings"]
        async with world.life() as kept:
            await read_all(kept)
        world.go_down()
        async with world.life(keep_secrets=False) as kept:
            assert await read_all(kept) == ["blue", "ApiUnavailable", "ApiUnavailable"]

    play(story)


def test_when_permission_is_withdrawn_secrets_and_tokens_are_removed() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
            kept.keep_for([POD])
        assert len(world.disk.files) == 3
        async with world.life(keep_secrets=False) as kept:
            kept.keep_for([POD])
        assert list(world.disk.files) == ["ConfigMap default/settings"]

    play(story)


def test_credentials_of_the_cluster_are_never_written() -> None:
    async def story(world: World) -> None:
        meta = ObjectMeta(name="legacy", namespace="default")
        world.api.put(Secret(metadata=meta, data={"token": "eA=="}, type="kubernetes.io/service-account-token"))
        async with world.life() as kept:
            await kept.get(Secret, "legacy", "default")
        assert world.disk.files == {}

    play(story)


def test_the_copy_of_a_secret_that_becomes_a_credential_of_the_cluster_is_removed() -> None:
    async def story(world: World) -> None:
        meta = ObjectMeta(name="legacy", namespace="default")
        world.api.put(Secret(metadata=meta, data={"token": "eA=="}))
        async with world.life() as kept:
            await kept.get(Secret, "legacy", "default")
        assert list(world.disk.files) == ["Secret default/legacy"]
        world.api.put(Secret(metadata=meta, data={"token": "eQ=="}, type="kubernetes.io/service-account-token"))
        async with world.life() as kept:
            await kept.get(Secret, "legacy", "default")
        assert world.disk.files == {}

    play(story)


def test_a_secret_that_is_read_without_permission_loses_its_copy() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
        async with world.life(keep_secrets=False) as kept:
            await read_all(kept)
        assert list(world.disk.files) == ["ConfigMap default/settings"]

    play(story)


def test_once_the_api_has_answered_stored_copies_are_not_used_any_more() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
        async with world.life() as kept:
            await kept.get(ConfigMap, "settings", "default")
            world.go_down()
            assert await read_all(kept) == ["ApiUnavailable"] * 3

    play(story)


def test_the_api_is_asked_again_and_its_answer_replaces_the_copy() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
        world.go_down()
        async with world.life() as kept:
            await read_all(kept)
            world.come_up()
            world.api.put(ConfigMap(metadata=META, data={"colour": "red"}))
            await asyncio.sleep(ASK_AGAIN_SECONDS)
            assert (await read_all(kept))[0] == "red"
        world.go_down()
        async with world.life() as kept:
            assert (await read_all(kept))[0] == "red"

    play(story)


def test_an_api_that_hangs_delays_the_objects_of_a_pod_once() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
        world.api.faults.hang("get", seconds=10_000, times=100)
        async with world.life() as kept:
            begun = world.clock.monotonic()
            assert (await kept.get(ConfigMap, "settings", "default")).data == {"colour": "blue"}
            assert (await kept.get(Secret, "password", "default")).data == PASSWORD.data
            assert world.clock.monotonic() - begun == pytest.approx(ANSWER_SECONDS)

    play(story)


def test_an_object_that_the_api_does_not_have_is_removed_and_not_found() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
        world.api.remove(ConfigMap, "settings", "default")
        async with world.life() as kept:
            with pytest.raises(NotFound):
                await kept.get(ConfigMap, "settings", "default")
        assert "ConfigMap default/settings" not in world.disk.files

    play(story)


def test_what_no_pod_needs_any_more_is_removed() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
            kept.keep_for([POD])
            await asyncio.sleep(1)
            assert len(world.disk.files) == 3
            kept.keep_for([])
            await asyncio.sleep(1)
            assert world.disk.files == {}

    play(story)


def test_what_no_pod_needed_when_the_agent_was_away_is_removed_at_the_next_start() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
        async with world.life() as kept:
            kept.keep_for([])
        assert world.disk.files == {}

    play(story)


def test_an_object_that_did_not_change_is_written_once() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            for _ in range(5):
                await kept.get(ConfigMap, "settings", "default")
                await asyncio.sleep(1)
        assert world.disk.writes == 1

    play(story)


def test_a_disk_that_refuses_delays_nobody_and_is_tried_again() -> None:
    async def story(world: World) -> None:
        world.disk.refuses = True
        async with world.life() as kept:
            assert await read_all(kept) == ["blue", "aHVudGVyMg==", "token-1"]
            await asyncio.sleep(1)
            world.disk.refuses = False
            await asyncio.sleep(RETRY_SECONDS)
        assert len(world.disk.files) == 3
        world.go_down()
        world.disk.refuses = True
        async with world.life() as kept:
            assert await read_all(kept) == ["ApiUnavailable"] * 3

    play(story)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"kind": "\xff"}',
        b'{"x": ' + b"[" * 2000,
        b'{"kind": "ConfigMap", "namespace": "default", "name": "settings"}',
    ],
)
def test_a_copy_that_cannot_be_decoded_is_removed(data: bytes) -> None:
    async def story(world: World) -> None:
        world.disk.files["ConfigMap default/settings"] = data
        world.go_down()
        async with world.life() as kept:
            with pytest.raises(ApiUnavailable):
                await kept.get(ConfigMap, "settings", "default")
        assert world.disk.files == {}

    play(story)


def test_a_copy_of_another_object_is_not_used() -> None:
    async def story(world: World) -> None:
        async with world.life() as kept:
            await read_all(kept)
        world.disk.files["Secret default/password"] = world.disk.files["ConfigMap default/settings"]
        world.go_down()
        async with world.life() as kept:
            with pytest.raises(ApiUnavailable):
                await kept.get(Secret, "password", "default")

    play(story)


def test_other_kinds_of_objects_are_passed_through() -> None:
    async def story(world: World) -> None:
        world.api.put(Node(metadata=ObjectMeta(name="n1")))
        async with world.life() as kept:
            assert (await kept.get(Node, "n1")).metadata.name == "n1"
        assert world.disk.files == {}

    play(story)


def test_on_a_full_disk_files_are_still_removed() -> None:
    class FullDisk(Disk):
        def write(self, name: str, data: bytes) -> None:
            if self.files:
                raise OSError("no space left on the device")
            super().write(name, data)

    async def story(world: World) -> None:
        world.disk = FullDisk()
        async with world.life() as kept:
            kept.keep_for([POD])
            await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            await kept.get(Secret, "password", "default")
            await asyncio.sleep(1)
            world.api.remove(ConfigMap, "settings", "default")
            with pytest.raises(NotFound):
                await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(3 * RETRY_SECONDS)
            assert list(world.disk.files) == ["Secret default/password"]

    play(story)


# Every call to the store.


class LoggedDisk(Disk):
    """Records every call, and can refuse the next calls of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.refused: dict[str, int] = {}
        self.bug: Exception | None = None

    def _take(self, call: str) -> None:
        self.calls.append(call)
        kind = call.partition(" ")[0]
        if self.refused.get(kind, 0) > 0:
            self.refused[kind] -= 1
            raise self.bug or OSError("no space left on the device")

    def open(self) -> frozenset[str]:
        self._take("open")
        return super().open()

    def read(self, name: str) -> bytes | None:
        self._take(f"read {name}")
        return super().read(name)

    def write(self, name: str, data: bytes) -> None:
        self._take(f"write {name}")
        super().write(name, data)

    def remove(self, name: str) -> None:
        self._take(f"remove {name}")
        super().remove(name)

    def take_calls(self) -> list[str]:
        """The calls since the last time."""
        found = self.calls[:]
        self.calls.clear()
        return found


CONF, PASS = "ConfigMap default/settings", "Secret default/password"


def logged(story: Callable[[World, LoggedDisk], Awaitable[None]]) -> None:
    async def played(world: World) -> None:
        disk = world.disk = LoggedDisk()
        await story(world, disk)

    play(played)


def test_the_store_is_read_until_the_api_has_answered_and_opened_once() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        async with world.life() as kept:
            await kept.get(ConfigMap, "settings", "default")
            await kept.get(Secret, "password", "default")
            await asyncio.sleep(1)
            assert disk.take_calls() == ["open", f"read {CONF}", f"write {CONF}", f"write {PASS}"]
            await kept.get(ConfigMap, "settings", "default")
            kept.keep_for([POD])
            kept.keep_for([POD])
            await asyncio.sleep(100)
            assert disk.take_calls() == []
            world.api.put(ConfigMap(metadata=META, data={"colour": "red"}))
            await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            assert disk.take_calls() == [f"write {CONF}"]

    logged(story)


def test_what_is_stored_names_the_object_it_is() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        async with world.life() as kept:
            await kept.get(ConfigMap, "settings", "default")
        stored = json.loads(disk.files[CONF])
        assert {key: stored[key] for key in ("kind", "namespace", "name")} == {
            "kind": "ConfigMap", "namespace": "default", "name": "settings",
        }  # fmt: skip
        assert stored["content"]["data"] == {"colour": "blue"}

    logged(story)


def test_while_the_api_is_away_it_is_asked_every_ten_seconds() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        async with world.life() as kept:
            await read_all(kept)
        asked = 0

        class Away:
            async def get(self, kind: type[Any], name: str, namespace: str = "") -> Any:
                nonlocal asked
                asked += 1
                raise ApiUnavailable("connection refused")

        kept = KeptObjects(Away(), disk, world.clock, keep_secrets=True, in_thread=at_once)
        counts = []
        for _ in range(22):
            assert (await kept.get(ConfigMap, "settings", "default")).data == {"colour": "blue"}
            counts.append(asked)
            await asyncio.sleep(1)
        assert counts == [1] * 10 + [2] * 10 + [3] * 2

    logged(story)


async def at_once(call: Callable[..., Any], *given: object) -> Any:
    return call(*given)


def test_without_a_provider_there_are_no_tokens() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        kept = KeptObjects(world.api, disk, world.clock, keep_secrets=True, in_thread=at_once)
        with pytest.raises(TryLater, match="this node has no provider of tokens"):
            await kept.token(POD, "", 3600)
        assert disk.calls == []

    logged(story)


def test_a_refused_write_does_not_hold_up_the_others_and_is_tried_again() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        async with world.life() as kept:
            await asyncio.sleep(0)
            disk.refused["write"] = 1
            await kept.get(ConfigMap, "settings", "default")
            await kept.get(Secret, "password", "default")
            await asyncio.sleep(29)
            assert disk.take_calls() == ["open", f"read {CONF}", f"write {CONF}", f"write {PASS}"]
            await asyncio.sleep(2)
            assert disk.take_calls() == [f"write {CONF}"]
            assert set(disk.files) == {CONF, PASS}

    logged(story)


@pytest.mark.parametrize("bug", [None, ZeroDivisionError()], ids=["refusal", "bug"])
def test_a_store_that_cannot_be_opened_is_opened_later(bug: Exception | None) -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        disk.files["stale"] = b""
        disk.refused["open"] = 2
        disk.bug = bug
        async with world.life() as kept:
            kept.keep_for([POD])
            await asyncio.sleep(61)
            assert disk.take_calls() == ["open", "open", "open", "remove stale"]
            assert disk.files == {}

    logged(story)


def test_what_is_not_needed_is_removed_once() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        disk.files = {"stale": b"", CONF: b""}
        async with world.life() as kept:
            kept.keep_for([POD])
            await asyncio.sleep(1)
            assert disk.take_calls() == ["open", "remove stale"]
            kept.keep_for([POD])
            await asyncio.sleep(1)
            assert disk.take_calls() == []
            kept.keep_for([])
            await asyncio.sleep(1)
            assert disk.take_calls() == [f"remove {CONF}"]
            kept.keep_for([])
            await asyncio.sleep(1)
            assert disk.take_calls() == []

    logged(story)


def test_an_answer_after_the_pod_was_removed_is_removed_at_the_next_call() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        async with world.life() as kept:
            kept.keep_for([])
            await asyncio.sleep(1)
            await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            assert list(disk.files) == [CONF]
            kept.keep_for([])
            await asyncio.sleep(1)
            assert disk.files == {}

    logged(story)


def test_a_write_that_is_replaced_while_it_waits_is_not_made() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        async with world.life() as kept:
            await kept.get(ConfigMap, "settings", "default")
            world.api.remove(ConfigMap, "settings", "default")
            with pytest.raises(NotFound):
                await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            assert disk.take_calls() == ["open", f"read {CONF}", f"remove {CONF}"]
            with pytest.raises(NotFound):
                await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            assert disk.take_calls() == []  # there is nothing to remove

    logged(story)


def test_a_changed_pod_needs_other_objects() -> None:
    async def story(world: World, disk: LoggedDisk) -> None:
        async with world.life() as kept:
            await kept.get(ConfigMap, "settings", "default")
            kept.keep_for([POD])
            await asyncio.sleep(1)
            kept.keep_for([Pod(metadata=POD.metadata, spec=PodSpec(containers=POD.spec.containers))])
            await asyncio.sleep(1)
            assert disk.files == {}

    logged(story)
