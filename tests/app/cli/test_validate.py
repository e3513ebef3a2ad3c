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
    return CliRunner().invoke(main, ["validate", *map(str, arguments), "--node-name", "n1"], input=stdin)


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
