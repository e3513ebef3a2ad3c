"""Contract of the source port."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Source
from podkeeper.testing.build import pod
from podkeeper.testing.contracts.contract import Contract, eventually

SOURCE: "Contract[SourceSubject]" = Contract()


@dataclass(frozen=True)
class SourceSubject:
    """A source without pods, and functions that control its backend (directory, web server, API server).

    `publish` makes the backend hold exactly the given pods. After `fail`, the backend is unreachable or unreadable
    until `recover`.
    """

    source: Source
    publish: Callable[[tuple[Pod, ...]], Awaitable[None]]
    fail: Callable[[], None]
    recover: Callable[[], None]


_pod = partial(pod, image="nginx:1")


class _UpdateRecorder:
    """Records the updates of a source and applies them to a set of desired pods."""

    def __init__(self, subject: SourceSubject) -> None:
        self._source = subject.source
        self.updates: list[PodUpdate] = []
        self._pods: dict[str, Pod] = {}

    def receive(self, update: PodUpdate) -> None:
        self.updates.append(update)
        changed = {pod.metadata.uid or "": pod for pod in update.pods}
        match update.op:
            case Op.SET:
                self._pods = changed
            case Op.ADD | Op.UPDATE | Op.DELETE | Op.RECONCILE:
                self._pods |= changed
            case Op.REMOVE:
                for uid in changed:
                    self._pods.pop(uid, None)

    def images(self) -> dict[str, str]:
        """Return the image of the first container by pod name, without the node name suffix of static pods."""
        return {
            (pod.metadata.name or "").partition("-")[0]: pod.spec.containers[0].image or ""
            for pod in self._pods.values()
        }

    async def wait_for(self, images: dict[str, str]) -> None:
        async def holds() -> bool:
            return bool(self.updates) and self.images() == images

        await eventually(holds, f"source {self._source.name} sends {images}")


@asynccontextmanager
async def _running(subject: SourceSubject) -> AsyncIterator[_UpdateRecorder]:
    """Run the source during the block. It must end when it is cancelled."""
    recorder = _UpdateRecorder(subject)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(subject.source.run(recorder.receive))
        yield recorder
        running.cancel()
    assert running.cancelled()


@SOURCE.scenario
async def the_first_update_is_a_set(subject: SourceSubject) -> None:
    """The first update is a SET of all pods. Each update carries the name of the source."""
    await subject.publish((_pod("web"), _pod("db")))
    async with _running(subject) as recorder:
        await recorder.wait_for({"web": "nginx:1", "db": "nginx:1"})
        assert recorder.updates[0].op is Op.SET
        assert {update.source for update in recorder.updates} == {subject.source.name}


@SOURCE.scenario
async def an_empty_source_sends_an_empty_set(subject: SourceSubject) -> None:
    """A source that has read its pods and found none sends an empty SET."""
    await subject.publish(())
    async with _running(subject) as recorder:
        await recorder.wait_for({})
        assert recorder.updates[0] == PodUpdate(Op.SET, (), subject.source.name)


@SOURCE.scenario
async def changes_are_sent(subject: SourceSubject) -> None:
    """The source sends pods that are added, changed or removed."""
    await subject.publish((_pod("web"),))
    async with _running(subject) as recorder:
        await recorder.wait_for({"web": "nginx:1"})
        await subject.publish((_pod("web"), _pod("db")))
        await recorder.wait_for({"web": "nginx:1", "db": "nginx:1"})
        await subject.publish((_pod("web", image="nginx:2"), _pod("db")))
        await recorder.wait_for({"web": "nginx:2", "db": "nginx:1"})
        await subject.publish((_pod("db"),))
        await recorder.wait_for({"db": "nginx:1"})


@SOURCE.scenario
async def a_failing_backend_removes_no_pod(subject: SourceSubject) -> None:
    """While the backend fails, the source keeps running and its last updates stay valid.

    It sends changes after the recovery.
    """
    await subject.publish((_pod("web"),))
    async with _running(subject) as recorder:
        await recorder.wait_for({"web": "nginx:1"})
        subject.fail()
        await asyncio.sleep(1)
        assert recorder.images() == {"web": "nginx:1"}
        subject.recover()
        await subject.publish((_pod("web", image="nginx:2"),))
        await recorder.wait_for({"web": "nginx:2"})
