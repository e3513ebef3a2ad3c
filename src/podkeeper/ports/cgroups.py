"""Pod cgroups, where the machine has them and lets us."""

from typing import Protocol

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID


class Cgroups(Protocol):
    """One cgroup per pod; its containers live below it."""

    async def ensure(self, pod: Pod) -> str:
        """Make the pod's cgroup, or bring it up to date. Returns the parent for its containers; "" where unused."""

    async def remove(self, uid: PodUID) -> None:
        """Remove the pod's cgroup and kill whatever is left in it. Returns once it is gone; unknown is gone."""

    async def throttle(self, uid: PodUID) -> None:
        """Leave the pod's cgroup as little CPU as possible: only its volumes are still in use."""

    async def list_pods(self) -> frozenset[PodUID]:
        """The pods that have a cgroup."""
