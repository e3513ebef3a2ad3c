"""How a forked child of the nursery becomes a keeper, and what it leaves behind.

It works in its sandbox's directory and holds `keeper.lock`: as long as that lock is held the pod has a keeper, or
will have one in a moment; whoever gets it knows that there is none and never will be. (The agent took the lock and
handed it over, so there is no gap; pids and start times, which `keeper.json` tells, are for people.) It is deaf to
all signals but KILL.
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

from podkeeper.runtimes.process.keeper import libc
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
from podkeeper.runtimes.process.keeper.jail import Jail as WalledJail
from podkeeper.runtimes.process.keeper.keeper import Keeper
from podkeeper.runtimes.process.keeper.loop import Loop, pass_by
from podkeeper.runtimes.process.keeper.plain import PlainJail
from podkeeper.runtimes.process.keeper.protocol import encode

_TRACE_FILE: Final = "keeper.log"
_MAX_TRACE_BYTES: Final = 2**20
DEAF_TO: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)


def keep(directory: str, agent: socket.socket, lock: int, isolation: Isolation | None) -> None:
    """Be a keeper until told to go. `lock` stays open; `isolation` None: without walls."""
    os.setsid()
    os.chdir(directory)
    for number in DEAF_TO:
        signal.signal(number, pass_by)
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    try:
        _serve(agent, isolation)
    except BaseException as error:
        _complain()
        with suppress(OSError):
            agent.sendall(encode({"event": "failed", "error": str(error)}))
        raise


def _serve(agent: socket.socket, isolation: Isolation | None) -> None:
    with open(CONFIG_FILE, encoding="utf-8") as file:
        config: Json = json.load(file)
    loop = Loop(_complain)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET_FILE)
    listener.listen(16)
    jail = _jail(config, isolation)
    keeper = Keeper(loop, jail, listener, config.get("log_directory", ""))
    pid = os.getpid()
    started: Json = {"pid": pid, "ticks": start_ticks(pid), "boot_id": boot_id(), "started_at": time.time_ns()}
    write_json(KEEPER_FILE, started)
    keeper.welcome(agent).send({"event": "ready", "keeper": started})
    loop.run()


def _complain() -> None:
    """Write down what went wrong, as long as that is not much."""
    with suppress(OSError), open(_TRACE_FILE, "a", encoding="utf-8") as file:
        if file.tell() < _MAX_TRACE_BYTES:
            traceback.print_exc(file=file)


def _jail(config: Json, isolation: Isolation | None) -> Jail:
    if isolation is None:
        return PlainJail()
    return WalledJail(
        isolation=isolation,
        hostname=config.get("hostname", ""),
        share_pid=bool(config.get("share_process_namespace")),
        host_pid=bool(config.get("host_pid")),
        host_ipc=bool(config.get("host_ipc")),
        shm=os.path.join(os.getcwd(), "shm"),
    )


def rename_process(title: str) -> None:
    """Let `ps` tell keepers apart, as far as the kernel's fifteen letters go."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:
        file.write(title[:15])


def silence(files: tuple[int, ...] = (0, 1, 2)) -> None:
    """Point the standard files to nowhere: who started us may go away."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in files:
        os.dup2(nowhere, file)
    if nowhere not in files:
        os.close(nowhere)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+")  # noqa: SIM115  # open as long as we live
