"""Set the group of a volume (fsGroup) to a subordinate group.

This needs a user namespace. The directory and all its contents get the group. Symbolic links are changed, not followed.
"""

import os

from podkeeper.linux.errors import LaunchError
from podkeeper.linux.idmap import HELP, MORE_HELP, enter_user_namespace
from podkeeper.runtimes.process.keeper.isolation import Isolation


def set_group(directory: str, group: int, isolation: Isolation | None) -> None:
    """Enter the user namespace, with this single-threaded process, and set the group. Raises LaunchError, OSError."""
    most = isolation.gids[1] if isolation is not None and isolation.namespaces == "user" else 0
    if isolation is None or group > most:
        advice = MORE_HELP if most else HELP
        raise LaunchError(f"podkeeper may not use group ID {group}; {advice}")
    enter_user_namespace(isolation.uids, isolation.gids)
    for _, _, names, here in os.fwalk(directory):
        os.chown(here, -1, group)
        for name in names:
            # A container writes to this directory: a link in it must not redirect the change.
            os.chown(name, -1, group, dir_fd=here, follow_symlinks=False)
