"""A real systemd for tests, booted in its own namespaces and cgroups, and removed completely at the end.

    booted(unified=False) -> BootedSystemd    .run_scenario(scenario, ...)  run a function inside
                                              .command(argv)                the command that runs a program inside
                                              .directory("cpu", path)       a cgroup, as seen from outside

Inside, the files of the machine are read-only (`tests/host/booted_seal.py`), and processes, /run, /tmp, /var and the
network are separate. The top of each cgroup hierarchy inside is a cgroup of ours outside. With `unified`, only version
2 is mounted. On a machine with version 1, that hierarchy has no controllers, so limits have no effect, but systemd
still uses it. Only systemd itself is started. Needs root, systemd and util-linux. `missing()` names what is missing.
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

TIMEOUT_SECONDS = 30.0
SYSTEMD = "/lib/systemd/systemd"
OPTIONS = ("--system", "--unit=default.target", "--log-target=null", "--show-status=0")
TOP = Path(__file__).parents[2]
SEAL = Path(__file__).with_name("booted_seal.py")
NAMESPACES = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--propagation", "private")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Arguments: the number of cgroup directories, the directories, and a command that runs in them. systemd removes empty
# directories during its boot, also between a mkdir and the write to cgroup.procs. So both are retried together.
_JOIN = """
left=$1; shift
while [ $left -gt 0 ]; do
    tries=100
    until mkdir -p "$1" && { echo $$ >"$1/cgroup.procs"; } 2>/dev/null; do
        tries=$((tries-1)); [ $tries -gt 0 ] || { echo "cannot join $1" >&2; exit 1; }
        sleep 0.02
    done
    left=$((left-1)); shift
done
exec "$@"
"""


def missing() -> str | None:
    """Return what the machine lacks to boot a systemd, or None."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    if not os.path.exists(SYSTEMD) or not os.path.isdir("/etc/systemd/system"):
        return "systemd is missing: install the package systemd"
    for command in ("unshare", "nsenter"):
        if shutil.which(command) is None:
            return f"{command} is missing: install the package util-linux"
    if tuple(map(int, platform.release().split("-")[0].split(".")[:2])) < (5, 12):
        return "mounting the machine's files read-only needs Linux 5.12"
    found = _hierarchies()
    if not any(kind == "cgroup2" for kind, _, _ in found):
        return "no cgroup2 is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
    if any(kind == "cgroup" for kind, _, _ in found) and not any("name=systemd" in each for _, _, each in found):
        return "cgroup version 1 has no hierarchy for systemd: mount -t cgroup -o none,name=systemd ..."
    return None


class BootedSystemd:
    """One booted systemd."""

    def __init__(self, root: Path, *, unified: bool) -> None:
        self.root = root  # the only directory that is writable inside
        self.name = f"pksystemd-{uuid4().hex[:8]}"
        self.network = NetworkNamespace()
        self._hierarchies = _hierarchies()
        self.version = 2 if unified or all(kind == "cgroup2" for kind, _, _ in self._hierarchies) else 1
        self._shell: subprocess.Popen[bytes] | None = None
        self._runner: subprocess.Popen[str] | None = None
        self.pid = 0

    def start(self) -> None:
        """Boot it and wait until it is up."""
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
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._is_up():
            if self._shell.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"systemd did not boot: {(self.root / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill it and everything inside, and remove the cgroups."""
        try:
            if self._runner is not None:
                self._runner.kill()
                self._runner.communicate()
            if self._shell is not None:
                self._shell.kill()
                self._shell.wait(TIMEOUT_SECONDS)
        finally:
            self._remove_cgroups()
            self.network.close()

    def command(self, *argv: str) -> list[str]:
        """Return the command that runs a program inside."""
        inside = ["nsenter", "-t", str(self.pid), *["-m", "-p", "-C", "-n", "-u", "-i"], "--"]
        return self._joining("harness", [*inside, "env", f"TMPDIR={self.root}", f"PYTHONPATH={TOP}", *argv])

    def run(self, *argv: str) -> str:
        """Run a program inside and return its output."""
        done = subprocess.run(self.command(*argv), capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        assert done.returncode == 0, f"{argv}: {done.stderr}{done.stdout}"
        return done.stdout

    def run_scenario(self, scenario: Callable[..., Any], *arguments: Any) -> None:
        """Run a function of a module inside, in a process that runs all scenarios one after another."""
        if self._runner is None:
            argv = self.command(sys.executable, "-B", "-m", "tests.host.booted_runner")
            self._runner = subprocess.Popen(argv, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._runner.stdin is not None
        assert self._runner.stdout is not None
        request = {"module": scenario.__module__, "name": scenario.__qualname__, "arguments": arguments}
        self._runner.stdin.write(f"{json.dumps(request)}\n")
        self._runner.stdin.flush()
        line = self._runner.stdout.readline()
        assert line, "the runner has exited"
        error = json.loads(line)
        assert not error, f"inside:\n{error}"

    def directory(self, controller: str, path: str) -> Path:
        """Return the directory of a cgroup outside. `path` is its path inside."""
        for kind, point, options in self._hierarchies:
            if (controller in options and self.version == 1) or (controller == "unified" and kind == "cgroup2"):
                return point / self.name / path.lstrip("/")
        raise KeyError(controller)

    def slices(self) -> set[str]:
        """Return the names of all slice directories in any hierarchy."""
        tops = (point / self.name for _, point, _ in self._hierarchies)
        return {name for top in tops for _, names, _ in os.walk(top) for name in names if name.endswith(".slice")}

    # ---- boot and cleanup ----

    def _is_up(self) -> bool:
        assert self._shell is not None
        with suppress(OSError):
            children = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text().split()
            found = [pid for pid in children if os.path.exists(f"/proc/{pid}/root{PRIVATE_SOCKET}")]
            self.pid = int(found[0]) if found else 0
        if not self.pid:
            return False
        command = ["nsenter", "-t", str(self.pid), "-m", "-p", "--", "systemctl", "is-active", "-q", "default.target"]
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS).returncode == 0

    def _mounts(self) -> list[tuple[str, str, str]]:
        """Return the mounts below /sys/fs/cgroup inside: directory, type and options."""
        if self.version == 2:
            return [("", "cgroup2", "")]
        return [
            (point.name, kind, ",".join(options)) if kind == "cgroup" else ("unified", kind, "")
            for kind, point, options in self._hierarchies
        ]

    def _joining(self, where: str, argv: Sequence[str]) -> list[str]:
        """Return a command that first joins one of our cgroups."""
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
        """Remove the cgroups. Killed processes may take a moment to leave them."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        for _, point, _ in self._hierarchies:
            for directory, _, _ in os.walk(point / self.name, topdown=False):
                while os.path.isdir(directory):
                    try:
                        os.rmdir(directory)
                    except OSError:
                        if time.monotonic() > deadline:
                            raise
                        _kill_processes_in(Path(directory))
                        time.sleep(0.02)


@contextmanager
def booted(*, unified: bool = False) -> Iterator[BootedSystemd]:
    """Yield a systemd that runs during the block."""
    with ExitStack() as stack:
        directory = tempfile.TemporaryDirectory(prefix="podkeeper-systemd-", ignore_cleanup_errors=True)
        systemd = BootedSystemd(Path(stack.enter_context(directory)), unified=unified)
        stack.callback(systemd.stop)
        systemd.start()
        yield systemd


def _kill_processes_in(directory: Path) -> None:
    with suppress(OSError):
        for pid in map(int, (directory / "cgroup.procs").read_text().split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _hierarchies() -> list[tuple[str, Path, tuple[str, ...]]]:
    """Return the mounted hierarchies: type, mount point, and for version 1 the options that identify it."""
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
