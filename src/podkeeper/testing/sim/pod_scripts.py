"""Scripts of pods from the API.

Each is the life of one pod, from its creation to its deletion, as timed actions.

Scripts are independent of each other, and many of them run at the same time. All random choices are made here, before
the run. Times are seconds since the start of the script. `static_pod_scripts` has the scripts of static pods.
"""

from collections.abc import Callable
from dataclasses import dataclass

from podkeeper.model.k8s.core import ContainerPort, EphemeralContainer, Pod, ResourceRequirements
from podkeeper.rules.admission.preempt import SYSTEM_CRITICAL_PRIORITY
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.sim.actions import (
    AddEphemeralContainer,
    AddLabel,
    ChangeImage,
    Create,
    Delete,
    EndContainer,
    Evict,
    KillSandbox,
    Replace,
    SetCondition,
    SetImagePullable,
)
from podkeeper.testing.sim.pods import (
    EXEC,
    HTTP,
    SLEEP,
    WELL,
    Draw,
    ProbePurpose,
    ScriptedContainer,
    failing_from,
    flapping,
    late,
    plain_pod,
    probed,
    scripted_container,
    server_container,
    with_hook,
)
from podkeeper.testing.sim.schedule import Action

Timed = list[tuple[float, Action]]


@dataclass(frozen=True, slots=True)
class ScriptContext:
    """The parameters of a script."""

    draw: Draw
    kind: str
    name: str
    lifetime: float  # seconds until the deletion of the pod

    def lifecycle(self, pod: Pod, *more: tuple[float, Action], lifetime: float | None = None) -> Timed:
        """Return the creation of a pod, more actions, and its deletion."""
        end = self.lifetime if lifetime is None else lifetime
        grace = self.draw.one_of(None, None, None, 0, 1, 15)
        return [(0.0, Create(self.kind, pod)), *more, (end, Delete(self.kind, self.name, grace))]

    def random_time(self) -> float:
        """Return a random time in the pod's lifetime, but not at its start."""
        return self.draw.seconds(min(20.0, self.lifetime / 4), self.lifetime)


PodScript = Callable[[ScriptContext], Timed]


# Pods that run by themselves.


def server(ctx: ScriptContext) -> Timed:
    """A server, maybe on the host network, maybe with three containers."""
    draw = ctx.draw
    if draw.chance(0.2):
        pod = plain_pod(draw, ctx.name, server_container(draw, methods=(EXEC,)), host_network=True)
    elif draw.chance(0.2):
        pod = plain_pod(draw, ctx.name, *(server_container(draw, f"app{number}", number) for number in range(3)))
    else:
        pod = plain_pod(draw, ctx.name)
    return ctx.lifecycle(pod)


def probes(ctx: ScriptContext) -> Timed:
    """A server whose probes fail at times."""
    draw = ctx.draw
    app = scripted_container(draw)
    match draw.one_of("late", "flapping", "flapping", "dies", "slow start", "no start"):
        case "late":
            app = probed(draw, app, ProbePurpose.READINESS, late(draw))
        case "flapping":
            app = probed(draw, app, ProbePurpose.READINESS, flapping(draw), success_threshold=draw.one_of(1, 2))
        case "dies":
            app = probed(draw, app, ProbePurpose.READINESS, WELL)
            grace = draw.one_of(None, None, 1, 10)
            dies = failing_from(draw.seconds(30, 300))
            app = probed(draw, app, ProbePurpose.LIVENESS, dies, termination_grace_period_seconds=grace)
        case "slow start":
            app = probed(draw, app, ProbePurpose.STARTUP, late(draw), period_seconds=5, failure_threshold=20)
            app = probed(draw, app, ProbePurpose.READINESS, WELL)
            app = probed(draw, app, ProbePurpose.LIVENESS, WELL)
        case "no start":
            app = probed(draw, app, ProbePurpose.STARTUP, failing_from(0))
    second = (server_container(draw, "beside", 1),) if draw.chance(0.3) else ()
    return ctx.lifecycle(plain_pod(draw, ctx.name, app, *second))


def job(ctx: ScriptContext) -> Timed:
    """A job that succeeds or fails and is deleted some time later."""
    draw = ctx.draw
    policy = draw.one_of("Never", "OnFailure")
    works = ctx.lifetime * draw.random.uniform(0.3, 0.9)
    containers = [scripted_container(draw, after_seconds=works, exit_code=draw.one_of(0, 0, 1, 3))]
    if policy == "OnFailure":
        containers = [scripted_container(draw, after_seconds=works / 4, exit_code=2, failures=draw.one_of(0, 1, 2))]
    if draw.chance(0.3):
        containers.append(
            scripted_container(
                draw, "second", 1, after_seconds=works * draw.random.random(), exit_code=draw.one_of(0, 9)
            )
        )
    return ctx.lifecycle(
        plain_pod(draw, ctx.name, *containers, policy=policy), lifetime=ctx.lifetime + draw.seconds(10, 200)
    )


def crash_loop(ctx: ScriptContext) -> Timed:
    """A server that crashes forever, or a few times and then again much later."""
    draw = ctx.draw
    crashes, exit_code = draw.one_of(None, 1, 3), draw.one_of(0, 1, 2, 139)
    containers = [scripted_container(draw, after_seconds=draw.seconds(0, 40), exit_code=exit_code, crashes=crashes)]
    if draw.chance(0.4):
        containers.append(server_container(draw, "beside", 1))
    late_crash = (ctx.lifetime * 0.9, EndContainer(ctx.kind, ctx.name, "app", exit_code))
    return ctx.lifecycle(plain_pod(draw, ctx.name, *containers), *([] if crashes is None else [late_crash]))


def out_of_memory(ctx: ScriptContext) -> Timed:
    """A container that exceeds its memory limit."""
    draw = ctx.draw
    app = scripted_container(
        draw, after_seconds=draw.seconds(10, 200), exit_code=137, reason="OOMKilled", crashes=draw.one_of(None, 1, 2)
    )
    return ctx.lifecycle(plain_pod(draw, ctx.name, app, policy=draw.one_of("Always", "Always", "OnFailure", "Never")))


def init_containers(ctx: ScriptContext) -> Timed:
    """A pod with init containers that succeed, fail at first, or always fail."""
    draw = ctx.draw
    policy = draw.one_of("Always", "Always", "OnFailure", "Never")
    inits = [
        scripted_container(draw, f"init{number}", 5 + number, after_seconds=draw.seconds(0, 20))
        for number in range(draw.one_of(1, 2, 3))
    ]
    result = draw.one_of("well", "well", "fails first", "fails")
    if result != "well":
        failures = draw.one_of(1, 2) if result == "fails first" else None
        inits[-1] = inits[-1].with_behaviour(exit_code=draw.one_of(1, 7), failures=failures)
    app = server_container(draw) if policy == "Always" else scripted_container(draw, after_seconds=ctx.lifetime / 2)
    return ctx.lifecycle(plain_pod(draw, ctx.name, app, inits=inits, policy=policy))


def sidecars(ctx: ScriptContext) -> Timed:
    """A server or job with sidecars, which start before it and stop after it."""
    draw = ctx.draw
    inits = [_sidecar(draw, f"side{number}", 5 + number) for number in range(draw.one_of(1, 2))]
    if draw.chance(0.4):
        inits.insert(draw.one_of(0, 1), scripted_container(draw, "init", 4, after_seconds=draw.seconds(0, 10)))
    if draw.chance(0.5):
        return ctx.lifecycle(plain_pod(draw, ctx.name, inits=inits))
    app = scripted_container(
        draw, after_seconds=ctx.lifetime * draw.random.uniform(0.3, 0.9), exit_code=draw.one_of(0, 0, 1)
    )
    pod = plain_pod(draw, ctx.name, app, inits=inits, policy=draw.one_of("Never", "OnFailure"))
    return ctx.lifecycle(pod, lifetime=ctx.lifetime + draw.seconds(10, 100))


def _sidecar(draw: Draw, name: str, number: int) -> ScriptedContainer:
    ctx = scripted_container(draw, name, number)
    if draw.chance(0.3):
        ctx = ctx.with_behaviour(
            after_seconds=draw.seconds(10, 200), exit_code=draw.one_of(0, 1), crashes=draw.one_of(1, 2, None)
        )
    if draw.chance(0.4):
        ctx = probed(draw, ctx, ProbePurpose.STARTUP, late(draw), period_seconds=5, failure_threshold=20)
    if draw.chance(0.4):
        ctx = probed(draw, ctx, ProbePurpose.READINESS, WELL if draw.chance(0.7) else flapping(draw))
    return ctx.with_spec(restart_policy="Always")


def hooks(ctx: ScriptContext) -> Timed:
    """A pod with hooks: quick or slow, some longer than the grace period, some failing."""
    draw = ctx.draw
    app, grace = server_container(draw), draw.grace_seconds()
    if draw.chance(0.5):
        step = ExecStep(takes_seconds=draw.one_of(0.0, 2.0, 8.0), exit_code=draw.one_of(0, 0, 0, 1))
        app = with_hook(app, "post_start", draw.one_of(EXEC, EXEC, HTTP), step)
    if draw.chance(0.8):
        takes_seconds = draw.one_of(0.0, 1.0, 5.0, 15.0, 45.0, 90.0)
        method = draw.one_of(EXEC, EXEC, EXEC, HTTP, SLEEP)
        if method == SLEEP:  # the API rejects a sleep that is longer than the grace period
            takes_seconds = min(takes_seconds, float(grace))
        step = ExecStep(takes_seconds=takes_seconds, exit_code=draw.one_of(0, 0, 1))
        app = with_hook(app, "pre_stop", method, step)
    second = (server_container(draw, "beside", 1),) if draw.chance(0.3) else ()
    return ctx.lifecycle(plain_pod(draw, ctx.name, app, *second, grace=grace))


def deadline(ctx: ScriptContext) -> Timed:
    """A pod with an active deadline. Some end before it."""
    draw = ctx.draw
    policy = draw.one_of("Always", "OnFailure", "Never")
    app = (
        scripted_container(draw)
        if draw.chance(0.6)
        else scripted_container(draw, after_seconds=draw.seconds(5, 300), exit_code=draw.one_of(0, 1))
    )
    seconds = round(draw.seconds(20, max(30.0, ctx.lifetime)))
    return ctx.lifecycle(plain_pod(draw, ctx.name, app, policy=policy, active_deadline_seconds=seconds))


def stubborn(ctx: ScriptContext) -> Timed:
    """A pod whose containers ignore SIGTERM or exit late."""
    draw = ctx.draw
    containers = [
        scripted_container(
            draw, f"app{number}", number, term_seconds=draw.one_of(None, None, 15.0, 40.0), term_exit_code=143
        )
        for number in range(draw.one_of(1, 2))
    ]
    return ctx.lifecycle(plain_pod(draw, ctx.name, *containers, grace=draw.one_of(1, 5, 10, 30, 60)))


def volumes(ctx: ScriptContext) -> Timed:
    """A pod with many volumes, which is then replaced by another one with its name."""
    draw = ctx.draw
    pod = plain_pod(draw, ctx.name, volumes=3)
    return ctx.lifecycle(pod, (ctx.random_time(), Replace(ctx.kind, plain_pod(draw, ctx.name, volumes=3))))


# Pods that are changed, deleted or disturbed.


def update(ctx: ScriptContext) -> Timed:
    """A pod whose images, labels and conditions are changed, some of them in quick succession."""
    draw = ctx.draw
    side = [_sidecar(draw, "side", 5)] if draw.chance(0.3) else []
    pod = plain_pod(draw, ctx.name, server_container(draw), server_container(draw, "beside", 1), inits=side)
    names = ["app", "beside", *(each.container.name for each in side)]
    changes: Timed = []
    for number in range(draw.one_of(1, 2, 3)):
        container, at = draw.one_of(*names), ctx.random_time()
        changes.append((at, ChangeImage(ctx.kind, ctx.name, container, f"{container}:v{number + 2}")))
        for again in range(draw.one_of(0, 0, 1, 3)):
            at += draw.seconds(0.01, 3)
            changes.append((at, ChangeImage(ctx.kind, ctx.name, container, f"{container}:v{number + 2}.{again}")))
        if draw.chance(0.4):
            changes.append((ctx.random_time(), AddLabel(ctx.kind, ctx.name, f"label{number}")))
        if draw.chance(0.4):
            changes.append(
                (
                    ctx.random_time(),
                    SetCondition(ctx.kind, ctx.name, draw.one_of("example.com/safe", "example.com/seen")),
                )
            )
    return ctx.lifecycle(pod, *changes)


def delete(ctx: ScriptContext) -> Timed:
    """A pod that is deleted several times, with shorter and shorter grace periods."""
    draw = ctx.draw
    slow = scripted_container(draw, term_seconds=draw.one_of(None, 20.0, 50.0))
    pod = plain_pod(draw, ctx.name, slow, grace=draw.one_of(10, 30, 60))
    at, again = ctx.random_time(), []
    for grace in draw.one_of((None, 5), (40, 8, 2), (None, 0), (30, 1), (None, None, 3), (20, 20), (60, 10, 0)):
        again.append((at, Delete(ctx.kind, ctx.name, grace)))
        at += draw.seconds(0.1, 12)
    return [(0.0, Create(ctx.kind, pod)), *again, (at + 120, Delete(ctx.kind, ctx.name, 0))]


def successors(ctx: ScriptContext) -> Timed:
    """A pod that is replaced by others with its name and another UID."""
    draw = ctx.draw
    actions: Timed = [(0.0, Create(ctx.kind, plain_pod(draw, ctx.name)))]
    at = 0.0
    for _ in range(draw.one_of(1, 2, 3)):
        at += draw.seconds(0.5, ctx.lifetime / 3)
        actions.append((at, Replace(ctx.kind, plain_pod(draw, ctx.name), draw.one_of(None, None, 0, 0, 3))))
    return [*actions, (max(at + 5, ctx.lifetime), Delete(ctx.kind, ctx.name, draw.one_of(None, 0)))]


def eviction(ctx: ScriptContext) -> Timed:
    """A pod that is evicted. Its object stays until it is deleted."""
    draw = ctx.draw
    app = (
        with_hook(server_container(draw), "pre_stop", EXEC, ExecStep(takes_seconds=5))
        if draw.chance(0.3)
        else server_container(draw)
    )
    at = ctx.lifetime
    actions: Timed = [(at, Evict(ctx.kind, ctx.name, draw.one_of(None, 1, 1, 5, 20)))]
    if draw.chance(0.3):
        actions.append((at + draw.seconds(0, 5), Delete(ctx.kind, ctx.name, draw.one_of(None, 2, 0))))
    return ctx.lifecycle(plain_pod(draw, ctx.name, app), *actions, lifetime=at + draw.seconds(30, 200))


def preemption(ctx: ScriptContext) -> Timed:
    """A critical pod that may preempt others."""
    draw = ctx.draw
    app = server_container(draw).with_spec(resources=ResourceRequirements(requests={"cpu": draw.one_of("5", "6", "7")}))
    critical = {"priority": SYSTEM_CRITICAL_PRIORITY + 1000, "priority_class_name": "system-node-critical"}
    return ctx.lifecycle(plain_pod(draw, ctx.name, app, **critical), lifetime=draw.seconds(30, 180))


def rejection(ctx: ScriptContext) -> Timed:
    """A pod that cannot run here: too large, for another node, or its host port is taken."""
    draw = ctx.draw
    app, lifetime = scripted_container(draw), draw.seconds(20, 200)
    match draw.one_of("too big", "elsewhere", "port"):
        case "too big":
            huge = ResourceRequirements(requests={draw.one_of("cpu", "memory"): draw.one_of("64Gi", "500Gi")})
            return ctx.lifecycle(plain_pod(draw, ctx.name, app.with_spec(resources=huge)), lifetime=lifetime)
        case "elsewhere":
            return ctx.lifecycle(plain_pod(draw, ctx.name, app, node_selector={"disk": "ssd"}), lifetime=lifetime)
        case _:
            port = (ContainerPort(container_port=80, host_port=draw.one_of(8080, 8081)),)
            return ctx.lifecycle(plain_pod(draw, ctx.name, app.with_spec(ports=port)))


def missing_image(ctx: ScriptContext) -> Timed:
    """A pod whose image cannot be pulled for some time."""
    draw = ctx.draw
    image = f"{ctx.name}-image:v1"
    app = server_container(draw).with_spec(image=image, image_pull_policy=draw.one_of("Always", "IfNotPresent"))
    pod = plain_pod(
        draw, ctx.name, app, inits=[scripted_container(draw, "init", 5, after_seconds=2.0)] if draw.chance(0.3) else []
    )
    restored = (draw.seconds(5, 240), SetImagePullable(ctx.kind, image, pullable=True))
    return [(0.0, SetImagePullable(ctx.kind, image)), *ctx.lifecycle(pod, restored)]


def refused_start(ctx: ScriptContext) -> Timed:
    """A pod whose container the runtime refuses to start a few times."""
    draw = ctx.draw
    app = scripted_container(draw, start_error="no such file", start_errors=draw.one_of(1, 2, 3))
    second = (server_container(draw, "beside", 1),) if draw.chance(0.4) else ()
    return ctx.lifecycle(
        plain_pod(draw, ctx.name, app, *second, policy=draw.one_of("Always", "Always", "OnFailure", "Never"))
    )


def accidents(ctx: ScriptContext) -> Timed:
    """A pod whose container or sandbox is killed from outside."""
    draw = ctx.draw
    pod = plain_pod(
        draw, ctx.name, server_container(draw), policy=draw.one_of("Always", "Always", "OnFailure", "Never")
    )
    actions: Timed = []
    for _ in range(draw.one_of(1, 2, 3)):
        ends = EndContainer(ctx.kind, ctx.name, "app", *draw.one_of((0, ""), (1, ""), (137, "OOMKilled")))
        actions.append((ctx.random_time(), ends if draw.chance(0.5) else KillSandbox(ctx.kind, ctx.name)))
    return ctx.lifecycle(pod, *actions)


def ephemeral(ctx: ScriptContext) -> Timed:
    """A pod with an ephemeral container."""
    draw = ctx.draw
    lasts = {} if draw.chance(0.5) else {"after_seconds": draw.seconds(1, 100), "exit_code": draw.one_of(0, 1)}
    debugger = scripted_container(draw, "debugger", 6, **lasts)
    added = EphemeralContainer(name="debugger", image="debugger:v1", target_container_name=draw.one_of(None, "app"))
    pod = plain_pod(draw, ctx.name, server_container(draw), others=[debugger])
    return ctx.lifecycle(pod, (ctx.random_time(), AddEphemeralContainer(ctx.kind, ctx.name, added)))


def burst(ctx: ScriptContext) -> Timed:
    """Several pods that are created together and deleted together."""
    draw = ctx.draw
    actions: Timed = []
    for number in range(draw.one_of(3, 4, 5)):
        name = f"{ctx.name}-{number}"
        actions.append((0.0, Create(ctx.kind, plain_pod(draw, name))))
        actions.append((min(ctx.lifetime, 400.0), Delete(ctx.kind, name)))
    return actions
