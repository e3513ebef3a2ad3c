"""The fork server: a small process that is loaded once and forks all keepers.

    agent --one packet: {"directory": ...} with two files--> fork server --fork--> keeper

The files are the keeper's lock and its first connection, on which the keeper itself reports success or failure. The
fork server sends only one packet, at its start: the isolation that this machine allows. It has no other state. If it
dies, only keepers that were not yet forked are lost, and the agent sees their connections close. The fork server ends
with its agent, keepers do not.

Arguments: the number of the socket to the agent, `auto` or `plain`, and the directory for containers' files.
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

from podkeeper.linux.errors import LaunchError
from podkeeper.runtimes.process.keeper.cleanup import remove_trees
from podkeeper.runtimes.process.keeper.files import Json, read_json
from podkeeper.runtimes.process.keeper.isolation import Isolation, probe
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.keeper.launch import Launch
from podkeeper.runtimes.process.keeper.loop import ignore_signal
from podkeeper.runtimes.process.keeper.main import IGNORED_SIGNALS, redirect_to_null, run_keeper, set_process_name
from podkeeper.runtimes.process.keeper.oom_score import lower_oom_score
from podkeeper.runtimes.process.keeper.protocol import encode
from podkeeper.runtimes.process.keeper.volume_ownership import set_group

_PACKET_BYTES: Final = 65536


def main(arguments: list[str]) -> None:
    _, number, jail, root = arguments
    agent = socket.socket(fileno=int(number))
    # `pass_fds` made it inheritable. A container must never inherit the connection to the agent.
    agent.set_inheritable(False)
    redirect_to_null()
    os.umask(0o022)  # containers get the usual file modes, whatever the agent's umask is
    for each in IGNORED_SIGNALS:
        signal.signal(each, ignore_signal)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    # Before any fork, because keepers inherit the score.
    lower_oom_score()
    set_process_name("podkeeper-forks")
    isolation = _isolation(jail, root)
    agent.send(encode({"isolation": None if isolation is None else asdict(isolation)}))
    gc.collect()
    gc.freeze()  # so that a garbage collection in a keeper does not copy shared pages
    with suppress(ConnectionError):
        while request := _receive(agent):
            _fork_child(agent, isolation, *request)


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


def _fork_child(agent: socket.socket, isolation: Isolation | None, request: Json, files: list[int]) -> None:
    pid = 0
    with suppress(OSError):  # at the process limit, the agent sees the connection close
        pid = os.fork()
        if pid == 0:
            _run_child(agent, isolation, request, files)
    # Our copies would keep `keeper.lock` locked and the connection open after the death of the keeper.
    for file in files:
        os.close(file)


def _run_child(agent: socket.socket, isolation: Isolation | None, request: Json, files: list[int]) -> NoReturn:
    """In the child: handle the request, then exit."""
    status = 1
    try:
        # The agent detects the death of the fork server by the end of this connection, so no child may keep it open.
        agent.close()
        # A keeper waits for its own children. With SIG_IGN, the kernel would drop their exit status.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        directory = str(request["directory"])
        connection = socket.socket(fileno=files[0])
        if request["do"] == "keep":
            set_process_name("podkeeper")
            run_keeper(directory, connection, files[1], isolation)
        else:
            connection.sendall(encode(_run_task(request, directory, isolation)))
        status = 0
    finally:
        # Not sys.exit: exit handlers and buffers of the fork server must not run in a child.
        os._exit(status)


def _run_task(request: Json, directory: str, isolation: Isolation | None) -> Json:
    """Run a task that needs the privileges of a keeper but no keeper. Return the answer."""
    try:
        if request["do"] == "give":
            set_group(directory, int(request["group"]), isolation)
        else:
            _clear(directory, isolation)
    except (OSError, LaunchError) as error:
        return {"error": str(error)}
    return {"ok": {}}


def _clear(directory: str, isolation: Isolation | None) -> None:
    """Delete a volume, or the files of a sandbox whose keeper is dead.

    An ordinary user cannot delete the files of a subordinate user. Inside the user namespace, this is possible.
    """
    containers = os.path.join(directory, "containers")
    jail = None if isolation is None else NamespaceJail(isolation=isolation)
    for name in os.listdir(containers) if os.path.isdir(containers) else ():
        config = read_json(os.path.join(containers, name, "config.json"))
        if jail is not None and config is not None:
            jail.remove_files(Launch.from_json({**config["launch"], "directory": os.path.join(containers, name)}))
    remove_trees(directory)
