"""Ensure that the image of a container is on the node.

    ensure -> present, and may this pod use it? -> use it
                 `--no--> backoff? -> one pull for all waiting pods -> use it, or back off

In: a pod, one of its containers, its pull secrets. Out: the image's record, or the reason why the container must wait.

* `rules.images.pull` decides whether to pull. `rules.backoff.table` decides how long to wait after a failed pull.
* `rules.images.keyring` selects the credentials: those of the pod, then those of the node. They are tried one by one.
* `ImagePullManager` decides which pods may use a present image. Without one, all may.
* Pods that need the same image with the same credentials share one pull. It continues if a waiting pod is killed.
* `BoundedRuntime` limits the number of concurrent pulls.

Kubelet counterpart: pkg/kubelet/images/image_manager.go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from podkeeper.engine.background import Spawn
from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.events import EventFunction
from podkeeper.engine.image_pull_manager import ImagePullManager
from podkeeper.engine.observer import Observer
from podkeeper.model.errors import ImagePullFailed, TryLater
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ImageRecord
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Images
from podkeeper.rules.backoff.table import DEFAULT_CURVE, Curve
from podkeeper.rules.backoff.tuning import BackoffKind, curve_for
from podkeeper.rules.container.events import EventReason, normal, warning
from podkeeper.rules.images.keyring import Credentials, PullSecret, config_of, pull_credentials
from podkeeper.rules.images.pull import (
    IMAGE_PULL_ERROR,
    PullPolicy,
    PullStep,
    already_present_message,
    inspect_failure,
    invalid_name_failure,
    never_pull_failure,
    policy_of,
    pull_failure,
    pull_step,
    pulled_message,
    with_default_tag,
)
from podkeeper.rules.joined import joined_messages
from podkeeper.rules.naming import container_path, format_pod
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.status.containers import StartFailure

log = logging.getLogger(__name__)

PullKey = tuple[str, tuple[Credentials, ...]]


@dataclass(frozen=True, slots=True)
class _ImageRequest:
    pod: Pod
    container: Container | EphemeralContainer
    image: str  # as written in the spec
    reference: str  # with its tag


@dataclass(frozen=True, slots=True)
class _PullResult:
    image: ImageRecord
    credentials: Credentials | None  # the ones that the registry accepted
    seconds: float


class ImageManager:
    def __init__(
        self,
        *,
        runtime: Images,
        clock: Clock,
        record_event: EventFunction,
        spawn: Spawn,
        backoff: DurableBackoff,
        curve: Curve = DEFAULT_CURVE,
        observer: Observer | None = None,
        node_configs: Callable[[], Awaitable[Sequence[str]]] | None = None,
        pull_manager: ImagePullManager | None = None,
    ) -> None:
        """`node_configs` returns the docker configurations of the node, which apply to every pod."""
        self._runtime = runtime
        self._clock = clock
        self._record_event = record_event
        self._spawn = spawn
        self._backoff = backoff
        self._curve = curve
        self._observer = observer or Observer()
        self._node_configs = node_configs
        self._pull_manager = pull_manager
        self._pulls: dict[PullKey, asyncio.Future[_PullResult]] = {}

    async def ensure(
        self, pod: Pod, container: Container | EphemeralContainer, secrets: Sequence[PullSecret] = ()
    ) -> ImageRecord | NotStarted:
        """Get the image of a container. A cancelled call does not stop a pull in progress."""
        image = container.image or ""
        # An invalid name is an error of the spec, so it is reported before the runtime is called, as in the kubelet.
        reference = with_default_tag(image)
        if reference is None:
            failure = invalid_name_failure(image)
            self._record_event(warning(pod, container.name, EventReason.INSPECT_FAILED, failure.message), pod)
            return NotStarted(failure)
        request = _ImageRequest(pod, container, image, reference)
        policy = policy_of(container.image_pull_policy, image)
        try:
            # With Always, the registry decides whether the pod may use the image, so its presence does not matter.
            present = None if policy is PullPolicy.ALWAYS else await self._runtime.image(reference)
        except TryLater as error:
            failure = inspect_failure(image, str(error))
            self._record_event(warning(pod, container.name, EventReason.INSPECT_FAILED, failure.message), pod)
            return NotStarted(failure)
        if present is not None and await self._may_use(request, present, secrets):
            self._record_event(normal(pod, container.name, EventReason.PULLED, already_present_message(image)), pod)
            return present
        if pull_step(policy, present=False) is PullStep.GIVE_UP:
            failure = never_pull_failure(image)
            self._record_event(warning(pod, container.name, EventReason.NEVER_PULL, failure.message), pod)
            return NotStarted(failure)
        return await self._pull(request, secrets)

    async def _may_use(self, request: _ImageRequest, present: ImageRecord, secrets: Sequence[PullSecret]) -> bool:
        if self._pull_manager is None:
            return True
        credentials = await self._credentials(request.reference, secrets)
        return not self._pull_manager.must_attempt_image_pull(request.reference, present.id, credentials)

    async def _credentials(self, reference: str, secrets: Sequence[PullSecret]) -> tuple[Credentials, ...]:
        """Return the credentials for a registry, in the order to try."""
        own = pull_credentials(reference, secrets)
        if self._node_configs is None:
            return own
        return (*own, *pull_credentials(reference, [PullSecret(config) for config in await self._node_configs()]))

    async def _pull(self, request: _ImageRequest, secrets: Sequence[PullSecret]) -> ImageRecord | NotStarted:
        """Pull for one container, unless the image is in backoff for its pod."""
        pod, name = request.pod, request.container.name
        # After the check for a present image, as in the kubelet. The backoff is per pod, because another pod may have
        # other credentials.
        held = self._backoff.hold_pull(pod, request.image, self._curve_of(pod))
        if held is not None:
            self._record_event(replace(held.event, container_path=container_path(pod, name)), pod)
            return NotStarted(StartFailure(held.reason, held.message), held.until)
        self._record_event(normal(pod, name, EventReason.PULLING, f'Pulling image "{request.image}"'), pod)
        begun = self._clock.monotonic()
        credentials = await self._credentials(request.reference, secrets)
        try:
            # Shielded, because other pods may wait for the same pull.
            pulled = await asyncio.shield(self._shared_pull(request.reference, credentials))
        except TryLater as error:
            failed = self._failed(request, error)
            # Durable before the failure is reported, so that a crash does not reset the backoff.
            await self._backoff.settle(PodUID(pod.metadata.uid or ""))
            return failed
        if self._pull_manager is not None:
            # Another pod may have shared this pull, with the same credentials from another secret.
            own = next((each for each in credentials if each == pulled.credentials), None)
            self._pull_manager.record_image_pulled(request.reference, pulled.image.id, own)
        waited = self._clock.monotonic() - begun
        size = pulled.image.size_bytes
        # A pod that joined a pull in progress has waited for less than the duration of the pull.
        text = pulled_message(request.image, min(pulled.seconds, waited), waited, size)
        self._record_event(normal(pod, name, EventReason.PULLED, text), pod)
        self._observer.image_pulled(waited, size)
        return pulled.image

    def _failed(self, request: _ImageRequest, error: TryLater) -> NotStarted:
        pod, image = request.pod, request.image
        log.warning("image %s not pulled for pod %s, will retry: %s", image, format_pod(pod), error)
        text = f'Failed to pull image "{image}": {error}'
        self._record_event(warning(pod, request.container.name, EventReason.FAILED, text), pod)
        reason = error.reason if isinstance(error, ImagePullFailed) else IMAGE_PULL_ERROR
        failure = pull_failure(image, str(error), reason)
        cause = f"{failure.reason}: {failure.message}"
        self._backoff.pull_failed(pod, image, cause, self._curve_of(pod))
        return NotStarted(failure)

    def _curve_of(self, pod: Pod) -> Curve:
        return curve_for(pod, BackoffKind.PULL, self._curve)

    # Pulls.

    def _shared_pull(self, reference: str, credentials: tuple[Credentials, ...]) -> asyncio.Future[_PullResult]:
        """Return the pull in progress with these credentials, or a new one."""
        key = (reference, credentials)
        pull = self._pulls.get(key)
        if pull is None:
            pull = self._pulls[key] = self._spawn(self._pull_recorded(reference, credentials))
            # Also after a failure: the next attempt must not get the old error.
            pull.add_done_callback(lambda _: self._pulls.pop(key))
        return pull

    async def _pull_recorded(self, reference: str, credentials: tuple[Credentials, ...]) -> _PullResult:
        """Record the intent, then pull. The intent stays recorded if the pull may still take effect."""
        if self._pull_manager is None:
            return await self._pull_once(reference, credentials)
        # Durable before the pull begins. After a crash during the pull, the image may exist, and a pod without
        # credentials must not use it (KEP-2535).
        await self._pull_manager.record_pull_intent(reference)
        certain = False
        try:
            pulled = await self._pull_once(reference, credentials)
            self._pull_manager.record_image_pulled(reference, pulled.image.id, pulled.credentials)
            certain = True
            return pulled
        except ImagePullFailed:
            certain = True
            raise
        finally:
            self._pull_manager.record_pull_ended(reference, certain=certain)

    async def _pull_once(self, reference: str, credentials: tuple[Credentials, ...]) -> _PullResult:
        """Try all credentials in order. Without credentials, pull anonymously."""
        begun = self._clock.monotonic()
        errors: list[TryLater] = []
        for each in credentials or (None,):
            try:
                config = () if each is None else (config_of(reference, each),)
                image = await self._runtime.pull_image(reference, config)
                return _PullResult(image, each, self._clock.monotonic() - begun)
            except TryLater as error:
                errors.append(error)
        # A pull with another error than ImagePullFailed may still take effect. Raise that error, so that
        # `_pull_recorded` keeps the pull intent. A joined ImagePullFailed would delete the intent.
        unclear = [error for error in errors if not isinstance(error, ImagePullFailed)]
        if len(errors) == 1 or unclear:
            raise (unclear or errors)[0]
        raise ImagePullFailed(joined_messages([str(error) for error in errors]))
