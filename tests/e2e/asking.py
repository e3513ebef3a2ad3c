"""What scenarios ask a node again and again, in a word."""

from podkeeper.model.k8s.core import ContainerStateTerminated, Pod
from podkeeper.testing.memory_watch import Change
from tests.e2e.node import Node


async def said(node: Node, name: str = "app", container: str = "app") -> str:
    """What a container wrote, once its pod has succeeded."""
    await node.until_phase(name, "Succeeded")
    return node.log(name, container)


def told(node: Node, reason: str, name: str = "app") -> list[str]:
    """The messages of all events of one reason."""
    return [message for _, each, message in node.events(name) if each == reason]


def waits_for(node: Node, name: str, container: str = "app") -> str:
    """Why a container does not run yet; empty: it does, or nothing is known."""
    found = node.find(name)
    if found is None or not (found.status.container_statuses or found.status.init_container_statuses):
        return ""
    waiting = node.status(name, container).state.waiting
    return "" if waiting is None else waiting.reason or ""


def restarts(node: Node, name: str = "app", container: str = "app") -> int:
    """How often a container was run again."""
    return node.status(name, container).restart_count if node.see(name).status.container_statuses else 0


def ends_of(node: Node) -> dict[str, ContainerStateTerminated]:
    """How containers ended, filled in as the API learns it: also those of pods that are gone by then."""
    ends: dict[str, ContainerStateTerminated] = {}

    def see(change: Change) -> None:
        if isinstance(change.new, Pod):
            for each in change.new.status.container_statuses or ():
                if each.state.terminated is not None:
                    ends[each.name] = each.state.terminated

    node.api.witness(Pod, see)
    return ends
