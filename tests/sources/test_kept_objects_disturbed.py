"""Kept objects, with an event at every await and a failure at every call: the store has what pods need, and no more."""

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
from podkeeper.rules.needed_objects import token_of
from podkeeper.sources.kept_objects import ASK_AGAIN_SECONDS, RETRY_SECONDS, KeptObjects
from podkeeper.testing.failures import fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Event, Operation
from podkeeper.testing.port_calls import PortCalls
from tests.sources.test_kept_objects import META, PASSWORD, POD, Issuer, World

OLD = ("blue", "aHVudGVyMg==")  # what the first agent stored; the API has something newer when it answers again
NEW_PASSWORD = replace(PASSWORD, data={"admin": "bmV3"})


class Threads:
    """Runs blocking calls in the loop, each of which can fail."""

    async def run(self, call: Callable[..., Any], *given: object) -> Any:
        return await asyncio.to_thread(call, *given)


@dataclass
class Stage:
    world: World
    calls: PortCalls
    group: asyncio.TaskGroup
    pods: tuple[Pod, ...] = (POD,)
    running: asyncio.Task[None] | None = None
    answered: KeptObjects | None = None  # the API has answered to this one
    last_read: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api: Any = self.calls.watch("api", self.world.api)
        self.threads = self.calls.watch("threads", Threads(), {"run": (OSError,)})
        self.begin_life()

    def begin_life(self) -> None:
        self.kept = KeptObjects(
            self.api,
            self.world.disk,
            self.world.clock,
            keep_secrets=True,
            tokens=Issuer(self.world),
            in_thread=self.threads.run,
        )

    def start(self) -> None:
        """Start an agent. An earlier one ends."""
        self.stop()
        self.last_read.clear()
        self.begin_life()
        self.running = self.group.create_task(self.kept.run())

    def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()

    def change(self) -> None:
        self.world.api.put(coloured("yellow"))

    def remove_pod(self) -> None:
        self.pods = ()
        self.kept.keep_for(())

    def housekeep(self) -> None:
        self.kept.keep_for(self.pods)

    async def read(self, kind: type[ConfigMap] | type[Secret] = ConfigMap) -> str:
        """Read an object as a volume does: without an answer it stays as it is."""
        name = "settings" if kind is ConfigMap else "password"
        kept = self.kept
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
        """Read an object that is not stored, so that the API is asked at once."""
        self.world.come_up()
        kept = self.kept
        await kept.get(ConfigMap, "other", "default")
        self.answered = kept

    async def refresh(self) -> None:
        if not self.pods:
            return
        for kind in (ConfigMap, Secret):
            await self.read(kind)
        kept = self.kept
        with suppress(AgentError):
            self._note(kept, str(token_of(POD, "")), await kept.token(POD, "", 3600))

    def _note(self, kept: KeptObjects, name: str, found: str) -> None:
        if kept is self.kept:  # an agent that has ended writes nothing
            self.last_read[name] = found

    def stored(self) -> dict[str, str]:
        """Return what an object held that is stored."""
        files = {name: json.loads(data)["content"] for name, data in self.world.disk.files.items()}
        return {name: _value(files[name]) for name in self.last_read if name in files}

    def check(self) -> None:
        assert self.wrong == []
        if self.pods:
            assert self.stored() == {name: found for name, found in self.last_read.items() if found != "not found"}
        else:
            assert self.world.disk.files == {}


def _value(content: Any) -> str:
    return content if isinstance(content, str) else next(iter(content["data"].values()))


@asynccontextmanager
async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
    async with asyncio.TaskGroup() as group:
        made = Stage(World(), calls, group)
        made.start()
        await asyncio.sleep(0)
        await made.refresh()
        await asyncio.sleep(1)
        made.world.go_down()
        made.world.api.put(ConfigMap(metadata=replace(META, name="other"), data={}))
        made.world.api.put(coloured("green"))
        made.world.api.put(NEW_PASSWORD)
        calls.log.clear()
        yield made
        made.stop()


async def restart_offline(stage: Stage) -> None:
    """Start without the API, read the store, and then the API."""
    stage.start()
    await stage.refresh()
    stage.housekeep()
    await asyncio.sleep(ASK_AGAIN_SECONDS)
    stage.world.come_up()
    await stage.refresh()
    await asyncio.sleep(1)
    stage.housekeep()


@asynccontextmanager
async def online_stage(calls: PortCalls) -> AsyncIterator[Stage]:
    async with stage(calls) as made:
        made.world.come_up()
        await made.refresh()
        made.housekeep()
        await asyncio.sleep(1)
        calls.log.clear()
        yield made


async def read_one_change(stage: Stage) -> None:
    stage.world.api.put(coloured("white"))
    await stage.read()
    await asyncio.sleep(1)
    stage.housekeep()


async def the_store_follows_the_api(stage: Stage) -> None:
    stage.world.come_up()
    stage.world.disk.refuses = False
    stage.pods = (POD,)
    stage.housekeep()
    stage.world.api.put(coloured("red"))
    if stage.world.api.peek(Secret, "password", "default") is None:
        stage.world.api.put(NEW_PASSWORD)
    await stage.refresh()
    await asyncio.sleep(2 * RETRY_SECONDS)
    stage.world.go_down()
    stage.start()
    assert await stage.read() == "red"
    assert await stage.read(Secret) == "bmV3"
    stage.remove_pod()
    await asyncio.sleep(2 * RETRY_SECONDS)
    assert stage.world.disk.files == {}


def coloured(colour: str) -> ConfigMap:
    return ConfigMap(metadata=META, data={"colour": colour})


OFFLINE = Operation(
    stage=stage,
    run=restart_offline,
    state=lambda stage: sorted(stage.world.disk.files),
    check=Stage.check,
    afterwards=the_store_follows_the_api,
    settle_seconds=3 * RETRY_SECONDS,
)
ONLINE = Operation(
    stage=online_stage,
    run=read_one_change,
    state=OFFLINE.state,
    check=Stage.check,
    afterwards=the_store_follows_the_api,
    settle_seconds=3 * RETRY_SECONDS,
)
OPERATIONS = {"a start without the API": OFFLINE, "a read with the API": ONLINE}


def refuse(stage: Stage) -> None:
    stage.world.disk.refuses = True
    asyncio.get_running_loop().call_later(RETRY_SECONDS, setattr, stage.world.disk, "refuses", False)


EVENTS: dict[str, Event[Stage]] = {
    "an object changes": Stage.change,
    "an object is deleted": lambda stage: stage.world.api.remove(Secret, "password", "default"),
    "the API answers": lambda stage: stage.world.come_up(),
    "the API fails": lambda stage: stage.world.go_down(),
    "the API answers another call": Stage.read_another,
    "all objects are read": Stage.refresh,
    "the pod is removed": Stage.remove_pod,
    "housekeeping": Stage.housekeep,
    "the disk refuses": refuse,
    "the agent restarts": Stage.start,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_event_at_every_await(name: str) -> None:
    interleave(OPERATIONS[name], EVENTS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(name: str) -> None:
    # If the API answers with NotFound, the stored copy is removed.
    fail_each_call(OPERATIONS[name], leave_out=[("api", "get", NotFound)])
