"""The pods of the demo, with annotations that script their containers.

web         a server with probes              giant      requests more CPUs than the node has
pair        has a sidecar                     overtime   exceeds its active deadline
job         succeeds                          leaver     has a preStop hook
crash       fails again and again             stuck      its sandbox call hangs
late        waits for its image               static     comes from a file
visitor-N   random pods
"""

from functools import partial

from podkeeper.model.k8s.core import Container, Pod, ResourceRequirements
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing import build
from podkeeper.testing.build import container, exec_hook, probe

NAMESPACE = "default"
LATE_IMAGE = "registry.example/late:v2"
READY_CHECK = ("check", "ready")
ALIVE_CHECK = ("check", "alive")
DRAIN = ("drain", "connections")

_pod = partial(build.pod, namespace=NAMESPACE, uid="")


def web(node_name: str) -> Pod:
    """A server with probes. `Story.answer` decides their results."""
    server = container(
        "server", image="web:v1", readiness=probe(*READY_CHECK, period=5), liveness=probe(*ALIVE_CHECK, period=10)
    )
    return _pod("web", server, behaviours={"server": Behaviour(term_exit_code=143)}, node=node_name)


def job(node_name: str, work_seconds: float) -> Pod:
    behaviours = {"count": Behaviour(after_seconds=work_seconds)}
    return _pod("job", _requesting("count"), policy="Never", behaviours=behaviours, node=node_name)


def crash(node_name: str) -> Pod:
    """Fails a few seconds after each start."""
    behaviours = {"app": Behaviour(after_seconds=4, exit_code=3)}
    return _pod("crash", _requesting("app"), behaviours=behaviours, node=node_name)


def pair(node_name: str) -> Pod:
    """An app with an init container and a sidecar."""
    first = _requesting("migrate")
    sidecar = container("proxy", sidecar=True)
    behaviours = {"migrate": Behaviour(after_seconds=12)}
    return _pod("pair", _requesting("app"), init=(first, sidecar), behaviours=behaviours, node=node_name)


def late(node_name: str) -> Pod:
    """A pod whose image cannot be pulled yet."""
    return _pod("late", container("app", image=LATE_IMAGE), node=node_name)


def static(version: str) -> Pod:
    """A static pod that needs 8 s to stop."""
    behaviours = {"agent": Behaviour(term_seconds=8)}
    return _pod("static", container("agent", image=f"agent:{version}"), behaviours=behaviours)


def leaver(node_name: str) -> Pod:
    """A pod with a preStop hook of 15 s that needs another 5 s to stop."""
    server = container("server", pre_stop=exec_hook(*DRAIN))
    behaviours = {"server": Behaviour(term_seconds=5, exec=(ExecStep(takes_seconds=15),))}
    return _pod("leaver", server, grace=45, behaviours=behaviours, node=node_name)


def overtime(node_name: str, deadline_seconds: int) -> Pod:
    """A pod that exceeds its active deadline."""
    return _pod("overtime", _requesting("app"), policy="Never", deadline=deadline_seconds, node=node_name)


def giant(node_name: str) -> Pod:
    """A pod that requests more CPUs than the node has."""
    return _pod("giant", _requesting("app", cpu="64"), node=node_name)


def stuck(node_name: str) -> Pod:
    """A normal pod. The story makes the runtime hang when it creates the sandbox."""
    return _pod("stuck", _requesting("app"), node=node_name)


def visitor(name: str, node_name: str, stay_seconds: float, exit_code: int) -> Pod:
    """A pod that runs for a while and exits."""
    behaviours = {"work": Behaviour(after_seconds=stay_seconds, exit_code=exit_code)}
    return _pod(name, _requesting("work", cpu="50m"), policy="Never", behaviours=behaviours, node=node_name)


def _requesting(name: str, *, cpu: str = "100m") -> Container:
    return container(name, resources=ResourceRequirements(requests={"cpu": cpu}))
