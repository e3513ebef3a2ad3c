"""Replay all recordings in `tests/oracle/data`, and test that the replay finds differences."""

import gzip
import json
from pathlib import Path

import pytest

from tests.oracle.__main__ import main
from tests.oracle.replay import InvalidRecording, Part, read_recording, replay

DATA = sorted((Path(__file__).parent / "data").glob("*.json.gz"))


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.name)
def test_recorded_kubelet_behaviour(path: Path) -> None:
    report = replay(read_recording(path))
    assert not report.failures, report.failures[:3]
    assert report.passed > 100


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_a_wrong_answer_is_a_failure(tmp_path: Path) -> None:
    row = {"in": {"containers": [], "initContainers": [], "pod_level_resources": None}, "out": "Wrong"}
    report = replay({"component": "decisions", "set": "x", "tables": {"qos_class": [row]}})
    assert (report.passed, len(report.failures)) == (0, 1)
    assert "Wrong" in report.failures[0].differences[0]


def test_an_unknown_table_or_component_is_a_failure_not_a_skip() -> None:
    table = replay({"component": "decisions", "set": "x", "tables": {"no_such_table": [{"in": {}, "out": {}}]}})
    script = replay({"component": "no_such_component", "set": "x", "scripts": [{"id": "s1", "steps": []}]})
    nothing = replay({"component": "decisions", "set": "x", "tables": {}})
    assert [len(report.failures) for report in (table, script, nothing)] == [1, 1, 1]


def test_an_exception_is_a_failure_of_that_case_only() -> None:
    rows = [{"in": {}, "out": "BestEffort"}, {"in": {"containers": "nonsense"}, "out": "BestEffort"}]
    report = replay({"component": "decisions", "set": "x", "tables": {"qos_class": rows}})
    assert len(report.failures) >= 1


POD = """apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: app, image: app}]}
"""


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "  \n",
        "---\n",
        "# only a comment\n",
        "[]",
        "- a\n- b\n",
        "apiVersion: v1\nkind: List\nitems:\n- " + POD.replace("\n", "\n  "),
        "apiVersion: v1\nkind: PodList\nitems: []\n",
        "kind: [unclosed",
        "a: b: c",
        "\t",
    ],
)
def test_a_manifest_without_a_single_object_replays_as_an_error_without_a_pod(manifest: str) -> None:
    given = {"manifest": manifest, "source": "/etc/web.yaml", "source_is_file": True, "node_name": "n1"}
    right = {"in": given, "out": {"error": True, "is_pod": False}}
    wrong = {"in": given, "out": {"error": True, "is_pod": True}}
    report = replay({"component": "decisions", "set": "x", "tables": {"static_pod": [right, wrong]}})
    assert [failure.case for failure in report.failures] == ["decisions/static_pod[1]"]


def test_only_selects_a_part() -> None:
    document = {"component": "status", "set": "x", "tables": {"nope": [{"in": {}, "out": 1}]}, "scripts": []}
    assert replay(document, Part.TABLES).failures[0].case == "status/nope[0]"
    assert "no scripts" in replay(document, Part.SCRIPTS).failures[0].differences[0]


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        gzip.compress(b"[]"),
        b'{"component": 1}',
        b'{"component": "podworkers", "set": "visible, older release"}',
    ],
    ids=["not json", "not a recording", "no component", "the older release"],
)
def test_other_files_than_recordings_of_the_newer_release_are_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(InvalidRecording, match="cannot"):
        read_recording(path)


def test_the_command_prints_the_counts_and_sets_its_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = write(
        tmp_path / "bad.json", {"component": "decisions", "set": "x", "tables": {"nope": [{"in": {}, "out": 1}]}}
    )
    assert main([str(bad), str(tmp_path / "missing.json")]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 2 failed"
    good = {"in": {"current": 30, "deletion_grace_period_seconds": None, "override": None,
                   "termination_grace_period_seconds": None}, "out": {"grace": 30, "shortened": False}}  # fmt: skip
    path = write(
        tmp_path / "good.json", {"component": "decisions", "set": "x", "tables": {"effective_grace_period": [good]}}
    )
    assert main(["--only", "tables", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"
