"""What every implementation of pod cgroups promises."""

import uuid

from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.ports.cgroups import Cgroups
from podkeeper.testing.contracts.contract import Contract

CGROUPS: Contract[Cgroups] = Contract()


def _pod() -> tuple[Pod, PodUID]:
    uid = PodUID(str(uuid.uuid4()))
    spec = PodSpec(containers=(Container(name="web", image="nginx"),))
    return Pod(metadata=ObjectMeta(name="web", namespace="default", uid=uid), spec=spec), uid


@CGROUPS.promises
async def a_cgroup_is_made_once(cgroups: Cgroups) -> None:
    """`ensure` returns the same parent each time, another one for another pod."""
    (pod, uid), (other, other_uid) = _pod(), _pod()
    parent = await cgroups.ensure(pod)
    assert await cgroups.ensure(pod) == parent
    assert await cgroups.ensure(other) != parent
    assert {uid, other_uid} <= await cgroups.list_pods()


@CGROUPS.promises
async def a_removed_cgroup_is_gone(cgroups: Cgroups) -> None:
    """`remove` returns once the cgroup is gone; the unknown is gone."""
    pod, uid = _pod()
    await cgroups.ensure(pod)
    await cgroups.remove(uid)
    assert uid not in await cgroups.list_pods()
    await cgroups.remove(uid)
    await cgroups.remove(PodUID("unknown"))


@CGROUPS.promises
async def a_throttled_cgroup_stays(cgroups: Cgroups) -> None:
    """`throttle` takes CPU away, not the cgroup."""
    pod, uid = _pod()
    await cgroups.ensure(pod)
    await cgroups.throttle(uid)
    assert uid in await cgroups.list_pods()
    await cgroups.remove(uid)
    assert uid not in await cgroups.list_pods()
