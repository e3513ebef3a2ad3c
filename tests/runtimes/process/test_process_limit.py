"""A pod's limit of processes where there are no cgroups: the count of its user namespace."""

import os
import signal
from collections.abc import Iterator

import pytest

from podkeeper.runtimes.process.keeper.jail import Jail
from tests.runtimes.process.jailing import World, end, run, state_directory, world

BOMB = "sh -c 'while :; do sleep 10 & done' 2>/dev/null; set -- /proc/[0-9]*; echo $#"


@pytest.fixture
def here() -> Iterator[World]:
    """The world of an ordinary user."""
    with state_directory("user") as state:
        found = world("user", state)
        if not found.isolation.counts:
            pytest.skip("this kernel does not count the processes of a user namespace (Linux 5.14)")
        yield found


def test_a_fork_bomb_ends_where_it_began(here: World) -> None:
    code, said = here.run(BOMB, most_processes=40)
    assert code == 0
    assert 20 <= int(said) <= 40


def test_a_command_can_enter_a_container_that_is_full(here: World) -> None:
    def action() -> tuple[int, str]:
        jail = Jail(isolation=here.isolation)
        nothing = os.open(os.devnull, os.O_RDWR)
        reader, writer = os.pipe()
        full = jail.launch(here.spec(f"{BOMB}; exec sleep 10", most_processes=40), nothing, writer, nothing)
        try:
            assert os.read(reader, 100)  # it has gone off
            return run(jail, here.spec("echo inside", most_processes=40), enter=full)
        finally:
            end(full)
            jail.close()

    assert here.keep(action) == (0, "inside\n")


def test_other_processes_of_the_user_do_not_count(here: World) -> None:
    def action() -> tuple[int, str]:
        others = [_sleeper() for _ in range(30)]
        jail = Jail(isolation=here.isolation)
        try:
            return run(jail, here.spec("true & wait; sh -c 'echo room'", most_processes=10))
        finally:
            jail.close()
            end(*others)

    assert here.keep(action) == (0, "room\n")


def _sleeper() -> int:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid


def test_without_a_limit_there_is_none(here: World) -> None:
    code, said = here.run("for each in 1 2 3 4 5 6 7 8; do sleep 10 & done; set -- /proc/[0-9]*; echo $#")
    assert (code, int(said)) == (0, 9)
