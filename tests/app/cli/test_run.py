"""`podkeeper run` as a real process: output, signals and exit status."""

import contextlib
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from podkeeper.app.cli import main
from podkeeper.app.local.client import TABLE_ACCEPTED, LocalClient, RequestFailed
from tests.app.cli.forked import ForkedCommand, fork_server
from tests.app.local.harness import manifest

slow = partial(pytest.param, marks=pytest.mark.slow)
SLOW = {"app": {"term_seconds": 0.4}}
STUBBORN = {"app": {"term_seconds": None}}


class Running:
    """A running `podkeeper run`."""

    process: "subprocess.Popen[bytes] | ForkedCommand"

    def __init__(self, directory: Path, arguments: tuple[str, ...], files: dict[str, str], *, forked: bool) -> None:
        self.directory = directory
        (directory / "m").mkdir(exist_ok=True)
        for name, text in files.items():
            (directory / "m" / f"{name}.yaml").write_text(text)
        self.client = LocalClient(directory / "r" / "podkeeper.sock")
        out, err = directory / "out", directory / "err"
        out.touch()
        err.touch()
        if forked:
            self.process = ForkedCommand([*run_arguments(directory), *arguments], out, err)
            return
        with out.open("wb") as stdout, err.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command(directory), *arguments], stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL
            )

    @property
    def out(self) -> str:
        return (self.directory / "out").read_text()

    @property
    def err(self) -> str:
        return (self.directory / "err").read_text()

    def statuses(self) -> dict[str, str]:
        try:
            rows = self.client.get("pods", accept=TABLE_ACCEPTED)["rows"]
        except RequestFailed:
            return {}
        return {row["cells"][0].removesuffix("-n1"): row["cells"][2] for row in rows}

    def until(self, condition: Callable[[], object], within: float = 15.0) -> None:
        end = time.monotonic() + within
        while not condition():
            assert time.monotonic() < end, f"not within {within} s:\n{self.out}\n{self.err}"
            time.sleep(0.02)

    def wait(self) -> int:
        return self.process.wait(15)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module", autouse=True)
def commands_are_forked() -> Iterator[None]:
    with fork_server():
        yield


def run_arguments(directory: Path) -> list[str]:
    places = ["--root", str(directory / "r"), "--node-name", "n1", "--runtime", "fake"]
    return ["run", str(directory / "m"), *places]


def command(directory: Path) -> list[str]:
    call = "from podkeeper.app.cli import main; main(prog_name='podkeeper')"
    return [sys.executable, "-c", call, *run_arguments(directory)]


def running(directory: Path, *arguments: str, **files: str) -> contextlib.closing[Running]:
    return contextlib.closing(Running(directory, arguments, files, forked=True))


def running_in_a_new_interpreter(directory: Path, **files: str) -> contextlib.closing[Running]:
    """Run the agent in a process that inherits the signal handling of this one."""
    return contextlib.closing(Running(directory, (), files, forked=False))


def test_each_change_is_a_line_and_ctrl_c_stops_the_pods_with_progress(tmp_path: Path) -> None:
    with running(tmp_path, web=manifest("web", lives=SLOW, grace=20)) as it:
        it.until(lambda: it.statuses() == {"web": "Running"})
        it.process.send_signal(signal.SIGINT)
        assert it.wait() == 0
        lines = it.out.splitlines()
        assert lines[0].startswith("podkeeper ")
        assert str(tmp_path / "r" / "podkeeper.sock") in lines[1]
        assert any("web-n1" in line and "Running" in line and "ready 1/1  restarts 0" in line for line in lines)
        assert any("still stopping: web-n1 (0s of 20 s)" in line for line in lines)
        assert lines[-2].endswith("web-n1  removed")
        assert lines[-1] == "All pods have stopped."
        assert not (tmp_path / "r" / "podkeeper.sock").exists()


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    with running(tmp_path, web=manifest("web", lives=STUBBORN, grace=600)) as it:
        it.until(lambda: it.statuses() == {"web": "Running"})
        it.process.send_signal(signal.SIGINT)
        it.until(lambda: "still stopping" in it.out)
        it.process.send_signal(signal.SIGINT)
        assert it.wait() == 130


def test_sigterm_ends_the_agent_at_once(tmp_path: Path) -> None:
    with running(tmp_path, web=manifest("web", lives=STUBBORN, grace=600)) as it:
        it.until(lambda: it.statuses() == {"web": "Running"})
        it.process.send_signal(signal.SIGTERM)
        assert it.wait() == 0
        assert "still stopping" not in it.out


def test_sigterm_stops_the_pods_with_stop_pods_on_exit(tmp_path: Path) -> None:
    with running(tmp_path, "--stop-pods-on-exit", web=manifest("web", lives=SLOW)) as it:
        it.until(lambda: it.statuses() == {"web": "Running"})
        it.process.send_signal(signal.SIGTERM)
        assert it.wait() == 0
        assert "All pods have stopped." in it.out


ONCE: dict[str, tuple[dict[str, str], int, str]] = {
    "all succeed": (
        {"a": manifest("a", lives={"app": {"after_seconds": 0.1}}, policy="Never")},
        0,
        "All pods have terminated: 1 succeeded.",
    ),
    "one fails": (
        {
            "a": manifest("a", lives={"app": {"after_seconds": 0.1}}, policy="Never"),
            "b": manifest("b", lives={"app": {"after_seconds": 0.2, "exit_code": 3}}, policy="Never"),
        },
        1,
        "All pods have terminated: 1 succeeded, 1 failed: b-n1.",
    ),
    "an invalid manifest": (
        {
            "a": manifest("a", lives={"app": {"after_seconds": 0.1}}, policy="Never"),
            "bad": "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec:\n  containers: []\n",
        },
        1,
        "All pods have terminated: 1 succeeded.",
    ),
    "no pods": ({}, 1, "No pods found."),
}


@pytest.mark.parametrize("files, status, words", ONCE.values(), ids=ONCE.keys())
def test_once_exits_after_all_pods_with_a_status(
    tmp_path: Path, files: dict[str, str], status: int, words: str
) -> None:
    with running(tmp_path, "--once", **files) as it:
        assert it.wait() == status
        assert it.out.splitlines()[-1] == words


def test_an_invalid_manifest_is_reported_while_the_valid_pods_run(tmp_path: Path) -> None:
    bad = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\n"
        "spec:\n  restartPolicy: Sometimes\n  containers: [{name: c, image: i}]\n"
    )
    with running(tmp_path, web=manifest("web"), bad=bad) as it:
        it.until(lambda: it.statuses() == {"web": "Running"})
        it.until(lambda: "error: " in it.err)
        place = f"{tmp_path / 'm' / 'bad.yaml'}:5: spec.restartPolicy"
        reason = 'Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'
        assert f"error: {place}: {reason}" in it.err
        (tmp_path / "m" / "bad.yaml").write_text(manifest("bad"))
        it.until(lambda: it.statuses() == {"web": "Running", "bad": "Running"})
        assert "bad.yaml: fixed or removed" in it.err


def test_a_second_agent_of_the_same_root_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, web=manifest("web")) as it:
        it.until(lambda: it.statuses() == {"web": "Running"})
        second = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=15)
        assert second.returncode == 1
        assert f"another agent uses the root {tmp_path / 'r'} (process {it.process.pid})" in second.stderr
        assert it.statuses() == {"web": "Running"}


def test_a_stopped_pod_is_shown(tmp_path: Path) -> None:
    with running(tmp_path, web=manifest("web")) as it:
        it.until(lambda: it.statuses() == {"web": "Running"})
        it.client.post("stop", "default", "web")
        it.until(lambda: it.statuses() == {"web": "Stopped"})
        it.process.send_signal(signal.SIGINT)
        assert it.wait() == 0
        assert "Stopped" in it.out


def test_a_terminal_shows_a_table(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "web.yaml").write_text(manifest("web"))
    terminal, other = pty.openpty()
    size = {"COLUMNS": "100", "LINES": "30", "TERM": "xterm", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(command(tmp_path), stdin=other, stdout=other, stderr=other, env=os.environ | size)
    os.close(other)
    try:
        seen = _read_until(terminal, lambda text: "Running" in text and "Ctrl-C stops the pods" in text)
        assert "POD" in seen
        assert "web-n1" in seen
        process.send_signal(signal.SIGINT)
        assert "All pods have stopped." in _read_until(terminal, lambda text: "All pods have stopped." in text)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _read_until(terminal: int, condition: Callable[[str], bool]) -> str:
    seen, end = "", time.monotonic() + 10
    while not condition(seen):
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
    return seen


# ---- the configuration ----


def test_unsupported_configuration_fields_are_reported(tmp_path: Path) -> None:
    config = tmp_path / "kubelet.yaml"
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "a.yaml").write_text(manifest("a", lives={"app": {"after_seconds": 0.1}}, policy="Never"))
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        f"staticPodPath: {tmp_path / 'static'}\nmaxPods: 5\nfailSwapOn: false\nhairpinMode: none\nnonsense: 1\n"
    )
    with running(tmp_path, "--once", "--config", str(config)) as it:
        assert it.wait() == 0
        assert "1 succeeded" in it.out
        assert f"warning: {config}:5: failSwapOn: unsupported by 'podkeeper run', ignored" in it.err
        assert f"{config}:6: hairpinMode" in it.err
        assert f"{config}:7: nonsense" in it.err
        assert "maxPods" not in it.err


def test_another_kind_of_document_is_rejected_as_configuration(tmp_path: Path) -> None:
    config = tmp_path / "kubelet.yaml"
    config.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
    result = CliRunner().invoke(main, ["run", "--config", str(config), "--root", str(tmp_path / "r")])
    assert result.exit_code == 1
    assert '"ConfigMap": supported values: "KubeletConfiguration" of' in result.output


def test_nothing_to_run_is_a_usage_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["run", "--root", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "nothing to run" in result.output


# ---- closed output ----


def _shell(directory: Path, how: str, **files: str) -> "subprocess.Popen[bytes]":
    (directory / "m").mkdir()
    for name, text in files.items():
        (directory / "m" / f"{name}.yaml").write_text(text)
    called = how.format(shlex.join(command(directory)))
    return subprocess.Popen(["sh", "-c", called], cwd=directory, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "how", ["{} 2>err | head -1 >out", *(slow(how) for how in ("{} >&- 2>err", "{} >/dev/full 2>err", "{} >&- 2>&-"))]
)
def test_the_agent_continues_when_its_output_is_closed(tmp_path: Path, how: str) -> None:
    shell = _shell(tmp_path, how.replace("{}", "{} --once"), a=manifest("a", lives={"app": {"after_seconds": 0.5}}))
    client = LocalClient(tmp_path / "r" / "podkeeper.sock")
    try:
        end = time.monotonic() + 10
        while not _has_restarted(client):
            assert time.monotonic() < end, (tmp_path / "err").read_text()
            time.sleep(0.05)
        os.kill(client.get("info")["pid"], signal.SIGINT)
        shell.wait(10)
        if "2>err" in how:
            assert "Traceback" not in (tmp_path / "err").read_text()
    finally:
        shell.kill()
        shell.wait()


def _has_restarted(client: LocalClient) -> bool:
    try:
        (row,) = client.get("pods", accept=TABLE_ACCEPTED)["rows"]
    except (RequestFailed, ValueError):
        return False
    return not row["cells"][3].startswith("0")


def test_nohup_keeps_the_agent_alive(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit it
    try:
        with running_in_a_new_interpreter(tmp_path, web=manifest("web")) as it:
            it.until(lambda: it.statuses() == {"web": "Running"})
            it.process.send_signal(signal.SIGHUP)
            it.client.post("stop", "default", "web")
            it.until(lambda: it.statuses() == {"web": "Stopped"})
            it.process.send_signal(signal.SIGTERM)
            assert it.wait() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_once_names_pods_that_restart_forever(tmp_path: Path) -> None:
    with running(tmp_path, "--once", web=manifest("web"), job=manifest("job", policy="OnFailure")) as it:
        it.until(lambda: "these restart forever (restartPolicy: Always): web-n1" in it.out)
        it.client.post("stop", "default", "web")
        it.client.post("stop", "default", "job")
        assert it.wait() == 1
        assert "No pods found." in it.out


def test_a_directory_without_manifests_is_reported(tmp_path: Path) -> None:
    with running(tmp_path) as it:
        it.until(lambda: f"No pods yet. Watching for manifests in {tmp_path / 'm'}." in it.out)


def test_an_invalid_node_name_is_a_usage_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["run", str(tmp_path), "--node-name", "Bad Name!", "--root", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert '--node-name: Invalid value: "Bad Name!"' in result.output
