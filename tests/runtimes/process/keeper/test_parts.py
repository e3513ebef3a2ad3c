"""Small parts of keepers: files, processes, launches, volume ownership."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from podkeeper.linux.errors import LaunchError
from podkeeper.linux.idmap import HELP, MORE_HELP
from podkeeper.runtimes.process.keeper import child, files, kill
from podkeeper.runtimes.process.keeper.cleanup import remove_trees
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.launch import MASKED_PATHS, READ_ONLY_PATHS, Bind, Launch
from podkeeper.runtimes.process.keeper.volume_ownership import set_group
from tests.runtimes.process.jail_harness import in_keeper

# ---- volume ownership ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isolation", "group", "advice"),
    [
        (None, 0, HELP),
        (Isolation("full"), 1, HELP),
        (Isolation("user"), 1, HELP),
        (Isolation("user", gids=(100_000, 10)), 11, MORE_HELP),
    ],
)
def test_a_group_that_is_not_mapped_is_refused_with_advice(
    isolation: Isolation | None, group: int, advice: str
) -> None:
    with pytest.raises(LaunchError) as refused:
        set_group("/nowhere", group, isolation)
    text = f"podkeeper may not use group ID {group}; {advice}"
    assert str(refused.value) == text


def test_an_ordinary_user_sets_its_own_group_including_links() -> None:
    with tempfile.TemporaryDirectory(prefix="podkeeper-give-") as directory:
        os.makedirs(f"{directory}/a/b")
        Path(directory, "a/file").write_text("")
        os.symlink("/etc/passwd", f"{directory}/a/link")
        names = ("", "/a", "/a/b", "/a/file", "/a/link")
        if os.geteuid() == 0:
            for name in names:
                os.chown(directory + name, 65534, 1, follow_symlinks=False)

        def action() -> None:
            set_group(directory, 0, Isolation("user"))

        in_keeper(action, "user")
        group = 65534 if os.geteuid() == 0 else os.getegid()
        assert {name: os.lstat(directory + name).st_gid for name in names} == dict.fromkeys(names, group)
        assert os.stat("/etc/passwd").st_gid != 65534


# ---- files and processes ------------------------------------------------------------------------


def test_a_json_file_is_complete_or_missing(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    assert files.read_json(path) is None
    files.write_json(path, {"a": 1, "b": [1, "ü"]})
    assert Path(path).read_text() == '{"a":1,"b":[1,"\\u00fc"]}'
    assert files.read_json(path) == {"a": 1, "b": [1, "ü"]}
    assert os.listdir(tmp_path) == ["x.json"]
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == {"a": 1, "b": [1, "ü"]}
    for torn in (b"", b'{"a"', b"[1]", b"null", b'{"a":"\xff'):
        Path(path).write_bytes(torn)
        assert files.read_json(path) is None


def test_start_ticks_identify_a_process() -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert files.start_ticks(os.getpid()) == int(fields[19]) > 0
    assert files.start_ticks(2**22 + 1) == 0
    assert files.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_signals_to_ended_processes_are_ignored() -> None:
    for act in (kill.send, kill.send_group):
        act(2**22 + 1, signal.SIGKILL)
    kill.kill_session(2**22 + 1)
    assert kill.children(2**22 + 1) == ()


def test_children_are_found() -> None:
    def action() -> bool:
        pids = [os.posix_spawnp("sleep", ("sleep", "600"), os.environ) for _ in range(2)]
        found = kill.children(os.getpid())
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return sorted(found) == sorted(pids)

    assert in_keeper(action)


def test_remove_trees_deletes_several_trees_with_files_and_links(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_text("")
    (tmp_path / "alone").write_text("")
    (tmp_path / "kept").write_text("")
    remove_trees(str(tmp_path / "a"), str(tmp_path / "alone"), str(tmp_path / "missing/x"), str(tmp_path / "missing"))
    assert os.listdir(tmp_path) == ["kept"]


# ---- launches and programs ----------------------------------------------------------------------


def test_launch_defaults() -> None:
    made = Launch.from_json({"argv": ["a"], "env": {}, "invented": 1})
    assert made == Launch(argv=("a",), env={})
    assert (made.pid, made.ipc, made.uts, made.user, made.group) == ("own", "pod", "pod", None, None)
    assert (made.masked, made.read_only_paths) == (MASKED_PATHS, READ_ONLY_PATHS)
    assert {"/proc/kcore", "/proc/keys", "/sys/firmware", "/proc/timer_list"} <= set(MASKED_PATHS)
    assert set(READ_ONLY_PATHS) == {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
    switches = ("privileged", "no_new_privileges", "read_only_root", "tty", "most_processes", "beside")
    assert not any(getattr(made, name) for name in switches)
    bind = Bind("/a", "/b")
    assert (bind.read_only, bind.recursive_read_only, bind.optional, bind.propagation) == (False, False, False, "")
    complete = Launch(argv=("a",), env={"B": "1"}, binds=(bind, Bind("/c", "/d", True, "Bidirectional")), groups=(1, 2))
    assert Launch.from_json(complete.to_json()) == complete


def test_find_executable_follows_go(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "tool").write_text("")
        (directory / "plain").write_text("")
    (first / "dir").mkdir()
    (second / "tool").chmod(0o755)
    (second / "dir").write_text("")
    (second / "dir").chmod(0o755)
    search = f"{first}:{second}"
    assert child.find_executable("tool", search) == f"{second}/tool"
    assert child.find_executable("dir", search) == f"{second}/dir"
    assert child.find_executable(f"{second}/tool", "") == f"{second}/tool"
    refusals: dict[str, str] = {
        "none": 'exec: "none": executable file not found in $PATH',
        "plain": 'exec: "plain": executable file not found in $PATH',
        "": 'exec: "": executable file not found in $PATH',
        f"{first}/none": f'exec: "{first}/none": stat {first}/none: no such file or directory',
        f"{first}/dir": f'exec: "{first}/dir": is a directory',
        f"{first}/plain": f'exec: "{first}/plain": permission denied',
    }
    for name, text in refusals.items():
        with pytest.raises(LaunchError) as refused:
            child.find_executable(name, search)
        assert str(refused.value) == text


def test_an_empty_path_entry_is_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tool").write_text("")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert child.find_executable("tool", "/nowhere:") == "./tool"


@pytest.mark.parametrize(
    ("error", "text"),
    [(OSError(2, "x"), "no such file or directory"), (OSError("Odd"), "odd"), (OSError(""), "")],
)
def test_error_text_follows_go(error: OSError, text: str) -> None:
    assert child.error_text(error) == text


# ---- isolation -----------------------------------------------------------------------------------


def test_isolation_round_trips_through_json() -> None:
    found = Isolation("user", True, "split", ",userxattr", "memory", (1, 2), (3, 4), True, ("careful",))
    assert found.to_json() == {
        "namespaces": "user",
        "pid": True,
        "overlay": "split",
        "overlay_options": ",userxattr",
        "upper": "memory",
        "uids": (1, 2),
        "gids": (3, 4),
        "counts": True,
        "warnings": ("careful",),
    }
    assert Isolation.from_json({**found.to_json(), "uids": [1, 2], "gids": [3, 4], "warnings": ["careful"]}) == found
    assert Isolation() == Isolation("none", False, "", "", "disk", (0, 0), (0, 0), False, ())
