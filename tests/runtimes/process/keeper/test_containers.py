"""One container of a keeper: files, signals, deadlines, exits, exec and attach."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podkeeper.linux.cgroup import Cgroup
from podkeeper.linux.errors import LaunchError
from podkeeper.runtimes.process.keeper.containers import KeeperContainer, RequestRefused
from podkeeper.runtimes.process.keeper.files import Json, read_json, start_ticks
from podkeeper.runtimes.process.keeper.launch import Launch
from podkeeper.runtimes.process.keeper.oom_score import oom_score
from tests.runtimes.process.fake_jail import SLEEP, FakeJail, ended, wait_for_end
from tests.runtimes.process.jail_harness import in_keeper
from tests.runtimes.process.manual_loop import ManualLoop

LAUNCH = Launch(argv=SLEEP, env={"PATH": "/usr/bin:/bin"})


class Harness:
    """A directory for one container, a jail that starts plain processes, and the events."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = ManualLoop()
        self.jail = FakeJail()
        self.events: list[tuple[str, Json]] = []
        self.done: list[str] = []

    def container(self, launch: Launch = LAUNCH, **config: Any) -> KeeperContainer:
        request = {"container": "x", "launch": launch.to_json(), "facts": {"name": "web"}, "log": "web/0.log", **config}
        return KeeperContainer(
            self.loop, self.jail, f"{self.directory}/logs", request, lambda *event: self.events.append(event)
        )

    def running(self, launch: Launch = LAUNCH, **config: Any) -> KeeperContainer:
        container = self.container(launch, **config)
        container.start()
        self.events.clear()
        return container

    def cgroup(self, **files: str) -> Json:
        """Create a cgroup of plain files. `__` in a name means a dot."""
        directory = self.directory / "cgroup"
        directory.mkdir(exist_ok=True)
        for name, text in files.items():
            (directory / name.replace("__", ".")).write_text(text)
        place = Cgroup(2, (("unified", str(directory)),))
        return {"place": place.to_json(), "settings": {"memory.max": "7"}}


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.chdir(tmp_path)
    before = files_open()
    made = Harness(tmp_path)
    yield made
    made.jail.end_all()
    for file in files_open() - before:
        os.close(file)


def files_open() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


def test_a_created_container_has_its_files_and_sends_an_event(harness: Harness) -> None:
    container = harness.container(target="")
    directory = Path("containers/x")
    about = {"id": "x", "facts": {"name": "web"}, "state": "created"}
    assert harness.events == [("created", about)]
    assert container.describe() == about
    assert (container.id, container.pid, container.launch, container.target) == ("x", 0, LAUNCH, "")
    assert read_json("containers/x/state.json") == {"state": "created"}
    config = read_json("containers/x/config.json")
    assert config is not None
    stored = replace(LAUNCH, argv=(), env={})
    assert (config["container"], config["facts"], Launch.from_json(config["launch"])) == ("x", {"name": "web"}, stored)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "termination").stat().st_mode & 0o777 == 0o666
    assert sorted(os.listdir(directory)) == ["config.json", "state.json", "termination"]
    assert not Path("logs").exists()


def test_the_termination_file_is_writable_for_all_whatever_the_umask(harness: Harness) -> None:
    before = os.umask(0o077)
    try:
        harness.container()
    finally:
        os.umask(before)
    assert Path("containers/x/termination").stat().st_mode & 0o777 == 0o666


def test_a_started_container_reports_its_process(harness: Harness) -> None:
    container = harness.container()
    earliest = time.time_ns()
    container.start()
    (pid,) = harness.jail.started
    about = {"pid": pid, "ticks": start_ticks(pid), "state": "running"}
    event, reported = harness.events[-1]
    assert earliest <= reported["started_at"] <= time.time_ns()
    assert (event, {key: reported[key] for key in about}, container.pid) == ("started", about, pid)
    assert read_json("containers/x/state.json") == {**about, "started_at": reported["started_at"]}
    assert Path("logs/web/0.log").read_bytes() == b""
    container.start()
    assert (len(harness.events), len(harness.jail.launched)) == (2, 1)


def test_the_launch_gets_the_cgroup_and_its_limits_are_set(harness: Harness) -> None:
    config = harness.cgroup(memory__max="max")
    harness.running(cgroup=config)
    assert Path("cgroup/memory.max").read_text() == "7"
    assert harness.jail.launched == [
        Launch(**{**vars_of(LAUNCH), "cgroups": (f"{harness.directory}/cgroup/cgroup.procs",)})
    ]


def vars_of(launch: Launch) -> dict[str, Any]:
    return {**launch.to_json(), "binds": launch.binds}


def test_events_are_sent_even_if_the_state_cannot_be_written(harness: Harness) -> None:
    container = harness.container()
    Path("containers/x/state.json.new").mkdir()
    container.start()
    container.stop(0, lambda: harness.done.append("stopped"))
    harness.loop.run_timer()
    container.reaped(ended(container.pid))
    assert [event for event, _ in harness.events] == ["created", "started", "exited"]
    assert harness.done == ["stopped"]
    assert read_json("containers/x/state.json") == {"state": "created"}


@pytest.mark.parametrize("why", ["jail", "log", "cgroup", "target"])
def test_a_container_that_cannot_be_started_has_exited_and_leaves_no_file_open(harness: Harness, why: str) -> None:
    changes: dict[str, Any] = {}
    match why:
        case "jail":
            harness.jail.refuse = "no such program"
        case "log":
            Path("logs").write_text("a file is in the way")
        case "cgroup":
            changes["cgroup"] = {"place": {"version": 2, "directories": {"unified": "missing/x"}}, "settings": {}}
        case _:
            changes["target"] = "y"
    container = harness.container(stdin=True, **changes)
    before = files_open()
    with pytest.raises(LaunchError) as refused:
        container.start()
    event, about = harness.events[-1]
    expected = {
        "jail": "no such program",
        "log": f"[Errno 20] Not a directory: '{harness.directory}/logs/web'",
        "cgroup": "cannot create the container's cgroup: [Errno 2] No such file or directory: 'missing/x'",
        "target": "cannot share the processes of container y: it is not running",
    }
    assert str(refused.value) == about["message"] == expected[why]
    assert (event, about["state"], about["code"], about["signal"]) == ("exited", "exited", 128, 0)
    assert (about["reason"], about["started_at"]) == ("StartError", 0)
    assert about["finished_at"] <= time.time_ns()
    assert read_json("containers/x/state.json") == {key: about[key] for key in about if key not in ("id", "facts")}
    assert files_open() == before
    assert harness.jail.started == []


def test_a_container_with_a_target_gets_the_targets_pid(harness: Harness) -> None:
    container = harness.container(target="y")
    assert container.target == "y"
    container.start(beside=77)
    assert [spec.beside for spec in harness.jail.launched] == [77]


# ---- exits -----------------------------------------------------------------------------------


SIGNALS = {
    "": signal.SIGTERM,
    "SIGUSR1": signal.SIGUSR1,
    "SIGRTMIN+3": signal.SIGRTMIN + 3,
    "SIGNONSENSE": signal.SIGTERM,
    "SIGRTMIN+x": signal.SIGTERM,
}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_stop_sends_the_configured_signal(harness: Harness, name: str) -> None:
    container = harness.running(stop_signal=name)
    pid = container.pid
    container.stop(30, lambda: harness.done.append("stopped"))
    assert (harness.loop.timers, harness.done) == ([30], [])
    status = ended(pid)
    assert os.WTERMSIG(status) == SIGNALS[name]
    container.reaped(status)
    assert (harness.loop.timers, harness.done) == ([], ["stopped"])
    _, about = harness.events[-1]
    assert (about["code"], about["signal"]) == (128 + SIGNALS[name], SIGNALS[name])


DEAF = Launch(argv=("sh", "-c", "trap '' TERM; echo ready; exec sleep 600"), env={"PATH": "/usr/bin:/bin"})


def wait_for_output(harness: Harness, word: bytes) -> None:
    """Run the loop until a word is in the log."""
    while word not in Path("logs/web/0.log").read_bytes():
        ready, _, _ = select.select(list(harness.loop.readable), [], [], 10)
        assert ready
        for file in ready:
            harness.loop.readable[file]()


def test_the_shortest_grace_period_of_several_stops_counts(harness: Harness) -> None:
    container = harness.running(DEAF)
    wait_for_output(harness, b"ready")
    pid = container.pid
    for number, grace in enumerate((30.0, 60.0, 10.0, 20.0)):
        container.stop(grace, partial(harness.done.append, str(number)))
    assert harness.loop.timers == [10.0]
    harness.loop.run_timer()
    status = ended(pid)
    assert os.WTERMSIG(status) == signal.SIGKILL
    container.reaped(status)
    assert harness.done == ["0", "1", "2", "3"]
    assert harness.events[-1][1]["reason"] == "Error"


@pytest.mark.parametrize("grace", [0.0, -1.0])
def test_a_stop_without_grace_is_a_kill(harness: Harness, grace: float) -> None:
    container = harness.running()
    container.stop(grace, lambda: harness.done.append("stopped"))
    assert harness.loop.timers == [0.0]
    harness.loop.run_timer()
    assert os.WTERMSIG(ended(container.pid)) == signal.SIGKILL


def test_stopping_a_container_that_is_not_running_is_a_no_op(harness: Harness) -> None:
    container = harness.container()
    container.stop(30, lambda: harness.done.append("stopped"))
    container.kill()
    container.kill_leftovers()
    assert (harness.done, harness.loop.timers) == (["stopped"], [])


def test_a_cancelled_stop_does_not_kill_and_can_be_repeated(harness: Harness) -> None:
    container = harness.running(DEAF, stop_signal="SIGTERM")
    wait_for_output(harness, b"ready")
    container.cancel_stop()
    container.stop(10, lambda: harness.done.append("first"))
    container.cancel_stop()
    assert harness.loop.timers == []
    container.stop(20, lambda: harness.done.append("second"))
    assert harness.loop.timers == [20]
    assert harness.done == []


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_signal_is_sent_again_only_after_a_cancelled_stop(harness: Harness, is_cancelled: bool) -> None:
    script = "trap 'echo usr1' USR1; trap 'echo mark' USR2; echo ready; while :; do sleep 600 & wait; done"
    container = harness.running(Launch(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}), stop_signal="SIGUSR1")
    wait_for_output(harness, b"ready")
    container.stop(30, lambda: None)
    wait_for_output(harness, b"usr1")
    if is_cancelled:
        container.cancel_stop()
    container.stop(20, lambda: None)
    assert harness.loop.timers == [20]
    os.kill(container.pid, signal.SIGUSR2)  # the shell handles USR1 first
    wait_for_output(harness, b"mark")
    assert Path("logs/web/0.log").read_bytes().count(b"usr1") == 1 + is_cancelled
    container.kill()
    ended(container.pid)


@pytest.mark.parametrize("way", ["killed", "ended by itself"])
def test_processes_of_a_container_end_with_it(harness: Harness, way: str) -> None:
    script = f"sleep 600 & echo $! > child; {'wait' if way == 'killed' else 'exit'}"
    container = harness.running(Launch(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}))
    deadline = time.monotonic() + 10
    while not (Path("child").exists() and Path("child").read_text().strip()):
        assert time.monotonic() < deadline
    child = int(Path("child").read_text())
    if way == "killed":
        container.kill()
    else:
        wait_for_end(container.pid)
        container.kill_leftovers()
    ended(container.pid)
    while start_ticks(child) and b") Z" not in Path(f"/proc/{child}/stat").read_bytes():
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("pid_namespaces", "namespace", "beside", "whole_group"),
    [(True, "own", 0, False), (False, "own", 0, True), (True, "pod", 0, True), (True, "own", 1, True)],
)
def test_without_its_own_pid_namespace_the_cgroup_is_killed(
    harness: Harness, pid_namespaces: bool, namespace: str, beside: int, whole_group: bool
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a pid namespace")
    for act in (KeeperContainer.kill, KeeperContainer.kill_leftovers):
        harness.jail.pid_namespaces = pid_namespaces
        launch = Launch(argv=SLEEP, env={"PATH": "/usr/bin:/bin"}, pid=namespace)
        name = act.__name__
        container = harness.container(launch, container=name, cgroup=harness.cgroup(cgroup__kill="0"), log="")
        container.start(beside)
        act(container)
        assert Path("cgroup/cgroup.kill").read_text() == ("1" if whole_group else "0")


ENDS = {
    "well": (0, 0, 0, "Completed"),
    "badly": (3 << 8, 3, 0, "Error"),
    "by a signal": (9, 137, 9, "Error"),
}


@pytest.mark.parametrize("way", ENDS)
def test_an_exit_is_reported_with_code_reason_and_message(harness: Harness, way: str) -> None:
    status, code, number, reason = ENDS[way]
    before = files_open()
    container = harness.running(stdin=True)
    started_at = read_json("containers/x/state.json") or {}
    Path("containers/x/termination").write_text("the last words")
    container.reaped(status)
    event, about = harness.events[-1]
    assert started_at["started_at"] <= about.pop("finished_at") <= time.time_ns()
    assert (event, about) == (
        "exited",
        {
            "id": "x",
            "facts": {"name": "web"},
            "state": "exited",
            "code": code,
            "signal": number,
            "reason": reason,
            "message": "the last words",
            "started_at": started_at["started_at"],
        },
    )
    assert (container.pid, harness.loop.readable) == (0, {})
    assert files_open() == before


@pytest.mark.parametrize(
    ("policy", "status", "message"),
    [
        ("FallbackToLogsOnError", 1 << 8, "written\n"),
        ("FallbackToLogsOnError", 0, ""),
        ("File", 1 << 8, ""),
        (None, 1 << 8, ""),
    ],
)
def test_the_log_is_used_for_the_message_only_after_a_failure(
    harness: Harness, policy: str | None, status: int, message: str
) -> None:
    launch = Launch(argv=("echo", "written"), env={"PATH": "/usr/bin:/bin"})
    container = harness.running(launch, **({} if policy is None else {"message_policy": policy}))
    ended(container.pid)
    container.reaped(status)
    assert harness.events[-1][1]["message"] == message
    assert Path("logs/web/0.log").read_bytes().endswith(b" stdout F written\n")


@pytest.mark.parametrize(("kills", "reason"), [(1, "OOMKilled"), (0, "Error")])
def test_an_oom_kill_in_the_cgroup_is_the_reason(harness: Harness, kills: int, reason: str) -> None:
    container = harness.running(cgroup=harness.cgroup())
    Path("cgroup/memory.events").write_text(f"oom 1\noom_kill {kills}\n")
    container.reaped(9)
    assert harness.events[-1][1]["reason"] == reason


def test_the_cgroup_is_removed_after_the_exit(harness: Harness) -> None:
    container = harness.running(cgroup=harness.cgroup())
    assert Path("cgroup").exists()
    container.reaped(0)
    assert not Path("cgroup").exists()


# ---- exec, attach, logs ----------------------------------------------------------------------


def test_exec_attach_and_reopen_log_are_refused_unless_running(harness: Harness) -> None:
    container = harness.container()
    for act in (
        lambda: container.enter(("true",), (0, 1, 2), tty=False),
        lambda: container.attach([], stdin=True),
        container.reopen_log,
    ):
        with pytest.raises(RequestRefused, match=r"^the container is not running$"):
            act()
    assert harness.jail.entered == []


@pytest.mark.parametrize(
    ("tty", "env"),
    [(False, {"PATH": "/usr/bin:/bin"}), (True, {"PATH": "/usr/bin:/bin", "TERM": "xterm"})],
)
def test_a_command_has_the_containers_launch_with_its_own_program(
    harness: Harness, tty: bool, env: dict[str, str]
) -> None:
    container = harness.running(cgroup=harness.cgroup())
    pid = container.enter(("true", "-v"), (0, 1, 2), tty=tty)
    assert os.waitstatus_to_exitcode(ended(pid)) == 0
    procs = (f"{harness.directory}/cgroup/cgroup.procs",)
    expected = {**vars_of(LAUNCH), "argv": ("true", "-v"), "tty": tty, "env": env, "cgroups": procs}
    assert harness.jail.entered == [(container.pid, Launch(**expected))]


def test_the_containers_term_overrides_the_default(harness: Harness) -> None:
    container = harness.running(Launch(argv=SLEEP, env={"PATH": "/usr/bin:/bin", "TERM": "dumb"}))
    ended(container.enter(("true",), (0, 1, 2), tty=True))
    assert harness.jail.entered[0][1].env["TERM"] == "dumb"


OFFERS: dict[str, tuple[Json, bool, Json, int]] = {
    "no stdin": ({}, True, {"tty": False, "stdin": False, "once": False}, 0),
    "stdin not requested": ({"stdin": True}, False, {"tty": False, "stdin": False, "once": False}, 0),
    "stdin": ({"stdin": True}, True, {"tty": False, "stdin": True, "once": False}, 1),
    "stdin once": ({"stdin": True, "stdin_once": True}, True, {"tty": False, "stdin": True, "once": True}, 1),
}


@pytest.mark.parametrize("name", OFFERS)
def test_attach_returns_the_stdin_of_the_container(harness: Harness, name: str) -> None:
    config, wanted, about, files = OFFERS[name]
    container = harness.running(**config)
    offer, handed_out = container.attach([], stdin=wanted)
    assert (offer, len(handed_out)) == (about, files)
    again, more = container.attach([], stdin=wanted)
    left = files if not about["once"] else 0
    assert (again["stdin"], len(more)) == (bool(left), left)


def test_attach_copies_stdout_and_stderr_from_now_on(harness: Harness) -> None:
    script = 'read line; echo "out $line"; echo "err $line" >&2'
    container = harness.running(Launch(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}), stdin=True)
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    _, (stdin,) = container.attach([out_end, err_end], stdin=True)
    os.close(out_end)
    os.close(err_end)
    os.write(stdin, b"hello\n")
    status = ended(container.pid)
    container.reaped(status)
    assert (os.read(out, 99), os.read(err, 99)) == (b"out hello\n", b"err hello\n")
    assert (os.read(out, 99), os.read(err, 99)) == (b"", b"")
    lines = [line.split(b" ", 1)[1] for line in Path("logs/web/0.log").read_bytes().splitlines()]
    assert lines == [b"stdout F out hello", b"stderr F err hello"]


def test_a_log_continues_in_a_new_file(harness: Harness) -> None:
    container = harness.running()
    log = Path("logs/web/0.log")
    log.rename("logs/web/old")
    container.reopen_log()
    assert log.exists()
    log.unlink()
    log.mkdir()
    with pytest.raises(RequestRefused, match="Is a directory"):
        container.reopen_log()


def test_without_a_log_path_nothing_is_written(harness: Harness) -> None:
    container = harness.running(Launch(argv=("echo", "x"), env={"PATH": "/usr/bin:/bin"}), log="")
    container.reaped(ended(container.pid))
    assert container.log.path == ""
    assert not Path("logs").exists()


@pytest.mark.parametrize(
    ("config", "wanted", "stdin"),
    [
        ({"stdin": True}, True, True),
        ({"stdin": True, "stdin_once": True}, True, True),
        ({"stdin": True}, False, False),
        ({}, True, False),
    ],
)
def test_attach_returns_the_terminal(harness: Harness, config: Json, wanted: bool, stdin: bool) -> None:
    before = files_open()
    script = "echo written; read line"
    launch = Launch(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}, tty=True)
    container = harness.running(launch, **config)
    for _ in range(2):
        offer, (terminal,) = container.attach([], stdin=wanted)
        assert (offer, os.isatty(terminal)) == ({"tty": True, "stdin": stdin, "once": False}, True)
        os.close(terminal)
    wait_for_output(harness, b"written")
    assert len(harness.loop.readable) == 1
    container.kill()
    container.reaped(ended(container.pid))
    assert b" stdout F written" in Path("logs/web/0.log").read_bytes()
    assert files_open() == before


def test_a_missing_terminal_is_a_start_error(harness: Harness) -> None:
    before = files_open()
    harness.jail.refuse = "no such program"
    container = harness.container(Launch(argv=SLEEP, env={}, tty=True))
    with pytest.raises(LaunchError, match="no such program"):
        container.start()
    assert files_open() - before == set()


@pytest.mark.parametrize(
    ("before", "score", "inside"), [(-998, None, 0), (-998, 5, 5), (-1, 0, 0), (0, 5, 0), (7, 5, 7)]
)
def test_an_oom_score_holds_inside_its_block_if_it_can_be_restored(before: int, score: int | None, inside: int) -> None:
    own = Path("/proc/self/oom_score_adj")

    def action() -> list[int]:
        try:
            own.write_text(str(before))
        except PermissionError:
            return []
        with oom_score(score):
            found = [int(own.read_text())]
        found.append(int(own.read_text()))
        with suppress(LaunchError), oom_score(score):
            raise LaunchError("no such program")
        return [*found, int(own.read_text())]

    found = in_keeper(action)
    if not found:
        pytest.skip("needs the power to lower a score")
    assert found == [inside, before, before]
