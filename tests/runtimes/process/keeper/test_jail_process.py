"""The process of a container: start, exec, end, user and capabilities."""

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from podkeeper.linux import capabilities, libc
from podkeeper.linux.errors import LaunchError
from podkeeper.runtimes.process.keeper.isolation import Isolation
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.keeper.launch import Bind, Launch
from tests.runtimes.process.jail_harness import (
    PATH,
    KeeperFailed,
    Machine,
    end,
    in_keeper,
    machine_for,
    machines,
    run,
    start,
    state_directory,
)

# The default set of containerd without NET_RAW, and without MKNOD because no cgroup limits the devices here.
DEFAULT_CAPS = 0x00000000A80425FB & ~(1 << 13) & ~(1 << 27)


anywhere = machines("root", "user", "root without namespaces", "user without namespaces")
machine = machines("root", "user")
as_root = machines("root")
as_user = machines("user")


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not check():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def caps(line: str, output: str) -> int:
    found = re.search(rf"^{line}:\s+([0-9a-f]+)$", output, re.MULTILINE)
    assert found, output
    return int(found[1], 16)


ERRORS = {
    "a name that is not in PATH": (("absent",), 'exec: "absent": executable file not found in $PATH'),
    "a missing path": (("/no/such",), 'exec: "/no/such": stat /no/such: no such file or directory'),
    "a file that is not a program": (("/etc/passwd",), 'exec: "/etc/passwd": permission denied'),
    "a directory": (("/etc",), 'exec: "/etc": is a directory'),
    "an empty name": (("",), 'exec: "": executable file not found in $PATH'),
    "nothing": ((), "no command specified"),
}  # fmt: skip


@pytest.mark.parametrize("argv, message", ERRORS.values(), ids=ERRORS.keys())
def test_the_error_of_a_command_that_cannot_run_is_the_kubelets(
    anywhere: Machine, argv: tuple[str, ...], message: str
) -> None:
    with pytest.raises(KeeperFailed) as caught:
        anywhere.run("", argv=argv)
    assert str(caught.value) == f"LaunchError: {message}"


@pytest.mark.parametrize("run_as, namespaces", [("root", ""), ("user", ""), ("root", "none"), ("user", "none")])
def test_a_program_for_another_architecture_is_reported(run_as: str, namespaces: str) -> None:
    with state_directory(run_as, "/tmp") as state:
        there = machine_for(run_as, state, namespaces)
        program = there.make("program", "\x7fELF, but not really")
        with pytest.raises(KeeperFailed) as caught:
            there.run("", argv=(program,))
    assert str(caught.value) == f"LaunchError: exec {program}: exec format error"


def test_a_failed_launch_leaves_no_process(anywhere: Machine) -> None:
    def action() -> str:
        with pytest.raises(LaunchError):
            start(NamespaceJail(isolation=anywhere.isolation), anywhere.spec("", argv=("no-such-program",)))
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        return "none"

    assert anywhere.in_keeper(action) == "none"


def test_the_command_gets_its_arguments_environment_and_exit_code(anywhere: Machine) -> None:
    spec: dict[str, Any] = {
        "argv": ("sh", "-c", 'echo "$0|$1|$A"; exit 3', "a b", ""),
        "env": {"A": "ä=1", "PATH": PATH},
    }
    assert anywhere.run("", **spec) == (3, "a b||ä=1\n")


def test_the_program_is_searched_in_the_path_of_the_container(machine: Machine) -> None:
    machine.make("bin/greet", "#!/bin/sh\necho hello\n")
    binds = (Bind(f"{machine.state}/bin", "/opt/greet/bin"),)
    assert machine.run("", argv=("greet",), env={"PATH": "/nowhere:/opt/greet/bin"}, binds=binds) == (0, "hello\n")


def test_signals_files_and_session_are_those_of_a_fresh_process(anywhere: Machine) -> None:
    def action() -> tuple[int, str]:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        leak = os.dup(2)
        os.set_inheritable(leak, True)
        script = (
            "grep -E 'SigBlk|SigIgn|SigCgt' /proc/self/status; ls /proc/$$/fd; ps -o sid= -p $$ | xargs test $$ -eq"
        )
        argv = ("bash", "-c", script) if os.path.exists("/bin/bash") else ("sh", "-c", script)
        return run(NamespaceJail(isolation=anywhere.isolation), anywhere.spec("", argv=argv))

    code, output = anywhere.in_keeper(action)
    lines = output.splitlines()
    assert (code, [line.split()[1] for line in lines[:2]]) == (0, ["0" * 16, "0" * 16])
    assert set(lines[3:]) <= {"0", "1", "2", "255"}  # 255: bash's own


def test_a_container_is_killed_with_its_keeper(anywhere: Machine) -> None:
    reader, writer = os.pipe()
    # A change of user clears the parent death signal.
    other: dict[str, Any] = {"user": 1000, "group": 1000} if anywhere.run_as == "root" else {}

    def action() -> int:
        jail = NamespaceJail(isolation=anywhere.isolation)
        return jail.launch(anywhere.spec("sleep 60 & wait", **other), 0, writer, writer)  # then the keeper ends

    group = anywhere.in_keeper(action)
    os.close(writer)
    started = time.monotonic()
    eventually(lambda: not os.path.exists(f"/proc/{group}"))
    if anywhere.isolation.namespaces == "none":  # without a PID namespace, the keeper must kill its children
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b""
    assert time.monotonic() - started < 30


def test_all_processes_end_with_the_first_one(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        return run(NamespaceJail(isolation=machine.isolation), machine.spec("sleep 60 & echo started"))

    started = time.monotonic()
    assert machine.in_keeper(action) == (0, "started\n")  # end of output: sleep has ended
    assert time.monotonic() - started < 30


def test_a_process_joins_its_cgroups_before_it_runs(anywhere: Machine) -> None:
    procs = anywhere.make("cgroup.procs", "")
    assert anywhere.run("true", cgroups=(procs,))[0] == 0
    with open(procs, encoding="utf-8") as file:
        assert file.read() == "0"
    with pytest.raises(KeeperFailed, match="cannot join the cgroup /no/such: no such file or directory"):
        anywhere.run("true", name="b", cgroups=("/no/such/cgroup.procs",))


def test_containers_of_a_pod_can_share_a_pid_namespace(machine: Machine) -> None:
    def action() -> tuple[str, str, bool]:
        jail = NamespaceJail(isolation=machine.isolation, share_pid=True, shm=True)
        first = start(
            jail, machine.spec("", "one", argv=("sleep", "60"), pid="pod")
        )  # after exec, so the name is `sleep`
        seen = run(jail, machine.spec("grep -l sleep /proc/[0-9]*/comm | wc -l; echo $$", "two", pid="pod"))[1]
        alone = run(jail, machine.spec("echo $$", "three"))[1]
        mine = os.getpgid(first) == first and jail.pause_pid > 0
        jail.close()
        os.waitpid(first, 0)  # all processes end with the pause process
        return seen, alone, mine

    seen, alone, mine = machine.in_keeper(action)
    count, own = seen.split()
    assert (count, int(own) > 1, alone, mine) == ("1", True, "1\n", True)


def test_a_container_may_share_the_processes_of_another_with_files_of_its_own(machine: Machine) -> None:
    def action() -> str:
        jail = NamespaceJail(isolation=machine.isolation)
        first = start(jail, machine.spec("touch /tmp/mark; exec sleep 60", "one"))
        script = "until grep -q sleep /proc/1/comm; do :; done; cat /proc/1/comm; test -e /tmp/mark || echo own"
        seen = run(jail, machine.spec(script, "two", beside=first))[1]
        end(first)
        return seen

    assert machine.in_keeper(action) == "sleep\nown\n"


def test_orphans_in_a_shared_pid_namespace_do_not_stay_as_zombies(machine: Machine) -> None:
    def action() -> str:
        jail = NamespaceJail(isolation=machine.isolation, share_pid=True)
        run(jail, machine.spec("(sleep 0.01 &)", "one", pid="pod"))
        wait = "while test $i -lt 200; do grep -q sleep /proc/[0-9]*/comm || exit 0; sleep 0.02; i=$((i + 1)); done"
        script = f"i=0; {wait} 2>/dev/null; exit 1"
        code, output = run(jail, machine.spec(script, "two", pid="pod"))
        jail.close()
        return f"{code} {output}"

    assert machine.in_keeper(action) == "0 "


def test_host_pid_shows_all_processes(machine: Machine) -> None:
    me = os.getpid()
    assert machine.run(f"test -d /proc/{me} && echo $$ > /dev/null", {"host_pid": True})[0] == 0
    assert machine.run(f"test -d /proc/{me}", name="b", pid="host")[0] == 0
    assert machine.run(f"test -d /proc/{me}", name="d")[0] == 1


def test_a_second_process_enters_a_running_container(machine: Machine) -> None:
    def action() -> tuple[tuple[int, str], str, list[int], int]:
        jail = NamespaceJail(isolation=machine.isolation, hostname="pod-1")
        spec = machine.spec("echo inside > /tmp/mark; exec sleep 60", binds=(Bind(machine.state, "/data"),))
        pid = start(jail, spec)
        files = len(os.listdir("/proc/self/fd"))
        eventually(lambda: run(jail, replace(spec, argv=("test", "-s", "/tmp/mark")), pid)[0] == 0)
        until = "until grep -q sleep /proc/1/comm; do :; done"  # the marker is written before exec
        script = f"{until}; cat /tmp/mark; hostname; cat /proc/1/comm; test -d /data && pwd"
        answer = run(jail, replace(spec, argv=("sh", "-c", script), cwd="/etc"), pid)
        try:
            run(jail, replace(spec, argv=("no-such-program",)), pid)
            message = ""
        except LaunchError as error:
            message = str(error)
        end(pid)
        return answer, message, [child for child in _children() if child], len(os.listdir("/proc/self/fd")) - files

    answer, message, left, files_left = machine.in_keeper(action)
    assert answer == (0, "inside\npod-1\nsleep\n/etc\n")
    assert message == 'exec: "no-such-program": executable file not found in $PATH'
    assert (left, files_left) == ([], 0)


def test_a_command_is_killed_with_its_container(machine: Machine) -> None:
    def action() -> int:
        jail = NamespaceJail(isolation=machine.isolation)
        spec = machine.spec("exec sleep 60")
        pid = start(jail, spec)
        second = jail.enter(pid, replace(spec, argv=("sleep", "60")), 0, 1, 2)
        os.kill(pid, signal.SIGKILL)  # it ends after this process has reaped the second one
        code = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
        os.waitpid(pid, 0)
        return code

    assert machine.in_keeper(action) == -signal.SIGKILL


def test_entering_an_exited_container_is_refused(machine: Machine) -> None:
    def action() -> None:
        jail = NamespaceJail(isolation=machine.isolation)
        pid = start(jail, machine.spec("true"))
        os.waitpid(pid, 0)
        run(jail, machine.spec("true"), pid)

    with pytest.raises(KeeperFailed, match="LaunchError: cannot enter the container: no such file or directory"):
        machine.in_keeper(action)


def test_user_groups_and_capabilities(as_root: Machine) -> None:
    script = (
        "id -u; id -g; id -G; grep -E 'Cap(Eff|Prm|Bnd)' /proc/self/status; touch /tmp/mine && stat -c %u /tmp/mine"
    )
    code, output = as_root.run(script, user=1234, group=2345, groups=(3456, 4567))
    assert (code, output.split()[:3]) == (0, ["1234", "2345", "2345"])
    assert output.splitlines()[2] == "2345 3456 4567"
    assert (caps("CapEff", output), caps("CapPrm", output)) == (0, 0)
    assert output.split()[-1] == "1234"


def test_without_a_group_a_user_gets_its_primary_group(as_root: Machine) -> None:
    assert as_root.run("id -u; id -g", user=65534)[1].split() == ["65534", "65534"]
    assert as_root.run("id -u; id -g", name="b", user=54321)[1].split() == ["54321", "0"]


def test_a_non_root_user_may_open_its_stdout_again(as_root: Machine) -> None:
    assert as_root.run("echo hello > /dev/stdout", user=1234) == (0, "hello\n")


def test_a_container_cannot_gain_privileges(machine: Machine) -> None:
    code, output = machine.run("grep NoNewPrivs /proc/self/status", no_new_privileges=True)
    assert (code, output.split()) == (0, ["NoNewPrivs:", "1"])
    assert machine.run("grep NoNewPrivs /proc/self/status", name="b")[1].split() == ["NoNewPrivs:", "0"]


CAPABILITIES: dict[str, tuple[dict[str, Any], int, int]] = {
    "the default set": ({}, DEFAULT_CAPS, 1 << 13 | 1 << 27),
    "with a device filter": ({"device_filter": True}, DEFAULT_CAPS | 1 << 27, 1 << 13),
    "one more": ({"capabilities_add": ("NET_ADMIN",)}, DEFAULT_CAPS | 1 << 12, 0),
    "one less": ({"capabilities_drop": ("KILL",)}, DEFAULT_CAPS & ~(1 << 5), 1 << 5),
    "none": ({"capabilities_drop": ("ALL",)}, 0, DEFAULT_CAPS),
    "one only": ({"capabilities_drop": ("ALL",), "capabilities_add": ("CAP_KILL",)}, 1 << 5, DEFAULT_CAPS & ~(1 << 5)),
    "all": ({"capabilities_add": ("ALL",)}, DEFAULT_CAPS | 1 << 21, 0),
    "all but one": ({"capabilities_add": ("all",), "capabilities_drop": ("sys_admin",)}, DEFAULT_CAPS, 1 << 21),
    "all, when privileged": ({"privileged": True}, DEFAULT_CAPS | 1 << 21, 0),
    "a capability dropped by name stays dropped": (
        {"capabilities_add": ("NET_ADMIN",), "capabilities_drop": ("NET_ADMIN",)}, DEFAULT_CAPS, 1 << 12,
    ),
}  # fmt: skip


@pytest.mark.parametrize("spec, has, lacks", CAPABILITIES.values(), ids=CAPABILITIES.keys())
def test_a_container_has_capabilities(machine: Machine, spec: dict[str, Any], has: int, lacks: int) -> None:
    code, output = machine.run("cat /proc/self/status", **spec)
    effective = caps("CapEff", output)
    assert (code, effective & has, effective & lacks) == (0, has, 0)
    assert effective == caps("CapBnd", output)
    if spec.get("privileged") or "all" in str(spec).lower():
        return
    assert effective == has


def test_a_capability_that_does_not_exist_is_refused() -> None:
    with pytest.raises(LaunchError, match='cannot add the capability "FLY"'):
        capabilities.bounding_set(("FLY",), (), False)
    assert capabilities.bounding_set((), ("FLY",), False) == capabilities.bounding_set((), (), False)


def test_an_ordinary_user_cannot_use_ids_that_are_not_mapped(as_user: Machine) -> None:
    poor = replace(as_user.isolation, uids=(0, 0), gids=(0, 0))
    for spec, message in (
        ({"user": 1234}, "cannot run as user 1234"),
        ({"group": 1234}, "cannot run with group 1234"),
        ({"groups": (77,)}, "cannot run with group 77"),
    ):
        with pytest.raises(KeeperFailed, match=f"{message}.*install newuidmap"):
            replace(as_user, isolation=poor).run("true", **spec)
    assert replace(as_user, isolation=poor).run("id -u; id -g", user=0, group=0) == (0, "0\n0\n")


def test_an_ordinary_user_can_use_subordinate_ids(as_user: Machine) -> None:
    if not as_user.isolation.uids[1]:
        pytest.skip(
            "no subordinate ids here: newuidmap, newgidmap and ranges in /etc/subuid and /etc/subgid are needed"
        )
    code, output = as_user.run("id -u; id -g; id -G; touch /tmp/mine", user=1000, group=1000, groups=(1001,))
    assert (code, output) == (0, "1000\n1000\n1000 1001\n")


def test_subordinate_ids_are_mapped_by_newuidmap_and_newgidmap(as_root: Machine) -> None:
    """The mapping programs are replaced by scripts that run as root. The real ones write the same files."""
    with state_directory("user") as state:
        user = machine_for("user", state).isolation
    for name in ("newuidmap", "newgidmap"):
        lines = f'printf "%s %s %s\n%s %s %s\n" $2 $3 $4 $5 $6 $7 > /proc/$1/{name[3:6]}_map'
        as_root.make(f"bin/{name}", f"#!/bin/sh\n{lines}\n")
    rich = replace(user, uids=(100000, 65536), gids=(200000, 65536))

    def action() -> tuple[tuple[int, str], tuple[int, int], list[str]]:
        os.environ["PATH"] = f"{as_root.state}/bin:{PATH}"
        jail = NamespaceJail(isolation=rich)
        volume = as_root.make("volume")
        script = "id -u; id -g; id -G; touch /data/mine /tmp/podkeeper-test; chmod 700 /tmp/podkeeper-test"
        spec = as_root.spec(script, user=1000, group=1001, groups=(1002,), binds=(Bind(volume, "/data"),))
        answer = run(jail, spec)
        about = os.stat(f"{volume}/mine")
        jail.remove_files(spec)
        return answer, (about.st_uid, about.st_gid), os.listdir(spec.directory)

    answer, inside, left = as_root.in_keeper(action)
    assert (answer, inside, left) == ((0, "1000\n1001\n1001 1002\n"), (1000, 1001), [])
    outside = os.stat(f"{as_root.state}/volume/mine")
    assert (outside.st_uid, outside.st_gid) == (100999, 201000)


def test_without_namespaces_volumes_are_refused_with_advice() -> None:
    def action(spec: Launch) -> tuple[int, str]:
        return run(NamespaceJail(isolation=Isolation()), spec)

    spec = Launch(argv=("echo", "hi"), env={"PATH": PATH}, binds=(Bind("/tmp", "/dev/termination-log", optional=True),))
    assert in_keeper(lambda: action(spec)) == (0, "hi\n")
    refused = replace(spec, binds=(*spec.binds, Bind("/tmp", "/data")))
    with pytest.raises(KeeperFailed, match=r"cannot mount /data: the kernel refuses namespaces.*podkeeper doctor"):
        in_keeper(lambda: action(refused))


def test_a_start_without_exec_times_out(as_root: Machine) -> None:
    fifo = f"{as_root.state}/fifo"
    os.mkfifo(fifo)

    def action() -> int:
        with pytest.raises(LaunchError, match="did not execute its program"):
            # It blocks until a reader opens the FIFO.
            run(NamespaceJail(isolation=as_root.isolation, start_seconds=0.2), as_root.spec("true", cgroups=(fifo,)))
        os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # a process that was not killed would continue now
        return os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1])

    assert as_root.in_keeper(action) == -signal.SIGKILL


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        return [int(child) for child in file.read().split()]


def test_a_launch_round_trips_through_json() -> None:
    spec = Launch(
        argv=("a",), env={"B": "c"}, binds=(Bind("/x", "/y", read_only=True),), user=3, groups=(1, 2), masked=()
    )
    assert Launch.from_json(spec.to_json()) == spec
    assert Launch.from_json({"argv": ["a"], "env": {}, "new_in_a_later_release": 1}) == Launch(argv=("a",), env={})


def test_clone_creates_a_child_of_this_process() -> None:
    def action() -> int:
        pid = libc.clone(0)
        if pid == 0:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert in_keeper(action) == 7
