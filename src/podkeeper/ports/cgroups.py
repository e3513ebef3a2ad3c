"""Pod cgroups, on machines where the agent can manage them."""

from typing import Protocol

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID


class Cgroups(Protocol):
    """One cgroup per pod. The cgroups of its containers are below it."""

    async def ensure(self, pod: Pod) -> str:
        """Create or update the cgroup of a pod. Return the cgroup parent of its containers, or "" without cgroups."""

    async def remove(self, uid: PodUID) -> None:
        """Kill all processes in the cgroup of a pod and remove it.

        Return when the cgroup no longer exists. An unknown pod is ignored.
        """

    async def throttle(self, uid: PodUID) -> None:
        """Reduce the cgroup of a pod to the minimum CPU share.

        The pod has terminated, but a volume is still mounted.
        """

    async def list_pods(self) -> frozenset[PodUID]:
        """Return the pods that have a cgroup."""
