"""Turn a forked child of the fork server into a keeper.

A keeper works in its sandbox's directory and holds `keeper.lock`. While the lock is held, the sandbox has a keeper or a
keeper is starting. If another process can take the lock, the keeper has ended. The agent takes the lock and passes its
descriptor on, so there is no gap. The PID in `keeper.json` is for users and for killing an unresponsive keeper. A
keeper ignores all signals but SIGKILL.
"""

import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Final

from podkeeper.linux import libc
from podkeeper.runtimes.process.keeper.containers import Jail
from podkeeper.runtimes.process.keeper.files import (
    CONFIG_FILE,
    KEEPER_FILE,
    SOCKET_FILE,
    Json,
    boot_id,
    start_ticks,
    write_json,
)
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.keeper.keeper import Keeper
from podkeeper.runtimes.process.keeper.loop import Loop, ignore_signal
from podkeeper.runtimes.process.keeper.plain_jail import PlainJail
from podkeeper.runtimes.process.keeper.protocol import encode

_TRACEBACK_FILE: Final = "keeper.log"
# A bug that repeats must not fill the disk.
_MAX_TRACEBACK_BYTES: Final = 2**20
# SIGPIPE and SIGXFSZ: a client that disconnects, or a log at the file size limit, is an error of one write and must not
# end the keeper.
IGNORED_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)


def run_keeper(directory: str, agent: socket.socket, lock: int, isolation: Isolation | None) -> None:
    """Serve a sandbox until an agent requests the shutdown. `lock` stays open. `isolation` None: no isolation."""
    # Not in the agent's session: a Ctrl-C or a closed terminal there must not reach the keeper.
    os.setsid()
    # All paths of a keeper are relative. The path of a Unix socket may have at most 107 bytes, and the directory may be
    # longer.
    os.chdir(directory)
    for number in IGNORED_SIGNALS:
        signal.signal(number, ignore_signal)
    # Orphans of containers become children of the keeper, so `Keeper._kill_leftovers` finds and kills them.
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    try:
        _serve(agent, isolation)
    except BaseException as error:
        _log_traceback()
        with suppress(OSError):
            agent.sendall(encode({"event": "failed", "error": str(error)}))
        raise


def _serve(agent: socket.socket, isolation: Isolation | None) -> None:
    with open(CONFIG_FILE, encoding="utf-8") as file:
        config: Json = json.load(file)
    loop = Loop(_log_traceback)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET_FILE)
    listener.listen(16)
    jail = _jail(config, isolation)
    keeper = Keeper(loop, jail, listener, config.get("log_directory", ""))
    pid = os.getpid()
    # The start ticks tell this keeper from a later process with the same PID.
    started: Json = {"pid": pid, "ticks": start_ticks(pid), "boot_id": boot_id(), "started_at": time.time_ns()}
    # After the jail, because this file marks a keeper that became ready: `KeeperPool._adopt` deletes sandboxes without
    # it. Before the ready message, because the agent then relies on this PID to kill the keeper.
    write_json(KEEPER_FILE, started)
    keeper.add_connection(agent).send({"event": "ready", "keeper": started})
    loop.run()


def _log_traceback() -> None:
    """Append the current exception to keeper.log, up to a maximum size."""
    with suppress(OSError), open(_TRACEBACK_FILE, "a", encoding="utf-8") as file:
        if file.tell() < _MAX_TRACEBACK_BYTES:
            traceback.print_exc(file=file)


def _jail(config: Json, isolation: Isolation | None) -> Jail:
    if isolation is None:
        return PlainJail()
    return NamespaceJail(
        isolation=isolation,
        hostname=config.get("hostname", ""),
        share_pid=bool(config.get("share_process_namespace")),
        host_pid=bool(config.get("host_pid")),
        host_ipc=bool(config.get("host_ipc")),
        shm=True,
    )


def set_process_name(title: str) -> None:
    """Set the name that `ps` shows. The kernel keeps 15 characters."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:
        file.write(title[:15])


def redirect_to_null(files: tuple[int, ...] = (0, 1, 2)) -> None:
    """Redirect the standard files to /dev/null, because the parent process may exit."""
    null = os.open(os.devnull, os.O_RDWR)
    for file in files:
        os.dup2(null, file)
    if null not in files:
        os.close(null)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+")  # noqa: SIM115 - the process keeps it open until it exits
