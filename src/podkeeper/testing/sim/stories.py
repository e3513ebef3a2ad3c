"""The stories of pods that come through the API: each is a pod's life, from its creation to its end, as timed deeds.

A story knows nothing of the others; what makes life on a node hard is that many are told at once. All chance is drawn
here, in advance. Times are seconds since the story's beginning. Those of static pods are in `stories_static`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from podkeeper.model.k8s.core import ContainerPort, EphemeralContainer, Pod, ResourceRequirements
from podkeeper.rules.preempt import SYSTEM_CRITICAL_PRIORITY
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.sim.deeds import (
    ChangeImage,
    Create,
    Debug,
    Delete,
    EndContainer,
    Evict,
    KillSandbox,
    Label,
    Lose,
    Remark,
    Succeed,
)
from podkeeper.testing.sim.history import Deed
from podkeeper.testing.sim.pods import (
    EXEC,
    HTTP,
    SLEEP,
    WELL,
    Draw,
    Part,
    Purpose,
    failing_from,
    flapping,
    late,
    part,
    plain_pod,
    probed,
    server_part,
    with_hook,
)

Timed = list[tuple[float, Deed]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a story begins with."""

    draw: Draw
    kind: str
    name: str
    life: float  # for so many seconds its pod is wanted

    def told(self, pod: Pod, *more: tuple[float, Deed], life: float | None = None) -> Timed:
        """A pod that is created, what happens to it, and its deletion."""
        end = self.life if life is None else life
        grace = self.draw.one_of(None, None, None, 0, 1, 15)
        return [(0.0, Create(self.kind, pod)), *more, (end, Delete(self.kind, self.name, grace))]

    def some_time(self) -> float:
        """A moment in the pod's life, not at its very beginning."""
        return self.draw.seconds(min(20.0, self.life / 4), self.life)


Story = Callable[[Setting], Timed]


# Pods that live.


def server(it: Setting) -> Timed:
    """A server, perhaps on the node's own network, perhaps of three containers."""
    draw = it.draw
    if draw.chance(0.2):
        pod = plain_pod(draw, it.name, server_part(draw, ways=(EXEC,)), host_network=True)
    elif draw.chance(0.2):
        pod = plain_pod(draw, it.name, *(server_part(draw, f"app{number}", number) for number in range(3)))
    else:
        pod = plain_pod(draw, it.name)
    return it.told(pod)


def probes(it: Setting) -> Timed:
    """A server that does not answer its probes well."""
    draw = it.draw
    app = part(draw)
    match draw.one_of("late", "flapping", "flapping", "dies", "slow start", "no start"):
        case "late":
            app = probed(draw, app, Purpose.READINESS, late(draw))
        case "flapping":
            app = probed(draw, app, Purpose.READINESS, flapping(draw), success_threshold=draw.one_of(1, 2))
        case "dies":
            app = probed(draw, app, Purpose.READINESS, WELL)
            grace = draw.one_of(None, None, 1, 10)
            dies = failing_from(draw.seconds(30, 300))
            app = probed(draw, app, Purpose.LIVENESS, dies, termination_grace_period_seconds=grace)
        case "slow start":
            app = probed(draw, app, Purpose.STARTUP, late(draw), period_seconds=5, failure_threshold=20)
            app = probed(draw, app, Purpose.READINESS, WELL)
            app = probed(draw, app, Purpose.LIVENESS, WELL)
        case "no start":
            app = probed(draw, app, Purpose.STARTUP, failing_from(0))
    beside = (server_part(draw, "beside", 1),) if draw.chance(0.3) else ()
    return it.told(plain_pod(draw, it.name, app, *beside))


def job(it: Setting) -> Timed:
    """A job: it ends by itself, well or badly, and is cleared away some time later."""
    draw = it.draw
    policy = draw.one_of("Never", "OnFailure")
    works = it.life * draw.random.uniform(0.3, 0.9)
    parts = [part(draw, after_seconds=works, exit_code=draw.one_of(0, 0, 1, 3))]
    if policy == "OnFailure":
        parts = [part(draw, after_seconds=works / 4, exit_code=2, failures=draw.one_of(0, 1, 2))]
    if draw.chance(0.3):
        parts.append(part(draw, "second", 1, after_seconds=works * draw.random.random(), exit_code=draw.one_of(0, 9)))
    return it.told(plain_pod(draw, it.name, *parts, policy=policy), life=it.life + draw.seconds(10, 200))


def crash_loop(it: Setting) -> Timed:
    """A server that keeps crashing, for ever, or a few times and once more much later."""
    draw = it.draw
    crashes, exit_code = draw.one_of(None, 1, 3), draw.one_of(0, 1, 2, 139)
    parts = [part(draw, after_seconds=draw.seconds(0, 40), exit_code=exit_code, crashes=crashes)]
    if draw.chance(0.4):
        parts.append(server_part(draw, "beside", 1))
    once_more = (it.life * 0.9, EndContainer(it.kind, it.name, "app", exit_code))
    return it.told(plain_pod(draw, it.name, *parts), *([] if crashes is None else [once_more]))


def out_of_memory(it: Setting) -> Timed:
    """Something that takes more memory than it may."""
    draw = it.draw
    app = part(
        draw, after_seconds=draw.seconds(10, 200), exit_code=137, reason="OOMKilled", crashes=draw.one_of(None, 1, 2)
    )
    return it.told(plain_pod(draw, it.name, app, policy=draw.one_of("Always", "Always", "OnFailure", "Never")))


def init_containers(it: Setting) -> Timed:
    """A pod that must be initialised: that goes well, or fails first, or never goes well."""
    draw = it.draw
    policy = draw.one_of("Always", "Always", "OnFailure", "Never")
    inits = [
        part(draw, f"init{number}", 5 + number, after_seconds=draw.seconds(0, 20))
        for number in range(draw.one_of(1, 2, 3))
    ]
    fate = draw.one_of("well", "well", "fails first", "fails")
    if fate != "well":
        failures = draw.one_of(1, 2) if fate == "fails first" else None
        inits[-1] = inits[-1].doing(exit_code=draw.one_of(1, 7), failures=failures)
    app = server_part(draw) if policy == "Always" else part(draw, after_seconds=it.life / 2)
    return it.told(plain_pod(draw, it.name, app, inits=inits, policy=policy))


def sidecars(it: Setting) -> Timed:
    """A server or a job with sidecars; they begin before it and end after it."""
    draw = it.draw
    inits = [_sidecar(draw, f"side{number}", 5 + number) for number in range(draw.one_of(1, 2))]
    if draw.chance(0.4):
        inits.insert(draw.one_of(0, 1), part(draw, "init", 4, after_seconds=draw.seconds(0, 10)))
    if draw.chance(0.5):
        return it.told(plain_pod(draw, it.name, inits=inits))
    app = part(draw, after_seconds=it.life * draw.random.uniform(0.3, 0.9), exit_code=draw.one_of(0, 0, 1))
    pod = plain_pod(draw, it.name, app, inits=inits, policy=draw.one_of("Never", "OnFailure"))
    return it.told(pod, life=it.life + draw.seconds(10, 100))


def _sidecar(draw: Draw, name: str, number: int) -> Part:
    it = part(draw, name, number)
    if draw.chance(0.3):
        it = it.doing(after_seconds=draw.seconds(10, 200), exit_code=draw.one_of(0, 1), crashes=draw.one_of(1, 2, None))
    if draw.chance(0.4):
        it = probed(draw, it, Purpose.STARTUP, late(draw), period_seconds=5, failure_threshold=20)
    if draw.chance(0.4):
        it = probed(draw, it, Purpose.READINESS, WELL if draw.chance(0.7) else flapping(draw))
    return it.where(restart_policy="Always")


def hooks(it: Setting) -> Timed:
    """A pod with hooks: quick or slow, some longer than the grace, some failing."""
    draw = it.draw
    app, grace = server_part(draw), draw.grace_seconds()
    if draw.chance(0.5):
        step = ExecStep(takes_seconds=draw.one_of(0.0, 2.0, 8.0), exit_code=draw.one_of(0, 0, 0, 1))
        app = with_hook(app, "post_start", draw.one_of(EXEC, EXEC, HTTP), step)
    if draw.chance(0.8):
        takes_seconds = draw.one_of(0.0, 1.0, 5.0, 15.0, 45.0, 90.0)
        way = draw.one_of(EXEC, EXEC, EXEC, HTTP, SLEEP)
        if way == SLEEP:  # the API takes none that is longer than the grace
            takes_seconds = min(takes_seconds, float(grace))
        step = ExecStep(takes_seconds=takes_seconds, exit_code=draw.one_of(0, 0, 1))
        app = with_hook(app, "pre_stop", way, step)
    beside = (server_part(draw, "beside", 1),) if draw.chance(0.3) else ()
    return it.told(plain_pod(draw, it.name, app, *beside, grace=grace))


def deadline(it: Setting) -> Timed:
    """A pod that may be active only so long; some end before that."""
    draw = it.draw
    policy = draw.one_of("Always", "OnFailure", "Never")
    app = (
        part(draw) if draw.chance(0.6) else part(draw, after_seconds=draw.seconds(5, 300), exit_code=draw.one_of(0, 1))
    )
    seconds = round(draw.seconds(20, max(30.0, it.life)))
    return it.told(plain_pod(draw, it.name, app, policy=policy, active_deadline_seconds=seconds))


def stubborn(it: Setting) -> Timed:
    """A pod whose containers do not end when asked to, or late."""
    draw = it.draw
    parts = [
        part(draw, f"app{number}", number, term_seconds=draw.one_of(None, None, 15.0, 40.0), term_exit_code=143)
        for number in range(draw.one_of(1, 2))
    ]
    return it.told(plain_pod(draw, it.name, *parts, grace=draw.one_of(1, 5, 10, 30, 60)))


def volumes(it: Setting) -> Timed:
    """A pod with many volumes, soon followed by another of the same name."""
    draw = it.draw
    pod = plain_pod(draw, it.name, volumes=3)
    return it.told(pod, (it.some_time(), Succeed(it.kind, plain_pod(draw, it.name, volumes=3))))


# Pods that things are done to.


def update(it: Setting) -> Timed:
    """A pod whose images and labels are changed, some twice in a moment, and about which others say something."""
    draw = it.draw
    side = [_sidecar(draw, "side", 5)] if draw.chance(0.3) else []
    pod = plain_pod(draw, it.name, server_part(draw), server_part(draw, "beside", 1), inits=side)
    names = ["app", "beside", *(each.container.name for each in side)]
    changes: Timed = []
    for number in range(draw.one_of(1, 2, 3)):
        container, at = draw.one_of(*names), it.some_time()
        changes.append((at, ChangeImage(it.kind, it.name, container, f"{container}:v{number + 2}")))
        for again in range(draw.one_of(0, 0, 1, 3)):
            at += draw.seconds(0.01, 3)
            changes.append((at, ChangeImage(it.kind, it.name, container, f"{container}:v{number + 2}.{again}")))
        if draw.chance(0.4):
            changes.append((it.some_time(), Label(it.kind, it.name, f"label{number}")))
        if draw.chance(0.4):
            changes.append(
                (it.some_time(), Remark(it.kind, it.name, draw.one_of("example.com/safe", "example.com/seen")))
            )
    return it.told(pod, *changes)


def delete(it: Setting) -> Timed:
    """A pod that is deleted more than once, each time with less patience."""
    draw = it.draw
    slow = part(draw, term_seconds=draw.one_of(None, 20.0, 50.0))
    pod = plain_pod(draw, it.name, slow, grace=draw.one_of(10, 30, 60))
    at, again = it.some_time(), []
    for grace in draw.one_of((None, 5), (40, 8, 2), (None, 0), (30, 1), (None, None, 3), (20, 20), (60, 10, 0)):
        again.append((at, Delete(it.kind, it.name, grace)))
        at += draw.seconds(0.1, 12)
    return [(0.0, Create(it.kind, pod)), *again, (at + 120, Delete(it.kind, it.name, 0))]


def successors(it: Setting) -> Timed:
    """A pod that is replaced by others of its name, which have other UIDs."""
    draw = it.draw
    deeds: Timed = [(0.0, Create(it.kind, plain_pod(draw, it.name)))]
    at = 0.0
    for _ in range(draw.one_of(1, 2, 3)):
        at += draw.seconds(0.5, it.life / 3)
        deeds.append((at, Succeed(it.kind, plain_pod(draw, it.name), draw.one_of(None, None, 0, 0, 3))))
    return [*deeds, (max(at + 5, it.life), Delete(it.kind, it.name, draw.one_of(None, 0)))]


def eviction(it: Setting) -> Timed:
    """A pod that is evicted; its object stays until somebody clears it away."""
    draw = it.draw
    app = (
        with_hook(server_part(draw), "pre_stop", EXEC, ExecStep(takes_seconds=5))
        if draw.chance(0.3)
        else server_part(draw)
    )
    at = it.life
    deeds: Timed = [(at, Evict(it.kind, it.name, draw.one_of(None, 1, 1, 5, 20)))]
    if draw.chance(0.3):
        deeds.append((at + draw.seconds(0, 5), Delete(it.kind, it.name, draw.one_of(None, 2, 0))))
    return it.told(plain_pod(draw, it.name, app), *deeds, life=at + draw.seconds(30, 200))


def preemption(it: Setting) -> Timed:
    """A critical pod for which others may have to go."""
    draw = it.draw
    app = server_part(draw).where(resources=ResourceRequirements(requests={"cpu": draw.one_of("5", "6", "7")}))
    critical = {"priority": SYSTEM_CRITICAL_PRIORITY + 1000, "priority_class_name": "system-node-critical"}
    return it.told(plain_pod(draw, it.name, app, **critical), life=draw.seconds(30, 180))


def rejection(it: Setting) -> Timed:
    """A pod that cannot run here: too big, meant for another node, or its port is taken."""
    draw = it.draw
    app, life = part(draw), draw.seconds(20, 200)
    match draw.one_of("too big", "elsewhere", "port"):
        case "too big":
            huge = ResourceRequirements(requests={draw.one_of("cpu", "memory"): draw.one_of("64Gi", "500Gi")})
            return it.told(plain_pod(draw, it.name, app.where(resources=huge)), life=life)
        case "elsewhere":
            return it.told(plain_pod(draw, it.name, app, node_selector={"disk": "ssd"}), life=life)
        case _:
            port = (ContainerPort(container_port=80, host_port=draw.one_of(8080, 8081)),)
            return it.told(plain_pod(draw, it.name, app.where(ports=port)))


def missing_image(it: Setting) -> Timed:
    """A pod whose image cannot be pulled for a while."""
    draw = it.draw
    image = f"{it.name}-image:v1"
    app = server_part(draw).where(image=image, image_pull_policy=draw.one_of("Always", "IfNotPresent"))
    pod = plain_pod(draw, it.name, app, inits=[part(draw, "init", 5, after_seconds=2.0)] if draw.chance(0.3) else [])
    found = (draw.seconds(5, 240), Lose(it.kind, image, again=True))
    return [(0.0, Lose(it.kind, image)), *it.told(pod, found)]


def refused_start(it: Setting) -> Timed:
    """A pod whose container the runtime refuses to start, a few times."""
    draw = it.draw
    app = part(draw, start_error="no such file", start_errors=draw.one_of(1, 2, 3))
    beside = (server_part(draw, "beside", 1),) if draw.chance(0.4) else ()
    return it.told(plain_pod(draw, it.name, app, *beside, policy=draw.one_of("Always", "Always", "OnFailure", "Never")))


def accidents(it: Setting) -> Timed:
    """A pod to which things happen from outside: a container ends, a sandbox dies."""
    draw = it.draw
    pod = plain_pod(draw, it.name, server_part(draw), policy=draw.one_of("Always", "Always", "OnFailure", "Never"))
    deeds: Timed = []
    for _ in range(draw.one_of(1, 2, 3)):
        ends = EndContainer(it.kind, it.name, "app", *draw.one_of((0, ""), (1, ""), (137, "OOMKilled")))
        deeds.append((it.some_time(), ends if draw.chance(0.5) else KillSandbox(it.kind, it.name)))
    return it.told(pod, *deeds)


def ephemeral(it: Setting) -> Timed:
    """A pod that is looked into with ephemeral containers."""
    draw = it.draw
    lasts = {} if draw.chance(0.5) else {"after_seconds": draw.seconds(1, 100), "exit_code": draw.one_of(0, 1)}
    debugger = part(draw, "debugger", 6, **lasts)
    added = EphemeralContainer(name="debugger", image="debugger:v1", target_container_name=draw.one_of(None, "app"))
    pod = plain_pod(draw, it.name, server_part(draw), others=[debugger])
    return it.told(pod, (it.some_time(), Debug(it.kind, it.name, added)))


def burst(it: Setting) -> Timed:
    """Some pods that come all at once, and go all at once."""
    draw = it.draw
    deeds: Timed = []
    for number in range(draw.one_of(3, 4, 5)):
        name = f"{it.name}-{number}"
        deeds.append((0.0, Create(it.kind, plain_pod(draw, name))))
        deeds.append((min(it.life, 400.0), Delete(it.kind, name)))
    return deeds
