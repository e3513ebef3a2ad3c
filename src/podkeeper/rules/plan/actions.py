"""The plan of one sync: what to stop, start and remove.

`rules.plan` computes it, the executor executes it. The order of execution is part of the contract:

    kill_pod, or else containers_to_kill and containers_to_reset
    -> create_sandbox -> ephemeral containers -> init containers -> app containers

Indexes refer to the lists of the pod's spec. Kubelet counterpart: `podActions` in
pkg/kubelet/kuberuntime/kuberuntime_manager.go.
"""

import msgspec

from podkeeper.rules.container.grace import KillReason


class ContainerToKill(msgspec.Struct, frozen=True):
    """A container to stop while its pod continues. `message` is for the event."""

    id: str
    name: str
    message: str
    reason: KillReason


class ContainerToReset(msgspec.Struct, frozen=True):
    """A container to remove so that it restarts. If it has not exited, it is killed first, without grace period."""

    id: str
    name: str
    kill_first: bool


class PodActions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one sync does for a pod. All fields are empty if the pod already matches its spec.

    `kill_pod` stops every container and the sandbox. Then `containers_to_kill` only gives the reasons for the events.
    With `create_sandbox`, the init containers of the old sandbox are removed, too. With `kill_pod` alone, nothing can
    start: the executor skips ephemeral containers, which are listed as in the kubelet.
    """

    kill_pod: bool = False
    create_sandbox: bool = False
    sandbox_id: str = ""  # the current or the replaced sandbox; "" if there is none
    attempt: int = 0  # of the current sandbox or the one to create
    init_containers_to_start: tuple[int, ...] = ()
    containers_to_start: tuple[int, ...] = ()
    ephemeral_containers_to_start: tuple[int, ...] = ()
    containers_to_kill: tuple[ContainerToKill, ...] = ()
    containers_to_reset: tuple[ContainerToReset, ...] = ()  # in this order
