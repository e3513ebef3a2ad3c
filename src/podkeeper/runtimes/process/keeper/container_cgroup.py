"""The cgroup of one container, if it has one.

Without a cgroup, every method is a no-op. If the cgroup cannot be created, that is a LaunchError, because a limit must
not be lost silently. Cleanup after the container's exit is best effort: the pod's cgroup is removed with its contents.
"""

from contextlib import suppress
from typing import Final

from podkeeper.linux import cgroup
from podkeeper.linux.devices import Device, limit_devices
from podkeeper.linux.errors import LaunchError
from podkeeper.runtimes.process.keeper.files import Json

_WAIT_SECONDS: Final = 0.2  # short, because it blocks the keeper's other containers


class ContainerCgroup:
    def __init__(self, config: Json | None) -> None:
        """`config` has the location and the settings, which the agent has computed."""
        self._cgroup = cgroup.Cgroup.from_json(config["place"]) if config else None
        self._settings: dict[str, str] = config["settings"] if config else {}
        # None, as in the requests of an older agent: all devices.
        devices = config.get("devices") if config else None
        self._devices = None if devices is None else tuple(Device(**device) for device in devices)
        self.limits_devices = False

    def create(self) -> tuple[str, ...]:
        """Create the cgroup. Return the files that a process writes to in order to join. Raises LaunchError."""
        if self._cgroup is None:
            return ()
        try:
            cgroup.make(self._cgroup, self._settings)
            if self._devices is not None:
                self.limits_devices = limit_devices(self._cgroup, self._devices)
        except OSError as error:
            raise LaunchError(f"cannot create the container's cgroup: {error}") from error
        return cgroup.procs_files(self._cgroup)

    def procs_files(self) -> tuple[str, ...]:
        """Return the files that another process writes to in order to join."""
        return () if self._cgroup is None else cgroup.procs_files(self._cgroup)

    def was_oom_killed(self) -> bool:
        """Return whether the OOM killer has killed one of its processes."""
        return self._cgroup is not None and cgroup.oom_kills(self._cgroup) > 0

    def kill(self) -> None:
        if self._cgroup is not None:
            cgroup.kill_all(self._cgroup, _WAIT_SECONDS)

    def remove(self) -> None:
        """Remove the cgroup if possible. Otherwise it is removed with the pod's."""
        if self._cgroup is not None:
            # It may still be busy. The pod's cgroup is removed with its contents, so nothing is lost.
            with suppress(OSError):
                cgroup.remove(self._cgroup, _WAIT_SECONDS)
