"""A real systemd for tests: booted in namespaces and in cgroups of its own, and gone without a trace.

    booted(unified=False) -> Booted        .play(scene, *arguments)      run a function inside, and see it succeed
                                           .command(argv)                how a program is run inside
                                           .directory("cpu", path)       a cgroup, as seen from outside

Inside, the machine's files are there to be read, and nothing of them can be written (`tests/host/booted_seal.py`); the
processes, /run, /tmp, /var and the network are others. The cgroups that are mounted there have their top in a subtree
of ours, in every hierarchy that this machine has; `unified` leaves only version 2 (whose controllers a machine of
version 1 keeps for itself: nothing is limited there, but systemd takes it for what it is). Nothing is started but
systemd itself. Needs root, systemd and util-linux; `missing()` says what is not there.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from podkeeper.host.systemd import PRIVATE_SOCKET
from tests.runtimes.cri.netns import NetworkNamespace, in_thread

PATIENCE_SECONDS = 30.0
SYSTEMD = "/lib/systemd/systemd"
OPTIONS = ("--system", "--unit=default.target", "--log-target=null", "--show-status=0")
TOP = Path(__file__).parents[2]
SEAL = Path(__file__).with_name("booted_seal.py")
NAMESPACES = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--propagation", "private")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# How many directories of cgroups, these, and a command that is to run in them. Systemd removes empty ones as it boots.
_JOIN = """
left=$1; shift
while [ $left -gt 0 ]; do mkdir -p "$1"; echo $$ >"$1/cgroup.procs"; left=$((left-1)); shift; done
exec "$@"
"""


def missing() -> str | None:
    """What this machine lacks for booting a systemd; None: nothing."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    if not os.path.exists(SYSTEMD) or not os.path.isdir("/etc/systemd/system"):
        return "there is no systemd: install Debian's systemd"
    for command in ("unshare", "nsenter"):
        if shutil.which(command) is None:
            return f"there is no {command}: install Debian's util-linux"
    if tuple(map(int, platform.release().split("-")[0].split(".")[:2])) < (5, 12):
        return "sealing the machine's files off needs Linux 5.12"
    found = _hierarchies()
    if not any(kind == "cgroup2" for kind, _, _ in found):
        return "no cgroup2 is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
    if any(kind == "cgroup" for kind, _, _ in found) and not any("name=systemd" in each for _, _, each in found):
        return "version 1 cgroups are there, but none for systemd: mount -t cgroup -o none,name=systemd ..."
    return None


class Booted:
    """One systemd, and what is needed to talk with it."""

    def __init__(self, root: Path, *, unified: bool) -> None:
        self.root = root  # the one directory that can be written inside
        self.name = f"pksystemd-{uuid4().hex[:8]}"
        self.network = NetworkNamespace()
        self._hierarchies = _hierarchies()
        self.version = 2 if unified or all(kind == "cgroup2" for kind, _, _ in self._hierarchies) else 1
        self._shell: subprocess.Popen[bytes] | None = None
        self._player: subprocess.Popen[str] | None = None
        self.pid = 0

    def start(self) -> None:
        """Boot it, and wait until it is up."""
        self._make_cgroups()
        wanted = {
            "shown": [str(TOP), sys.prefix, sys.base_prefix],
            "writable": str(self.root),
            "hierarchies": self._mounts(),
            "argv": [SYSTEMD, *OPTIONS],
            "environment": {"container": "podkeeper", "PATH": PATH},
        }
        inner = [sys.executable, "-I", "-S", "-B", str(SEAL), json.dumps(wanted)]
        argv = self._joining("", ["unshare", *NAMESPACES, "--fork", "--kill-child", *inner])

        def begin() -> subprocess.Popen[bytes]:
            with self.network.entered(), (self.root / "log").open("wb") as log:
                return subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

        self._shell = in_thread(begin)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._is_up():
            if self._shell.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"systemd did not boot: {(self.root / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it and everything inside, and leave nothing."""
        try:
            if self._player is not None:
                self._player.kill()
                self._player.communicate()
            if self._shell is not None:
                self._shell.kill()
                self._shell.wait(PATIENCE_SECONDS)
        finally:
            self._remove_cgroups()
            self.network.close()

    def command(self, *argv: str) -> list[str]:
        """How a program is run inside."""
        inside = ["nsenter", "-t", str(self.pid), *["-m", "-p", "-C", "-n", "-u", "-i"], "--"]
        return self._joining("harness", [*inside, "env", f"TMPDIR={self.root}", f"PYTHONPATH={TOP}", *argv])

    def run(self, *argv: str) -> str:
        """Run a program inside, and return what it says."""
        done = subprocess.run(self.command(*argv), capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 0, f"{argv}: {done.stderr}{done.stdout}"
        return done.stdout

    def play(self, scene: Callable[..., Any], *arguments: Any) -> None:
        """Have a function of some module run inside, in a process that plays all scenes one after another."""
        if self._player is None:
            argv = self.command(sys.executable, "-B", "-m", "tests.host.booted_player")
            self._player = subprocess.Popen(argv, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._player.stdin is not None
        assert self._player.stdout is not None
        order = {"module": scene.__module__, "name": scene.__qualname__, "arguments": arguments}
        self._player.stdin.write(f"{json.dumps(order)}\n")
        self._player.stdin.flush()
        told = self._player.stdout.readline()
        assert told, "the player is dead"
        trouble = json.loads(told)
        assert not trouble, f"inside:\n{trouble}"

    def directory(self, controller: str, path: str) -> Path:
        """Where a cgroup is, as seen from outside: `path` is its path inside."""
        for kind, point, options in self._hierarchies:
            if (controller in options and self.version == 1) or (controller == "unified" and kind == "cgroup2"):
                return point / self.name / path.lstrip("/")
        raise KeyError(controller)

    def slices(self) -> set[str]:
        """The directories of slices, in any hierarchy."""
        tops = (point / self.name for _, point, _ in self._hierarchies)
        return {name for top in tops for _, names, _ in os.walk(top) for name in names if name.endswith(".slice")}

    # ---- its life ----

    def _is_up(self) -> bool:
        assert self._shell is not None
        with suppress(OSError):
            children = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text().split()
            found = [pid for pid in children if os.path.exists(f"/proc/{pid}/root{PRIVATE_SOCKET}")]
            self.pid = int(found[0]) if found else 0
        if not self.pid:
            return False
        ask = ["nsenter", "-t", str(self.pid), "-m", "-p", "--", "systemctl", "is-active", "-q", "default.target"]
        return subprocess.run(ask, capture_output=True, timeout=PATIENCE_SECONDS).returncode == 0

    def _mounts(self) -> list[tuple[str, str, str]]:
        """What is mounted below /sys/fs/cgroup inside: where, the kind, and options."""
        if self.version == 2:
            return [("", "cgroup2", "")]
        return [
            (point.name, kind, ",".join(options)) if kind == "cgroup" else ("unified", kind, "")
            for kind, point, options in self._hierarchies
        ]

    def _joining(self, where: str, argv: Sequence[str]) -> list[str]:
        """A command that first goes to one of our cgroups."""
        directories = [str(point / self.name / where) for _, point, _ in self._hierarchies]
        return ["sh", "-eu", "-c", _JOIN, "sh", str(len(directories)), *directories, *argv]

    def _make_cgroups(self) -> None:
        for _, point, options in self._hierarchies:
            above = point
            for name in (self.name, "harness"):
                below = above / name
                below.mkdir()
                for file in ("cpuset.cpus", "cpuset.mems") if "cpuset" in options else ():
                    (below / file).write_text((above / file).read_text())
                above = below

    def _remove_cgroups(self) -> None:
        """Everything in them was killed, but may take a moment to be gone."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for _, point, _ in self._hierarchies:
            for directory, _, _ in os.walk(point / self.name, topdown=False):
                while os.path.isdir(directory):
                    try:
                        os.rmdir(directory)
                    except OSError:
                        if time.monotonic() > deadline:
                            raise
                        _kill_those_in(Path(directory))
                        time.sleep(0.02)


@contextmanager
def booted(*, unified: bool = False) -> Iterator[Booted]:
    """A systemd that runs as long as the context."""
    with ExitStack() as stack:
        directory = tempfile.TemporaryDirectory(prefix="podkeeper-systemd-", ignore_cleanup_errors=True)
        made = Booted(Path(stack.enter_context(directory)), unified=unified)
        stack.callback(made.stop)
        made.start()
        yield made


def _kill_those_in(directory: Path) -> None:
    with suppress(OSError):
        for pid in map(int, (directory / "cgroup.procs").read_text().split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _hierarchies() -> list[tuple[str, Path, tuple[str, ...]]]:
    """What is mounted: the kind of file system, where, and for version 1 the options that say which it is."""
    found: dict[tuple[str, tuple[str, ...]], Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind in ("cgroup", "cgroup2"):
            named = [each for each in options if each.startswith("name=")]
            own = [each for each in options if each.isalpha() and each not in ("rw", "ro", "xattr")]
            what = tuple(["none", *named] if named else own) if kind == "cgroup" else ()
            found.setdefault((kind, what), Path(fields[4]))
    return [(kind, point, options) for (kind, options), point in found.items()]
