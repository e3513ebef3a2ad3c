"""Somebody who uses an agent through the API, and how long he has to wait: shared by the benches of real pods.

    living(wanted, pods)    an agent in this process, wired as `podkeeper run` does it, with an API in memory
    Shape, polite           what the pods are like: one container, no probe
    created, deleted, crashed, done    one pod, in milliseconds; burst_ready, burst_gone: many at once, in seconds

Every moment is one that a user of the API could see: from the change there to the change that answers it.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import cast

import msgspec
from msgspec.structs import replace as changed

from bench.watched import processes, words_of
from podkeeper.app.build import Agent, simple_node
from podkeeper.app.process import tune_garbage_collection
from podkeeper.app.sources import api_source
from podkeeper.app.standalone import Standalone, assembled
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.defaults import default_pod
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.memory_watch import Change

NODE = "bench"
GIVE_UP_SECONDS = 120.0


def polite(nap_seconds: int = 100_000) -> tuple[str, ...]:
    """A command that does nothing, and ends when asked to: a container's first process hears no TERM unless it asks."""
    return ("sh", "-c", f"trap 'exit 0' TERM; sleep {nap_seconds} & wait")


@dataclass(frozen=True, slots=True)
class Shape:
    """What pods are made of."""

    image: str = "host"

    def manifest(
        self, name: str, command: tuple[str, ...] = polite(), restart_policy: str = "Always"
    ) -> dict[str, object]:
        """A pod of one container."""
        container = {"name": "app", "image": self.image, "imagePullPolicy": "IfNotPresent", "command": list(command)}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"restartPolicy": restart_policy, "terminationGracePeriodSeconds": 30, "containers": [container]},
        }

    def pod(self, name: str, command: tuple[str, ...] = polite(), restart_policy: str = "Always") -> Pod:
        """The same as the API would hold it, bound to this node."""
        pod = default_pod(msgspec.convert(self.manifest(name, command, restart_policy), Pod))
        meta = changed(pod.metadata, namespace="default")
        return changed(pod, metadata=meta, spec=changed(pod.spec, node_name=NODE))


class User:
    """Somebody who creates, watches and deletes pods through the API."""

    def __init__(self, api: MemoryApi, shape: Shape) -> None:
        self._api = api
        self.shape = shape
        self._changed = asyncio.Event()
        self._names: list[str] = []  # whose pods changed since somebody last looked
        api.witness(Pod, self._saw)

    def create(self, *pods: Pod) -> None:
        """Create pods."""
        for pod in pods:
            self._api.put(pod)

    def delete(self, name: str) -> None:
        """Delete a pod, with its own grace."""
        self._api.mark_deleted(Pod, name, "default")

    def find(self, name: str) -> Pod | None:
        """A pod as the API shows it."""
        return self._api.peek(Pod, name, "default")

    def is_gone(self, name: str) -> bool:
        """Whether the API has no such pod."""
        return self.find(name) is None

    def is_ready(self, name: str) -> bool:
        """Whether a pod is Ready."""
        pod = self.find(name)
        conditions = () if pod is None else pod.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def is_done(self, name: str) -> bool:
        """Whether a job has succeeded."""
        pod = self.find(name)
        return pod is not None and pod.status.phase == "Succeeded"

    def restarts(self, name: str) -> int:
        """How often the container of a pod was restarted, once it runs again."""
        pod = self.find(name)
        shown = () if pod is None else pod.status.container_statuses or ()
        return sum(each.restart_count for each in shown if each.state.running is not None)

    async def until(self, holds: Callable[[str], bool], names: Iterable[str], what: str) -> list[float]:
        """Wait, without polling, until something holds of each pod. Returns when it came to hold, in that order."""
        missing, moments = set(names), []
        self._names = list(missing)
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while True:
                    looked, self._names = self._names, []
                    for name in looked:
                        if name in missing and holds(name):
                            missing.remove(name)
                            moments.append(time.monotonic())
                    if not missing:
                        return moments
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            shown = [(name, msgspec.to_builtins(pod.status)) for name in sorted(missing) if (pod := self.find(name))]
            raise TimeoutError(f"not within {GIVE_UP_SECONDS:g} s: {what}; seen: {shown[:3]}") from None

    def _saw(self, change: Change) -> None:
        self._names.append(cast(Pod, change.new or change.old).metadata.name or "")
        self._changed.set()


@asynccontextmanager
async def living(wanted: Standalone, shape: Shape, pods: int) -> AsyncIterator[User]:
    """An agent that lives in this process, and who uses it."""
    async with assembled(wanted) as parts:
        api = MemoryApi(parts.ports.clock)
        source = api_source(api=api, node_name=NODE, clock=parts.ports.clock, journal=parts.ports.journal)
        node = simple_node(NODE, cpu="1000", memory="1Ti", pods=pods + 10)
        agent = Agent(replace(parts.ports, api=api, sources=(source,)), replace(parts.settings, node=node))
        tune_garbage_collection()  # as `podkeeper` does for its own process
        async with asyncio.TaskGroup() as group:
            living = [group.create_task(agent.run()), *(group.create_task(room()) for room in parts.rooms)]
            yield User(api, shape)
            for task in living:
                task.cancel()


# ---- one pod ----


async def created(user: User, name: str) -> float:
    """From its creation until it is Ready."""
    begun = time.monotonic()
    user.create(user.shape.pod(name))
    await user.until(user.is_ready, [name], "a pod is Ready")
    return _since(begun)


async def deleted(user: User, name: str) -> float:
    """From its deletion until the API has it no more."""
    begun = time.monotonic()
    user.delete(name)
    await user.until(user.is_gone, [name], "a deleted pod is gone")
    return _since(begun)


async def crashed(user: User, name: str, nap_seconds: int) -> float:
    """A container is killed from outside; the time until it runs again. A first crash waits for no back-off."""
    command = polite(nap_seconds)  # no two alike, so that it is found
    user.create(user.shape.pod(name, command))
    await user.until(user.is_ready, [name], "a pod is Ready")
    victim = await _first_process(command)
    begun = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    await user.until(lambda name: user.restarts(name) == 1, [name], "a crashed container runs again")
    taken = _since(begun)
    await deleted(user, name)
    return taken


async def done(user: User, name: str) -> float:
    """From the creation of a job until it has succeeded."""
    begun = time.monotonic()
    user.create(user.shape.pod(name, ("true",), "Never"))
    await user.until(user.is_done, [name], "a job is done")
    taken = _since(begun)
    await deleted(user, name)
    return taken


async def _first_process(command: tuple[str, ...]) -> int:
    """The process of a command. It may still be about to become it: runtimes call that started."""
    async with asyncio.timeout(GIVE_UP_SECONDS):
        while (found := next((pid for pid in processes() if words_of(pid) == [*command]), None)) is None:
            await asyncio.sleep(0.01)
    return found


def _since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000


# ---- many at once ----


async def burst_ready(user: User, names: Sequence[str]) -> list[float]:
    """How long each of many pods that are created at once took to be Ready, the quickest first."""
    pods = [user.shape.pod(name) for name in names]
    begun = time.monotonic()
    user.create(*pods)
    return [at - begun for at in await user.until(user.is_ready, names, f"{len(names)} pods are Ready")]


async def burst_gone(user: User, names: Sequence[str]) -> list[float]:
    """How long each of many pods that are deleted at once took to be gone, the quickest first."""
    begun = time.monotonic()
    for name in names:
        user.delete(name)
    return [at - begun for at in await user.until(user.is_gone, names, f"{len(names)} pods are gone")]
