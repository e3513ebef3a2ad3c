"""A container's cgroup, where there is one: the keeper's view of `cgroup`.

Without a place there is none, and all is well. A group that cannot be made is a LaunchError: a limit must not be lost
silently. What happens after the end of a container is best effort: the pod's group is removed with all in it.
"""

from contextlib import suppress
from typing import Final

from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.launch import LaunchError

_PATIENCE_SECONDS: Final = 0.2  # the keeper's other containers wait too


class Group:
    """The cgroup of one container."""

    def __init__(self, config: Json | None) -> None:
        """`config` has the place and the settings, as the agent worked them out."""
        self._place = cgroup.Place.from_json(config["place"]) if config else None
        self._settings: dict[str, str] = config["settings"] if config else {}

    def make(self) -> tuple[str, ...]:
        """Make it. Returns the files by which a process joins. Raises LaunchError."""
        if self._place is None:
            return ()
        try:
            cgroup.make(self._place, self._settings)
        except OSError as error:
            raise LaunchError(f"cannot make the container's cgroup: {error}") from error
        return cgroup.procs_files(self._place)

    def procs(self) -> tuple[str, ...]:
        """The files by which one more process joins."""
        return () if self._place is None else cgroup.procs_files(self._place)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed one of its processes for want of memory."""
        return self._place is not None and cgroup.oom_kills(self._place) > 0

    def kill(self) -> None:
        """Kill all of its processes."""
        if self._place is not None:
            cgroup.kill_all(self._place, _PATIENCE_SECONDS)

    def remove(self) -> None:
        """Remove it; what cannot go now goes with the pod's."""
        if self._place is not None:
            with suppress(OSError):
                cgroup.remove(self._place, _PATIENCE_SECONDS)
