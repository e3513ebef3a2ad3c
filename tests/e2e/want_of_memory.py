"""Pods that end for want of memory, on a runtime that may not notice why.

containerd's helper hears of it from the kernel, and drops the news when the container's cgroup is gone by the time it
turns to them: on a busy machine once in twenty times. The runtime then says `Error`, as the reference and we do. So
such a pod is tried again; that we tell what the runtime knows is never in doubt.
"""

from pathlib import Path

from tests.e2e.node import Node, OnANode, Scenario

TRIES = 5


class Unnoticed(Exception):
    """The runtime does not know that it was for want of memory."""


async def must_be_noticed(node: Node, name: str) -> None:
    """Give up on a pod that has failed, if the runtime itself does not know why. Raises Unnoticed."""
    record = await node.runtime.pod_record(node.uid(name))
    if node.runtime.name == "containerd" and [each.reason for each in record.containers] == ["Error"]:
        raise Unnoticed


def until_noticed(on_a_node: OnANode, scenario: Scenario, root: Path) -> None:
    """Play a scenario, and again on another node when it was unnoticed."""
    for number in range(TRIES):
        try:
            on_a_node(scenario, root / str(number))
        except Unnoticed:
            continue
        return
    raise AssertionError(f"the runtime noticed none of {TRIES} times that memory was short")
