"""Contract of the port for pod cgroups."""

import uuid

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.ports.cgroups import Cgroups
from podkeeper.testing.build import pod
from podkeeper.testing.contracts.contract import Contract

CGROUPS: Contract[Cgroups] = Contract()


def _pod() -> tuple[Pod, PodUID]:
    made = pod(uid=str(uuid.uuid4()))
    return made, uid_of(made)


@CGROUPS.scenario
async def ensure_is_idempotent(cgroups: Cgroups) -> None:
    """`ensure` returns the same cgroup parent for each call with the same pod, and another parent for another pod."""
    (pod, uid), (other, other_uid) = _pod(), _pod()
    parent = await cgroups.ensure(pod)
    assert await cgroups.ensure(pod) == parent
    assert await cgroups.ensure(other) != parent
    assert {uid, other_uid} <= await cgroups.list_pods()


@CGROUPS.scenario
async def remove_is_idempotent(cgroups: Cgroups) -> None:
    """`remove` returns when the cgroup no longer exists. Removing an unknown pod succeeds."""
    pod, uid = _pod()
    await cgroups.ensure(pod)
    await cgroups.remove(uid)
    assert uid not in await cgroups.list_pods()
    await cgroups.remove(uid)
    await cgroups.remove(PodUID("unknown"))


@CGROUPS.scenario
async def throttle_keeps_the_cgroup(cgroups: Cgroups) -> None:
    """`throttle` reduces the CPU of a pod's cgroup. The cgroup remains until `remove`."""
    pod, uid = _pod()
    await cgroups.ensure(pod)
    await cgroups.throttle(uid)
    assert uid in await cgroups.list_pods()
    await cgroups.remove(uid)
    assert uid not in await cgroups.list_pods()
