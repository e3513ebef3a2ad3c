"""The nursery: a small process, loaded once, that keepers are forked from.

    agent --one packet: {"directory": ...} with two files--> nursery --fork--> keeper

The files are the keeper's first connection, so that it can say itself how it got on, and its lock. The nursery
answers nothing but one packet at its start (what this machine allows) and keeps nothing: when it dies only those
keepers are lost that were not yet born, and whoever waits for one sees its connection close. It ends with its agent;
keepers do not.

Its arguments: the number of the socket to the agent, `auto` or `plain`, and where containers will have their files.
"""

import array
import gc
import json
import os
import signal
import socket
from contextlib import suppress
from dataclasses import asdict
from typing import Final, NoReturn

from podkeeper.runtimes.process.keeper.demolition import demolish
from podkeeper.runtimes.process.keeper.files import Json, read_json
from podkeeper.runtimes.process.keeper.giving import give
from podkeeper.runtimes.process.keeper.isolation import Isolation, probe
from podkeeper.runtimes.process.keeper.jail import Jail
from podkeeper.runtimes.process.keeper.launch import Launch, LaunchError
from podkeeper.runtimes.process.keeper.loop import pass_by
from podkeeper.runtimes.process.keeper.main import DEAF_TO, keep, rename_process, silence
from podkeeper.runtimes.process.keeper.oom_score import be_spared
from podkeeper.runtimes.process.keeper.protocol import encode

_PACKET_BYTES: Final = 65536


def main(arguments: list[str]) -> None:
    """Serve one agent."""
    _, number, jail, root = arguments
    agent = socket.socket(fileno=int(number))
    agent.set_inheritable(False)
    silence()
    os.umask(0o022)  # what containers make has the usual modes, however careful the agent is
    for each in DEAF_TO:
        signal.signal(each, pass_by)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what we have forked
    be_spared()
    rename_process("podkeeper-nurse")
    isolation = _isolation(jail, root)
    agent.send(encode({"isolation": None if isolation is None else asdict(isolation)}))
    gc.collect()
    gc.freeze()  # a collection in a keeper leaves the shared pages alone
    with suppress(ConnectionError):
        while request := _receive(agent):
            _obey(agent, isolation, *request)


def _isolation(jail: str, root: str) -> Isolation | None:
    if jail == "plain":
        return None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the probe waits for its own children
    try:
        return probe(root)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _receive(agent: socket.socket) -> tuple[Json, list[int]] | None:
    data, ancillary, _, _ = agent.recvmsg(_PACKET_BYTES, socket.CMSG_SPACE(4 * 2))
    files = array.array("i")
    for level, kind, numbers in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(numbers[: len(numbers) - len(numbers) % files.itemsize])
    return (json.loads(data), list(files)) if data else None


def _obey(agent: socket.socket, isolation: Isolation | None, request: Json, files: list[int]) -> None:
    pid = 0
    with suppress(OSError):  # no more processes: whoever waits sees the connection close
        pid = os.fork()
        if pid == 0:
            _live(agent, isolation, request, files)
    for file in files:
        os.close(file)


def _live(agent: socket.socket, isolation: Isolation | None, request: Json, files: list[int]) -> NoReturn:
    """In the child: do what was asked, and never return."""
    status = 1
    try:
        agent.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        directory = str(request["directory"])
        connection = socket.socket(fileno=files[0])
        if request["do"] == "keep":
            rename_process("podkeeper")
            keep(directory, connection, files[1], isolation)
        else:
            connection.sendall(encode(_errand(request, directory, isolation)))
        status = 0
    finally:
        os._exit(status)


def _errand(request: Json, directory: str, isolation: Isolation | None) -> Json:
    """Do what takes a keeper's powers but no keeper; tells what came of it."""
    try:
        if request["do"] == "give":
            give(directory, int(request["group"]), isolation)
        else:
            _clear(directory, isolation)
    except (OSError, LaunchError) as error:
        return {"error": str(error)}
    return {"ok": {}}


def _clear(directory: str, isolation: Isolation | None) -> None:
    """Delete the files of a sandbox whose keeper is dead, or a volume; what containers wrote takes a keeper's powers.

    An ordinary user cannot delete what a subordinate one has made. In a user namespace both are its own.
    """
    containers = os.path.join(directory, "containers")
    jail = None if isolation is None else Jail(isolation=isolation)
    for name in os.listdir(containers) if os.path.isdir(containers) else ():
        config = read_json(os.path.join(containers, name, "config.json"))
        if jail is not None and config is not None:
            jail.dismantle(Launch.from_json({**config["launch"], "directory": os.path.join(containers, name)}))
    demolish(directory)
