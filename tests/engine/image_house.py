"""The image manager over a fake runtime with private images, its book of pulls, and a journal that outlives both."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from podkeeper.engine.background import Background
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.image_access import PullBook
from podkeeper.engine.images import ImageManager
from podkeeper.engine.notebook import Notebook
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import ImageRecord, PodRecord
from podkeeper.rules.backoff import BackoffTable
from podkeeper.rules.image_access import USUAL_VERIFICATION, Verification
from podkeeper.rules.keyring import PullSecret, SecretName
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import VirtualClock

IMAGE = "reg.test/app:v1"


def wants(name: str, image: str = IMAGE, policy: str = "IfNotPresent") -> Pod:
    made_from = Container(name="c", image=image, image_pull_policy=policy)
    return Pod(
        metadata=ObjectMeta(name=name, namespace="team", uid=f"uid-{name}"), spec=PodSpec(containers=(made_from,))
    )


def secret(password: str, name: str = "s", *, key: str = "reg.test", uid: str = "u") -> PullSecret:
    return PullSecret(config(password, key), SecretName("team", name, uid))


def config(password: str, key: str = "reg.test") -> str:
    return json.dumps({"auths": {key: {"username": "me", "password": password}}})


class ImageHouse:
    """One life of an agent's images."""

    def __init__(
        self,
        fake: FakeRuntime,
        clock: VirtualClock,
        journal: FakeJournal | None,
        verification: Verification,
        node: Sequence[str],
    ) -> None:
        self.fake = fake
        self.clock = clock
        self.told: list[PodEvent] = []
        self.background = Background()
        self.book: PullBook | None = None
        if journal is not None:
            begun, pulled = Notebook(journal, "begun/"), Notebook(journal, "pulled/")
            self.book = PullBook(begun=begun, pulled=pulled, clock=clock, verification=verification)
        self._node = node
        self.images = ImageManager(
            runtime=fake,
            clock=clock,
            record=self._record,
            spawn=self.background.spawn,
            pulls=DurableBackoff(table=BackoffTable(), clock=clock, notebook=Notebook(journal, "pull-backoff/")),
            node_configs=self._node_configs,
            book=self.book,
        )

    async def _node_configs(self) -> Sequence[str]:
        return self._node

    def _record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.told.append(event)

    async def ensure(self, of: Pod, *secrets: PullSecret) -> str:
        """Get a pod's image. Returns `used`, or the reason why it has to wait."""
        found = await self.images.ensure(of, of.spec.containers[0], secrets)
        return "used" if isinstance(found, ImageRecord) else found.failure.reason

    def pulls(self) -> int:
        return len([call for call in self.fake.ledger if call.operation == Operation.PULL_IMAGE])

    def events(self, reason: str) -> list[str]:
        return [event.message for event in self.told if event.reason == reason]


@asynccontextmanager
async def image_house(
    fake: FakeRuntime,
    clock: VirtualClock,
    journal: FakeJournal | None = None,
    *,
    verification: Verification = USUAL_VERIFICATION,
    node: Sequence[str] = (),
) -> AsyncIterator[ImageHouse]:
    """One life, which ends as an agent's does: what goes on is given up."""
    home = ImageHouse(fake, clock, journal, verification, node)
    running = asyncio.create_task(home.background.run())
    try:
        yield home
    finally:
        running.cancel()
        await asyncio.wait({running})
