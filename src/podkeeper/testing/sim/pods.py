"""Pods of a simulated workload: draw them, and predict how they will behave.

The annotations of a pod define the behaviour of its containers (`runtimes.fake.behaviour`): when and how they exit, and
their answers to probes and hooks. Each answer has a key. For a command (exec probes, hooks), the key is its first word.
For a network probe or hook (http, tcp, gRPC), the key is the port, and every probe has its own port. So one script
answers all of them. `workload.answer_probes` connects it to the network.

`readiness_is_steady` and `never_ends_by_itself` predict the behaviour of a pod from its script.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, log
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from podkeeper.model.k8s.core import (
    Container,
    EmptyDirVolumeSource,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodSpec,
    Probe,
    ResourceRequirements,
    SleepAction,
    TCPSocketAction,
    Volume,
    VolumeMount,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.runtimes.fake.behaviour import ANNOTATION_PREFIX, Behaviour, ExecStep, annotated_behaviour
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.world import NODE

T = TypeVar("T")
Steps = tuple[ExecStep, ...]

NAMESPACE = "default"
EXEC, HTTP, TCP, GRPC, SLEEP = "exec", "http", "tcp", "grpc", "sleep"
METHODS = (EXEC, EXEC, HTTP, TCP, GRPC)
WELL: Steps = (ExecStep(),)


class Draw:
    """A random source with the profile."""

    def __init__(self, random: Random, profile: Profile) -> None:
        self.random = random
        self.profile = profile

    def chance(self, share: float) -> bool:
        """Return true with this probability."""
        return self.random.random() < share

    def one_of(self, *choices: T) -> T:
        """Return one of the choices."""
        return self.random.choice(choices)

    def seconds(self, least: float, most: float) -> float:
        """Return a duration between two limits."""
        return round(self.random.uniform(least, most), 2)

    def lifetime_seconds(self) -> float:
        """Return the lifetime of a pod."""
        least, most = self.profile.life_minutes
        return round(60.0 * exp(self.random.uniform(log(least), log(most))), 1)

    def grace_seconds(self) -> int:
        """Return a grace period."""
        return self.random.choice(self.profile.graces_seconds)


# Containers and their scripts.


@dataclass(frozen=True, slots=True)
class ScriptedContainer:
    """A container and its behaviour."""

    container: Container
    behaviour: Behaviour
    first_port: int

    def with_spec(self, **changes: Any) -> "ScriptedContainer":
        """Return a copy with changes in its spec."""
        return replace(self, container=structs.replace(self.container, **changes))

    def with_behaviour(self, **changes: Any) -> "ScriptedContainer":
        """Return a copy with changes in its behaviour."""
        return replace(self, behaviour=structs.replace(self.behaviour, **changes))

    def with_answers(self, key: str, steps: Steps) -> "ScriptedContainer":
        """Return a copy with answers for one more key."""
        named = tuple(structs.replace(step, command=key) for step in steps)
        return self.with_behaviour(exec=(*self.behaviour.exec, *named))


def scripted_container(draw: Draw, name: str = "app", number: int = 0, **script: Any) -> ScriptedContainer:
    """Return an ordinary container, with small resource requests and a random reaction to SIGTERM."""
    late_or_never = draw.one_of(0.5, 3.0, 8.0, 25.0, None)
    script.setdefault("term_seconds", 0.0 if draw.chance(draw.profile.polite) else late_or_never)
    script.setdefault("term_exit_code", draw.one_of(0, 0, 143))
    cpu = draw.one_of(None, "100m", "100m", "250m", "500m")
    resources = ResourceRequirements(requests={"cpu": cpu, "memory": "64Mi"}) if cpu else ResourceRequirements()
    container = Container(name=name, image=f"{name}:v1", resources=resources)
    return ScriptedContainer(container, Behaviour(**script), 8000 + 10 * number)


class ProbePurpose(StrEnum):
    """The purpose of a probe. The value is also the command of an exec probe."""

    READINESS = "ready"
    LIVENESS = "live"
    STARTUP = "begun"


_FIELDS = {
    ProbePurpose.READINESS: "readiness_probe",
    ProbePurpose.LIVENESS: "liveness_probe",
    ProbePurpose.STARTUP: "startup_probe",
}


def probed(
    draw: Draw,
    container: ScriptedContainer,
    purpose: ProbePurpose,
    steps: Steps,
    *,
    methods: Sequence[str] = METHODS,
    **settings: Any,
) -> ScriptedContainer:
    """Return the container with a probe, and with the answers to it."""
    method = draw.one_of(*methods)
    port = container.first_port + list(ProbePurpose).index(purpose)
    key = purpose.value if method == EXEC else str(port)
    if method == EXEC and steps == WELL and draw.chance(0.5):
        steps = (ExecStep(takes_seconds=draw.one_of(0.2, 0.9)),)  # shorter than every timeout
    probe = Probe(
        exec=ExecAction(command=(key, container.container.name)) if method == EXEC else None,
        http_get=HTTPGetAction(path=f"/{purpose}", port=port) if method == HTTP else None,
        tcp_socket=TCPSocketAction(port=port) if method == TCP else None,
        grpc=GRPCAction(port=port) if method == GRPC else None,
        period_seconds=draw.one_of(*draw.profile.periods_seconds),
        timeout_seconds=draw.one_of(1, 2),
        initial_delay_seconds=draw.one_of(None, None, 3),
        failure_threshold=draw.one_of(1, 2, 3),
    )
    return container.with_spec(**{_FIELDS[purpose]: structs.replace(probe, **settings)}).with_answers(key, steps)


def late(draw: Draw) -> Steps:
    """Fail at first, then succeed."""
    return (ExecStep(exit_code=1), ExecStep(from_seconds=draw.seconds(5, 60)))


def flapping(draw: Draw) -> Steps:
    """Succeed and fail in turns, and succeed in the end."""
    steps, age = [ExecStep()], 0.0
    for _ in range(draw.one_of(1, 3, 6)):
        age += draw.seconds(15, 150)
        bad = ExecStep(exit_code=1) if draw.chance(0.8) else ExecStep(takes_seconds=5)  # longer than every timeout
        steps.append(structs.replace(bad, from_seconds=age))
        age += draw.seconds(5, 60)
        steps.append(ExecStep(from_seconds=age))
    return tuple(steps)


def failing_from(seconds: float) -> Steps:
    """Succeed up to some age, then fail."""
    return (ExecStep(), ExecStep(from_seconds=seconds, exit_code=1)) if seconds > 0 else (ExecStep(exit_code=1),)


def with_hook(container: ScriptedContainer, hook: str, method: str, step: ExecStep) -> ScriptedContainer:
    """Return the container with a hook, `post_start` or `pre_stop`: a command, an HTTP request or a sleep."""
    port = container.first_port + (3 if hook == "post_start" else 4)
    key = str(port) if method == HTTP else hook.replace("_", "-")
    handler = LifecycleHandler(
        exec=ExecAction(command=(key,)) if method == EXEC else None,
        http_get=HTTPGetAction(path=f"/{hook}", port=port) if method == HTTP else None,
        sleep=SleepAction(seconds=round(step.takes_seconds)) if method == SLEEP else None,
    )
    lifecycle = structs.replace(container.container.lifecycle or Lifecycle(), **{hook: handler})
    changed = container.with_spec(lifecycle=lifecycle)
    return changed if method == SLEEP else changed.with_answers(key, (step,))


# Pods.


def pod_of(
    name: str,
    containers: Sequence[ScriptedContainer],
    *,
    inits: Sequence[ScriptedContainer] = (),
    others: Sequence[ScriptedContainer] = (),
    policy: str = "Always",
    grace: int = 30,
    volumes: int = 0,
    **spec: Any,
) -> Pod:
    """Return a pod of this node. `others` are containers that may be added later. Their scripts are included now."""
    mounts = tuple(VolumeMount(name=f"data{number}", mount_path=f"/data{number}") for number in range(volumes)) or None
    scripts = {
        ANNOTATION_PREFIX + each.container.name: msgspec.json.encode(each.behaviour).decode()
        for each in (*inits, *containers, *others)
    }
    return Pod(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE, annotations=scripts, labels={"app": name}),
        spec=PodSpec(
            node_name=NODE,
            containers=tuple(each.with_spec(volume_mounts=mounts).container for each in containers),
            init_containers=tuple(each.with_spec(volume_mounts=mounts).container for each in inits) or None,
            restart_policy=policy,
            termination_grace_period_seconds=grace,
            volumes=tuple(Volume(name=mount.name, empty_dir=EmptyDirVolumeSource()) for mount in mounts or ()) or None,
            **spec,
        ),
    )


def plain_pod(draw: Draw, name: str, *containers: ScriptedContainer, **more: Any) -> Pod:
    """Return a pod with a random grace period and maybe volumes. Without containers: a server with one or two."""
    if not containers:
        containers = tuple(server_container(draw, f"app{number}", number) for number in range(draw.one_of(1, 1, 2)))
    more.setdefault("grace", draw.grace_seconds())
    more.setdefault("volumes", draw.one_of(0, 0, 1, 2))
    return pod_of(name, containers, **more)


def server_container(
    draw: Draw, name: str = "app", number: int = 0, *, methods: Sequence[str] = METHODS, **script: Any
) -> ScriptedContainer:
    """Return a container that runs until it is stopped, maybe with probes that always succeed."""
    container = scripted_container(draw, name, number, **script)
    if draw.chance(0.5):
        container = probed(draw, container, ProbePurpose.READINESS, WELL, methods=methods)
    if draw.chance(0.2):
        container = probed(draw, container, ProbePurpose.LIVENESS, WELL, methods=methods)
    return container


# Predictions.


def readiness_is_steady(pod: Pod) -> bool:
    """Whether every startup and readiness probe of a pod always succeeds in time.

    Such a pod becomes ready once its containers run, and stays ready as long as they run and no fault affects it.
    """
    return all(
        is_answered_well(pod, container, probe)
        for container in lasting_containers(pod)
        for probe in (container.startup_probe, container.readiness_probe)
    )


def never_ends_by_itself(pod: Pod, container: str) -> bool:
    """Whether a container runs until it is stopped: its script has no end, and no probe or hook leads to a kill.

    A failed liveness or startup probe, or a failed postStart hook, leads to a kill. False if the pod has no such
    container, or if it never starts.
    """
    spec = next((each for each in all_containers(pod) if each.name == container), None)
    script = (annotated_behaviour(pod, container) or Behaviour()) if spec is not None else Behaviour(after_seconds=0)
    if spec is None or script.after_seconds is not None or script.start_error:
        return False
    after_start = spec.lifecycle.post_start if spec.lifecycle is not None else None
    return all(is_answered_well(pod, spec, each) for each in (spec.liveness_probe, spec.startup_probe, after_start))


def all_containers(pod: Pod) -> tuple[Container, ...]:
    """Return all containers of a pod except ephemeral ones, init containers first."""
    return (*(pod.spec.init_containers or ()), *pod.spec.containers)


def lasting_containers(pod: Pod) -> Iterator[Container]:
    """Return the containers that count for the readiness of the pod: sidecars and regular containers."""
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            yield container
    yield from pod.spec.containers


def is_answered_well(pod: Pod, container: Container, action: Probe | LifecycleHandler | None) -> bool:
    """Whether the script always answers a probe or hook successfully and in time."""
    if action is None:
        return True
    if action.exec is not None:
        key = (action.exec.command or ("",))[0]
    else:
        ports = (action.http_get, action.tcp_socket, action.grpc if isinstance(action, Probe) else None)
        key = next((str(each.port) for each in ports if each is not None), "")
    script = annotated_behaviour(pod, container.name) or Behaviour()
    timeout_seconds = (action.timeout_seconds or 1.0) if isinstance(action, Probe) else float("inf")
    steps = [step for step in script.exec if step.command in ("", key)]
    if not steps and action.exec is None:
        # With a port: nothing listens there, so the probe fails; without a port: there is nothing to answer.
        return not key
    return all(step.exit_code == 0 and step.takes_seconds <= timeout_seconds for step in steps)
