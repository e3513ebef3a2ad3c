"""`podkeeper plan`, and wrong usage of commands."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from podkeeper.app.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_plan_shows_every_example() -> None:
    result = call("plan", EXAMPLES, "--node-name", "n1")
    assert result.exit_code == 0
    for name in ("web-n1", "job-n1", "pair-n1", "crash-n1"):
        assert f"default/{name}" in result.output
    assert "start init container reader" in result.output
    assert "4 pods planned, 0 errors" in result.output


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere.yaml")
    (tmp_path / "bomb.yaml").write_text("a: &a [x, x, x]\n" + "".join(f"a{i}: &a{i} [*a, *a, *a]\n" for i in range(3)))
    assert call("plan", tmp_path).exit_code == 1


@pytest.mark.parametrize("arguments", [["plan"], ["validate", "no/such/file"], ["no-such-command"]])
def test_wrong_usage_prints_the_usage(arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output
