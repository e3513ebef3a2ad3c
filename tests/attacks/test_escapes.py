"""Attacks on the isolation of the process runtime: a container tries to reach the host.

Each test performs the attack in a real container, as root and as an ordinary user. The host's secret is a file in a
directory that containers cannot see (`Launch.hidden`), so a container that reads it has escaped.
"""

import os
import shutil
import socket
import time
from dataclasses import replace
from typing import Any

import pytest

from podkeeper.linux.errors import LaunchError
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.keeper.launch import Bind
from tests.runtimes.process.jail_harness import KeeperFailed, Machine, end, machines, run, start

machine = machines("root", "user")
as_root = machines("root")

SECRET = "the-host-was-here"
ROUNDS = 15  # launches while a container searches for a moment to attack


@pytest.fixture
def hidden(machine: Machine) -> str:
    """A directory of the host that containers cannot see, with the host's secret."""
    machine.make("hidden/secret", SECRET)
    return f"{machine.state}/hidden"


# ---- Devices ----

NODE_PLACES = {
    "/dev": "/dev/node",
    "/dev/shm": "/dev/shm/node",
    "/tmp": "/tmp/node",
    "a directory of the host's files": "/opt/node",
    "a volume": "/volume/node",
    "a volume in memory": "/memory/node",
}


@pytest.mark.parametrize("path", NODE_PLACES.values(), ids=NODE_PLACES.keys())
def test_a_node_created_in_a_container_does_not_open(machine: Machine, path: str) -> None:
    """Device nodes: a container that may create working nodes owns the host's disk. Here, /dev/zero is the disk."""
    volume = machine.make("volume")
    spec: dict[str, Any] = {"binds": (Bind(volume, "/volume"), Bind("/dev/shm", "/memory"))}
    script = f"mknod {path} c 1 5; head -c 1 {path} | wc -c; rm -f {path}"
    for shm in (True, False):
        assert machine.run(script, {"shm": shm}, name=f"c-{shm}", **spec)[1].split()[-1] == "0"


def test_a_node_of_the_host_in_a_volume_does_not_open(machine: Machine) -> None:
    """A hostPath volume over /dev (without `type: CharDevice`)."""
    script = "head -c 1 /volume/zero | wc -c"
    assert machine.run(script, binds=(Bind("/dev", "/volume"),))[1].split()[-1] == "0"
    assert machine.run("head -c 1 /node | wc -c", name="d", binds=(Bind("/dev/zero", "/node"),))[1].split()[-1] == "0"


def test_a_device_volume_works(as_root: Machine) -> None:
    binds = (Bind("/dev/zero", "/node", device=True),)
    assert as_root.run("head -c 1 /node | wc -c", binds=binds) == (0, "1\n")


def test_the_modes_of_the_hosts_device_nodes_cannot_be_changed(machine: Machine) -> None:
    """Denial of service: `chmod 0 /dev/null` would break the host."""
    before = os.stat("/dev/null").st_mode
    machine.run("chmod 600 /dev/null; chown 1 /dev/null")
    assert os.stat("/dev/null").st_mode == before


# ---- Working directory ----


def attempts_of(machine: Machine, hidden: str, cwd: str, **spec: Any) -> str:
    """Launch and exec with a working directory, while the keeper has the host's root open. Return all output."""
    common = {"hidden": (hidden,), **spec}

    def action() -> str:
        for number in range(20, 30):  # as a keeper's many descriptors
            os.dup2(os.open("/", os.O_RDONLY), number)
        jail = NamespaceJail(isolation=machine.isolation, share_pid="pid" in spec, shm=True)
        launch = machine.spec(f"cat .{hidden}/secret ../../../../../../..{hidden}/secret; pwd", cwd=cwd, **common)
        output = ""
        for target in ("launch", "exec"):
            first = start(jail, machine.spec("", target, argv=("sleep", "60"), **common))
            try:
                output += run(jail, launch, first if target == "exec" else 0)[1]
            except LaunchError as error:
                output += str(error)
            end(first)
        jail.close()
        return output

    return machine.in_keeper(action)


@pytest.mark.parametrize("descriptor", [3, 7, 20, 22, 25])
def test_a_working_directory_cannot_be_a_descriptor(machine: Machine, hidden: str, descriptor: int) -> None:
    """CVE-2024-21626 in runc: `workingDir: /proc/self/fd/N`."""
    output = attempts_of(machine, hidden, f"/proc/self/fd/{descriptor}")
    assert SECRET not in output
    assert 'chdir to cwd ("/proc/self/fd/' in output


def test_a_link_at_the_working_directory_cannot_lead_to_a_descriptor(machine: Machine, hidden: str) -> None:
    """CVE-2024-21626 in runc: the container itself puts the link at its `workingDir` before a restart."""
    volume = machine.make("volume")
    os.symlink("/proc/self/fd/22", f"{volume}/link")
    output = attempts_of(machine, hidden, "/volume/link", binds=(Bind(volume, "/volume"),))
    assert SECRET not in output


@pytest.mark.parametrize("cwd", ["/proc/1/root", "/proc/1/cwd", "/proc/1/root/proc/self/fd/22"])
def test_a_working_directory_cannot_be_the_root_of_the_pause_process(machine: Machine, hidden: str, cwd: str) -> None:
    """The class of CVE-2024-21626, with `shareProcessNamespace`."""
    output = attempts_of(machine, hidden, cwd, pid="pod")
    assert SECRET not in output


def test_a_missing_working_directory_is_not_created_on_the_host(machine: Machine) -> None:
    """The class of CVE-2024-21626: directories created through a descriptor."""
    outside = machine.make("outside")

    def action() -> None:
        for number in range(20, 30):
            os.dup2(os.open(outside, os.O_RDONLY), number)
        run(NamespaceJail(isolation=machine.isolation), machine.spec("true", cwd="/proc/self/fd/22/made"))

    with pytest.raises(KeeperFailed):
        machine.in_keeper(action)
    assert os.listdir(outside) == []


def test_a_mount_point_cannot_be_created_through_a_link_in_a_volume(machine: Machine) -> None:
    """CVE-2021-30465 in runc, CVE-2023-27561: a volume below a link that the container has put into another one."""
    outside, volume, inner = machine.make("outside"), machine.make("volume"), machine.make("inner")
    os.symlink("/proc/self/fd/22", f"{volume}/link")

    def action() -> None:
        for number in range(20, 30):
            os.dup2(os.open(outside, os.O_RDONLY), number)
        binds = (Bind(volume, "/volume"), Bind(inner, "/volume/link/made"))
        run(NamespaceJail(isolation=machine.isolation), machine.spec("true", binds=binds))

    with pytest.raises(KeeperFailed, match=r"cannot mount .* at /volume/link/made"):
        machine.in_keeper(action)
    assert os.listdir(outside) == []


# ---- Sockets of the host ----


@pytest.mark.parametrize("overlay", ["as on this machine", "split", ""])
def test_a_socket_of_the_host_does_not_answer(machine: Machine, overlay: str) -> None:
    """Sockets of the host, such as a desktop's D-Bus or Docker's socket (the class of CVE-2020-15257)."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to listen in /run")
    isolation = machine.isolation if overlay == "as on this machine" else replace(machine.isolation, overlay=overlay)
    directory = f"/run/podkeeper-test-{os.getpid()}"
    os.mkdir(directory, 0o755)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/bus")
            os.chmod(f"{directory}/bus", 0o777)
            listener.listen()
            program = f"import socket; socket.socket(socket.AF_UNIX).connect('{directory}/bus'); print('connected')"
            argv = ("/usr/bin/env", "python3", "-c", program)
            code, output = replace(machine, isolation=isolation).run("", argv=argv)
    finally:
        shutil.rmtree(directory)
    assert "connected" not in output
    assert code != 0


# ---- SYS_PTRACE and shared PID namespaces ----

PTRACE: dict[str, Any] = {"capabilities_add": ("SYS_PTRACE",), "pid": "pod"}


def test_the_pause_process_leads_to_nothing_of_the_host(machine: Machine, hidden: str) -> None:
    """The class of CVE-2016-9962 in runc: with SYS_PTRACE, /proc/1/root and /proc/1/fd of the pause process."""
    script = (
        f"cat /proc/1/root{hidden}/secret /proc/1/cwd{hidden}/secret; ls -A /proc/1/root/* /proc/1/root; "
        "ls /proc/1/fd | wc -l; cat /proc/1/environ; grep -E 'Cap(Prm|Eff|Bnd|Inh|Amb)' /proc/1/status"
    )
    _, output = machine.run(script, {"share_pid": True, "shm": True}, hidden=(hidden,), **PTRACE)
    assert SECRET not in output
    assert set(output.split("CapInh")[1].split()) - {":", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"} == {"0" * 16}


def test_the_pause_process_has_no_unmasked_proc(machine: Machine) -> None:
    """Masked paths bypassed by /proc/1/root (the class of CVE-2019-16884)."""
    script = "ls /proc/1/root/proc/sys /proc/1/root/proc/1 /proc/1/root/proc/../proc/self && echo found"
    assert "found" not in machine.run(script, {"share_pid": True, "shm": True}, **PTRACE)[1]


def test_a_starting_process_never_shows_the_host_to_its_pid_namespace(machine: Machine, hidden: str) -> None:
    """CVE-2016-9962 in runc: a process of the pod sees `exec` and new containers before they are set up."""
    volume = machine.make("volume")
    script = (
        "touch /volume/ready; while :; do for each in /proc/[0-9]*; do for way in root cwd fd/3 fd/7; do "
        f"[ -e $each/$way{hidden}/secret ] && echo $each/$way >> /volume/escaped; done; done; done"
    )

    def action() -> None:
        jail = NamespaceJail(isolation=machine.isolation, share_pid=True, shm=True)
        spec = {"hidden": (hidden,), "binds": (Bind(volume, "/volume"),), **PTRACE}
        attackers = [start(jail, machine.spec(script, f"attacker-{each}", **spec)) for each in range(2)]
        while not os.path.exists(f"{volume}/ready"):
            time.sleep(0.01)
        for number in range(ROUNDS):
            run(jail, machine.spec("true", f"victim-{number}", **spec))
            run(jail, machine.spec("true", **spec), attackers[0])
        end(*attackers)
        jail.close()

    machine.in_keeper(action)
    assert not os.path.exists(f"{volume}/escaped")


def test_a_container_beside_another_gets_the_proc_of_its_processes(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        jail = NamespaceJail(isolation=machine.isolation, shm=True)
        first = start(jail, machine.spec("", "one", argv=("sleep", "60")))
        answer = run(jail, machine.spec("cat /proc/1/comm; test $(readlink /proc/self) -gt 1", "two", beside=first))
        end(first)
        return answer

    assert machine.in_keeper(action) == (0, "sleep\n")


# ---- Capabilities ----


def test_no_capability_is_kept_if_all_are_dropped(as_root: Machine) -> None:
    """CVE-2022-29162 in runc, CVE-2022-24769 in Moby: inheritable and ambient capabilities of the agent."""

    def action() -> tuple[int, str]:
        _raise_ambient_capabilities()
        script = "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status"
        launch = as_root.spec(script, capabilities_drop=("ALL",))
        return run(NamespaceJail(isolation=as_root.isolation), launch)

    _, output = as_root.in_keeper(action)
    assert {line.split()[1] for line in output.splitlines()} == {"0" * 16}


@pytest.mark.parametrize("spec", [{"user": 1000}, {"user": 0}], ids=["another user", "root"])
def test_inheritable_and_ambient_capabilities_are_cleared(as_root: Machine, spec: dict[str, Any]) -> None:
    """CVE-2022-24769 in Moby."""

    def action() -> tuple[int, str]:
        _raise_ambient_capabilities()
        launch = as_root.spec("grep -E 'Cap(Inh|Amb)' /proc/self/status", **spec)
        return run(NamespaceJail(isolation=as_root.isolation), launch)

    _, output = as_root.in_keeper(action)
    assert {line.split()[1] for line in output.splitlines()} == {"0" * 16}


def _raise_ambient_capabilities() -> None:
    """Give this process inheritable and ambient capabilities, as a systemd unit can do."""
    import ctypes

    data = (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    c = ctypes.CDLL(None, use_errno=True)
    assert c.capget(header, data) == 0
    data[2], data[5] = data[1], data[4]
    assert c.capset(header, data) == 0
    for number in (0, 1, 21):
        assert c.prctl(47, 2, number, 0, 0) == 0  # PR_CAP_AMBIENT_RAISE
