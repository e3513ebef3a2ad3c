"""Short queries of the pods of a node."""

from podkeeper.model.k8s.core import ContainerStateTerminated, Pod
from podkeeper.testing.memory_watch import Change
from tests.e2e.node import Node


async def log_after_success(node: Node, name: str = "app", container: str = "app") -> str:
    """Wait until the pod has succeeded, and return the log of a container."""
    await node.until_phase(name, "Succeeded")
    return node.log(name, container)


def event_messages(node: Node, reason: str, name: str = "app") -> list[str]:
    """Return the messages of all events with a reason."""
    return [message for _, each, message in node.events(name) if each == reason]


def waiting_reason(node: Node, name: str, container: str = "app") -> str:
    """Return the waiting reason of a container, or "" if it is not waiting or has no status."""
    found = node.find(name)
    if found is None or not (found.status.container_statuses or found.status.init_container_statuses):
        return ""
    waiting = node.status(name, container).state.waiting
    return "" if waiting is None else waiting.reason or ""


def restart_count(node: Node, name: str = "app", container: str = "app") -> int:
    return node.status(name, container).restart_count if node.see(name).status.container_statuses else 0


def record_terminations(node: Node) -> dict[str, ContainerStateTerminated]:
    """Return a dictionary that receives each terminated state from the API, also of pods deleted later."""
    terminations: dict[str, ContainerStateTerminated] = {}

    def note(change: Change) -> None:
        if isinstance(change.new, Pod):
            for each in change.new.status.container_statuses or ():
                if each.state.terminated is not None:
                    terminations[each.name] = each.state.terminated

    node.api.on_change(Pod, note)
    return terminations
