"""The pods of the demo. Their annotations script the behaviour of their containers.

web         a server with probes              giant      requests more CPUs than the node has
pair        has a sidecar                     overtime   exceeds its active deadline
job         succeeds                          leaver     has a preStop hook
crash       fails again and again             stuck      its sandbox call hangs
late        waits for its image               static     comes from a file
visitor-N   random pods
"""

from collections.abc import Mapping

import msgspec

from podkeeper.model.k8s.core import (
    Container,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodSpec,
    Probe,
    ResourceRequirements,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.runtimes.fake import ANNOTATION_PREFIX, Behaviour, ExecStep

NAMESPACE = "default"
LATE_IMAGE = "registry.example/late:v2"
READY_CHECK = ("check", "ready")
ALIVE_CHECK = ("check", "alive")
DRAIN = ("drain", "connections")


def web(node_name: str) -> Pod:
    """A server with probes. `Story.answer` decides their results."""
    server = Container(
        name="server",
        image="web:v1",
        readiness_probe=_probe(READY_CHECK, period_seconds=5),
        liveness_probe=_probe(ALIVE_CHECK, period_seconds=10),
    )
    return _pod("web", node_name, server, lives={"server": Behaviour(term_exit_code=143)})


def job(node_name: str, work_seconds: float) -> Pod:
    lives = {"count": Behaviour(after_seconds=work_seconds)}
    return _pod("job", node_name, _container("count"), policy="Never", lives=lives)


def crash(node_name: str) -> Pod:
    """Fails a few seconds after each start."""
    lives = {"app": Behaviour(after_seconds=4, exit_code=3)}
    return _pod("crash", node_name, _container("app"), lives=lives)


def pair(node_name: str) -> Pod:
    """An app with an init container and a sidecar."""
    first = _container("migrate")
    sidecar = Container(name="proxy", image="proxy:v1", restart_policy="Always")
    lives = {"migrate": Behaviour(after_seconds=12)}
    return _pod("pair", node_name, _container("app"), inits=(first, sidecar), lives=lives)


def late(node_name: str) -> Pod:
    """A pod whose image cannot be pulled yet."""
    return _pod("late", node_name, Container(name="app", image=LATE_IMAGE))


def static(version: str) -> Pod:
    """A static pod that needs 8 s to stop."""
    lives = {"agent": Behaviour(term_seconds=8)}
    return _pod("static", "", Container(name="agent", image=f"agent:{version}"), lives=lives)


def leaver(node_name: str) -> Pod:
    """A pod with a preStop hook of 15 s that needs another 5 s to stop."""
    drain = Lifecycle(pre_stop=LifecycleHandler(exec=ExecAction(command=DRAIN)))
    server = Container(name="server", image="server:v1", lifecycle=drain)
    lives = {"server": Behaviour(term_seconds=5, exec=(ExecStep(takes_seconds=15),))}
    return _pod("leaver", node_name, server, grace_seconds=45, lives=lives)


def overtime(node_name: str, deadline_seconds: int) -> Pod:
    """A pod that exceeds its active deadline."""
    return _pod("overtime", node_name, _container("app"), policy="Never", deadline_seconds=deadline_seconds)


def giant(node_name: str) -> Pod:
    """A pod that requests more CPUs than the node has."""
    return _pod("giant", node_name, _container("app", cpu="64"))


def stuck(node_name: str) -> Pod:
    """A normal pod. The story makes the runtime hang when it creates the sandbox."""
    return _pod("stuck", node_name, _container("app"))


def visitor(name: str, node_name: str, stay_seconds: float, exit_code: int) -> Pod:
    """A pod that runs for a while and exits."""
    lives = {"work": Behaviour(after_seconds=stay_seconds, exit_code=exit_code)}
    return _pod(name, node_name, _container("work", cpu="50m"), policy="Never", lives=lives)


def _container(name: str, *, cpu: str = "100m") -> Container:
    return Container(name=name, image=f"{name}:v1", resources=ResourceRequirements(requests={"cpu": cpu}))


def _probe(command: tuple[str, ...], *, period_seconds: int) -> Probe:
    return Probe(
        exec=ExecAction(command=command),
        period_seconds=period_seconds,
        timeout_seconds=1,
        failure_threshold=3,
        success_threshold=1,
    )


def _pod(
    name: str,
    node_name: str,
    *containers: Container,
    inits: tuple[Container, ...] = (),
    policy: str = "Always",
    grace_seconds: int = 30,
    deadline_seconds: int | None = None,
    lives: Mapping[str, Behaviour] | None = None,
) -> Pod:
    annotations = {
        ANNOTATION_PREFIX + container: msgspec.json.encode(life).decode() for container, life in (lives or {}).items()
    }
    return Pod(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE, annotations=annotations or None),
        spec=PodSpec(
            node_name=node_name or None,
            init_containers=inits or None,
            containers=containers,
            restart_policy=policy,
            termination_grace_period_seconds=grace_seconds,
            active_deadline_seconds=deadline_seconds,
        ),
    )
