"""What every source of pods promises."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.ports.source import Source
from podkeeper.testing.contracts.contract import Contract, eventually

SOURCE: "Contract[SourceSubject]" = Contract()


@dataclass(frozen=True)
class SourceSubject:
    """A source that has no pods yet, and a way to make what stands behind it hold exactly the given ones.

    `trouble` makes what stands behind it fail for a while (unreachable, unreadable), `relief` ends that.
    """

    source: Source
    publish: Callable[[tuple[Pod, ...]], Awaitable[None]]
    trouble: Callable[[], None]
    relief: Callable[[], None]


def _pod(name: str, image: str = "nginx:1") -> Pod:
    metadata = ObjectMeta(name=name, namespace="default", uid=f"uid-of-{name}")
    return Pod(metadata=metadata, spec=PodSpec(containers=(Container(name="web", image=image),)))


class _Listener:
    """Somebody who is told, and adds it up: images by the beginning of the pod's name."""

    def __init__(self, subject: SourceSubject) -> None:
        self._source = subject.source
        self.told: list[PodUpdate] = []
        self._pods: dict[str, Pod] = {}

    def tell(self, update: PodUpdate) -> None:
        self.told.append(update)
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
        """What should run: the first container's image by pod; static pods bear the node's name behind their own."""
        return {
            (pod.metadata.name or "").partition("-")[0]: pod.spec.containers[0].image or ""
            for pod in self._pods.values()
        }

    async def hears(self, images: dict[str, str]) -> None:
        async def holds() -> bool:
            return bool(self.told) and self.images() == images

        await eventually(holds, f"{self._source.name} told {images}")


@asynccontextmanager
async def _listening(subject: SourceSubject) -> AsyncIterator[_Listener]:
    """Run the source while the block lasts; it must end when it is cancelled."""
    listener = _Listener(subject)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(subject.source.run(listener.tell))
        yield listener
        running.cancel()
    assert running.cancelled()


@SOURCE.promises
async def the_first_word_is_a_set(subject: SourceSubject) -> None:
    """A source that has pods tells them all at once, as a SET under its own name."""
    await subject.publish((_pod("web"), _pod("db")))
    async with _listening(subject) as listener:
        await listener.hears({"web": "nginx:1", "db": "nginx:1"})
        assert listener.told[0].op is Op.SET
        assert {update.source for update in listener.told} == {subject.source.name}


@SOURCE.promises
async def even_nothing_is_told(subject: SourceSubject) -> None:
    """A source that knows it has no pods tells an empty SET."""
    await subject.publish(())
    async with _listening(subject) as listener:
        await listener.hears({})
        assert listener.told[0] == PodUpdate(Op.SET, (), subject.source.name)


@SOURCE.promises
async def changes_are_told(subject: SourceSubject) -> None:
    """What is added, changed and removed behind the source is told."""
    await subject.publish((_pod("web"),))
    async with _listening(subject) as listener:
        await listener.hears({"web": "nginx:1"})
        await subject.publish((_pod("web"), _pod("db")))
        await listener.hears({"web": "nginx:1", "db": "nginx:1"})
        await subject.publish((_pod("web", "nginx:2"), _pod("db")))
        await listener.hears({"web": "nginx:2", "db": "nginx:1"})
        await subject.publish((_pod("db"),))
        await listener.hears({"db": "nginx:1"})


@SOURCE.promises
async def trouble_removes_nobody(subject: SourceSubject) -> None:
    """While what stands behind it fails, a source goes on, and what it told stays true until it knows better."""
    await subject.publish((_pod("web"),))
    async with _listening(subject) as listener:
        await listener.hears({"web": "nginx:1"})
        subject.trouble()
        await asyncio.sleep(1)
        assert listener.images() == {"web": "nginx:1"}
        subject.relief()
        await subject.publish((_pod("web", "nginx:2"),))
        await listener.hears({"web": "nginx:2"})
