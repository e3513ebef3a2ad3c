"""`podkeeper run` on terminals of different sizes, with and without colours and Unicode."""

from pathlib import Path

import pytest

from tests.app.cli.terminal import on_terminal
from tests.app.cli.test_run import STUBBORN, command, slow
from tests.app.local.harness import manifest

LONG = "a-name-that-goes-on-and-on-and-never-seems-to-come-to-its-end"
CRASH = {"app": {"after_seconds": 0.1, "exit_code": 2}}


def manifests(directory: Path, *pods: str) -> list[str]:
    (directory / "m").mkdir()
    for number, text in enumerate(pods):
        (directory / "m" / f"{number:03}.yaml").write_text(text)
    return command(directory)


@pytest.mark.slow
def test_a_long_name_does_not_hide_the_other_columns(tmp_path: Path) -> None:
    with on_terminal(manifests(tmp_path, manifest(LONG), manifest("crash", lives=CRASH)), columns=80) as it:
        seen = it.until(lambda text: "CrashLoopBackOff" in text and "1/1" in text)
        assert "app: CrashLoo" in seen
        assert "a-name-" in seen
        assert LONG not in seen


@pytest.mark.parametrize("columns, rows", [slow(120, 40), slow(60, 12), slow(40, 10), (20, 5)])
def test_the_table_fits_every_terminal(tmp_path: Path, columns: int, rows: int) -> None:
    many = [manifest(f"pod{number}") for number in range(20)]  # the kernel may split a table larger than its buffer
    with on_terminal(manifests(tmp_path, *many), columns, rows) as it:
        it.until(lambda text: "Runni" in text)
        if 5 < rows < 20:
            seen = it.until(lambda text: "... and" in text)
            assert "Ctrl-C" in seen  # a long table does not hide the last line
        it.press_ctrl_c()
        assert it.wait() == 0


@pytest.mark.slow
def test_no_colours(tmp_path: Path) -> None:
    with on_terminal(manifests(tmp_path, manifest("crash", lives=CRASH)), NO_COLOR="1", TERM="xterm-256color") as it:
        it.until(lambda text: "CrashLoopBackOff" in text)
        assert not it.picture.is_coloured
    with on_terminal(command(tmp_path), TERM="xterm-256color") as it:
        it.until(lambda text: "CrashLoopBackOff" in text)
        assert it.picture.is_coloured


@pytest.mark.parametrize("kind", ["dumb", slow("unknown"), slow("")])
def test_a_terminal_without_cursor_control_shows_lines(tmp_path: Path, kind: str) -> None:
    with on_terminal(manifests(tmp_path, manifest("web")), TERM=kind) as it:
        it.until(lambda text: "web-n1  Running            ready 1/1" in text)
        it.press_ctrl_c()
        it.until(lambda text: "All pods have stopped." in text)
        assert not it.picture.is_styled


@pytest.mark.slow
def test_a_terminal_without_unicode_shows_ascii(tmp_path: Path) -> None:
    ascii_only = {"LANG": "C", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    strange = manifest(LONG).replace('"image": "host"', '"image": "日本語"')
    with on_terminal(manifests(tmp_path, strange, manifest("web")), 60, 20, **ascii_only) as it:
        it.until(lambda text: "Running" in text and "web-n1" in text)
        it.press_ctrl_c()
        it.until(lambda text: "All pods have stopped." in text)
        assert it.wait() == 0


def test_a_second_ctrl_c_shows_the_table_and_exits_at_once(tmp_path: Path) -> None:
    with on_terminal(manifests(tmp_path, manifest("web", lives=STUBBORN, grace=600))) as it:
        it.until(lambda text: "Running" in text)
        it.press_ctrl_c()
        it.until(lambda text: "still stopping: web-n1" in text and "of 600 s" in text)
        it.press_ctrl_c()
        assert it.wait() == 130
        assert "WARNING" not in it.picture.text()


def test_closing_the_terminal_stops_the_agent_properly(tmp_path: Path) -> None:
    with on_terminal(manifests(tmp_path, manifest("web"))) as it:
        it.until(lambda text: "Running" in text)
        it.hang_up()
        assert it.process.wait(10) == 0


def test_the_hint_has_the_required_option(tmp_path: Path) -> None:
    with on_terminal(manifests(tmp_path, manifest("web")), columns=250) as it:
        it.until(lambda text: "Ctrl-C stops the pods." in text)
        assert it.picture.text().count(f"podkeeper ps --root {tmp_path / 'r'}") == 2
