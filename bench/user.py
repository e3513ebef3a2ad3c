"""Times that a user of the API observes, for the benchmarks with real pods.

    running_agent(wanted, pods)    an agent in this process, wired like `podkeeper run`, with an API in memory
    Shape, sleep_command    the pods: one container, no probe
    created, deleted, crashed, done    one pod, in milliseconds; burst_ready, burst_gone: many at once, in seconds

A time starts at a change in the API and ends at the change that follows from it.
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

from bench.agent_usage import message_of, processes
from podkeeper.app.agent import Agent
from podkeeper.app.build import Engine, simple_node
from podkeeper.app.process import tune_garbage_collection
from podkeeper.app.sources import api_source
from podkeeper.app.standalone import Standalone, open_agent_parts
from podkeeper.model.k8s.core import Pod
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.testing.memory_api import MemoryApi
from podkeeper.testing.memory_watch import Change

NODE = "bench"
GIVE_UP_SECONDS = 120.0


def sleep_command(nap_seconds: int = 100_000) -> tuple[str, ...]:
    """Return a command that sleeps and handles TERM, which the first process of a container otherwise ignores."""
    return ("sh", "-c", f"trap 'exit 0' TERM; sleep {nap_seconds} & wait")


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of the pods."""

    image: str = "host"

    def manifest(
        self, name: str, command: tuple[str, ...] = sleep_command(), restart_policy: str = "Always"
    ) -> dict[str, object]:
        """Return a pod with one container."""
        container = {"name": "app", "image": self.image, "imagePullPolicy": "IfNotPresent", "command": list(command)}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"restartPolicy": restart_policy, "terminationGracePeriodSeconds": 30, "containers": [container]},
        }

    def pod(self, name: str, command: tuple[str, ...] = sleep_command(), restart_policy: str = "Always") -> Pod:
        """Return the pod as the API stores it, bound to this node."""
        pod = default_pod(msgspec.convert(self.manifest(name, command, restart_policy), Pod))
        meta = changed(pod.metadata, namespace="default")
        return changed(pod, metadata=meta, spec=changed(pod.spec, node_name=NODE))


class User:
    """Creates, watches and deletes pods through the API."""

    def __init__(self, api: MemoryApi, shape: Shape) -> None:
        self._api = api
        self.shape = shape
        self._changed = asyncio.Event()
        self._names: list[str] = []  # names of pods that changed since the last check
        api.on_change(Pod, self._on_change)

    def create(self, *pods: Pod) -> None:
        for pod in pods:
            self._api.put(pod)

    def delete(self, name: str) -> None:
        """Delete a pod with the grace period of its spec."""
        self._api.mark_deleted(Pod, name, "default")

    def find(self, name: str) -> Pod | None:
        return self._api.peek(Pod, name, "default")

    def is_gone(self, name: str) -> bool:
        return self.find(name) is None

    def is_ready(self, name: str) -> bool:
        pod = self.find(name)
        conditions = () if pod is None else pod.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    def is_done(self, name: str) -> bool:
        pod = self.find(name)
        return pod is not None and pod.status.phase == "Succeeded"

    def restarts(self, name: str) -> int:
        """Return the restart count of a pod's container, or 0 if it does not run."""
        pod = self.find(name)
        shown = () if pod is None else pod.status.container_statuses or ()
        return sum(each.restart_count for each in shown if each.state.running is not None)

    async def until(self, holds: Callable[[str], bool], names: Iterable[str], what: str) -> list[float]:
        """Wait, without polling, until a condition holds for each pod. Return the times in ascending order."""
        missing, moments = set(names), []
        self._names = list(missing)
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while True:
                    changed, self._names = self._names, []
                    for name in changed:
                        if name in missing and holds(name):
                            missing.remove(name)
                            moments.append(time.monotonic())
                    if not missing:
                        return moments
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            shown = [(name, msgspec.to_builtins(pod.status)) for name in sorted(missing) if (pod := self.find(name))]
            raise TimeoutError(f"timed out after {GIVE_UP_SECONDS:g} s: {what}; last states: {shown[:3]}") from None

    def _on_change(self, change: Change) -> None:
        self._names.append(cast(Pod, change.new or change.old).metadata.name or "")
        self._changed.set()


@asynccontextmanager
async def running_agent(wanted: Standalone, shape: Shape, pods: int) -> AsyncIterator[User]:
    """Run an agent in this process, and yield its user."""
    async with open_agent_parts(wanted) as parts:
        api = MemoryApi(parts.ports.clock)
        source = api_source(api=api, node_name=NODE, clock=parts.ports.clock, journal=parts.ports.journal)
        node = simple_node(NODE, cpu="1000", memory="1Ti", pods=pods + 10)
        agent = Agent(Engine(replace(parts.ports, api=api, sources=(source,)), replace(parts.settings, node=node)))
        tune_garbage_collection()  # like the `podkeeper` process
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each()) for each in (agent.run, *parts.background_tasks)]
            yield User(api, shape)
            for task in tasks:
                task.cancel()


# ---- One pod ----


async def created(user: User, name: str) -> float:
    """Return the time from the creation of a pod until it is Ready."""
    begun = time.monotonic()
    user.create(user.shape.pod(name))
    await user.until(user.is_ready, [name], "a pod is Ready")
    return _since(begun)


async def deleted(user: User, name: str) -> float:
    """Return the time from the deletion of a pod until the API has removed it."""
    begun = time.monotonic()
    user.delete(name)
    await user.until(user.is_gone, [name], "a deleted pod is gone")
    return _since(begun)


async def crashed(user: User, name: str, nap_seconds: int) -> float:
    """Kill a container. Return the time until it runs again. The first restart has no backoff."""
    command = sleep_command(nap_seconds)  # unique, so that the process can be found
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
    """Return the time from the creation of a job until it has succeeded."""
    begun = time.monotonic()
    user.create(user.shape.pod(name, ("true",), "Never"))
    await user.until(user.is_done, [name], "a job is done")
    taken = _since(begun)
    await deleted(user, name)
    return taken


async def _first_process(command: tuple[str, ...]) -> int:
    """Wait for the process of a command. Runtimes report a container as started before it executes its command."""
    async with asyncio.timeout(GIVE_UP_SECONDS):
        while (found := next((pid for pid in processes() if message_of(pid) == [*command]), None)) is None:
            await asyncio.sleep(0.01)
    return found


def _since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000


# ---- Many pods at once ----


async def burst_ready(user: User, names: Sequence[str]) -> list[float]:
    """Create pods at once. Return the times until each was Ready, in ascending order."""
    pods = [user.shape.pod(name) for name in names]
    begun = time.monotonic()
    user.create(*pods)
    return [at - begun for at in await user.until(user.is_ready, names, f"{len(names)} pods are Ready")]


async def burst_gone(user: User, names: Sequence[str]) -> list[float]:
    """Delete pods at once. Return the times until each was removed, in ascending order."""
    begun = time.monotonic()
    for name in names:
        user.delete(name)
    return [at - begun for at in await user.until(user.is_gone, names, f"{len(names)} pods are gone")]
