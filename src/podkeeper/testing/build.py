"""Builders of pods, containers, probes and updates for tests.

    pod("web")                                          # one container `app`, restartPolicy Always, grace 30 s
    pod("job", container("work"), policy="Never", behaviours={"work": Behaviour(after_seconds=5)})
    pod("dns", source=FILE_SOURCE, mirror="hash", namespace="kube-system")
    update(UpdateType.CREATE, pod("web"))               # for the pod workers
    pod_update(Op.ADD, pod("web"), pod("db"))           # from a source

Every argument is optional. A parameter stands for the field that tests set most often. `spec` and `metadata` set all
other fields by their Python names. They override the parameters.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from podkeeper.model.k8s.core import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    EphemeralContainer,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    LocalObjectReference,
    Pod,
    PodSpec,
    PodStatus,
    Probe,
    ResourceRequirements,
    Volume,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    API_SOURCE,
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    Op,
    PodUID,
    PodUpdate,
)
from podkeeper.model.runtime import PodRecord
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.worker.updates import KillOptions, Update, UpdateType
from podkeeper.runtimes.fake.behaviour import ANNOTATION_PREFIX, Behaviour

DELETED_AT = "2026-01-01T00:00:00Z"


def pod(
    name: str = "web",
    *containers: Container,
    init: tuple[Container, ...] = (),
    debug: tuple[EphemeralContainer, ...] = (),
    image: str | None = None,
    namespace: str = "default",
    uid: str | None = None,
    uid_prefix: str = "uid-",
    node: str | None = None,
    source: str | None = None,
    mirror: str | None = None,
    hashed: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    behaviours: Mapping[str, Behaviour] | None = None,
    created: str | None = None,
    generation: int | None = None,
    version: object = None,
    deleted: bool | str = False,
    deletion_grace: int | None = None,
    policy: str | None = "Always",
    grace: int | None = 30,
    deadline: int | None = None,
    priority: int | None = None,
    host_network: bool = False,
    volumes: tuple[str | Volume, ...] = (),
    pull_secrets: tuple[str, ...] = (),
    phase: str | None = None,
    status: PodStatus | None = None,
    metadata: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Pod:
    """Return a pod.

    `uid` is `uid-NAME` by default, or another `uid_prefix` and the name. An empty `uid` makes a pod without UID, as
    users create it.
    `image` is the image of the default container.
    `source`, `mirror` and `hashed` set the annotations of the pod's source, of a mirror pod and of a static pod's hash.
    `behaviours` scripts the pod's containers on the fake runtime, by container name.
    `volumes` are volumes, or names of volumes without a source.
    `deleted` is the deletion time. True: a fixed time.
    """
    given = {
        **({} if source is None else {CONFIG_SOURCE_ANNOTATION: source}),
        **({} if mirror is None else {CONFIG_MIRROR_ANNOTATION: mirror}),
        **({} if hashed is None else {CONFIG_HASH_ANNOTATION: hashed}),
        **{
            ANNOTATION_PREFIX + each: msgspec.json.encode(script).decode()
            for each, script in (behaviours or {}).items()
        },
        **(annotations or {}),
    }
    meta = ObjectMeta(
        name=name,
        namespace=namespace or None,
        uid=f"{uid_prefix}{name}" if uid is None else uid or None,
        labels=None if labels is None else dict(labels),
        annotations=given if given or annotations is not None else None,
        creation_timestamp=created,
        generation=generation,
        resource_version=None if version is None else str(version),
        deletion_timestamp=DELETED_AT if deleted is True else deleted or None,
        deletion_grace_period_seconds=deletion_grace,
    )
    wanted = PodSpec(
        node_name=node,
        containers=containers or (container(image=image),),
        init_containers=init or None,
        ephemeral_containers=debug or None,
        restart_policy=policy,
        termination_grace_period_seconds=grace,
        active_deadline_seconds=deadline,
        priority=priority,
        host_network=host_network or None,
        volumes=tuple(Volume(name=each) if isinstance(each, str) else each for each in volumes) or None,
        image_pull_secrets=tuple(LocalObjectReference(name=each) for each in pull_secrets) or None,
    )
    return Pod(
        metadata=msgspec.structs.replace(meta, **(metadata or {})),
        spec=msgspec.structs.replace(wanted, **(spec or {})),
        status=status or PodStatus(phase=phase),
    )


def container(
    name: str = "app",
    *,
    image: str | None = None,
    sidecar: bool = False,
    readiness: Probe | None = None,
    liveness: Probe | None = None,
    startup: Probe | None = None,
    post_start: LifecycleHandler | None = None,
    pre_stop: LifecycleHandler | None = None,
    requests: Mapping[str, QuantityLike] | None = None,
    limits: Mapping[str, QuantityLike] | None = None,
    restart_rule: tuple[str, int] | None = None,
    **fields: Any,
) -> Container:
    """Return a container with the image `NAME:v1`.

    `sidecar` sets restartPolicy Always, for an init container. `restart_rule` is an action and the exit code for it.
    """
    hooks = None if post_start is None and pre_stop is None else Lifecycle(post_start=post_start, pre_stop=pre_stop)
    made = Container(
        name=name,
        image=f"{name}:v1" if image is None else image,
        restart_policy="Always" if sidecar else None,
        readiness_probe=readiness,
        liveness_probe=liveness,
        startup_probe=startup,
        lifecycle=hooks,
        restart_policy_rules=None if restart_rule is None else (_restart_rule(*restart_rule),),
        resources=resources(requests, limits),
    )
    return msgspec.structs.replace(made, **fields)


def resources(
    requests: Mapping[str, QuantityLike] | None = None, limits: Mapping[str, QuantityLike] | None = None
) -> ResourceRequirements:
    """Return the resources of a container or of a pod."""
    return ResourceRequirements(
        requests=None if requests is None else dict(requests), limits=None if limits is None else dict(limits)
    )


def _restart_rule(action: str, exit_code: int) -> ContainerRestartRule:
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=(exit_code,))
    return ContainerRestartRule(action=action, exit_codes=codes)


def probe(
    *command: str, period: int = 10, failures: int = 3, successes: int = 1, timeout: int | None = 1, **fields: Any
) -> Probe:
    """Return an exec probe (`check` by default). Pass `exec=None` and another action for a probe of another kind."""
    made = Probe(
        exec=ExecAction(command=command or ("check",)),
        period_seconds=period,
        failure_threshold=failures,
        success_threshold=successes,
        timeout_seconds=timeout,
    )
    return msgspec.structs.replace(made, **fields)


def exec_hook(*command: str) -> LifecycleHandler:
    """Return a lifecycle hook that runs a command in the container."""
    return LifecycleHandler(exec=ExecAction(command=command))


def update(
    type_: UpdateType,
    of: Pod | PodRecord,
    kill: KillOptions | None = None,
    *,
    mirror: Pod | None = None,
    start_time: float | None = None,
) -> Update:
    """Return an update for the pod workers. A record stands for a pod that only the runtime reports."""
    if isinstance(of, PodRecord):
        return Update(type=type_, running_pod=of, kill=kill, start_time=start_time)
    return Update(type=type_, pod=of, mirror_pod=mirror, kill=kill, start_time=start_time)


def pod_update(op: Op, *pods: Pod, source: str = API_SOURCE) -> PodUpdate:
    """Return an update of a source."""
    return PodUpdate(op, pods, source)


def uid_of(of: Pod) -> PodUID:
    """Return the UID of a pod. Empty if it has none."""
    return PodUID(of.metadata.uid or "")
