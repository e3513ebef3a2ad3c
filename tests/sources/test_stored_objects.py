"""Objects stored for a start without the API: when they are written, used and removed."""

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
from podkeeper.sources.stored_objects import ANSWER_SECONDS, API_RETRY_SECONDS, RETRY_SECONDS, StoredObjects
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
    """A store in memory that can fail."""

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

    def __init__(self, api: "Machine") -> None:
        self._node = api
        self.issued = 0

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        if self._node.is_down:
            raise ApiUnavailable("connection refused")
        self.issued += 1
        return f"token-{self.issued}"


class Machine:
    """The parts that survive the agent."""

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
    async def run_agent(self, *, keep_secrets: bool = True) -> AsyncIterator[StoredObjects]:
        async def inline(call: Callable[..., Any], *given: object) -> Any:
            return call(*given)

        issuer = Issuer(self)
        kept = StoredObjects(
            self.api, self.disk, self.clock, keep_secrets=keep_secrets, tokens=issuer, in_thread=inline
        )
        running = asyncio.create_task(kept.run())
        yield kept
        await asyncio.sleep(0.1)
        running.cancel()


async def read_all(objects: StoredObjects) -> list[str]:
    """Return the content of each object, or the error."""
    found = []
    for read in (
        lambda: objects.get(ConfigMap, "settings", "default"),
        lambda: objects.get(Secret, "password", "default"),
        lambda: objects.token(POD, "", 3600),
    ):
        try:
            answer: Any = await read()
            found.append(answer if isinstance(answer, str) else next(iter((answer.data or {}).values())))
        except TryLater as error:
            found.append(type(error).__name__)
    return found


def run(scenario: Callable[[Machine], Awaitable[None]]) -> None:
    async def play() -> None:
        await scenario(Machine())

    simulate(play())


def test_objects_that_were_read_are_available_while_the_api_does_not_answer() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            assert await read_all(kept) == ["blue", "aHVudGVyMg==", "token-1"]
        node.go_down()
        async with node.run_agent() as kept:
            assert await read_all(kept) == ["blue", "aHVudGVyMg==", "token-1"]

    run(scenario)


def test_without_permission_secrets_and_tokens_are_not_written_or_read() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent(keep_secrets=False) as kept:
            await read_all(kept)
        assert list(node.disk.files) == ["ConfigMap default/settings"]
        async with node.run_agent() as kept:
            await read_all(kept)
        node.go_down()
        async with node.run_agent(keep_secrets=False) as kept:
            assert await read_all(kept) == ["blue", "ApiUnavailable", "ApiUnavailable"]

    run(scenario)


def test_secrets_and_tokens_are_removed_when_the_permission_is_withdrawn() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
            kept.keep_for([POD])
        assert len(node.disk.files) == 3
        async with node.run_agent(keep_secrets=False) as kept:
            kept.keep_for([POD])
        assert list(node.disk.files) == ["ConfigMap default/settings"]

    run(scenario)


def test_credentials_of_the_cluster_are_never_written() -> None:
    async def scenario(node: Machine) -> None:
        meta = ObjectMeta(name="legacy", namespace="default")
        node.api.put(Secret(metadata=meta, data={"token": "eA=="}, type="kubernetes.io/service-account-token"))
        async with node.run_agent() as kept:
            await kept.get(Secret, "legacy", "default")
        assert node.disk.files == {}

    run(scenario)


def test_the_copy_of_a_secret_that_becomes_a_credential_of_the_cluster_is_removed() -> None:
    async def scenario(node: Machine) -> None:
        meta = ObjectMeta(name="legacy", namespace="default")
        node.api.put(Secret(metadata=meta, data={"token": "eA=="}))
        async with node.run_agent() as kept:
            await kept.get(Secret, "legacy", "default")
        assert list(node.disk.files) == ["Secret default/legacy"]
        node.api.put(Secret(metadata=meta, data={"token": "eQ=="}, type="kubernetes.io/service-account-token"))
        async with node.run_agent() as kept:
            await kept.get(Secret, "legacy", "default")
        assert node.disk.files == {}

    run(scenario)


def test_the_copy_of_a_secret_that_is_read_without_permission_is_removed() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
        async with node.run_agent(keep_secrets=False) as kept:
            await read_all(kept)
        assert list(node.disk.files) == ["ConfigMap default/settings"]

    run(scenario)


def test_stored_copies_are_not_used_after_the_first_answer_of_the_api() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
        async with node.run_agent() as kept:
            await kept.get(ConfigMap, "settings", "default")
            node.go_down()
            assert await read_all(kept) == ["ApiUnavailable"] * 3

    run(scenario)


def test_the_api_is_retried_and_its_answer_replaces_the_copy() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
        node.go_down()
        async with node.run_agent() as kept:
            await read_all(kept)
            node.come_up()
            node.api.put(ConfigMap(metadata=META, data={"colour": "red"}))
            await asyncio.sleep(API_RETRY_SECONDS)
            assert (await read_all(kept))[0] == "red"
        node.go_down()
        async with node.run_agent() as kept:
            assert (await read_all(kept))[0] == "red"

    run(scenario)


def test_an_api_that_hangs_delays_the_objects_of_a_pod_once() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
        node.api.faults.hang("get", seconds=10_000, times=100)
        async with node.run_agent() as kept:
            begun = node.clock.monotonic()
            assert (await kept.get(ConfigMap, "settings", "default")).data == {"colour": "blue"}
            assert (await kept.get(Secret, "password", "default")).data == PASSWORD.data
            assert node.clock.monotonic() - begun == pytest.approx(ANSWER_SECONDS)

    run(scenario)


def test_an_object_that_the_api_does_not_have_is_removed() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
        node.api.remove(ConfigMap, "settings", "default")
        async with node.run_agent() as kept:
            with pytest.raises(NotFound):
                await kept.get(ConfigMap, "settings", "default")
        assert "ConfigMap default/settings" not in node.disk.files

    run(scenario)


def test_objects_that_no_pod_needs_are_removed() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
            kept.keep_for([POD])
            await asyncio.sleep(1)
            assert len(node.disk.files) == 3
            kept.keep_for([])
            await asyncio.sleep(1)
            assert node.disk.files == {}

    run(scenario)


def test_objects_that_no_pod_needs_after_a_restart_are_removed() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
        async with node.run_agent() as kept:
            kept.keep_for([])
        assert node.disk.files == {}

    run(scenario)


def test_an_unchanged_object_is_written_once() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            for _ in range(5):
                await kept.get(ConfigMap, "settings", "default")
                await asyncio.sleep(1)
        assert node.disk.writes == 1

    run(scenario)


def test_a_failing_disk_delays_no_caller_and_is_retried() -> None:
    async def scenario(node: Machine) -> None:
        node.disk.refuses = True
        async with node.run_agent() as kept:
            assert await read_all(kept) == ["blue", "aHVudGVyMg==", "token-1"]
            await asyncio.sleep(1)
            node.disk.refuses = False
            await asyncio.sleep(RETRY_SECONDS)
        assert len(node.disk.files) == 3
        node.go_down()
        node.disk.refuses = True
        async with node.run_agent() as kept:
            assert await read_all(kept) == ["ApiUnavailable"] * 3

    run(scenario)


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
    async def scenario(node: Machine) -> None:
        node.disk.files["ConfigMap default/settings"] = data
        node.go_down()
        async with node.run_agent() as kept:
            with pytest.raises(ApiUnavailable):
                await kept.get(ConfigMap, "settings", "default")
        assert node.disk.files == {}

    run(scenario)


def test_a_copy_of_another_object_is_not_used() -> None:
    async def scenario(node: Machine) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
        node.disk.files["Secret default/password"] = node.disk.files["ConfigMap default/settings"]
        node.go_down()
        async with node.run_agent() as kept:
            with pytest.raises(ApiUnavailable):
                await kept.get(Secret, "password", "default")

    run(scenario)


def test_other_kinds_of_objects_are_not_stored() -> None:
    async def scenario(node: Machine) -> None:
        node.api.put(Node(metadata=ObjectMeta(name="n1")))
        async with node.run_agent() as kept:
            assert (await kept.get(Node, "n1")).metadata.name == "n1"
        assert node.disk.files == {}

    run(scenario)


def test_on_a_full_disk_files_are_still_removed() -> None:
    class FullDisk(Disk):
        def write(self, name: str, data: bytes) -> None:
            if self.files:
                raise OSError("no space left on the device")
            super().write(name, data)

    async def scenario(node: Machine) -> None:
        node.disk = FullDisk()
        async with node.run_agent() as kept:
            kept.keep_for([POD])
            await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            await kept.get(Secret, "password", "default")
            await asyncio.sleep(1)
            node.api.remove(ConfigMap, "settings", "default")
            with pytest.raises(NotFound):
                await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(3 * RETRY_SECONDS)
            assert list(node.disk.files) == ["Secret default/password"]

    run(scenario)


# All calls of the store.


class LoggedDisk(Disk):
    """Records every call, and can fail the next calls of one kind."""

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
        """Return the calls since the last time."""
        found = self.calls[:]
        self.calls.clear()
        return found


CONF, PASS = "ConfigMap default/settings", "Secret default/password"


def logged(scenario: Callable[[Machine, LoggedDisk], Awaitable[None]]) -> None:
    async def play(node: Machine) -> None:
        disk = node.disk = LoggedDisk()
        await scenario(node, disk)

    run(play)


def test_the_store_is_read_until_the_api_has_answered_and_opened_once() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        async with node.run_agent() as kept:
            await kept.get(ConfigMap, "settings", "default")
            await kept.get(Secret, "password", "default")
            await asyncio.sleep(1)
            assert disk.take_calls() == ["open", f"read {CONF}", f"write {CONF}", f"write {PASS}"]
            await kept.get(ConfigMap, "settings", "default")
            kept.keep_for([POD])
            kept.keep_for([POD])
            await asyncio.sleep(100)
            assert disk.take_calls() == []
            node.api.put(ConfigMap(metadata=META, data={"colour": "red"}))
            await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            assert disk.take_calls() == [f"write {CONF}"]

    logged(scenario)


def test_a_file_contains_the_key_of_its_object() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        async with node.run_agent() as kept:
            await kept.get(ConfigMap, "settings", "default")
        stored = json.loads(disk.files[CONF])
        assert {key: stored[key] for key in ("kind", "namespace", "name")} == {
            "kind": "ConfigMap", "namespace": "default", "name": "settings",
        }  # fmt: skip
        assert stored["content"]["data"] == {"colour": "blue"}

    logged(scenario)


def test_an_unreachable_api_is_retried_every_ten_seconds() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        async with node.run_agent() as kept:
            await read_all(kept)
        reads = 0

        class Away:
            async def get(self, kind: type[Any], name: str, namespace: str = "") -> Any:
                nonlocal reads
                reads += 1
                raise ApiUnavailable("connection refused")

        kept = StoredObjects(Away(), disk, node.clock, keep_secrets=True, in_thread=inline)
        counts = []
        for _ in range(22):
            assert (await kept.get(ConfigMap, "settings", "default")).data == {"colour": "blue"}
            counts.append(reads)
            await asyncio.sleep(1)
        assert counts == [1] * 10 + [2] * 10 + [3] * 2

    logged(scenario)


async def inline(call: Callable[..., Any], *given: object) -> Any:
    return call(*given)


def test_without_a_provider_there_are_no_tokens() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        kept = StoredObjects(node.api, disk, node.clock, keep_secrets=True, in_thread=inline)
        with pytest.raises(TryLater, match="this node has no provider of tokens"):
            await kept.token(POD, "", 3600)
        assert disk.calls == []

    logged(scenario)


def test_a_failed_write_does_not_delay_the_others_and_is_retried() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        async with node.run_agent() as kept:
            await asyncio.sleep(0)
            disk.refused["write"] = 1
            await kept.get(ConfigMap, "settings", "default")
            await kept.get(Secret, "password", "default")
            await asyncio.sleep(29)
            assert disk.take_calls() == ["open", f"read {CONF}", f"write {CONF}", f"write {PASS}"]
            await asyncio.sleep(2)
            assert disk.take_calls() == [f"write {CONF}"]
            assert set(disk.files) == {CONF, PASS}

    logged(scenario)


@pytest.mark.parametrize("bug", [None, ZeroDivisionError()], ids=["refusal", "bug"])
def test_a_store_that_cannot_be_opened_is_opened_later(bug: Exception | None) -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        disk.files["stale"] = b""
        disk.refused["open"] = 2
        disk.bug = bug
        async with node.run_agent() as kept:
            kept.keep_for([POD])
            await asyncio.sleep(61)
            assert disk.take_calls() == ["open", "open", "open", "remove stale"]
            assert disk.files == {}

    logged(scenario)


def test_an_object_that_is_not_needed_is_removed_once() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        disk.files = {"stale": b"", CONF: b""}
        async with node.run_agent() as kept:
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

    logged(scenario)


def test_an_answer_after_the_pod_was_removed_is_removed_at_the_next_call() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        async with node.run_agent() as kept:
            kept.keep_for([])
            await asyncio.sleep(1)
            await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            assert list(disk.files) == [CONF]
            kept.keep_for([])
            await asyncio.sleep(1)
            assert disk.files == {}

    logged(scenario)


def test_a_pending_write_that_is_replaced_is_not_executed() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        async with node.run_agent() as kept:
            await kept.get(ConfigMap, "settings", "default")
            node.api.remove(ConfigMap, "settings", "default")
            with pytest.raises(NotFound):
                await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            assert disk.take_calls() == ["open", f"read {CONF}", f"remove {CONF}"]
            with pytest.raises(NotFound):
                await kept.get(ConfigMap, "settings", "default")
            await asyncio.sleep(1)
            assert disk.take_calls() == []  # nothing to remove

    logged(scenario)


def test_a_changed_pod_needs_other_objects() -> None:
    async def scenario(node: Machine, disk: LoggedDisk) -> None:
        async with node.run_agent() as kept:
            await kept.get(ConfigMap, "settings", "default")
            kept.keep_for([POD])
            await asyncio.sleep(1)
            kept.keep_for([Pod(metadata=POD.metadata, spec=PodSpec(containers=POD.spec.containers))])
            await asyncio.sleep(1)
            assert disk.files == {}

    logged(scenario)
