"""Whether a pod's sandbox can serve on.

The pod's network mode and its sandboxes, newest first, come in; a `SandboxChange` goes out. Exactly
one sandbox may be ready, it must be the newest, it must live in the network the spec asks for, and in
a network of its own it must have an address. The Go ancestor is `PodSandboxChanged` in
pkg/kubelet/kuberuntime/util.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from podkeeper.model.runtime import NetworkMode, SandboxRecord


@dataclass(frozen=True, slots=True)
class SandboxChange:
    """Whether a new sandbox is needed, the attempt number then, and the sandbox there is now ("" for none)."""

    changed: bool
    attempt: int
    sandbox_id: str


def sandbox_change(host_network: bool, sandboxes: Sequence[SandboxRecord]) -> SandboxChange:
    """Decide between the sandbox there is and a new one."""
    if not sandboxes:
        return SandboxChange(changed=True, attempt=0, sandbox_id="")
    newest = sandboxes[0]
    if not newest.ready or any(older.ready for older in sandboxes[1:]):
        return SandboxChange(changed=True, attempt=newest.attempt + 1, sandbox_id=newest.id)
    wanted = NetworkMode.NODE if host_network else NetworkMode.POD
    if (newest.network or NetworkMode.POD) is not wanted:  # a runtime that does not say means the pod's own
        return SandboxChange(changed=True, attempt=newest.attempt + 1, sandbox_id="")
    if not host_network and newest.ip == "":
        return SandboxChange(changed=True, attempt=newest.attempt + 1, sandbox_id=newest.id)
    return SandboxChange(changed=False, attempt=newest.attempt, sandbox_id=newest.id)
