"""Volumes: what a pod's containers find at their mount paths."""

from collections.abc import Mapping
from typing import Protocol

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import PodUID


class Volumes(Protocol):
    """Sets up and tears down the volumes of pods."""

    async def mount(self, pod: Pod) -> Mapping[str, str]:
        """Make all volumes of a pod ready. Returns the host path of each volume by name, once all are.

        Idempotent: what is ready stays. Raises TryLater, naming the volume, when one cannot be made ready now.
        """

    async def unmount(self, uid: PodUID) -> None:
        """Take down all volumes of a pod. Returns once nothing of it is mounted; unknown is nothing.

        What lies behind a mount is never deleted. Raises TryLater while something is still in use.
        """

    def mounted_pods(self) -> frozenset[PodUID]:
        """The pods of which something is mounted, however it came about."""

    async def directories(self) -> frozenset[PodUID]:
        """The pods that have a data directory."""

    async def remove_directory(self, uid: PodUID) -> None:
        """Remove a pod's data directory. Refuses, with TryLater, while anything below it is mounted."""
