"""An image manager and its pull records on a fake runtime with private images, and a journal that survives them."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from podkeeper.engine.background import Background
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.engine.images import ImageManager
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodEvent
from podkeeper.model.runtime import ImageRecord, PodRecord
from podkeeper.rules.backoff.table import BackoffTable
from podkeeper.rules.images.keyring import PullSecret, SecretName
from podkeeper.rules.images.pull_access import DEFAULT_VERIFICATION, Verification
from podkeeper.runtimes.fake import FakeRuntime, Operation
from podkeeper.testing import build
from podkeeper.testing.fakes import FakeJournal
from podkeeper.testing.virtual_time import VirtualClock

IMAGE = "reg.test/app:v1"


def pod_with_image(
    name: str = "web", *, image: str = IMAGE, policy: str = "IfNotPresent", namespace: str = "team"
) -> Pod:
    return build.pod(name, build.container("c", image=image, image_pull_policy=policy), namespace=namespace)


def secret(password: str, name: str = "s", *, key: str = "reg.test", uid: str = "u") -> PullSecret:
    return PullSecret(config(password, key), SecretName("team", name, uid))


def config(password: str, key: str = "reg.test") -> str:
    return json.dumps({"auths": {key: {"username": "me", "password": password}}})


class ImageHarness:
    """The image manager of one run of the agent."""

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
        self.recorded: list[PodEvent] = []
        self.background = Background()
        self.pull_manager: ImagePullManager | None = None
        if journal is not None:
            intents, pulled = Checkpoints(journal, "begun/"), Checkpoints(journal, "pulled/")
            self.pull_manager = ImagePullManager(intents=intents, pulled=pulled, clock=clock, verification=verification)
        self._node = node
        self.images = ImageManager(
            runtime=fake,
            clock=clock,
            record_event=self._record,
            spawn=self.background.spawn,
            backoff=DurableBackoff(
                table=BackoffTable(), clock=clock, checkpoints=Checkpoints(journal, "pull-backoff/")
            ),
            node_configs=self._node_configs,
            pull_manager=self.pull_manager,
        )

    async def _node_configs(self) -> Sequence[str]:
        return self._node

    def _record(self, event: PodEvent, about: Pod | PodRecord | None) -> None:
        self.recorded.append(event)

    async def ensure(self, of: Pod, *secrets: PullSecret) -> str:
        """Get the image of a pod. Return `used`, or the reason why the pod must wait."""
        found = await self.images.ensure(of, of.spec.containers[0], secrets)
        return "used" if isinstance(found, ImageRecord) else found.failure.reason

    def pulls(self) -> int:
        return len([call for call in self.fake.call_log if call.operation == Operation.PULL_IMAGE])

    def events(self, reason: str) -> list[str]:
        return [event.message for event in self.recorded if event.reason == reason]


@asynccontextmanager
async def running_image_harness(
    fake: FakeRuntime,
    clock: VirtualClock,
    journal: FakeJournal | None = None,
    *,
    verification: Verification = DEFAULT_VERIFICATION,
    node: Sequence[str] = (),
) -> AsyncIterator[ImageHarness]:
    """Run the image manager. At the end, pulls in progress are abandoned, as when an agent ends."""
    harness = ImageHarness(fake, clock, journal, verification, node)
    running = asyncio.create_task(harness.background.run())
    try:
        yield harness
    finally:
        running.cancel()
        await asyncio.wait({running})
