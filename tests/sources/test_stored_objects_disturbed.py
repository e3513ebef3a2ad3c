"""Stored objects with an event at every await and a failure at every call: the store has exactly what pods need."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import AgentError, ApiUnavailable, NotFound
from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.rules.container.needed_objects import token_of
from podkeeper.sources.stored_objects import API_RETRY_SECONDS, RETRY_SECONDS, StoredObjects
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, OperationTest
from podkeeper.testing.port_calls import PortCalls
from tests.sources.test_stored_objects import META, PASSWORD, POD, Issuer, Machine

OLD = ("blue", "aHVudGVyMg==")  # stored by the first agent; the API has newer objects
NEW_PASSWORD = replace(PASSWORD, data={"admin": "bmV3"})


class Threads:
    """Runs blocking calls in the loop. Each of them can fail."""

    async def run(self, call: Callable[..., Any], *given: object) -> Any:
        return await asyncio.to_thread(call, *given)


@dataclass
class Harness:
    node: Machine
    calls: PortCalls
    group: asyncio.TaskGroup
    pods: tuple[Pod, ...] = (POD,)
    running: asyncio.Task[None] | None = None
    answered: StoredObjects | None = None  # the API has answered this one
    last_read: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api: Any = self.calls.watch("api", self.node.api)
        self.threads = self.calls.watch("threads", Threads(), {"run": (OSError,)})
        self.open_objects()

    def open_objects(self) -> None:
        self.objects = StoredObjects(
            self.api,
            self.node.disk,
            self.node.clock,
            keep_secrets=True,
            tokens=Issuer(self.node),
            in_thread=self.threads.run,
        )

    def start(self) -> None:
        """Start a new agent and stop the earlier one."""
        self.stop()
        self.last_read.clear()
        self.open_objects()
        self.running = self.group.create_task(self.objects.run())

    def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()

    def change(self) -> None:
        self.node.api.put(coloured("yellow"))

    def remove_pod(self) -> None:
        self.pods = ()
        self.objects.keep_for(())

    def housekeep(self) -> None:
        self.objects.keep_for(self.pods)

    async def read(self, kind: type[ConfigMap] | type[Secret] = ConfigMap) -> str:
        """Read an object as a volume does. Without an answer, the old content stays."""
        name = "settings" if kind is ConfigMap else "password"
        kept = self.objects
        try:
            found = next(iter(((await kept.get(kind, name, "default")).data or {}).values()))
        except ApiUnavailable:
            return "unavailable"
        except NotFound:
            found = "not found"
        if found not in OLD:
            self.answered = kept
        elif self.answered is kept:
            self.wrong.append("the store was read after the API had answered")
        self._note(kept, f"{kind.__name__} default/{name}", found)
        return found

    async def read_another(self) -> None:
        """Read an object that is not stored, so that the API is called at once."""
        self.node.come_up()
        kept = self.objects
        await kept.get(ConfigMap, "other", "default")
        self.answered = kept

    async def refresh(self) -> None:
        if not self.pods:
            return
        for kind in (ConfigMap, Secret):
            await self.read(kind)
        kept = self.objects
        with suppress(AgentError):
            self._note(kept, str(token_of(POD, "")), await kept.token(POD, "", 3600))

    def _note(self, objects: StoredObjects, name: str, found: str) -> None:
        if objects is self.objects:  # an agent that has stopped writes nothing
            self.last_read[name] = found

    def stored(self) -> dict[str, str]:
        """Return the stored content by object."""
        files = {name: json.loads(data)["content"] for name, data in self.node.disk.files.items()}
        return {name: _value(files[name]) for name in self.last_read if name in files}

    def check(self) -> None:
        assert self.wrong == []
        if self.pods:
            assert self.stored() == {name: found for name, found in self.last_read.items() if found != "not found"}
        else:
            assert self.node.disk.files == {}


def _value(content: Any) -> str:
    return content if isinstance(content, str) else next(iter(content["data"].values()))


@asynccontextmanager
async def open_harness(calls: PortCalls) -> AsyncIterator[Harness]:
    async with asyncio.TaskGroup() as group:
        made = Harness(Machine(), calls, group)
        made.start()
        await asyncio.sleep(0)
        await made.refresh()
        await asyncio.sleep(1)
        made.node.go_down()
        made.node.api.put(ConfigMap(metadata=replace(META, name="other"), data={}))
        made.node.api.put(coloured("green"))
        made.node.api.put(NEW_PASSWORD)
        calls.log.clear()
        yield made
        made.stop()


async def restart_offline(harness: Harness) -> None:
    """Start without the API, read the store, then the API."""
    harness.start()
    await harness.refresh()
    harness.housekeep()
    await asyncio.sleep(API_RETRY_SECONDS)
    harness.node.come_up()
    await harness.refresh()
    await asyncio.sleep(1)
    harness.housekeep()


@asynccontextmanager
async def open_online_harness(calls: PortCalls) -> AsyncIterator[Harness]:
    async with open_harness(calls) as made:
        made.node.come_up()
        await made.refresh()
        made.housekeep()
        await asyncio.sleep(1)
        calls.log.clear()
        yield made


async def read_one_change(harness: Harness) -> None:
    harness.node.api.put(coloured("white"))
    await harness.read()
    await asyncio.sleep(1)
    harness.housekeep()


async def the_store_follows_the_api(harness: Harness) -> None:
    harness.node.come_up()
    harness.node.disk.refuses = False
    harness.pods = (POD,)
    harness.housekeep()
    harness.node.api.put(coloured("red"))
    if harness.node.api.peek(Secret, "password", "default") is None:
        harness.node.api.put(NEW_PASSWORD)
    await harness.refresh()
    await asyncio.sleep(2 * RETRY_SECONDS)
    harness.node.go_down()
    harness.start()
    assert await harness.read() == "red"
    assert await harness.read(Secret) == "bmV3"
    harness.remove_pod()
    await asyncio.sleep(2 * RETRY_SECONDS)
    assert harness.node.disk.files == {}


def coloured(colour: str) -> ConfigMap:
    return ConfigMap(metadata=META, data={"colour": colour})


OFFLINE = OperationTest(
    setup=open_harness,
    run=restart_offline,
    state=lambda harness: sorted(harness.node.disk.files),
    check=Harness.check,
    afterwards=the_store_follows_the_api,
    settle_seconds=3 * RETRY_SECONDS,
)
ONLINE = OperationTest(
    setup=open_online_harness,
    run=read_one_change,
    state=OFFLINE.state,
    check=Harness.check,
    afterwards=the_store_follows_the_api,
    settle_seconds=3 * RETRY_SECONDS,
)
OPERATIONS = {"a start without the API": OFFLINE, "a read with the API": ONLINE}


def refuse(harness: Harness) -> None:
    harness.node.disk.refuses = True
    asyncio.get_running_loop().call_later(RETRY_SECONDS, setattr, harness.node.disk, "refuses", False)


EVENTS: dict[str, Event[Harness]] = {
    "an object changes": Harness.change,
    "an object is deleted": lambda harness: harness.node.api.remove(Secret, "password", "default"),
    "the API answers": lambda harness: harness.node.come_up(),
    "the API fails": lambda harness: harness.node.go_down(),
    "the API answers another call": Harness.read_another,
    "all objects are read": Harness.refresh,
    "the pod is removed": Harness.remove_pod,
    "housekeeping": Harness.housekeep,
    "the disk fails": refuse,
    "the agent restarts": Harness.start,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_event_at_every_await(name: str) -> None:
    interleave(OPERATIONS[name], EVENTS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(name: str) -> None:
    # If the API answers with NotFound, the stored copy is removed.
    fail_each_call(OPERATIONS[name], leave_out=[("api", "get", NotFound)])
