"""User namespaces and subordinate IDs for ordinary users.

Inside a user namespace, an ordinary user becomes root. Users 1, 2, ... inside the namespace are the subordinate ids of
that user. They need /etc/subuid, /etc/subgid and the setuid programs newuidmap and newgidmap. Without these, root is
the only user inside.
"""

import os
import pwd
from contextlib import suppress

from podkeeper.linux import libc
from podkeeper.linux.errors import LaunchError

Ids = tuple[int, int]  # the first id outside the namespace, and the number of ids
NO_IDS: Ids = (0, 0)
HELP = (
    "install newuidmap and newgidmap (package uidmap or shadow-utils) and give the user ranges "
    "in /etc/subuid and /etc/subgid, or run podkeeper as root"
)
MORE_HELP = "give the user longer ranges in /etc/subuid and /etc/subgid, or run podkeeper as root"


def subordinate_ids() -> tuple[Ids, Ids]:
    """Return the subordinate user and group ids of this user. Both are NO_IDS if one of them is missing."""
    if not (_program("newuidmap") and _program("newgidmap")):
        return NO_IDS, NO_IDS
    uids, gids = _range("/etc/subuid"), _range("/etc/subgid")
    return (uids, gids) if uids[1] and gids[1] else (NO_IDS, NO_IDS)


def enter_user_namespace(uids: Ids, gids: Ids) -> None:
    """Move this process, which must have only one thread, into a user namespace in which it is root."""
    me, my_group = os.geteuid(), os.getegid()
    if uids[1]:
        _enter_with_subordinate_ids(me, my_group, uids, gids)
        return
    libc.unshare(libc.CLONE_NEWUSER)
    # An ordinary user may write gid_map only after it has denied setgroups (user_namespaces(7), CVE-2014-8989).
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {me} 1"), ("gid_map", f"0 {my_group} 1")):
        with open(f"/proc/self/{name}", "wb", 0) as file:
            file.write(text.encode())


def _enter_with_subordinate_ids(me: int, my_group: int, uids: Ids, gids: Ids) -> None:
    """Enter the namespace while a child outside of it runs newuidmap and newgidmap.

    Only a process outside of the namespace may write a map with more than one id.
    """
    pid = os.getpid()
    reader, writer = os.pipe()
    # Fork before unshare: the helper must stay outside the new namespace.
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.close(writer)
            os.read(reader, 1)  # wait for the namespace, or for the end of the parent
            status = 0
            for name, mine, ids in (("newuidmap", me, uids), ("newgidmap", my_group, gids)):
                path = _program(name)
                arguments = [name, str(pid), "0", str(mine), "1", "1", str(ids[0]), str(ids[1])]
                worker = os.posix_spawn(path, arguments, dict(os.environ))
                status = status or os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        finally:
            os._exit(status)
    os.close(reader)
    try:
        libc.unshare(libc.CLONE_NEWUSER)
    finally:
        # In `finally`, because the helper waits for this byte or for the end of the pipe.
        with os.fdopen(writer, "wb") as signal:
            signal.write(b"!")
        status = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])
    if status:
        raise LaunchError(
            "cannot map the subordinate ids of /etc/subuid and /etc/subgid: newuidmap or newgidmap failed; "
            "check the ranges of this user in both files, and that both programs are setuid root"
        )


def primary_group(user: int) -> int:
    """Return the primary group of a user of the host, or 0 for an unknown user, as containerd does."""
    try:
        with open("/etc/passwd", encoding="utf-8", errors="replace") as file:
            entries = (line.split(":") for line in file)
            return next((int(entry[3]) for entry in entries if len(entry) > 3 and entry[2] == str(user)), 0)
    except (OSError, ValueError):
        return 0


def _range(path: str) -> Ids:
    names = {str(os.geteuid())}
    with suppress(KeyError):
        names.add(pwd.getpwuid(os.geteuid()).pw_name)
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip().split(":") for line in file]
    except OSError:
        return NO_IDS
    found = [(int(line[1]), int(line[2])) for line in lines if len(line) == 3 and line[0] in names]
    return max(found, key=lambda ids: ids[1], default=NO_IDS)


def _program(name: str) -> str:
    directories = os.environ.get("PATH", os.defpath).split(":")
    return next((f"{each}/{name}" for each in directories if os.access(f"{each}/{name}", os.X_OK)), "")
