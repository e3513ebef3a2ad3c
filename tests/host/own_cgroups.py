"""A cgroup tree of the test's own on this machine, gone afterwards whatever happens in between; and small processes."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from podkeeper.host.cgroup_survey import survey
from podkeeper.host.cgroups import HostCgroups, open_cgroups
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.cgroup import Place

HERE = survey(cgroup.hierarchies())
needs_cgroups = pytest.mark.skipif(not HERE.version, reason=HERE.describe())


def needs(*controllers: str) -> pytest.MarkDecorator:
    """Skip where the machine gives us no such controllers."""
    missing = sorted(set(controllers) - set(HERE.controllers))
    return pytest.mark.skipif(bool(missing), reason=f"no cgroup controller for {missing}: {HERE.describe()}")


@contextmanager
def own_cgroups() -> Iterator[tuple[HostCgroups[Place], Place]]:
    """Pod cgroups below a root that nobody else has, and that root."""
    name = f"podkeeper-test-{uuid.uuid4().hex[:12]}"
    path = f"{HERE.base.rstrip('/')}/{name}"
    try:
        cgroups = open_cgroups(cgroup, name)
        assert isinstance(cgroups, HostCgroups), cgroups.describe()
        root = cgroup.find(path)
        assert root is not None
        yield cgroups, root
    finally:
        if (left := cgroup.find(path)) is not None:
            cgroup.kill_all(left, 5)
            cgroup.remove(left, 5)


@contextmanager
def process_in(place: Place, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that has joined a cgroup before its first line runs."""
    argv = [sys.executable, "-I", "-S", "-c", program]
    join = partial(_join, place)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=join)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _join(place: Place) -> None:
    for file in cgroup.procs_files(place):
        with open(file, "w") as procs:
            procs.write("0")


def as_nobody(call: Callable[[], str], joining: Place | None = None) -> str:
    """What a call returns when an ordinary user makes it, in a process of its own (and in a cgroup)."""
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
