"""Real pod cgroups for a test, removed at its end, and processes that join them."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from podkeeper.host.cgroups import HostCgroups, open_cgroups
from podkeeper.linux import cgroup
from podkeeper.linux.cgroup import Cgroup
from podkeeper.linux.cgroup_support import detect

HERE = detect()
needs_cgroups = pytest.mark.skipif(not HERE.version, reason=HERE.describe())


def needs(*controllers: str) -> pytest.MarkDecorator:
    """Skip a test if the machine lacks one of these controllers."""
    missing = sorted(set(controllers) - set(HERE.controllers))
    return pytest.mark.skipif(bool(missing), reason=f"no cgroup controller for {missing}: {HERE.describe()}")


@contextmanager
def own_cgroups() -> Iterator[tuple[HostCgroups, Cgroup]]:
    """Yield pod cgroups below a unique root, and that root."""
    name = f"podkeeper-test-{uuid.uuid4().hex[:12]}"
    path = f"{HERE.base.rstrip('/')}/{name}"
    try:
        cgroups = open_cgroups(name)
        assert isinstance(cgroups, HostCgroups), cgroups.describe()
        root = cgroup.find(path)
        assert root is not None
        yield cgroups, root
    finally:
        if (left := cgroup.find(path)) is not None:
            cgroup.kill_all(left, 5)
            cgroup.remove(left, 5)


@contextmanager
def process_in(group: Cgroup, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program that joins a cgroup before its first line."""
    argv = [sys.executable, "-I", "-S", "-c", program]
    join = partial(_join, group)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=join)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _join(group: Cgroup) -> None:
    for file in cgroup.procs_files(group):
        with open(file, "w") as procs:
            procs.write("0")


def as_unprivileged_user(call: Callable[[], str], joining: Cgroup | None = None) -> str:
    """Return the result of a call by an ordinary user, in a new process that may join a cgroup."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        answer = "the child failed"
        try:
            os.close(reading)
            if joining is not None:
                _join(joining)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            answer = call()
        except BaseException as error:
            answer = f"failed: {error!r}"
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    with open(reading) as answers:
        answer = answers.read()
    os.waitpid(pid, 0)
    return answer
