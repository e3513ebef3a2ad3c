"""Giving volumes to a group of the pod's (fsGroup) where that is a subordinate one: only a user namespace knows it.

A directory comes in; afterwards it and all in it belong to the group. Links are given, not followed.
"""

import os

from podkeeper.runtimes.process.keeper.idmap import HELP, MORE_HELP, enter_user_namespace
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.launch import LaunchError


def give(directory: str, group: int, isolation: Isolation | None) -> None:
    """Move this process, which must have one thread only, to where it can, and do it. Raises LaunchError, OSError."""
    most = isolation.gids[1] if isolation is not None and isolation.namespaces == "user" else 0
    if isolation is None or group > most:
        advice = MORE_HELP if most else HELP
        raise LaunchError(f"cannot give files to group {group}: it is not among podkeeper's group ids; {advice}")
    enter_user_namespace(isolation.uids, isolation.gids)
    for _, _, names, here in os.fwalk(directory):
        os.chown(here, -1, group)
        for name in names:
            os.chown(name, -1, group, dir_fd=here, follow_symlinks=False)
