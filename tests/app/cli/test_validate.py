"""`podkeeper validate`: the same files as `podkeeper run`, with all problems."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from podkeeper.app.cli import main
from tests.app.local.harness import manifest

TYPO = """apiVersion: v1
kind: Pod
metadata: {name: typo}
spec:
  containers:
    - name: c
      imagee: host
"""


def validate(*arguments: str | Path, stdin: str = "") -> Result:
    return on_this_host(*arguments, "--node-name", "n1", stdin=stdin)


def on_this_host(*arguments: str | Path, stdin: str = "") -> Result:
    """Validate for a node with the default name, which is that of the host."""
    return CliRunner().invoke(main, ["validate", *map(str, arguments)], input=stdin)


def test_backup_files_of_editors_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(manifest("web"))
    for leftover in ("web.yaml~", ".web.yaml.swp", "#web.yaml#", "web.yaml.bak"):
        (tmp_path / leftover).write_text("not: [whole")
    result = validate(tmp_path)
    assert (result.exit_code, result.output) == (0, "1 valid pod, 0 other valid objects\n")


def test_a_duplicate_name_is_reported_with_the_other_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("web"))
    (tmp_path / "b.yaml").write_text(manifest("web"))
    result = validate(tmp_path)
    assert result.exit_code == 1
    assert (
        f"{tmp_path / 'b.yaml'}:1: metadata.name: Duplicate value: Pod default/web is already defined in"
        in result.output
    )
    assert f"in {tmp_path / 'a.yaml'}" in result.output


def test_empty_files_subdirectories_and_ignored_kinds_are_reported(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "app.yaml").write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n")
    result = validate(tmp_path)
    assert result.exit_code == 1
    for words in ("the manifest is empty", "subdirectories are ignored", 'Unsupported value: "Deployment": ignored'):
        assert words in result.output


def test_an_unknown_field_is_reported_beside_other_problems(tmp_path: Path) -> None:
    (tmp_path / "typo.yaml").write_text(TYPO)
    result = validate(tmp_path)
    assert result.exit_code == 1
    assert f"error: {tmp_path / 'typo.yaml'}:6: spec.containers[0].image: Required value" in result.output
    assert f"warning: {tmp_path / 'typo.yaml'}:7: spec.containers[0].imagee" in result.output


def test_a_manifest_from_stdin(tmp_path: Path) -> None:
    assert (
        validate("-", stdin=f"{manifest('web')}\n---\n{manifest('job')}").output
        == "2 valid pods, 0 other valid objects\n"
    )
    bad = validate("-", stdin=TYPO)
    assert (bad.exit_code, "error: <stdin>:6: spec.containers[0].image" in bad.output) == (1, True)


def test_problems_as_json(tmp_path: Path) -> None:
    (tmp_path / "typo.yaml").write_text(f"{TYPO}---\n{manifest('web')}")
    result = json.loads(validate("-o", "json", tmp_path).output)
    assert (result["pods"], result["otherObjects"]) == (1, 0)
    first, second = result["problems"]
    assert (first["severity"], first["file"], first["line"]) == ("error", str(tmp_path / "typo.yaml"), 6)
    assert (first["field"], second["severity"]) == ("spec.containers[0].image", "warning")


def test_a_directory_without_manifests_is_reported(tmp_path: Path) -> None:
    result = validate(tmp_path)
    assert (result.exit_code, result.output) == (0, "0 valid pods, 0 other valid objects; no manifests found\n")


def test_validate_reports_all_problems_with_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec:\n  containers: [{name: c, image: i}]\n"
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec:\n  containers:\n    - name: c\n      image: 7\n"
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: Worse}\nspec:\n  containers: [{name: c, image: i}]\n"
        "  restartPolicy: Sometimes\n"
    )
    result = on_this_host(path)
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
    lenient, strict = on_this_host(path), on_this_host("--strict", path)
    assert (lenient.exit_code, strict.exit_code) == (0, 1)
    assert f"warning: {path}:5: spec.contaners" in lenient.output


def test_validate_accepts_config_maps_and_secrets(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {a: b}\n")
    (tmp_path / ".hidden.yaml").write_text("not: [valid")
    result = on_this_host(tmp_path)
    assert (result.exit_code, result.output.strip()) == (0, "0 valid pods, 1 other valid object")


def test_an_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere.yaml")
    (tmp_path / "bomb.yaml").write_text("a: &a [x, x, x]\n" + "".join(f"a{i}: &a{i} [*a, *a, *a]\n" for i in range(3)))
    assert on_this_host(tmp_path).exit_code == 1
