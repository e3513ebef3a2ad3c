"""Retries of scenarios with OOM-killed pods, because containerd may miss an OOM kill.

The containerd shim receives an OOM event from the kernel. It drops the event if the cgroup of the container is already
gone, on a busy machine in about 5% of cases. containerd then reports `Error`, and so do the kubelet and podkeeper.
These scenarios are retried. If containerd reports the OOM kill, podkeeper must report it.
"""

from pathlib import Path

from tests.e2e.node import Node, Scenario, ScenarioRunner

TRIES = 5


class OomNotReported(Exception):
    """The runtime did not report the OOM kill."""


async def require_oom_report(node: Node, name: str) -> None:
    """Raise OomNotReported if containerd itself reports a failed pod as `Error`."""
    record = await node.runtime.pod_record(node.uid(name))
    if node.runtime.name == "containerd" and [each.reason for each in record.containers] == ["Error"]:
        raise OomNotReported


def retry_until_oom_reported(run_on_node: ScenarioRunner, scenario: Scenario, root: Path) -> None:
    """Run a scenario. Repeat it on a new node if the runtime did not report the OOM kill."""
    for number in range(TRIES):
        try:
            run_on_node(scenario, root / str(number))
        except OomNotReported:
            continue
        return
    raise AssertionError(f"the runtime did not report any of {TRIES} OOM kills")
