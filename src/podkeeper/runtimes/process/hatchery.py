"""The agent's side of the nursery: starts it, starts it again when it has died, and has keepers forked.

A keeper's first connection and its lock travel through the nursery to the keeper. So there is nothing to wait for but
the keeper's own first word, and if anybody on the way dies, the connection closes and the lock is free.
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
from podkeeper.runtimes.process.keeper.protocol import send_with

log = logging.getLogger(__name__)

_BOOTSTRAP: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from podkeeper.runtimes.process.keeper.nursery import main; main(sys.argv)"
)
"""What the interpreter is started with: it then needs neither site-packages nor an environment."""

_SEND_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.01


class Hatchery:
    """The nursery, as long as the agent lives."""

    def __init__(self, root: str, jail: str) -> None:
        self._root = root
        self._jail = jail
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.isolation: Json | None = None  # what this machine allows, once the nursery has said it
        self.told = asyncio.Event()  # it has said it

    @property
    def alive(self) -> bool:
        """Whether there is a nursery."""
        return self._socket is not None

    @property
    def pid(self) -> int:
        """The nursery's; 0: there is none."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start a nursery, if there is none. Raises RuntimeUnavailable."""
        if self.alive:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        source = str(Path(podkeeper.__file__).parent.parent)
        number = theirs.fileno()
        try:
            # Isolated and without site: nothing of the agent's surroundings gets in, and little is loaded.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, source, str(number), self._jail, self._root],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise RuntimeUnavailable(f"cannot start the nursery of the process runtime: {error}") from error
        finally:
            theirs.close()
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hear)

    async def hatch(self, directory: str, lock: int) -> socket.socket:
        """Have a keeper forked. Returns our end of its first connection, on which it will say that it is ready."""
        return await self._ask({"do": "keep", "directory": directory}, (lock,))

    async def clear(self, directory: str) -> None:
        """Have the files of a sandbox deleted whose keeper is dead, or of a volume. Raises RuntimeUnavailable."""
        await self._errand("delete", {"do": "clear", "directory": directory})

    async def give(self, directory: str, group: int) -> None:
        """Have a directory and all in it given to a group that containers know. Raises RuntimeUnavailable."""
        await self._errand("give away", {"do": "give", "directory": directory, "group": group})

    async def close(self) -> None:
        """End the nursery. Keepers live on."""
        self._let_go()
        if (process := self._process) is not None:
            process.kill()
            await asyncio.to_thread(process.wait)
            self._process = None

    async def _errand(self, what: str, request: Json) -> None:
        """Have something done that takes a keeper's powers, and wait for its end."""
        answer, loop = b"", asyncio.get_running_loop()
        with await self._ask(request) as connection:
            while piece := await loop.sock_recv(connection, 4096):  # a long path makes a long error
                answer += piece
        if why := refusal(answer):
            raise RuntimeUnavailable(f"cannot {what} {request['directory']}: {why}")

    async def _ask(self, request: Json, files: Sequence[int] = ()) -> socket.socket:
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
        for _ in range(int(_SEND_SECONDS / _PAUSE_SECONDS)):
            if self._socket is None:
                break
            try:
                send_with(self._socket, packet, files)
                return
            except BlockingIOError:  # a crowd before us
                await asyncio.sleep(_PAUSE_SECONDS)
            except OSError:
                break
        raise RuntimeUnavailable("cannot reach the nursery of the process runtime; it will be started again")

    def _hear(self) -> None:
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
                if not self.told.is_set():
                    log.warning("%s", warning)
            self.told.set()
            return
        log.warning("the nursery of the process runtime has died; keepers live on, and it is started again when needed")
        self._let_go()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)

    def _let_go(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None


def refusal(answer: bytes) -> str:
    """Return why an errand failed, from all bytes of its answer. Empty: it succeeded."""
    try:
        return str(json.loads(answer).get("error", ""))
    except ValueError:
        return "its process died before it answered"  # or in the middle of the answer


def lock_file(path: str, *, make: bool) -> int | None:
    """Open and lock a file; None: somebody else has it. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
