"""Images: see to it that the node has what a container is made from.

    ensure --look--> there, and may this pod have it? --> use it
                       `--> held back? --> pull, once for all who wait --> use it, or back off

In: a pod, a container of it, its pull secrets. Out: the image's record, or why the container has to wait.
Whether to pull is decided by `rules.pull`, for how long a failing pull is held back by `rules.backoff`, per pod and
image, since another pod may have other credentials. Which those are is decided by `rules.keyring`: those of the pod,
then the node's own; they are tried one by one. Who may use an image that is there, a `PullBook` knows; without one,
everybody may.

A pull belongs to nobody: pods that want the same image with the same credentials wait for one pull, and it goes on
when a pod that waits is killed. How many pulls are made at a time is the guarded runtime's business. The Go ancestor
is pkg/kubelet/images.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from podkeeper.engine.background import Spawn
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.image_access import PullBook
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import ImagePullFailed, TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import ImageRecord, PodRecord
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Images
from podkeeper.rules.backoff import DEFAULT_CURVE, Curve
from podkeeper.rules.backoff_tuning import BackoffKind, curve_for
from podkeeper.rules.container_events import Reason, normal, warning
from podkeeper.rules.keyring import Credentials, PullSecret, config_of, keys_for
from podkeeper.rules.naming import container_path, described
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.pull import (
    IMAGE_PULL_ERROR,
    PullPolicy,
    Step,
    inspect_failure,
    invalid_name,
    never_pulled,
    policy_of,
    present_text,
    pull_failure,
    pulled_text,
    step_after_look,
    tagged,
    together,
)
from podkeeper.rules.status.containers import StartFailure

log = logging.getLogger(__name__)

T = TypeVar("T")
PullKey = tuple[str, tuple[Credentials, ...]]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Who wants which image."""

    pod: Pod
    container: Container | EphemeralContainer
    image: str  # as the spec names it
    reference: str  # with its tag


@dataclass(frozen=True, slots=True)
class _Pulled:
    image: ImageRecord
    credentials: Credentials | None  # that opened it
    seconds: float


class ImageManager:
    """Gets images onto the node."""

    def __init__(
        self,
        *,
        runtime: Images,
        clock: Clock,
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        spawn: Spawn,
        pulls: DurableBackoff,
        curve: Curve = DEFAULT_CURVE,
        observer: Observer | None = None,
        node_configs: Callable[[], Awaitable[Sequence[str]]] | None = None,
        book: PullBook | None = None,
    ) -> None:
        """`node_configs` are the docker configurations that count for every pod."""
        self._runtime = runtime
        self._clock = clock
        self._record = record
        self._spawn = spawn
        self._backoff = pulls
        self._curve = curve
        self._observer = observer or Observer()
        self._node_configs = node_configs
        self._book = book
        self._pulls: dict[PullKey, asyncio.Future[_Pulled]] = {}

    async def ensure(
        self, pod: Pod, container: Container | EphemeralContainer, secrets: Sequence[PullSecret] = ()
    ) -> ImageRecord | NotStarted:
        """Get a container's image. Cancelled, it leaves a pull that has begun to go on."""
        image = container.image or ""
        reference = tagged(image)
        if reference is None:
            failure = invalid_name(image)
            self._record(warning(pod, container.name, Reason.INSPECT_FAILED, failure.message), pod)
            return NotStarted(failure)
        wanted = _Wanted(pod, container, image, reference)
        policy = policy_of(container.image_pull_policy, image)
        try:
            present = None if policy is PullPolicy.ALWAYS else await self._runtime.image(reference)
        except TryLater as error:
            failure = inspect_failure(image, str(error))
            self._record(warning(pod, container.name, Reason.INSPECT_FAILED, failure.message), pod)
            return NotStarted(failure)
        if present is not None and await self._may_use(wanted, present, secrets):
            self._record(normal(pod, container.name, Reason.PULLED, present_text(image)), pod)
            return present
        if step_after_look(policy, present=False) is Step.GIVE_UP:
            failure = never_pulled(image)
            self._record(warning(pod, container.name, Reason.NEVER_PULL, failure.message), pod)
            return NotStarted(failure)
        return await self._pull(wanted, secrets)

    async def _may_use(self, wanted: _Wanted, present: ImageRecord, secrets: Sequence[PullSecret]) -> bool:
        """Whether a pod may use an image that is there."""
        if self._book is None:
            return True
        credentials = await self._credentials(wanted.reference, secrets)
        return not self._book.must_pull(wanted.reference, present.id, credentials)

    async def _credentials(self, reference: str, secrets: Sequence[PullSecret]) -> tuple[Credentials, ...]:
        """What to show a registry, in the order to try."""
        own = keys_for(reference, secrets)
        if self._node_configs is None:
            return own
        return (*own, *keys_for(reference, [PullSecret(config) for config in await self._node_configs()]))

    async def _pull(self, wanted: _Wanted, secrets: Sequence[PullSecret]) -> ImageRecord | NotStarted:
        """Pull for one container, unless its pod's last pull failed not long ago."""
        pod, name = wanted.pod, wanted.container.name
        held = self._backoff.hold_pull(pod, wanted.image, self._curve_of(pod))
        if held is not None:
            self._record(replace(held.event, container_path=container_path(pod, name)), pod)
            return NotStarted(StartFailure(held.reason, held.message), held.until)
        self._record(normal(pod, name, Reason.PULLING, f'Pulling image "{wanted.image}"'), pod)
        begun = self._clock.monotonic()
        credentials = await self._credentials(wanted.reference, secrets)
        try:
            pulled = await asyncio.shield(self._shared_pull(wanted.reference, credentials))
        except TryLater as error:
            failed = self._failed(wanted, error)
            await self._backoff.settle(PodUID(pod.metadata.uid or ""))
            return failed
        if self._book is not None:
            # Others may have waited with the same credentials out of another secret.
            own = next((each for each in credentials if each == pulled.credentials), None)
            self._book.pulled(wanted.reference, pulled.image.id, own)
        waited = self._clock.monotonic() - begun
        size = pulled.image.size_bytes
        text = pulled_text(wanted.image, min(pulled.seconds, waited), waited, size)
        self._record(normal(pod, name, Reason.PULLED, text), pod)
        self._observer.pulled(waited, size)
        return pulled.image

    def _failed(self, wanted: _Wanted, error: TryLater) -> NotStarted:
        pod, image = wanted.pod, wanted.image
        log.warning("image %s not pulled for pod %s, will retry: %s", image, described(pod), error)
        text = f'Failed to pull image "{image}": {error}'
        self._record(warning(pod, wanted.container.name, Reason.FAILED, text), pod)
        reason = error.reason if isinstance(error, ImagePullFailed) else IMAGE_PULL_ERROR
        failure = pull_failure(image, str(error), reason)
        cause = f"{failure.reason}: {failure.message}"
        self._backoff.pull_failed(pod, image, cause, self._curve_of(pod))
        return NotStarted(failure)

    def _curve_of(self, pod: Pod) -> Curve:
        return curve_for(pod, BackoffKind.PULL, self._curve)

    # The pulls themselves.

    def _shared_pull(self, reference: str, credentials: tuple[Credentials, ...]) -> asyncio.Future[_Pulled]:
        """The pull of an image with these credentials that goes on now, or a new one."""
        key = (reference, credentials)
        pull = self._pulls.get(key)
        if pull is None:
            pull = self._pulls[key] = self._spawn(self._pull_noted(reference, credentials))
            pull.add_done_callback(lambda _: self._pulls.pop(key))
        return pull

    async def _pull_noted(self, reference: str, credentials: tuple[Credentials, ...]) -> _Pulled:
        """Pull, noted in the book before it begins; a pull that may yet come true stays noted."""
        if self._book is None:
            return await self._pull_once(reference, credentials)
        await self._book.begin(reference)
        surely = False
        try:
            pulled = await self._pull_once(reference, credentials)
            self._book.pulled(reference, pulled.image.id, pulled.credentials)
            surely = True
            return pulled
        except ImagePullFailed:
            surely = True
            raise
        finally:
            self._book.ended(reference, surely=surely)

    async def _pull_once(self, reference: str, credentials: tuple[Credentials, ...]) -> _Pulled:
        """Try all credentials in order; without any, none."""
        begun = self._clock.monotonic()
        errors: list[TryLater] = []
        for each in credentials or (None,):
            try:
                config = () if each is None else (config_of(reference, each),)
                image = await self._runtime.pull_image(reference, config)
                return _Pulled(image, each, self._clock.monotonic() - begun)
            except TryLater as error:
                errors.append(error)
        unclear = [error for error in errors if not isinstance(error, ImagePullFailed)]
        if len(errors) == 1 or unclear:
            raise (unclear or errors)[0]
        raise ImagePullFailed(together([str(error) for error in errors]))
