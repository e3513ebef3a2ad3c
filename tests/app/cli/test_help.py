"""Help texts: each fits on a screen, and no sentence is cut off."""

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from podkeeper.app.cli import main

ROWS, COLUMNS = 30, 80
LONG = {"run": 48, "sim": 42}  # commands with many options
COMMANDS = main.list_commands(click.Context(main))
ROOT = Path(__file__).parents[3]


def assert_readable(text: str, rows: int) -> None:
    lines = text.splitlines()
    assert len(lines) <= rows
    assert [line for line in lines if len(line) > COLUMNS] == []
    sentences = [line for line in lines if not line.startswith("Usage:")]
    assert [line for line in sentences if line.endswith(("...", "…"))] == []


def help_of(*command: str) -> str:
    result = CliRunner().invoke(main, [*command, "--help"], terminal_width=COLUMNS)
    assert result.exit_code == 0
    return result.output


def test_the_overview_fits_on_a_screen_and_has_whole_sentences() -> None:
    text = help_of()
    assert_readable(text, ROWS)
    rows = re.findall(r"^  (\S+) {2,}(.*)$", text.partition("Commands:\n")[2], re.MULTILINE)
    assert {name for name, _ in rows} == set(COMMANDS)
    assert [sentence for _, sentence in rows if not re.fullmatch(r"[A-Z].*\.", sentence)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_whole_sentences(name: str) -> None:
    assert_readable(help_of(name), LONG.get(name, ROWS))
    command = main.get_command(click.Context(main), name)
    assert command is not None
    texts = {option.opts[0]: option.help for option in command.params if isinstance(option, click.Option)}
    assert {option: text for option, text in texts.items() if not re.search(r"[.\]]$", text or "")} == {}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_fits_on_a_screen_and_lists_every_target() -> None:
    text = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert_readable(text, ROWS)
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^  make (\S+)", text, re.MULTILINE)) == set(targets.split())
