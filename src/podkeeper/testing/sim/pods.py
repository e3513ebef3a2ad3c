"""The pods of a simulated workload: how they are drawn, and what can be told of one by looking at it.

Whatever a container will do is written in its pod's annotation (`runtimes.fake.behaviour`): when it ends and how, and
what it answers. Answers go by a word. For a command (exec probes, hooks) the word is the command's first one; for what
comes over the network (http, tcp and gRPC probes, http hooks) it is the port, and every probe has a port of its own.
So the same script answers all of them, `workload.answer_probes` sees to the network's part, and whoever must know how
a pod is going to behave can read it: `readiness_is_steady`, `never_ends_by_itself`.
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
WAYS = (EXEC, EXEC, HTTP, TCP, GRPC)
WELL: Steps = (ExecStep(),)


class Draw:
    """Chance, with the profile at hand."""

    def __init__(self, random: Random, profile: Profile) -> None:
        self.random = random
        self.profile = profile

    def chance(self, share: float) -> bool:
        """Whether something happens that happens this often."""
        return self.random.random() < share

    def one_of(self, *choices: T) -> T:
        """One of some things."""
        return self.random.choice(choices)

    def seconds(self, least: float, most: float) -> float:
        """A time."""
        return round(self.random.uniform(least, most), 2)

    def life_seconds(self) -> float:
        """How long a pod is wanted."""
        least, most = self.profile.life_minutes
        return round(60.0 * exp(self.random.uniform(log(least), log(most))), 1)

    def grace_seconds(self) -> int:
        """How long a pod may take to end."""
        return self.random.choice(self.profile.graces_seconds)


# A container and its script.


@dataclass(frozen=True, slots=True)
class Part:
    """A container, and what it does with its life."""

    container: Container
    behaviour: Behaviour
    first_port: int

    def where(self, **changes: Any) -> "Part":
        """The same container with something else in its spec."""
        return replace(self, container=structs.replace(self.container, **changes))

    def doing(self, **changes: Any) -> "Part":
        """The same container with something else in its script."""
        return replace(self, behaviour=structs.replace(self.behaviour, **changes))

    def saying(self, word: str, steps: Steps) -> "Part":
        """The same container with answers to one more word."""
        named = tuple(structs.replace(step, command=word) for step in steps)
        return self.doing(exec=(*self.behaviour.exec, *named))


def part(draw: Draw, name: str = "app", number: int = 0, **script: Any) -> Part:
    """A container as most are: it asks for a bit of the node, and has its own way of ending when asked to."""
    slow_or_deaf = draw.one_of(0.5, 3.0, 8.0, 25.0, None)
    script.setdefault("term_seconds", 0.0 if draw.chance(draw.profile.polite) else slow_or_deaf)
    script.setdefault("term_exit_code", draw.one_of(0, 0, 143))
    cpu = draw.one_of(None, "100m", "100m", "250m", "500m")
    resources = ResourceRequirements(requests={"cpu": cpu, "memory": "64Mi"}) if cpu else ResourceRequirements()
    container = Container(name=name, image=f"{name}:v1", resources=resources)
    return Part(container, Behaviour(**script), 8000 + 10 * number)


class Purpose(StrEnum):
    """What a probe is for; also the command of one that is a command."""

    READINESS = "ready"
    LIVENESS = "live"
    STARTUP = "begun"


_FIELDS = {
    Purpose.READINESS: "readiness_probe",
    Purpose.LIVENESS: "liveness_probe",
    Purpose.STARTUP: "startup_probe",
}


def probed(
    draw: Draw, it: Part, purpose: Purpose, steps: Steps, *, ways: Sequence[str] = WAYS, **settings: Any
) -> Part:
    """A container with a probe, and what it answers to that."""
    way = draw.one_of(*ways)
    port = it.first_port + list(Purpose).index(purpose)
    word = purpose.value if way == EXEC else str(port)
    if way == EXEC and steps == WELL and draw.chance(0.5):
        steps = (ExecStep(takes_seconds=draw.one_of(0.2, 0.9)),)  # well, and within every timeout
    probe = Probe(
        exec=ExecAction(command=(word, it.container.name)) if way == EXEC else None,
        http_get=HTTPGetAction(path=f"/{purpose}", port=port) if way == HTTP else None,
        tcp_socket=TCPSocketAction(port=port) if way == TCP else None,
        grpc=GRPCAction(port=port) if way == GRPC else None,
        period_seconds=draw.one_of(*draw.profile.periods_seconds),
        timeout_seconds=draw.one_of(1, 2),
        initial_delay_seconds=draw.one_of(None, None, 3),
        failure_threshold=draw.one_of(1, 2, 3),
    )
    return it.where(**{_FIELDS[purpose]: structs.replace(probe, **settings)}).saying(word, steps)


def late(draw: Draw) -> Steps:
    """Not at once, but then for good."""
    return (ExecStep(exit_code=1), ExecStep(from_seconds=draw.seconds(5, 60)))


def flapping(draw: Draw) -> Steps:
    """Well and not well, in turns; well in the end."""
    steps, age = [ExecStep()], 0.0
    for _ in range(draw.one_of(1, 3, 6)):
        age += draw.seconds(15, 150)
        bad = ExecStep(exit_code=1) if draw.chance(0.8) else ExecStep(takes_seconds=5)  # or far too slow
        steps.append(structs.replace(bad, from_seconds=age))
        age += draw.seconds(5, 60)
        steps.append(ExecStep(from_seconds=age))
    return tuple(steps)


def failing_from(seconds: float) -> Steps:
    """Well until some age."""
    return (ExecStep(), ExecStep(from_seconds=seconds, exit_code=1)) if seconds > 0 else (ExecStep(exit_code=1),)


def with_hook(it: Part, moment: str, way: str, step: ExecStep) -> Part:
    """A container with a hook, `post_start` or `pre_stop`: a command, a request, or (`sleep`) just time."""
    port = it.first_port + (3 if moment == "post_start" else 4)
    word = str(port) if way == HTTP else moment.replace("_", "-")
    handler = LifecycleHandler(
        exec=ExecAction(command=(word,)) if way == EXEC else None,
        http_get=HTTPGetAction(path=f"/{moment}", port=port) if way == HTTP else None,
        sleep=SleepAction(seconds=round(step.takes_seconds)) if way == SLEEP else None,
    )
    lifecycle = structs.replace(it.container.lifecycle or Lifecycle(), **{moment: handler})
    changed = it.where(lifecycle=lifecycle)
    return changed if way == SLEEP else changed.saying(word, (step,))


# Whole pods.


def pod_of(
    name: str,
    parts: Sequence[Part],
    *,
    inits: Sequence[Part] = (),
    others: Sequence[Part] = (),
    policy: str = "Always",
    grace: int = 30,
    volumes: int = 0,
    **spec: Any,
) -> Pod:
    """A pod of this node. `others` are containers that may join it later; their scripts are in it from the start."""
    mounts = tuple(VolumeMount(name=f"data{number}", mount_path=f"/data{number}") for number in range(volumes)) or None
    scripts = {
        ANNOTATION_PREFIX + each.container.name: msgspec.json.encode(each.behaviour).decode()
        for each in (*inits, *parts, *others)
    }
    return Pod(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE, annotations=scripts, labels={"app": name}),
        spec=PodSpec(
            node_name=NODE,
            containers=tuple(each.where(volume_mounts=mounts).container for each in parts),
            init_containers=tuple(each.where(volume_mounts=mounts).container for each in inits) or None,
            restart_policy=policy,
            termination_grace_period_seconds=grace,
            volumes=tuple(Volume(name=mount.name, empty_dir=EmptyDirVolumeSource()) for mount in mounts or ()) or None,
            **spec,
        ),
    )


def plain_pod(draw: Draw, name: str, *parts: Part, **more: Any) -> Pod:
    """A pod with a grace of its own and perhaps volumes; without parts, a server of one or two containers."""
    if not parts:
        parts = tuple(server_part(draw, f"app{number}", number) for number in range(draw.one_of(1, 1, 2)))
    more.setdefault("grace", draw.grace_seconds())
    more.setdefault("volumes", draw.one_of(0, 0, 1, 2))
    return pod_of(name, parts, **more)


def server_part(draw: Draw, name: str = "app", number: int = 0, *, ways: Sequence[str] = WAYS, **script: Any) -> Part:
    """A container that runs until it is stopped, and answers its probes well, if it has any."""
    it = part(draw, name, number, **script)
    if draw.chance(0.5):
        it = probed(draw, it, Purpose.READINESS, WELL, ways=ways)
    if draw.chance(0.2):
        it = probed(draw, it, Purpose.LIVENESS, WELL, ways=ways)
    return it


# What can be told of a pod.


def readiness_is_steady(pod: Pod) -> bool:
    """Whether every startup and readiness probe of a pod is answered well, always and in time.

    Such a pod becomes ready once its containers run, and stays so as long as they do and nobody disturbs it.
    """
    return all(
        is_answered_well(pod, container, probe)
        for container in lasting_containers(pod)
        for probe in (container.startup_probe, container.readiness_probe)
    )


def never_ends_by_itself(pod: Pod, container: str) -> bool:
    """Whether a container runs until somebody stops it: its script has no end, and nothing it answers has it killed.

    (A liveness or startup probe that fails, or a postStart hook that does, has it killed.) False for a name that the
    pod does not have, and for one that never starts.
    """
    spec = next((each for each in all_containers(pod) if each.name == container), None)
    script = (annotated_behaviour(pod, container) or Behaviour()) if spec is not None else Behaviour(after_seconds=0)
    if spec is None or script.after_seconds is not None or script.start_error:
        return False
    after_start = spec.lifecycle.post_start if spec.lifecycle is not None else None
    return all(is_answered_well(pod, spec, each) for each in (spec.liveness_probe, spec.startup_probe, after_start))


def all_containers(pod: Pod) -> tuple[Container, ...]:
    """All containers of a pod's spec save ephemeral ones, those that initialise it first."""
    return (*(pod.spec.init_containers or ()), *pod.spec.containers)


def lasting_containers(pod: Pod) -> Iterator[Container]:
    """The containers whose readiness is the pod's: sidecars, and those that do the work."""
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            yield container
    yield from pod.spec.containers


def is_answered_well(pod: Pod, container: Container, asked: Probe | LifecycleHandler | None) -> bool:
    """Whether a container's script has a good answer to a probe or hook, always and in time."""
    if asked is None:
        return True
    if asked.exec is not None:
        word = (asked.exec.command or ("",))[0]
    else:
        ports = (asked.http_get, asked.tcp_socket, asked.grpc if isinstance(asked, Probe) else None)
        word = next((str(each.port) for each in ports if each is not None), "")
    script = annotated_behaviour(pod, container.name) or Behaviour()
    timeout_seconds = (asked.timeout_seconds or 1.0) if isinstance(asked, Probe) else float("inf")
    steps = [step for step in script.exec if step.command in ("", word)]
    if not steps and asked.exec is None:
        return not word  # nobody listens there; or nobody is asked
    return all(step.exit_code == 0 and step.takes_seconds <= timeout_seconds for step in steps)
