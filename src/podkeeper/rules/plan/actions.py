"""The plan for one pod, as data: what one sync has to do. `rules.plan` makes it, the syncer executes it.

The order of execution is part of the contract:

    kill_pod, or else containers_to_kill and containers_to_reset
    -> create_sandbox -> ephemeral containers -> init containers -> app containers

Indexes point into the lists of the pod's spec. The Go ancestor is `podActions` in
pkg/kubelet/kuberuntime/kuberuntime_manager.go.
"""

import msgspec

from podkeeper.rules.container_grace import KillReason


class ContainerToKill(msgspec.Struct, frozen=True):
    """A container that has to stop while its pod lives on; `message` is for the event."""

    id: str
    name: str
    message: str
    reason: KillReason


class ContainerToReset(msgspec.Struct, frozen=True):
    """A container to be removed so that it can start over; killed first, without grace, unless it has exited."""

    id: str
    name: str
    kill_first: bool


class PodActions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one sync has to do for a pod; nothing but zeros when all is as it should be.

    `kill_pod` stops every container and the sandbox; `containers_to_kill` then adds nothing but reasons. With
    `create_sandbox` the init containers of the old sandbox are removed too, and a new one is begun. Without it
    nothing can start any more: ephemeral containers that are listed all the same (as the reference lists them)
    are to be passed over.
    """

    kill_pod: bool = False
    create_sandbox: bool = False
    sandbox_id: str = ""  # the one to start containers in, or the one that is replaced; "" when there is none
    attempt: int = 0  # of the sandbox that is kept, or of the one to create
    init_containers_to_start: tuple[int, ...] = ()
    containers_to_start: tuple[int, ...] = ()
    ephemeral_containers_to_start: tuple[int, ...] = ()
    containers_to_kill: tuple[ContainerToKill, ...] = ()
    containers_to_reset: tuple[ContainerToReset, ...] = ()  # in this order
