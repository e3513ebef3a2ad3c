"""Decide whether a pod needs a new sandbox.

In: the network mode of the pod and its sandboxes, newest first. Out: a `SandboxChange`. Only the newest sandbox may be
ready. It must have the network mode of the spec, and an IP address if it has its own network. Kubelet counterpart:
`PodSandboxChanged` in pkg/kubelet/kuberuntime/util.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from podkeeper.model.runtime import NetworkMode, SandboxRecord


@dataclass(frozen=True, slots=True)
class SandboxChange:
    """Whether a new sandbox is needed, its attempt number, and the current sandbox ("" for none)."""

    changed: bool
    attempt: int
    sandbox_id: str


def sandbox_change(host_network: bool, sandboxes: Sequence[SandboxRecord]) -> SandboxChange:
    if not sandboxes:
        return SandboxChange(changed=True, attempt=0, sandbox_id="")
    newest = sandboxes[0]
    # As in the kubelet: of several sandboxes, only the newest may be ready. Otherwise all are replaced.
    if not newest.ready or any(older.ready for older in sandboxes[1:]):
        return SandboxChange(changed=True, attempt=newest.attempt + 1, sandbox_id=newest.id)
    wanted = NetworkMode.NODE if host_network else NetworkMode.POD
    if (newest.network or NetworkMode.POD) is not wanted:  # if the runtime does not report it, it is the pod's own
        return SandboxChange(changed=True, attempt=newest.attempt + 1, sandbox_id="")
    # As in the kubelet: a sandbox without an address has no working network.
    if not host_network and newest.ip == "":
        return SandboxChange(changed=True, attempt=newest.attempt + 1, sandbox_id=newest.id)
    return SandboxChange(changed=False, attempt=newest.attempt, sandbox_id=newest.id)
