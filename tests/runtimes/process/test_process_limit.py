"""The process limit of a pod without cgroups: the count of its user namespace."""

import os
import signal
from collections.abc import Iterator

import pytest

from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from tests.runtimes.process.jail_harness import Machine, end, machine_for, run, state_directory

BOMB = "sh -c 'while :; do sleep 10 & done' 2>/dev/null; set -- /proc/[0-9]*; echo $#"


@pytest.fixture
def machine() -> Iterator[Machine]:
    """This machine for an ordinary user."""
    with state_directory("user") as state:
        found = machine_for("user", state)
        if not found.isolation.counts:
            pytest.skip("this kernel does not count the processes of a user namespace (Linux 5.14)")
        yield found


def test_a_fork_bomb_stays_in_its_pod(machine: Machine) -> None:
    code, output = machine.run(BOMB, most_processes=40)
    assert code == 0
    assert 20 <= int(output) <= 40


def test_a_command_can_enter_a_container_at_its_process_limit(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        jail = NamespaceJail(isolation=machine.isolation)
        null = os.open(os.devnull, os.O_RDWR)
        reader, writer = os.pipe()
        full = jail.launch(machine.spec(f"{BOMB}; exec sleep 10", most_processes=40), null, writer, null)
        try:
            assert os.read(reader, 100)  # the fork bomb has reached its limit
            return run(jail, machine.spec("echo inside", most_processes=40), enter=full)
        finally:
            end(full)
            jail.close()

    assert machine.in_keeper(action) == (0, "inside\n")


def test_other_processes_of_the_user_do_not_count(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        others = [_sleeper() for _ in range(30)]
        jail = NamespaceJail(isolation=machine.isolation)
        try:
            return run(jail, machine.spec("true & wait; sh -c 'echo room'", most_processes=10))
        finally:
            jail.close()
            end(*others)

    assert machine.in_keeper(action) == (0, "room\n")


def _sleeper() -> int:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid


def test_without_a_limit_all_processes_start(machine: Machine) -> None:
    code, output = machine.run("for each in 1 2 3 4 5 6 7 8; do sleep 10 & done; set -- /proc/[0-9]*; echo $#")
    assert (code, int(output)) == (0, 9)
