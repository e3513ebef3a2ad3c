"""One container in a keeper's care, step by step: files, signals, deadlines, ends and company."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podkeeper.runtimes.process.keeper.cgroup import Place
from podkeeper.runtimes.process.keeper.containers import Container, NotPossible
from podkeeper.runtimes.process.keeper.files import Json, read_json, start_ticks
from podkeeper.runtimes.process.keeper.launch import Launch, LaunchError
from podkeeper.runtimes.process.keeper.oom_score import oom_score
from tests.runtimes.process.fake_jail import SLEEP, FakeJail, ended, wait_for_end
from tests.runtimes.process.jailing import in_keeper
from tests.runtimes.process.manual_loop import ManualLoop

LAUNCH = Launch(argv=SLEEP, env={"PATH": "/usr/bin:/bin"})


class Scene:
    """A container in a directory of its own, a jail that starts plain processes, and what was told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = ManualLoop()
        self.jail = FakeJail()
        self.told: list[tuple[str, Json]] = []
        self.done: list[str] = []

    def container(self, launch: Launch = LAUNCH, **config: Any) -> Container:
        whole = {"container": "x", "launch": launch.to_json(), "facts": {"name": "web"}, "log": "web/0.log", **config}
        return Container(self.loop, self.jail, f"{self.directory}/logs", whole, lambda *news: self.told.append(news))

    def running(self, launch: Launch = LAUNCH, **config: Any) -> Container:
        container = self.container(launch, **config)
        container.start()
        self.told.clear()
        return container

    def cgroup(self, **files: str) -> Json:
        """A cgroup of plain files; `__` stands for a dot."""
        home = self.directory / "cgroup"
        home.mkdir(exist_ok=True)
        for name, text in files.items():
            (home / name.replace("__", ".")).write_text(text)
        place = Place(2, (("unified", str(home)),))
        return {"place": place.to_json(), "settings": {"memory.max": "7"}}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.chdir(tmp_path)
    before = files_open()
    made = Scene(tmp_path)
    yield made
    made.jail.end_all()
    for file in files_open() - before:
        os.close(file)


def files_open() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


def test_a_created_container_has_its_files_and_is_reported(scene: Scene) -> None:
    container = scene.container(target="")
    home = Path("containers/x")
    about = {"id": "x", "facts": {"name": "web"}, "state": "created"}
    assert scene.told == [("created", about)]
    assert container.describe() == about
    assert (container.id, container.pid, container.launch, container.target) == ("x", 0, LAUNCH, "")
    assert read_json("containers/x/state.json") == {"state": "created"}
    config = read_json("containers/x/config.json")
    assert config is not None
    assert (config["container"], config["facts"], Launch.from_json(config["launch"])) == ("x", {"name": "web"}, LAUNCH)
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "termination").stat().st_mode & 0o777 == 0o666
    assert sorted(os.listdir(home)) == ["config.json", "state.json", "termination"]
    assert not Path("logs").exists()


def test_the_termination_file_is_writable_for_all_whatever_the_umask(scene: Scene) -> None:
    before = os.umask(0o077)
    try:
        scene.container()
    finally:
        os.umask(before)
    assert Path("containers/x/termination").stat().st_mode & 0o777 == 0o666


def test_a_started_container_is_named_by_its_process(scene: Scene) -> None:
    container = scene.container()
    earliest = time.time_ns()
    container.start()
    (pid,) = scene.jail.started
    about = {"pid": pid, "ticks": start_ticks(pid), "state": "running"}
    event, told = scene.told[-1]
    assert earliest <= told["started_at"] <= time.time_ns()
    assert (event, {key: told[key] for key in about}, container.pid) == ("started", about, pid)
    assert read_json("containers/x/state.json") == {**about, "started_at": told["started_at"]}
    assert Path("logs/web/0.log").read_bytes() == b""
    container.start()
    assert (len(scene.told), len(scene.jail.launched)) == (2, 1)


def test_the_launch_gets_the_cgroup_and_its_limits_are_set(scene: Scene) -> None:
    config = scene.cgroup(memory__max="max")
    scene.running(cgroup=config)
    assert Path("cgroup/memory.max").read_text() == "7"
    assert scene.jail.launched == [
        Launch(**{**vars_of(LAUNCH), "cgroups": (f"{scene.directory}/cgroup/cgroup.procs",)})
    ]


def vars_of(launch: Launch) -> dict[str, Any]:
    return {**launch.to_json(), "binds": launch.binds}


def test_what_happens_is_reported_when_it_cannot_be_written_down(scene: Scene) -> None:
    container = scene.container()
    Path("containers/x/state.json.new").mkdir()
    container.start()
    container.stop(0, lambda: scene.done.append("stopped"))
    scene.loop.ring()
    container.ended(ended(container.pid))
    assert [event for event, _ in scene.told] == ["created", "started", "exited"]
    assert scene.done == ["stopped"]
    assert read_json("containers/x/state.json") == {"state": "created"}


@pytest.mark.parametrize("why", ["jail", "log", "cgroup", "target"])
def test_a_container_that_cannot_be_started_has_exited_and_leaves_no_file_open(scene: Scene, why: str) -> None:
    changes: dict[str, Any] = {}
    match why:
        case "jail":
            scene.jail.refuse = "no such program"
        case "log":
            Path("logs").write_text("a file is in the way")
        case "cgroup":
            changes["cgroup"] = {"place": {"version": 2, "directories": {"unified": "missing/x"}}, "settings": {}}
        case _:
            changes["target"] = "y"
    container = scene.container(stdin=True, **changes)
    before = files_open()
    with pytest.raises(LaunchError) as refused:
        container.start()
    event, about = scene.told[-1]
    expected = {
        "jail": "no such program",
        "log": f"[Errno 20] Not a directory: '{scene.directory}/logs/web'",
        "cgroup": "cannot make the container's cgroup: [Errno 2] No such file or directory: 'missing/x'",
        "target": "cannot see the processes of container y: it does not run",
    }
    assert str(refused.value) == about["message"] == expected[why]
    assert (event, about["state"], about["code"], about["signal"]) == ("exited", "exited", 128, 0)
    assert (about["reason"], about["started_at"]) == ("StartError", 0)
    assert about["finished_at"] <= time.time_ns()
    assert read_json("containers/x/state.json") == {key: about[key] for key in about if key not in ("id", "facts")}
    assert files_open() == before
    assert scene.jail.started == []


def test_a_container_beside_its_target_gets_the_targets_process(scene: Scene) -> None:
    container = scene.container(target="y")
    assert container.target == "y"
    container.start(beside=77)
    assert [spec.beside for spec in scene.jail.launched] == [77]


# ---- ends ------------------------------------------------------------------------------------


SIGNALS = {
    "": signal.SIGTERM,
    "SIGUSR1": signal.SIGUSR1,
    "SIGRTMIN+3": signal.SIGRTMIN + 3,
    "SIGNONSENSE": signal.SIGTERM,
    "SIGRTMIN+x": signal.SIGTERM,
}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_stop_sends_the_signal_of_the_container(scene: Scene, name: str) -> None:
    container = scene.running(stop_signal=name)
    pid = container.pid
    container.stop(30, lambda: scene.done.append("stopped"))
    assert (scene.loop.timers, scene.done) == ([30], [])
    status = ended(pid)
    assert os.WTERMSIG(status) == SIGNALS[name]
    container.ended(status)
    assert (scene.loop.timers, scene.done) == ([], ["stopped"])
    _, about = scene.told[-1]
    assert (about["code"], about["signal"]) == (128 + SIGNALS[name], SIGNALS[name])


DEAF = Launch(argv=("sh", "-c", "trap '' TERM; echo ready; exec sleep 600"), env={"PATH": "/usr/bin:/bin"})


def wait_for_output(scene: Scene, word: bytes) -> None:
    """Let the loop read the container's output until it is in the log."""
    while word not in Path("logs/web/0.log").read_bytes():
        ready, _, _ = select.select(list(scene.loop.readable), [], [], 10)
        assert ready
        for file in ready:
            scene.loop.readable[file]()


def test_of_several_stops_the_shortest_grace_counts(scene: Scene) -> None:
    container = scene.running(DEAF)
    wait_for_output(scene, b"ready")
    pid = container.pid
    for number, grace in enumerate((30.0, 60.0, 10.0, 20.0)):
        container.stop(grace, partial(scene.done.append, str(number)))
    assert scene.loop.timers == [10.0]
    scene.loop.ring()
    status = ended(pid)
    assert os.WTERMSIG(status) == signal.SIGKILL
    container.ended(status)
    assert scene.done == ["0", "1", "2", "3"]
    assert scene.told[-1][1]["reason"] == "Error"


@pytest.mark.parametrize("grace", [0.0, -1.0])
def test_a_stop_without_grace_is_a_kill(scene: Scene, grace: float) -> None:
    container = scene.running()
    container.stop(grace, lambda: scene.done.append("stopped"))
    assert scene.loop.timers == [0.0]
    scene.loop.ring()
    assert os.WTERMSIG(ended(container.pid)) == signal.SIGKILL


def test_one_that_does_not_run_is_stopped_at_once(scene: Scene) -> None:
    container = scene.container()
    container.stop(30, lambda: scene.done.append("stopped"))
    container.kill()
    container.leave_nobody()
    assert (scene.done, scene.loop.timers) == (["stopped"], [])


def test_a_container_that_is_spared_is_not_forced_and_can_be_asked_again(scene: Scene) -> None:
    container = scene.running(DEAF, stop_signal="SIGTERM")
    wait_for_output(scene, b"ready")
    container.spare()
    container.stop(10, lambda: scene.done.append("first"))
    container.spare()
    assert scene.loop.timers == []
    container.stop(20, lambda: scene.done.append("second"))
    assert scene.loop.timers == [20]
    assert scene.done == []


@pytest.mark.parametrize("spared", [False, True])
def test_the_signal_is_sent_again_only_after_the_container_was_spared(scene: Scene, spared: bool) -> None:
    script = "trap 'echo asked' USR1; trap 'echo mark' USR2; echo ready; while :; do sleep 600 & wait; done"
    container = scene.running(Launch(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}), stop_signal="SIGUSR1")
    wait_for_output(scene, b"ready")
    container.stop(30, lambda: None)
    wait_for_output(scene, b"asked")
    if spared:
        container.spare()
    container.stop(20, lambda: None)
    assert scene.loop.timers == [20]
    os.kill(container.pid, signal.SIGUSR2)  # the shell handles USR1 first
    wait_for_output(scene, b"mark")
    assert Path("logs/web/0.log").read_bytes().count(b"asked") == 1 + spared
    container.kill()
    ended(container.pid)


@pytest.mark.parametrize("way", ["killed", "ended by itself"])
def test_what_a_container_started_ends_with_it(scene: Scene, way: str) -> None:
    script = f"sleep 600 & echo $! > child; {'wait' if way == 'killed' else 'exit'}"
    container = scene.running(Launch(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}))
    deadline = time.monotonic() + 10
    while not (Path("child").exists() and Path("child").read_text().strip()):
        assert time.monotonic() < deadline
    child = int(Path("child").read_text())
    if way == "killed":
        container.kill()
    else:
        wait_for_end(container.pid)
        container.leave_nobody()
    ended(container.pid)
    while start_ticks(child) and b") Z" not in Path(f"/proc/{child}/stat").read_bytes():
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("walls", "namespace", "beside", "whole_group"),
    [(True, "own", 0, False), (False, "own", 0, True), (True, "pod", 0, True), (True, "own", 1, True)],
)
def test_where_a_pid_namespace_does_not_die_with_its_first_process_the_cgroup_is_killed(
    scene: Scene, walls: bool, namespace: str, beside: int, whole_group: bool
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a pid namespace")
    for act in (Container.kill, Container.leave_nobody):
        scene.jail.walls = walls
        launch = Launch(argv=SLEEP, env={"PATH": "/usr/bin:/bin"}, pid=namespace)
        name = act.__name__
        container = scene.container(launch, container=name, cgroup=scene.cgroup(cgroup__kill="0"), log="")
        container.start(beside)
        act(container)
        assert Path("cgroup/cgroup.kill").read_text() == ("1" if whole_group else "0")


ENDS = {
    "well": (0, 0, 0, "Completed"),
    "badly": (3 << 8, 3, 0, "Error"),
    "by a signal": (9, 137, 9, "Error"),
}


@pytest.mark.parametrize("way", ENDS)
def test_an_end_is_reported_with_code_reason_and_message(scene: Scene, way: str) -> None:
    status, code, number, reason = ENDS[way]
    before = files_open()
    container = scene.running(stdin=True)
    started_at = read_json("containers/x/state.json") or {}
    Path("containers/x/termination").write_text("the last words")
    container.ended(status)
    event, about = scene.told[-1]
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
    assert (container.pid, scene.loop.readable) == (0, {})
    assert files_open() == before


@pytest.mark.parametrize(
    ("policy", "status", "message"),
    [
        ("FallbackToLogsOnError", 1 << 8, "spoken\n"),
        ("FallbackToLogsOnError", 0, ""),
        ("File", 1 << 8, ""),
        (None, 1 << 8, ""),
    ],
)
def test_the_log_is_asked_for_the_message_only_after_a_bad_end(
    scene: Scene, policy: str | None, status: int, message: str
) -> None:
    launch = Launch(argv=("echo", "spoken"), env={"PATH": "/usr/bin:/bin"})
    container = scene.running(launch, **({} if policy is None else {"message_policy": policy}))
    ended(container.pid)
    container.ended(status)
    assert scene.told[-1][1]["message"] == message
    assert Path("logs/web/0.log").read_bytes().endswith(b" stdout F spoken\n")


@pytest.mark.parametrize(("kills", "reason"), [(1, "OOMKilled"), (0, "Error")])
def test_a_container_whose_cgroup_counts_an_oom_kill_says_so(scene: Scene, kills: int, reason: str) -> None:
    container = scene.running(cgroup=scene.cgroup())
    Path("cgroup/memory.events").write_text(f"oom 1\noom_kill {kills}\n")
    container.ended(9)
    assert scene.told[-1][1]["reason"] == reason


def test_the_cgroup_is_removed_with_the_end(scene: Scene) -> None:
    container = scene.running(cgroup=scene.cgroup())
    assert Path("cgroup").exists()
    container.ended(0)
    assert not Path("cgroup").exists()


# ---- company ---------------------------------------------------------------------------------


def test_one_that_does_not_run_takes_no_company(scene: Scene) -> None:
    container = scene.container()
    for act in (
        lambda: container.enter(("true",), (0, 1, 2), tty=False),
        lambda: container.attach([], stdin=True),
        container.reopen_log,
    ):
        with pytest.raises(NotPossible, match=r"^it does not run$"):
            act()
    assert scene.jail.entered == []


@pytest.mark.parametrize(
    ("tty", "env"),
    [(False, {"PATH": "/usr/bin:/bin"}), (True, {"PATH": "/usr/bin:/bin", "TERM": "xterm"})],
)
def test_a_command_has_the_containers_launch_with_its_own_program(scene: Scene, tty: bool, env: dict[str, str]) -> None:
    container = scene.running(cgroup=scene.cgroup())
    pid = container.enter(("true", "-v"), (0, 1, 2), tty=tty)
    assert os.waitstatus_to_exitcode(ended(pid)) == 0
    procs = (f"{scene.directory}/cgroup/cgroup.procs",)
    expected = {**vars_of(LAUNCH), "argv": ("true", "-v"), "tty": tty, "env": env, "cgroups": procs}
    assert scene.jail.entered == [(container.pid, Launch(**expected))]


def test_the_containers_own_term_goes_before_the_usual_one(scene: Scene) -> None:
    container = scene.running(Launch(argv=SLEEP, env={"PATH": "/usr/bin:/bin", "TERM": "dumb"}))
    ended(container.enter(("true",), (0, 1, 2), tty=True))
    assert scene.jail.entered[0][1].env["TERM"] == "dumb"


OFFERS: dict[str, tuple[Json, bool, Json, int]] = {
    "no stdin at all": ({}, True, {"tty": False, "stdin": False, "once": False}, 0),
    "stdin that is not wanted": ({"stdin": True}, False, {"tty": False, "stdin": False, "once": False}, 0),
    "stdin": ({"stdin": True}, True, {"tty": False, "stdin": True, "once": False}, 1),
    "stdin for one": ({"stdin": True, "stdin_once": True}, True, {"tty": False, "stdin": True, "once": True}, 1),
}


@pytest.mark.parametrize("name", OFFERS)
def test_who_attaches_gets_what_the_container_has(scene: Scene, name: str) -> None:
    config, wanted, about, files = OFFERS[name]
    container = scene.running(**config)
    offer, handed_out = container.attach([], stdin=wanted)
    assert (offer, len(handed_out)) == (about, files)
    again, more = container.attach([], stdin=wanted)
    left = files if not about["once"] else 0
    assert (again["stdin"], len(more)) == (bool(left), left)


def test_who_attaches_reads_stdout_and_stderr_from_now_on(scene: Scene) -> None:
    script = 'read line; echo "out $line"; echo "err $line" >&2'
    container = scene.running(Launch(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}), stdin=True)
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    _, (stdin,) = container.attach([out_end, err_end], stdin=True)
    os.close(out_end)
    os.close(err_end)
    os.write(stdin, b"hello\n")
    status = ended(container.pid)
    container.ended(status)
    assert (os.read(out, 99), os.read(err, 99)) == (b"out hello\n", b"err hello\n")
    assert (os.read(out, 99), os.read(err, 99)) == (b"", b"")
    lines = [line.split(b" ", 1)[1] for line in Path("logs/web/0.log").read_bytes().splitlines()]
    assert lines == [b"stdout F out hello", b"stderr F err hello"]


def test_a_log_goes_on_in_a_new_file(scene: Scene) -> None:
    container = scene.running()
    log = Path("logs/web/0.log")
    log.rename("logs/web/old")
    container.reopen_log()
    assert log.exists()
    log.unlink()
    log.mkdir()
    with pytest.raises(NotPossible, match="Is a directory"):
        container.reopen_log()


def test_without_a_log_path_nothing_is_written(scene: Scene) -> None:
    container = scene.running(Launch(argv=("echo", "x"), env={"PATH": "/usr/bin:/bin"}), log="")
    container.ended(ended(container.pid))
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
def test_a_container_at_a_terminal_hands_it_out(scene: Scene, config: Json, wanted: bool, stdin: bool) -> None:
    before = files_open()
    script = "echo spoken; read line"
    launch = Launch(argv=("sh", "-c", script), env={"PATH": "/usr/bin:/bin"}, tty=True)
    container = scene.running(launch, **config)
    for _ in range(2):
        offer, (terminal,) = container.attach([], stdin=wanted)
        assert (offer, os.isatty(terminal)) == ({"tty": True, "stdin": stdin, "once": False}, True)
        os.close(terminal)
    wait_for_output(scene, b"spoken")
    assert len(scene.loop.readable) == 1
    container.kill()
    container.ended(ended(container.pid))
    assert b" stdout F spoken" in Path("logs/web/0.log").read_bytes()
    assert files_open() == before


def test_a_terminal_that_cannot_be_had_is_a_start_error(scene: Scene) -> None:
    before = files_open()
    scene.jail.refuse = "no such program"
    container = scene.container(Launch(argv=SLEEP, env={}, tty=True))
    with pytest.raises(LaunchError, match="no such program"):
        container.start()
    assert files_open() - before == set()


@pytest.mark.parametrize(
    ("before", "score", "inside"), [(-998, None, 0), (-998, 5, 5), (-1, 0, 0), (0, 5, 0), (7, 5, 7)]
)
def test_a_score_holds_inside_its_block_where_it_can_be_taken_back(before: int, score: int | None, inside: int) -> None:
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
