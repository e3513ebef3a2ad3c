"""The examples and commands in docs/simulation.md work, and its tables have all options and invariants."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from podkeeper.app.cli.sim import sim
from podkeeper.testing.sim.invariants import INVARIANTS
from podkeeper.testing.sim.run import SimPlan, run_schedule, schedule_of

PAGE = (Path(__file__).parent.parent.parent / "docs" / "simulation.md").read_text()
COMMANDS = [
    shlex.split(line.partition("#")[0])
    for line in re.findall(r"podkeeper sim .*", re.sub(r"`[^`\n]*`", "", PAGE))
    if "my_checks" not in line
]


@cache
def names() -> dict[str, Any]:
    """Return the names that the code of the page defines."""
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(block, "simulation.md", "exec"), found)
    return found


def test_the_scenario_runs() -> None:
    tests = [value for name, value in names().items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


def test_the_invariant_is_checked_and_holds() -> None:
    plan = SimPlan(seed=7, hours=0.1, faults=(), workload=("servers", "jobs"))
    outcome = run_schedule(schedule_of(plan), also=names()["ReadyHasAddress"])
    assert outcome.violation is None
    assert outcome.checks["R1"] > 5


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_are_valid(words: list[str]) -> None:
    context = sim.make_context("sim", [word for word in words[2:] if word != "--list"])
    assert context.params["hours"] in (1.0, 6.0)


def test_every_option_is_in_the_table() -> None:
    table = PAGE.partition("| option |")[2].partition("\n\n")[0]
    options = [option.opts[0] for option in sim.params if isinstance(option, click.Option)]
    assert [name for name in options if name not in table and name not in ("--list", "--shrink")] == []


def test_every_invariant_is_in_the_table() -> None:
    assert dict(re.findall(r"^\| (I\d+) \| (.*) \|$", PAGE, flags=re.MULTILINE)) == INVARIANTS
