"""The agent's client of the fork server: start it, restart it, fork keepers.

The keeper's first connection and its lock are file descriptors that the fork server passes on. So the agent only has to
wait for the keeper's first message. If the fork server or the keeper dies, the connection closes and the lock is free.
"""

import asyncio
import fcntl
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import podkeeper
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.protocol import send_with_files

log = logging.getLogger(__name__)

_BOOTSTRAP: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from podkeeper.runtimes.process.keeper.fork_server import main; main(sys.argv)"
)
"""The program of the fork server. It needs neither site-packages nor an environment."""

_MFD_EXEC: Final = 0x10  # otherwise `vm.memfd_noexec` may forbid to execute the file
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_SEND_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.01


class ForkServerClient:
    """The fork server of one agent."""

    def __init__(self, root: str, jail: str) -> None:
        self._root = root
        self._jail = jail
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.isolation: Json | None = None  # the probed isolation, valid once `ready` is set
        self.ready = asyncio.Event()  # the fork server has reported `isolation`

    @property
    def alive(self) -> bool:
        return self._socket is not None

    @property
    def pid(self) -> int:
        """The PID of the fork server, 0 if it was never started."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the fork server unless it runs. Raises RuntimeUnavailable."""
        if self.alive:
            return
        # Packets, because each request has its own files, and a byte stream could split or join requests.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        source = str(Path(podkeeper.__file__).parent.parent)
        number = theirs.fileno()
        program = -1
        try:
            program = sealed_copy(sys.executable)
            # -I ignores the agent's environment and user site, -S skips site-packages. So the start is fast and cannot
            # be influenced.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, source, str(number), self._jail, self._root],
                executable=f"/proc/{os.getpid()}/fd/{program}",
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                env={},
                cwd="/",
                # Ctrl-C in the agent's terminal must not reach the fork server.
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise RuntimeUnavailable(f"cannot start the fork server of the process runtime: {error}") from error
        finally:
            theirs.close()
            if program >= 0:
                os.close(program)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)

    async def fork_keeper(self, directory: str, lock: int) -> socket.socket:
        """Fork a keeper. Return our end of its first connection, on which it reports that it is ready."""
        return await self._send_request({"do": "keep", "directory": directory}, (lock,))

    async def clear(self, directory: str) -> None:
        """Delete a volume, or the files of a sandbox whose keeper is dead. Raises RuntimeUnavailable."""
        await self._run_task("delete", {"do": "clear", "directory": directory})

    async def give(self, directory: str, group: int) -> None:
        """Set the group of a directory and its contents.

        `group` is an ID inside containers. Raises RuntimeUnavailable.
        """
        await self._run_task("set the group of", {"do": "give", "directory": directory, "group": group})

    async def replace_if_stopped(self) -> None:
        """Kill a fork server that was stopped (SIGSTOP) and would never answer. The next request starts another."""
        process = self._process
        if process is None or not self.alive or process_state(process.pid) not in ("T", "t"):
            return
        log.warning("the fork server of the process runtime was stopped; keepers keep running, replacing it")
        self._disconnect()
        process.kill()
        await asyncio.to_thread(process.wait)

    async def close(self) -> None:
        """End the fork server. Keepers keep running."""
        self._disconnect()
        if (process := self._process) is not None:
            process.kill()
            await asyncio.to_thread(process.wait)
            self._process = None

    async def _run_task(self, action: str, request: Json) -> None:
        """Run a task in a child of the fork server, which has the privileges of a keeper. Wait for its end."""
        answer, loop = b"", asyncio.get_running_loop()
        with await self._send_request(request) as connection:
            while piece := await loop.sock_recv(connection, 4096):  # a long path makes a long error
                answer += piece
        if error := task_error(answer):
            raise RuntimeUnavailable(f"cannot {action} {request['directory']}: {error}")

    async def _send_request(self, request: Json, files: Sequence[int] = ()) -> socket.socket:
        await self.replace_if_stopped()
        self.start()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        packet = json.dumps(request).encode()
        try:
            with theirs:
                await self._send(packet, (theirs.fileno(), *files))
        except BaseException:
            ours.close()
            raise
        return ours

    async def _send(self, packet: bytes, files: Sequence[int]) -> None:
        for _ in range(int(_SEND_SECONDS / _RETRY_SECONDS)):
            if self._socket is None:
                break
            try:
                send_with_files(self._socket, packet, files)
                return
            except BlockingIOError:  # the socket is full of other requests
                await asyncio.sleep(_RETRY_SECONDS)
            except OSError:
                break
        raise RuntimeUnavailable("cannot reach the fork server of the process runtime; the next attempt restarts it")

    def _on_readable(self) -> None:
        assert self._socket is not None
        try:
            packet = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            self.isolation = json.loads(packet)["isolation"]
            for warning in (self.isolation or {}).get("warnings", ()):
                if not self.ready.is_set():
                    log.warning("%s", warning)
            self.ready.set()
            return
        log.warning("the fork server of the process runtime died; keepers keep running, and the next pod restarts it")
        self._disconnect()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                # Reap it, but do not wait long, because this blocks the event loop.
                self._process.wait(0.1)

    def _disconnect(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None


def process_state(pid: int) -> str:
    """Return the state letter of a process (proc(5)), "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def task_error(answer: bytes) -> str:
    """Return why a task failed, or "" if it succeeded. `answer` is the complete answer."""
    try:
        return str(json.loads(answer).get("error", ""))
    except ValueError:
        return "the fork server or its child process died before it answered"  # or while it answered


def sealed_copy(path: str) -> int:
    """Return a descriptor of a copy of a program in memory, which no process can change. Raises OSError.

    A container can get a descriptor of the program of a process that sets it up, such as by a script that begins with
    `#!/proc/self/exe`. As root, it could overwrite the host's Python (the class of CVE-2019-5736 in runc).
    """
    try:
        copy = os.memfd_create("podkeeper", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _MFD_EXEC)
    except OSError:  # the flag is unknown before Linux 6.3, where every file in memory is executable
        copy = os.memfd_create("podkeeper", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(path, "rb") as program:
            while os.sendfile(copy, program.fileno(), None, 2**30):
                pass
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(copy)
        raise
    return copy


def lock_file(path: str, *, make: bool) -> int | None:
    """Open and lock a file. Return None if another process holds the lock. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
    try:
        # flock, not POSIX locks: it survives a fork, can be passed on with the descriptor, and the kernel releases it
        # when the last holder dies.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
