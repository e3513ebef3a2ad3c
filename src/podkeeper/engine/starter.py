"""Starting one container: back-off, image, configuration, create, start, postStart hook.

    may it start? -> is its image here? -> what is it made from? -> create -> start -> hook
         `------------------`--------------------`----------------`--------`------`--> why it has to wait

In: a container of a pod, and what its pod stands on. Out: None when it runs, else what its status shows and when to
try again. Each step is told as an event, in the reference's words. A start that is cancelled ends with the step that
is under way; a container that was created but not started is found and dealt with by the next plan.

Whether to wait is decided by `rules.backoff`, everything a container is made from by `rules.environment` and
`rules.mounts`. The Go ancestor is `startContainer` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.images import ImageManager
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.errors import ApiError, BadInput, NotConfigurable, NotFound, RuntimeRefused, TryLater
from podkeeper.model.k8s.core import ConfigMap, Container, EphemeralContainer, Pod, Secret
from podkeeper.model.messages import PodEvent, PodUID
from podkeeper.model.runtime import ContainerRecord, ContainerState, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.ports.api import Reader
from podkeeper.ports.clock import Clock
from podkeeper.rules.backoff import DEFAULT_CURVE, Curve
from podkeeper.rules.backoff_tuning import BackoffKind, curve_for
from podkeeper.rules.container_events import Reason, normal, warning
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.container_hash import container_hash
from podkeeper.rules.downward import Surroundings
from podkeeper.rules.environment import ObjectKind, ObjectReference, invocation_of, references_of
from podkeeper.rules.hooks import POST_START_ERROR
from podkeeper.rules.mounts import mounts_of
from podkeeper.rules.naming import container_log_path, container_path, described
from podkeeper.rules.plan.actions import ContainerToKill
from podkeeper.rules.plan.place import Place
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.resources import Amounts
from podkeeper.rules.run_as import root_trouble
from podkeeper.rules.status.containers import StartFailure

log = logging.getLogger(__name__)

CONFIG_ERROR: Final = "CreateContainerConfigError"
CREATE_ERROR: Final = "CreateContainerError"
RUN_ERROR: Final = "RunContainerError"

POST_START_SECONDS: Final = 3600.0
"""How long a postStart hook may take: its pod stands still meanwhile. (The reference would wait for ever.)"""

Spec = Container | EphemeralContainer


class Containers(Protocol):
    """What is needed of a runtime."""

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        """Create a container. Returns its id."""

    async def start_container(self, container_id: str) -> None:
        """Start a created container."""

    async def remove_container(self, container_id: str) -> None:
        """Remove a container."""

    async def pod_record(self, uid: PodUID) -> PodRecord:
        """All about one pod."""


class ContainerStarter:
    """Starts containers."""

    def __init__(
        self,
        *,
        runtime: Containers,
        images: ImageManager,
        hooks: HookRunner,
        killer: PodStopper,
        objects: Reader | None,
        restarts: DurableBackoff,
        claim: Callable[[PodUID, str, str], None],
        clock: Clock,
        record: Callable[[PodEvent, Pod | PodRecord | None], None],
        host_ips: Callable[[], tuple[str, ...]],
        allocatable: Callable[[], Amounts],
        curve: Curve = DEFAULT_CURVE,
        may_start: Callable[[PodUID], bool] = lambda uid: True,
    ) -> None:
        """`objects` is where config maps and secrets are read; None: there are none. `claim` is told what is made.

        `may_start` returns whether a pod may still get containers. It is checked again before the container is created
        and before it is started.
        """
        self._runtime = runtime
        self._images = images
        self._hooks = hooks
        self._killer = killer
        self._objects = objects
        self._restarts = restarts
        self._claim = claim
        self._clock = clock
        self._record = record
        self._host_ips = host_ips
        self._allocatable = allocatable
        self._curve = curve
        self._may_start = may_start

    async def start(self, pod: Pod, container: Spec, record: PodRecord, place: Place) -> NotStarted | None:
        """Start a container. `record` is the pod as the plan saw it: it says which try this is.

        None also if the pod may no longer start containers: that is not an error, and needs no retry.
        """
        held = self._held(pod, container, record)
        if held is not None:
            return held
        await self._restarts.settle(_uid(pod))  # if the agent crashes after the start, the next one must know of it
        image = await self._images.ensure(pod, container, place.pull_secrets)
        if isinstance(image, NotStarted):
            self._fail(pod, container, f"Error: {image.failure.reason}")
            return image
        try:
            config = await self._config(pod, container, record, place, image)
        except (NotConfigurable, ApiError, BadInput) as error:
            return self._failed(pod, container, CONFIG_ERROR, error)
        try:
            await self._clear_the_way(pod, container, record)
            if not self._may_start(_uid(pod)):  # the image pull may have taken minutes
                return None
            container_id = await self._runtime.create_container(place.sandbox_id, config)
        except NotConfigurable as error:  # found out by the runtime, and the spec's or the node's fault all the same
            return self._failed(pod, container, CONFIG_ERROR, error)
        except TryLater as error:
            return self._failed(pod, container, CREATE_ERROR, error)
        # Before it starts: a start that was told to have failed may have come true.
        self._claim(_uid(pod), container.name, container_id)
        self._record(normal(pod, container.name, Reason.CREATED, "Container created"), pod)
        if not self._may_start(_uid(pod)):
            return None  # the container is removed with the pod
        try:
            await self._runtime.start_container(container_id)
        except TryLater as error:
            return self._failed(pod, container, RUN_ERROR, error, container_id)
        log.info("started container %s of pod %s, attempt %s", container.name, described(pod), config.attempt)
        self._record(normal(pod, container.name, Reason.STARTED, "Container started"), pod)
        return await self._run_hook(pod, container, container_id, record, place)

    async def _clear_the_way(self, pod: Pod, container: Spec, record: PodRecord) -> None:
        """Remove earlier tries that were made and not started: a start given up long ago may still take effect.

        Raises TryLater if one has started since `record` was read. The image pull in between may take minutes, and a
        start call of this agent or of a previous one may still have been in flight.
        """
        created = [
            each.id
            for each in record.containers
            if each.name == container.name and each.state is ContainerState.CREATED
        ]
        if not created:
            return
        now = {each.id: each.state for each in (await self._runtime.pod_record(_uid(pod))).containers}
        if any(now.get(each, ContainerState.CREATED) is not ContainerState.CREATED for each in created):
            raise RuntimeRefused(f"cannot create container {container.name}: an earlier attempt has started after all")
        for each in created:
            await self._runtime.remove_container(each)

    def _held(self, pod: Pod, container: Spec, record: PodRecord) -> NotStarted | None:
        """Whether a container that failed has to wait before it starts again."""
        curve = curve_for(pod, BackoffKind.RESTART, self._curve)
        held = self._restarts.begin_restart(pod, container, record, curve)
        if held is None:
            return None
        self._record(replace(held.event, container_path=container_path(pod, container.name)), pod)
        return NotStarted(StartFailure(held.reason, held.message), held.until)

    async def _run_hook(
        self, pod: Pod, container: Spec, container_id: str, record: PodRecord, place: Place
    ) -> NotStarted | None:
        """Execute the postStart hook; a container whose hook fails is stopped."""
        hook = None if container.lifecycle is None else container.lifecycle.post_start
        if hook is None:
            return None
        pod_ip = place.pod_ips[0] if place.pod_ips else ""
        failure = await self._hooks.execute(hook, pod, container, container_id, pod_ip, POST_START_SECONDS)
        if failure is None:
            return None
        log.warning("postStart hook of container %s of pod %s failed: %s", container.name, described(pod), failure)
        # Without the failure's text: it may hold secrets.
        self._record(warning(pod, container.name, Reason.POST_START_FAILED, "PostStartHook failed"), pod)
        kill = ContainerToKill(container_id, container.name, "FailedPostStartHook", KillReason.FAILED_POST_START_HOOK)
        running = ContainerRecord(id=container_id, name=container.name, state=ContainerState.RUNNING)
        seen = replace(record, ips=place.pod_ips, containers=(running, *record.containers))
        for error in await self._killer.kill_containers(pod, seen, (kill,)):
            log.warning("container %s of pod %s not stopped, will retry: %s", container.name, described(pod), error)
        return NotStarted(StartFailure(POST_START_ERROR, failure))

    # What a container is made from.

    async def _config(
        self, pod: Pod, container: Spec, record: PodRecord, place: Place, image: ImageRecord
    ) -> ContainerConfig:
        """Work out what a container is made from. Raises what its status is to say."""
        target_id = _target_id(container, record)
        seen = Surroundings(pod=pod, pod_ips=place.pod_ips, host_ips=self._host_ips(), allocatable=self._allocatable())
        invocation = invocation_of(container, seen, await self._referred(pod, container))
        mounts = mounts_of(pod, container, place.volumes, invocation.env)
        if trouble := root_trouble(pod, container, image.user):
            raise NotConfigurable(trouble)
        last = record.container(container.name)
        attempt = 0 if last is None else last.restart_count + 1
        return ContainerConfig(
            pod=pod,
            container=container,
            attempt=attempt,
            image=image.id,
            image_user=image.user,
            spec_hash=container_hash(Container(name=container.name, image=container.image)),
            command=invocation.command,
            args=invocation.args,
            env=invocation.env,
            mounts=mounts,
            log_path=container_log_path(container.name, attempt),
            pod_ips=place.pod_ips,
            target_id=target_id,
        )

    async def _referred(self, pod: Pod, container: Spec) -> dict[ObjectReference, ConfigMap | Secret]:
        """The config maps and secrets that a container's environment refers to, as far as there are any."""
        found: dict[ObjectReference, ConfigMap | Secret] = {}
        namespace = pod.metadata.namespace or ""
        for reference in references_of(container):
            if self._objects is None:
                word = "configMap" if reference.kind is ObjectKind.CONFIG_MAP else "secret"
                raise NotConfigurable(f"couldn't get {word} {namespace}/{reference.name}, no kubeClient defined")
            kind: type[ConfigMap] | type[Secret] = ConfigMap if reference.kind is ObjectKind.CONFIG_MAP else Secret
            try:
                found[reference] = await self._objects.get(kind, reference.name, namespace)
            except NotFound:
                continue  # whether that matters is not ours to say
        return found

    # Saying that it failed.

    def _failed(self, pod: Pod, container: Spec, reason: str, error: Exception, container_id: str = "") -> NotStarted:
        log.warning("container %s of pod %s not started, will retry: %s", container.name, described(pod), error)
        self._fail(pod, container, f"Error: {error}", container_id)
        return NotStarted(StartFailure(reason, str(error)))

    def _fail(self, pod: Pod, container: Spec, text: str, container_id: str = "") -> None:
        self._record(warning(pod, container.name, Reason.FAILED, text, container_id), pod)


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")


def _target_id(container: Spec, record: PodRecord) -> str:
    """The container whose processes an ephemeral one is to see; nothing if it names none. Raises NotConfigurable."""
    name = container.target_container_name if isinstance(container, EphemeralContainer) else None
    if not name:
        return ""
    target = record.container(name)
    if target is None:
        raise NotConfigurable(f"unable to find target container {name}")
    return target.id
