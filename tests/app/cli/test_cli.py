"""The commands plan and validate, and wrong usage."""

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


def test_validate_reports_all_problems_with_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec:\n  containers: [{name: c, image: i}]\n"
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec:\n  containers:\n    - name: c\n      image: 7\n"
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: Worse}\nspec:\n  containers: [{name: c, image: i}]\n"
        "  restartPolicy: Sometimes\n"
    )
    result = call("validate", path)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert any(f"{path}:13: spec.containers[0].image" in line for line in lines)
    assert any("metadata.name" in line for line in lines)
    assert any(f"{path}:20: spec.restartPolicy" in line for line in lines)
    assert "1 valid pod, 0 other valid objects" in lines[-1]


def test_an_unknown_field_is_a_warning_and_an_error_when_strict(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  contaners: []\n  containers: [{name: c, image: i}]\n"
    )
    lenient, strict = call("validate", path), call("validate", "--strict", path)
    assert (lenient.exit_code, strict.exit_code) == (0, 1)
    assert f"warning: {path}:5: spec.contaners" in lenient.output


def test_validate_accepts_config_maps_and_secrets(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {a: b}\n")
    (tmp_path / ".hidden.yaml").write_text("not: [valid")
    result = call("validate", tmp_path)
    assert (result.exit_code, result.output.strip()) == (0, "0 valid pods, 1 other valid object")


def test_an_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere.yaml")
    (tmp_path / "bomb.yaml").write_text("a: &a [x, x, x]\n" + "".join(f"a{i}: &a{i} [*a, *a, *a]\n" for i in range(3)))
    assert call("validate", tmp_path).exit_code == 1
    assert call("plan", tmp_path).exit_code == 1


@pytest.mark.parametrize("arguments", [["plan"], ["validate", "no/such/file"], ["no-such-command"]])
def test_wrong_usage_prints_the_usage(arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output
