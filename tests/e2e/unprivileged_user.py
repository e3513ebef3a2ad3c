"""An ordinary user that runs podkeeper: a real process with its own home directory and without root privileges.

    with unprivileged_user() as user:
        user.write("web", {...})
        user.start()
        user.until(lambda: user.is_ready("web"))

If the tests run as root, this is an unused UID. Otherwise it is the user of the tests. In the end, remaining processes,
files and memory directories are removed.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import podkeeper
from podkeeper.app.local.client import LocalClient, RequestFailed
from podkeeper.runtimes.process.keeper.cleanup import remove_trees

TIMEOUT_SECONDS = 30.0
SUBORDINATE_IDS = 65536

_CALL = "from podkeeper.app.cli import main; main(prog_name='podkeeper')"
_SOURCES = (str(Path(podkeeper.__file__).parent.parent), sysconfig.get_path("purelib"))
# Mount private versions of these files of the host, then drop root privileges.
_WITH_PRIVATE_FILES = (
    'home=$1 user=$2; shift 2; for each in passwd subuid subgid; do mount --bind "$home/$each" "/etc/$each"; done && '
    'exec setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"'
)


class UnprivilegedUser:
    """The user and its agent."""

    def __init__(self, home: Path, uid: int, *, has_subordinates: bool = False) -> None:
        self.home, self.uid = home, uid
        self.root = home / "state"
        self.agent: subprocess.Popen[bytes] | None = None
        self._has_subordinates = has_subordinates
        self._client = LocalClient(self.root / "podkeeper.sock")
        (home / "manifests").mkdir()
        if os.geteuid() == 0:
            os.chown(home, uid, uid)

    def write(self, name: str, *documents: Mapping[str, Any]) -> None:
        """Write manifests to one file."""
        (self.home / "manifests" / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))

    def start(self, *arguments: str) -> None:
        """Run an agent on the manifests, with its output in a file."""
        argv = self._argv(
            "run", str(self.home / "manifests"), "--root", str(self.root), "--node-name", "n1", *arguments
        )
        with (self.home / "output").open("ab") as out:
            self.agent = subprocess.Popen(
                argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, **self._process_options()
            )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a podkeeper command as the user."""
        where = ("--root", str(self.root)) if arguments[0] != "doctor" else ()
        argv = self._argv(arguments[0], *where, *arguments[1:])
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, **self._process_options())

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the agent and return its exit status."""
        assert self.agent is not None
        self.agent.send_signal(number)
        status = self.agent.wait(TIMEOUT_SECONDS)
        self.agent = None
        return status

    @property
    def output(self) -> str:
        """The output of all agents so far."""
        return (self.home / "output").read_text()

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of a pod from the agent, or {} if there is none."""
        try:
            pods = self._client.get("pods")["items"]
        except RequestFailed:
            return {}
        return next((pod["status"] for pod in pods if pod["metadata"]["name"] == f"{name}-n1"), {})

    def is_ready(self, name: str) -> bool:
        conditions = self.status(name).get("conditions", ())
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    def until(self, holds: Callable[[], object], what: str = "") -> None:
        """Wait for a condition."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            assert time.monotonic() < end, f"not within {TIMEOUT_SECONDS:g} s: {what}\n{self.output}"
            time.sleep(0.02)

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes of this user and its subordinate users, by PID."""
        found = {}
        for number in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if self._is_own_uid(os.stat(f"/proc/{number}").st_uid):
                    found[int(number)] = Path(f"/proc/{number}/cmdline").read_text().replace("\0", " ").strip()
        return found

    def memory_directories(self) -> list[Path]:
        """Return the agent's directories in shared memory."""
        name = f"podkeeper-{self.uid}-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]}"
        places = (Path(place, name) for place in (f"/run/user/{self.uid}", "/dev/shm"))
        return [place for place in places if place.exists()]

    def clear(self) -> None:
        """Kill all processes and delete all files."""
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
        for pid, command in self.processes().items():
            if os.geteuid() == 0 or str(self.home) in command:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        remove_trees(str(self.home), *map(str, self.memory_directories()))

    def _is_own_uid(self, uid: int) -> bool:
        below = uid - _first_subordinate_id(self.uid)
        return uid == self.uid or (self._has_subordinates and 0 <= below < SUBORDINATE_IDS)

    def _argv(self, *arguments: str) -> list[str]:
        argv = [_python_for(self.uid)[0], "-c", _CALL, *arguments]
        if not self._has_subordinates:
            return argv
        private = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _WITH_PRIVATE_FILES, "sh"]
        return [*private, str(self.home), str(self.uid), *argv]

    def _process_options(self) -> dict[str, Any]:
        env = {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", **_python_for(self.uid)[1]}
        return {"env": env, "cwd": "/", **({} if self._has_subordinates else _identity(self.uid))}


@contextmanager
def unprivileged_user(*, has_subordinates: bool = False) -> Iterator[UnprivilegedUser]:
    """Create an ordinary user. Skip the test if it cannot run podkeeper."""
    uid = 200_000 + os.getpid() if os.geteuid() == 0 else os.geteuid()
    if not _python_for(uid)[0]:
        pytest.skip(f"no Python that user {uid} may execute finds podkeeper in {_SOURCES[0]}")
    if has_subordinates:
        _require_for_subordinates()
    user = UnprivilegedUser(
        Path(tempfile.mkdtemp(prefix="podkeeper-user-")).resolve(), uid, has_subordinates=has_subordinates
    )
    try:
        if has_subordinates:
            accounts = Path("/etc/passwd").read_text()
            (user.home / "passwd").write_text(f"{accounts.rstrip()}\npk:x:{uid}:{uid}::{user.home}:/bin/sh\n")
            for name in ("subuid", "subgid"):
                (user.home / name).write_text(f"pk:{_first_subordinate_id(uid)}:{SUBORDINATE_IDS}\n")
        yield user
    finally:
        user.clear()


def _first_subordinate_id(uid: int) -> int:
    return 2**31 + uid % 2**14 * SUBORDINATE_IDS


def _require_for_subordinates() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a user subordinate ids")
    missing = [name for name in ("newuidmap", "newgidmap", "unshare", "setpriv") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (packages uidmap and util-linux)")


def _identity(uid: int) -> Mapping[str, Any]:
    return {"user": uid, "group": uid, "extra_groups": []} if uid != os.geteuid() else {}


@cache
def _python_for(uid: int) -> tuple[str, Mapping[str, str]]:
    """Return a Python that the user can execute and that finds podkeeper, with its environment, or ""."""
    candidates: Sequence[tuple[str, dict[str, str]]] = (
        (sys.executable, {}),
        ("/usr/bin/python3", {"PYTHONPATH": ":".join(_SOURCES)}),
    )
    for python, env in candidates:
        test = [python, "-c", "import json, podkeeper.app.standalone as it; print(json.dumps(it.__file__))"]
        with suppress(OSError):
            tried = subprocess.run(test, capture_output=True, text=True, env=env, cwd="/", **_identity(uid))
            if tried.returncode == 0 and json.loads(tried.stdout).startswith(_SOURCES[0]):
                return python, env
    return "", {}
