"""The volumes of pods."""

from collections.abc import Mapping
from typing import Protocol

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID


class Volumes(Protocol):
    """Sets up and tears down the volumes of pods."""

    async def mount(self, pod: Pod) -> Mapping[str, str]:
        """Mount all volumes of a pod. Return the host path of each volume by name when all are ready.

        Idempotent: mounted volumes stay. Raise TryLater with the name of the volume if one cannot be mounted now.
        """

    async def unmount(self, uid: PodUID) -> None:
        """Unmount all volumes of a pod. Return when the pod has no mounts. An unknown pod has none.

        Never delete the data behind a mount. Raise TryLater while a volume is in use.
        """

    def mounted_pods(self) -> frozenset[PodUID]:
        """Return the pods that have mounts, including mounts of earlier agents."""

    async def directories(self) -> frozenset[PodUID]:
        """Return the pods that have a data directory."""

    async def remove_directory(self, uid: PodUID) -> None:
        """Remove the data directory of a pod. Raise TryLater while anything below it is mounted."""
