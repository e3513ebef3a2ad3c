"""Start one container: backoff, image, configuration, create, start, hook.

    backoff -> image -> configuration -> create -> start -> postStart hook
       `---------`------------`------------`---------`-----------`--> NotStarted: reason, message, time of the retry

In: a container of a pod, and the pod's sandbox, volumes and pull secrets. Out: None if it runs, else the reason for the
status and the time of the next attempt. Each step is recorded as an event, with the kubelet's messages. A cancelled
start ends with the current step. If the container was created but not started, the next sync handles it.

`rules.backoff.table` decides whether to wait. `rules.container.environment` and `rules.container.mounts` compute the
configuration. Kubelet counterpart: `startContainer` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.events import EventFunction
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.images import ImageManager
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.errors import ApiError, BadInput, NotConfigurable, NotFound, RuntimeRefused, TryLater
from podkeeper.model.k8s.core import ConfigMap, Container, EphemeralContainer, Pod, Secret
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import AnyContainer, uid_of
from podkeeper.model.runtime import ContainerRecord, ImageRecord, PodRecord, RecordState
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.ports.api import ObjectReader
from podkeeper.ports.clock import Clock
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.backoff.table import DEFAULT_CURVE, Curve
from podkeeper.rules.backoff.tuning import BackoffKind, curve_for
from podkeeper.rules.container.downward import PodContext
from podkeeper.rules.container.environment import EnvReference, ObjectKind, env_references_of, invocation_of
from podkeeper.rules.container.events import EventReason, normal, warning
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.container.hooks import POST_START_ERROR
from podkeeper.rules.container.mounts import mounts_of
from podkeeper.rules.container.run_as import run_as_root_error
from podkeeper.rules.naming import container_log_path, container_path, format_pod
from podkeeper.rules.plan.actions import ContainerToKill
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.plan.sandbox_config import SandboxContext
from podkeeper.rules.resources import Amounts
from podkeeper.rules.status.containers import StartFailure

log = logging.getLogger(__name__)

CONFIG_ERROR: Final = "CreateContainerConfigError"
CREATE_ERROR: Final = "CreateContainerError"
RUN_ERROR: Final = "RunContainerError"

POST_START_SECONDS: Final = 3600.0
"""The timeout of a postStart hook, which blocks the syncs of its pod. The kubelet has none."""


class ContainerStarter:
    def __init__(
        self,
        *,
        runtime: Runtime,
        images: ImageManager,
        hooks: HookRunner,
        stopper: PodStopper,
        objects: ObjectReader | None,
        restarts: DurableBackoff,
        claim: Callable[[PodUID, str, str], None],
        clock: Clock,
        record_event: EventFunction,
        host_ips: Callable[[], tuple[str, ...]],
        allocatable: Callable[[], Amounts],
        curve: Curve = DEFAULT_CURVE,
        may_start: Callable[[PodUID], bool] = lambda uid: True,
    ) -> None:
        """`objects` reads ConfigMaps and Secrets. None: there is no store of ConfigMaps and Secrets.

        `claim` receives each created container.
        `may_start` returns whether a pod may still get containers. It is checked again before the container is created
        and before it is started.
        """
        self._runtime = runtime
        self._images = images
        self._hooks = hooks
        self._stopper = stopper
        self._objects = objects
        self._restarts = restarts
        self._claim = claim
        self._clock = clock
        self._record_event = record_event
        self._host_ips = host_ips
        self._allocatable = allocatable
        self._curve = curve
        self._may_start = may_start

    async def start(
        self, pod: Pod, container: AnyContainer, record: PodRecord, sandbox: SandboxContext
    ) -> NotStarted | None:
        """Start a container. `record` is the pod that the plan was computed from. It determines the attempt.

        Return None also if the pod may no longer start containers, which is no error and needs no retry.
        """
        held = self._in_backoff(pod, container, record)
        if held is not None:
            return held
        # Make the backoff durable before the start. Otherwise, after a crash, the next agent would restart the
        # container without backoff.
        await self._restarts.settle(uid_of(pod))
        image = await self._images.ensure(pod, container, sandbox.pull_secrets)
        if isinstance(image, NotStarted):
            self._fail(pod, container, f"Error: {image.failure.reason}")
            return image
        try:
            config = await self._config(pod, container, record, sandbox, image)
        except (NotConfigurable, ApiError, BadInput) as error:
            return self._failed(pod, container, CONFIG_ERROR, error)
        try:
            # Immediately before the create call. An abandoned start may still take effect, and two containers would run
            # (seed 111).
            await self._remove_unstarted(pod, container, record)
            if not self._may_start(uid_of(pod)):  # the image pull may have taken minutes
                return None
            container_id = await self._runtime.create_container(sandbox.sandbox_id, config)
        except NotConfigurable as error:  # the runtime found an error in the spec or on the node
            return self._failed(pod, container, CONFIG_ERROR, error)
        except TryLater as error:
            return self._failed(pod, container, CREATE_ERROR, error)
        # Claim before the start, because a start that reports an error may still have taken effect.
        self._claim(uid_of(pod), container.name, container_id)
        self._record_event(normal(pod, container.name, EventReason.CREATED, "Container created"), pod)
        if not self._may_start(uid_of(pod)):
            return None  # the container is removed with the pod
        try:
            await self._runtime.start_container(container_id)
        except TryLater as error:
            return self._failed(pod, container, RUN_ERROR, error, container_id)
        log.info("started container %s of pod %s, attempt %s", container.name, format_pod(pod), config.attempt)
        self._record_event(normal(pod, container.name, EventReason.STARTED, "Container started"), pod)
        return await self._run_hook(pod, container, container_id, record, sandbox)

    async def _remove_unstarted(self, pod: Pod, container: AnyContainer, record: PodRecord) -> None:
        """Remove earlier attempts that were created but not started, because an abandoned start may still take effect.

        Raises TryLater if one has started since `record` was read. The image pull in between may take minutes, and a
        start call of this agent or of a previous one may still have been in flight.
        """
        created = [
            each.id for each in record.containers if each.name == container.name and each.state is RecordState.CREATED
        ]
        if not created:
            return
        now = {each.id: each.state for each in (await self._runtime.pod_record(uid_of(pod))).containers}
        if any(now.get(each, RecordState.CREATED) is not RecordState.CREATED for each in created):
            raise RuntimeRefused(f"cannot create container {container.name}: an earlier attempt has already started")
        for each in created:
            await self._runtime.remove_container(each)

    def _in_backoff(self, pod: Pod, container: AnyContainer, record: PodRecord) -> NotStarted | None:
        """Return the failure to report if the container must wait before its next attempt."""
        curve = curve_for(pod, BackoffKind.RESTART, self._curve)
        held = self._restarts.begin_restart(pod, container, record, curve)
        if held is None:
            return None
        self._record_event(replace(held.event, container_path=container_path(pod, container.name)), pod)
        return NotStarted(StartFailure(held.reason, held.message), held.until)

    async def _run_hook(
        self, pod: Pod, container: AnyContainer, container_id: str, record: PodRecord, sandbox: SandboxContext
    ) -> NotStarted | None:
        """Execute the postStart hook. Stop the container if the hook fails."""
        hook = None if container.lifecycle is None else container.lifecycle.post_start
        if hook is None:
            return None
        pod_ip = sandbox.pod_ips[0] if sandbox.pod_ips else ""
        failure = await self._hooks.execute(hook, pod, container, container_id, pod_ip, POST_START_SECONDS)
        if failure is None:
            return None
        log.warning("postStart hook of container %s of pod %s failed: %s", container.name, format_pod(pod), failure)
        # The event does not contain the failure, because command output may contain secrets.
        self._record_event(warning(pod, container.name, EventReason.POST_START_FAILED, "PostStartHook failed"), pod)
        kill = ContainerToKill(container_id, container.name, "FailedPostStartHook", KillReason.FAILED_POST_START_HOOK)
        running = ContainerRecord(id=container_id, name=container.name, state=RecordState.RUNNING)
        # The record is from before the start, so it lacks the container to stop.
        seen = replace(record, ips=sandbox.pod_ips, containers=(running, *record.containers))
        for error in await self._stopper.kill_containers(pod, seen, (kill,)):
            log.warning("container %s of pod %s not stopped, will retry: %s", container.name, format_pod(pod), error)
        return NotStarted(StartFailure(POST_START_ERROR, failure))

    # Configuration.

    async def _config(
        self, pod: Pod, container: AnyContainer, record: PodRecord, sandbox: SandboxContext, image: ImageRecord
    ) -> ContainerConfig:
        """Compute the configuration. Raise NotConfigurable, ApiError or BadInput with the message for the status."""
        target_id = _target_id(container, record)
        seen = PodContext(pod=pod, pod_ips=sandbox.pod_ips, host_ips=self._host_ips(), allocatable=self._allocatable())
        invocation = invocation_of(container, seen, await self._references(pod, container))
        mounts = mounts_of(pod, container, sandbox.volumes, invocation.env)
        if error := run_as_root_error(pod, container, image.user):
            raise NotConfigurable(error)
        last = record.container(container.name)
        # The runtime refuses an attempt that has already started, so the number must be new.
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
            pod_ips=sandbox.pod_ips,
            target_id=target_id,
        )

    async def _references(self, pod: Pod, container: AnyContainer) -> dict[EnvReference, ConfigMap | Secret]:
        """Return the existing ConfigMaps and Secrets that the environment refers to."""
        found: dict[EnvReference, ConfigMap | Secret] = {}
        namespace = pod.metadata.namespace or ""
        for reference in env_references_of(container):
            if self._objects is None:
                kind_name = "configMap" if reference.kind is ObjectKind.CONFIG_MAP else "secret"
                raise NotConfigurable(f"couldn't get {kind_name} {namespace}/{reference.name}, no kubeClient defined")
            kind: type[ConfigMap] | type[Secret] = ConfigMap if reference.kind is ObjectKind.CONFIG_MAP else Secret
            try:
                found[reference] = await self._objects.get(kind, reference.name, namespace)
            except NotFound:
                continue  # the caller decides whether the object is required
        return found

    # Failures.

    def _failed(
        self, pod: Pod, container: AnyContainer, reason: str, error: Exception, container_id: str = ""
    ) -> NotStarted:
        log.warning("container %s of pod %s not started, will retry: %s", container.name, format_pod(pod), error)
        self._fail(pod, container, f"Error: {error}", container_id)
        return NotStarted(StartFailure(reason, str(error)))

    def _fail(self, pod: Pod, container: AnyContainer, text: str, container_id: str = "") -> None:
        self._record_event(warning(pod, container.name, EventReason.FAILED, text, container_id), pod)


def _target_id(container: AnyContainer, record: PodRecord) -> str:
    """Return the ID of the target of an ephemeral container, if it has one. Raise NotConfigurable if it is unknown."""
    name = container.target_container_name if isinstance(container, EphemeralContainer) else None
    if not name:
        return ""
    target = record.container(name)
    if target is None:
        raise NotConfigurable(f"unable to find target container {name}")
    return target.id
