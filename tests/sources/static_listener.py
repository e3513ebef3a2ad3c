"""A receiver of the updates of a source, and short manifests to write."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from podkeeper.model.errors import Problem
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Source
from podkeeper.sources.local_objects import LocalObject, LocalObjects, ObjectKey
from tests.violations import violation

P = ParamSpec("P")
T = TypeVar("T")

SOURCE_TIMEOUT_SECONDS = 10.0


def pod_text(name: str, image: str = "host", more: str = "") -> str:
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n"
        f"spec:\n  containers:\n  - name: app\n    image: {image}\n{more}"
    )


def config_map_text(name: str, value: str) -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  key: {value}\n"


class Receiver:
    """Records all updates and reports of a source."""

    def __init__(self) -> None:
        self.updates: list[PodUpdate] = []
        self.reports: list[tuple[str, tuple[Problem, ...]]] = []

    def send(self, update: PodUpdate) -> None:
        if update.op is not Op.SET:
            raise violation(f"a static source sends only SETs, not {update}")
        self.updates.append(update)

    def report(self, location: str, problems: tuple[Problem, ...]) -> None:
        self.reports.append((location, problems))

    def names(self) -> list[str]:
        """Return the pods of the last update, without the node's name."""
        return [(pod.metadata.name or "").removesuffix("-n1") for pod in self.updates[-1].pods]

    def images(self) -> dict[str, str]:
        pods = self.updates[-1].pods
        return {name: pod.spec.containers[0].image or "" for name, pod in zip(self.names(), pods, strict=True)}

    async def receives(self, *names: str) -> None:
        """Wait for exactly these pods, in this order."""
        await until(
            lambda: bool(self.updates) and self.names() == list(names),
            lambda: f"{names}, but {self.updates and self.names()}",
        )


class FailingStore(LocalObjects):
    """A store that fails unexpectedly a number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def replace(self, owner: str, objects: Iterable[LocalObject]) -> frozenset[ObjectKey]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a bug")
        return super().replace(owner, objects)


class InlineExecutor(ThreadPoolExecutor):
    """Make each call at once in the loop's thread, because virtual time does not wait for threads."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


async def until(holds: Callable[[], bool], what: Callable[[], str] = lambda: "it") -> None:
    try:
        async with asyncio.timeout(SOURCE_TIMEOUT_SECONDS):
            while not holds():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within the timeout: {what()}") from None


@asynccontextmanager
async def running(source: Source, receiver: Receiver) -> AsyncIterator[None]:
    """Run a source during the block. If the source fails, the block fails."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(source.run(receiver.send))
        yield
        task.cancel()
