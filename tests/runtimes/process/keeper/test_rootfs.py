"""The root file system of a container, as root and as an ordinary user."""

import os
from dataclasses import replace

import pytest

from podkeeper.linux import libc, mounts
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.keeper.launch import Bind
from tests.runtimes.process.jail_harness import KeeperFailed, Machine, end, machines, run, start

machine = machines("root", "user")
on_disk = machines("root", "user", parent="/tmp")
as_root = machines("root", parent="/tmp")

SEEN = {
    "the pod's hostname": ("hostname", "pod-1"),
    "its own process as PID 1": ("echo $$", "1"),
    "only its own processes": ("set -- /proc/[0-9]*; echo $#", "1"),
    "the host's programs": ("test -x /bin/sh && echo yes", "yes"),
    "the host's files": ("head -c 4 /etc/passwd", "root"),
    "the devices that programs need, and no other": (
        "cd /dev; for x in *; do test -c $x -a ! -L $x && echo $x; done | xargs", "full null random tty urandom zero"
    ),
    "the usual links and directories in /dev": (
        "cd /dev; for x in *; do test -L $x -o -d $x && echo $x; done | xargs",
        "fd mqueue ptmx pts shm stderr stdin stdout",
    ),
    "a null device that works": ("echo x > /dev/null && head -c 1 /dev/zero | wc -c", "1"),
    "its own terminal multiplexer": ("ls /dev/pts", "ptmx"),
    "a writable /dev/stdout": ("echo hi > /dev/stdout", "hi"),
    "a world-writable /dev/shm": ("stat -c %a /dev/shm; touch /dev/shm/x", "1777"),
    "a world-writable /tmp": ("stat -c %a /tmp; touch /tmp/podkeeper-test", "1777"),
    "a read-only /sys": ("grep -c ' /sys ro,' /proc/self/mountinfo", "1"),
    "read-only kernel settings": ("echo 1 2>&- > /proc/sys/kernel/panic || echo no", "no"),
    "nothing in /proc/keys": ("wc -c < /proc/keys", "0"),
    "nothing in /sys/firmware": ("ls /sys/firmware | wc -l", "0"),
    "a writable root directory": ("mkdir /made && rmdir /made && echo yes", "yes"),
    "the host's network": ("ls -d /proc/sys/net/ipv4/conf/lo", "/proc/sys/net/ipv4/conf/lo"),
    "the umask of containers": ("umask", "0022"),
    "the root directory as its working directory": ("pwd", "/"),
}  # fmt: skip


@pytest.mark.parametrize("script, expected", SEEN.values(), ids=SEEN.keys())
def test_the_files_of_a_container(machine: Machine, script: str, expected: str) -> None:
    assert machine.run(script, {"hostname": "pod-1"})[1].strip() == expected


def test_a_containers_writes_are_private(machine: Machine) -> None:
    mark = f"podkeeper-{os.getpid()}"
    code, output = machine.run(f"echo mine > /tmp/{mark} && cat /tmp/{mark}; touch /etc/{mark}")
    assert (code, output) == (0, "mine\n")
    assert not os.path.exists(f"/tmp/{mark}")
    assert not os.path.exists(f"/etc/{mark}")


def test_changes_of_host_files_are_private(as_root: Machine) -> None:
    before = os.stat("/etc/passwd").st_mtime_ns
    code, output = as_root.run("echo new > /etc/passwd && cat /etc/passwd && rm -r /etc/ssl && ls -d /etc/ssl")
    assert (code != 0, output.splitlines()[0]) == (True, "new")
    assert os.stat("/etc/passwd").st_mtime_ns == before
    assert os.path.isdir("/etc/ssl")


def test_containers_do_not_see_each_others_writes(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        jail = NamespaceJail(isolation=machine.isolation)
        run(jail, machine.spec("echo one > /tmp/shared", "one"))
        return run(jail, machine.spec("cat /tmp/shared", "two"))

    code, _ = machine.in_keeper(action)
    assert code == 1


def test_no_mount_is_visible_on_the_host_or_left_behind(machine: Machine) -> None:
    def table() -> list[str]:
        """Return the mounts in this test's directory. Mounts of a container would be listed if they propagated."""
        return mounts.mounts_below(machine.state)

    def action() -> tuple[list[str], list[str]]:
        if machine.run_as == "root":  # this test's host, where mounts propagate by default
            libc.unshare(libc.CLONE_NEWNS)
            libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
            libc.mount(None, "/", None, libc.MS_REC | libc.MS_SHARED)
        jail = NamespaceJail(isolation=machine.isolation, hostname="pod-1", share_pid=True, shm=True)
        pid = start(jail, machine.spec("sleep 60", binds=(Bind(machine.state, "/data"),)))
        during = table()
        end(pid)
        jail.close()
        return during, table()

    assert machine.in_keeper(action) == ([], [])
    assert table() == []


VOLUMES = {
    "at a directory that the host does not have": "/data",
    "deep in a directory that the host does not have": "/srv/a/b/c",
    "in a directory of root": "/etc/podkeeper-test/conf",
    "at a directory of the host": "/opt",
    "behind a symbolic link of the host": "/var/run/podkeeper-test/secrets",
    "in /dev": "/dev/volume",
    "in /tmp": "/tmp/podkeeper-test/volume",
}


@pytest.mark.parametrize("target", VOLUMES.values(), ids=VOLUMES.keys())
def test_a_volume_is_mounted(machine: Machine, target: str) -> None:
    source = machine.make("volume")
    machine.make("volume/greeting", "hello")
    code, output = machine.run(f"cat {target}/greeting && echo bye > {target}/answer", binds=(Bind(source, target),))
    assert (code, output) == (0, "hello")
    with open(f"{source}/answer", encoding="utf-8") as file:
        assert file.read() == "bye\n"
    assert not os.path.exists("/etc/podkeeper-test")


FILES = ("/dev/termination-log", "/etc/hosts", "/etc/podkeeper-test.conf", "/new/place/file")


@pytest.mark.parametrize("target", FILES)
def test_a_single_file_is_mounted(machine: Machine, target: str) -> None:
    source = machine.make("file", "old\n")
    code, output = machine.run(f"cat {target} && echo new > {target}", binds=(Bind(source, target),))
    assert (code, output) == (0, "old\n")
    with open(source, encoding="utf-8") as file:
        assert file.read() == "new\n"


def test_a_read_only_volume_can_only_be_read(machine: Machine) -> None:
    source = machine.make("volume")
    machine.make("volume/greeting", "hello")
    binds = (Bind(source, "/data", read_only=True), Bind(source, "/also"))
    code, output = machine.run("cat /data/greeting; touch /data/x || touch /also/x", binds=binds)
    assert (code, "Read-only file system" in output) == (0, True)
    assert os.path.exists(f"{source}/x")


def test_nested_volumes_are_mounted_in_any_order(machine: Machine) -> None:
    outer, inner = machine.make("outer"), machine.make("inner")
    machine.make("inner/x", "inside")
    code, output = machine.run("cat /data/sub/x", binds=(Bind(inner, "/data/sub"), Bind(outer, "/data")))
    assert (code, output) == (0, "inside")


def test_a_missing_volume_is_reported(machine: Machine) -> None:
    with pytest.raises(KeeperFailed, match="cannot mount /no/such/place at /data: no such file or directory"):
        machine.run("true", binds=(Bind("/no/such/place", "/data"),))


def test_the_agents_directory_is_empty_except_for_volumes(on_disk: Machine) -> None:
    source = on_disk.make("volumes/one")
    on_disk.make("volumes/one/x", "x")
    on_disk.make("secret", "s")
    code, output = on_disk.run(
        f"ls {on_disk.state}; cat /data/x; touch {on_disk.state}/y",
        binds=(Bind(source, "/data"),),
        hidden=(on_disk.state,),
    )
    assert (code, output.splitlines()[0][0]) == (1, "x")
    assert "secret" not in output


def test_a_read_only_root_excludes_volumes_and_devices(machine: Machine) -> None:
    script = "for x in /x /tmp/x /etc/x /usr/x; do touch $x 2>/dev/null && echo $x; done; touch /data/x /dev/shm/x"
    code, output = machine.run(script, read_only_root=True, binds=(Bind(machine.make("volume"), "/data"),))
    assert (code, output) == (0, "")


def test_a_volume_that_covers_a_layer_stays_writable_in_a_read_only_root(machine: Machine) -> None:
    source = machine.make("volume")
    assert machine.run("touch /tmp/x", read_only_root=True, binds=(Bind(source, "/tmp"),)) == (0, "")
    assert os.listdir(source) == ["x"]


def test_a_missing_working_directory_in_a_volume_is_created_there(machine: Machine) -> None:
    source = machine.make("volume")
    assert machine.run("pwd", cwd="/data/sub", binds=(Bind(source, "/data"),)) == (0, "/data/sub\n")
    assert os.listdir(source) == ["sub"]


def test_a_missing_working_directory_is_created(machine: Machine) -> None:
    assert machine.run("pwd", cwd="/place/of/mine") == (0, "/place/of/mine\n")


def test_an_inaccessible_working_directory_is_reported(machine: Machine) -> None:
    with pytest.raises(
        KeeperFailed, match=r'chdir to cwd \("/etc/passwd"\) set in config.json failed: not a directory'
    ):
        machine.run("true", cwd="/etc/passwd")


def test_device_nodes_created_in_a_container_work_only_if_privileged(as_root: Machine) -> None:
    script = "mknod /tmp/podkeeper-zero c 1 5 && head -c 1 /tmp/podkeeper-zero | wc -c"
    assert "Operation not permitted" in as_root.run(script)[1]
    assert "Permission denied" in as_root.run(script, name="b", capabilities_add=("MKNOD",))[1]
    assert as_root.run(script, name="d", privileged=True) == (0, "1\n")


def test_the_containers_of_a_pod_share_memory_and_message_queues(machine: Machine) -> None:
    def action() -> tuple[int, str]:
        jail = NamespaceJail(isolation=machine.isolation, shm=True)
        run(jail, machine.spec("echo from-one > /dev/shm/x; mkdir -p /dev/mqueue; touch /dev/mqueue/q", "one"))
        answer = run(jail, machine.spec("cat /dev/shm/x; ls /dev/mqueue", "two"))
        jail.close()
        return answer

    assert machine.in_keeper(action) == (0, "from-one\nq\n")
    assert not os.path.exists("/dev/shm/x")


@pytest.mark.parametrize("shared", [True, False])
def test_shared_memory_is_limited(machine: Machine, shared: bool) -> None:
    script = "head -c 70000000 /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x"
    assert machine.run(script, {"shm": shared})[1].splitlines()[-1] == str(2**26)


def test_each_pod_has_its_own_message_queues(machine: Machine) -> None:
    machine.run("touch /dev/mqueue/q", name="one")
    assert machine.run("ls /dev/mqueue", name="two") == (0, "")


def test_host_ipc_is_the_hosts(machine: Machine) -> None:
    assert machine.run("readlink /proc/self/ns/ipc", {"host_ipc": True})[1].strip() == os.readlink("/proc/self/ns/ipc")
    assert machine.run("readlink /proc/self/ns/ipc", name="b")[1].strip() != os.readlink("/proc/self/ns/ipc")


def test_the_default_hostname_is_the_hosts(machine: Machine) -> None:
    assert machine.run("hostname")[1].strip() == os.uname().nodename
    assert machine.run("hostname", name="b", uts="own", hostname="other")[1].strip() == "other"


def test_host_to_container_propagation(as_root: Machine) -> None:
    def action(propagation: str) -> tuple[bool, bool]:
        source = f"{as_root.state}/{propagation or 'private'}"
        os.mkdir(source)
        libc.unshare(libc.CLONE_NEWNS)  # this test's host
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("tmpfs", source, "tmpfs", 0)
        libc.mount(None, source, None, libc.MS_SHARED)
        os.mkdir(f"{source}/late")
        os.mkdir(f"{source}/back")
        jail = NamespaceJail(isolation=as_root.isolation)
        bind = Bind(source, "/data", propagation=propagation)
        mount_back = "mount -t tmpfs x /data/back && touch /data/back/from-inside; "
        script = f"{mount_back} while test ! -e /data/go; do sleep 0.01; done; cat /data/late/x"
        reader, writer = os.pipe()
        pid = jail.launch(
            as_root.spec(script, binds=(bind,), name=f"c{propagation}", privileged=True), 0, writer, writer
        )
        os.close(writer)
        libc.mount("tmpfs", f"{source}/late", "tmpfs", 0)
        with open(f"{source}/late/x", "w", encoding="utf-8") as file:
            file.write("late")
        with open(f"{source}/go", "w", encoding="utf-8"):
            pass
        with os.fdopen(reader, "rb") as pipe:
            output = pipe.read().decode()
        os.waitpid(pid, 0)
        return output == "late", os.path.exists(f"{source}/back/from-inside")

    assert as_root.in_keeper(lambda: action("")) == (False, False)
    assert as_root.in_keeper(lambda: action("HostToContainer")) == (True, False)
    assert as_root.in_keeper(lambda: action("Bidirectional")) == (True, True)


def test_bidirectional_propagation_needs_a_shared_mount_and_root(machine: Machine) -> None:
    def action() -> None:
        if machine.run_as == "root":
            libc.unshare(libc.CLONE_NEWNS)
            libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        run(
            NamespaceJail(isolation=machine.isolation),
            machine.spec("true", binds=(Bind(machine.state, "/data", propagation="Bidirectional"),)),
        )

    reason = (
        "but it is not a shared mount"
        if machine.run_as == "root"
        else "propagation: this requires root outside a user namespace"
    )
    with pytest.raises(KeeperFailed, match=reason):
        machine.in_keeper(action)


def test_another_host_file_system_is_visible_and_copy_on_write(as_root: Machine) -> None:
    def action() -> tuple[tuple[int, str], list[str]]:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        disk, fixed = as_root.make("disk"), as_root.make("fixed")
        libc.mount("tmpfs", disk, "tmpfs", 0)
        libc.mount("tmpfs", fixed, "tmpfs", 0)
        as_root.make("disk/x", "on disk")
        as_root.make("fixed/x", "fixed")
        libc.mount(None, fixed, None, libc.MS_REMOUNT | libc.MS_RDONLY)
        script = f"cat {disk}/x {fixed}/x; echo y > {disk}/y; cat {disk}/y; touch {fixed}/y 2>/dev/null || echo no"
        return run(NamespaceJail(isolation=as_root.isolation), as_root.spec(script)), os.listdir(disk)

    assert as_root.in_keeper(action) == ((0, "on diskfixedy\nno\n"), ["x"])


def test_writes_go_to_memory_if_the_disk_cannot_store_an_overlay(machine: Machine) -> None:
    memory = replace(machine.isolation, upper="memory")

    def action() -> tuple[tuple[int, str], list[str]]:
        return run(
            NamespaceJail(isolation=memory), machine.spec("touch /tmp/podkeeper-test /new && ls /new")
        ), os.listdir(f"{machine.state}/c")

    assert machine.in_keeper(action) == ((0, "/new\n"), [])


def test_without_overlays_the_host_is_read_only_but_volumes_and_tmp_work(machine: Machine) -> None:
    plain = replace(machine.isolation, overlay="", overlay_options="")
    source = machine.make("volume")
    machine.make("volume/x", "hello\n")

    def action() -> tuple[int, str]:
        script = "cat /etc/podkeeper-test/x; touch /tmp/a /var/tmp/b && ls /tmp; touch /usr/x 2>&- || ls /usr/bin/env"
        return run(NamespaceJail(isolation=plain), machine.spec(script, binds=(Bind(source, "/etc/podkeeper-test"),)))

    assert machine.in_keeper(action) == (0, "hello\na\n/usr/bin/env\n")
    assert not os.path.exists("/etc/podkeeper-test")


def test_a_privileged_container_has_every_device_and_a_writable_sys(as_root: Machine) -> None:
    code, output = as_root.run(
        "find /dev -type b -o -type c | wc -l; grep -c ' /sys rw,' /proc/self/mountinfo", privileged=True
    )
    devices, writable = map(int, output.split())
    assert (code, devices > 6, writable) == (0, True, 1)


def test_remove_files_deletes_only_the_containers_writes(on_disk: Machine) -> None:
    source = on_disk.make("volume")
    on_disk.make("volume/x", "x")

    def action() -> tuple[list[str], list[str]]:
        jail = NamespaceJail(isolation=on_disk.isolation)
        spec = on_disk.spec(
            "mkdir -p /tmp/a/b; touch /tmp/a/b/c; ln -s /etc /tmp/link; chmod 0 /tmp/a", binds=(Bind(source, "/data"),)
        )
        run(jail, spec)
        made = os.listdir(spec.directory)
        with open(f"{spec.directory}/state.json", "w", encoding="utf-8"):
            pass
        jail.remove_files(spec)
        jail.remove_files(spec)  # a second call is a no-op
        return made, os.listdir(spec.directory)

    made, left = on_disk.in_keeper(action)
    assert "upper-0" in made or on_disk.isolation.overlay == "split"
    assert left == ["state.json"]
    assert os.listdir(source) == ["x"]
    assert os.path.exists("/etc/passwd")


def test_remove_files_unmounts_instead_of_deleting_through_a_mount(as_root: Machine) -> None:
    source = as_root.make("volume")
    as_root.make("volume/x", "x")

    def action() -> tuple[bool, bool]:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        jail = NamespaceJail(isolation=as_root.isolation)
        spec = as_root.spec("mkdir /mounted")
        run(jail, spec)
        place = f"{spec.directory}/upper-0/mounted"
        libc.mount(source, place, None, libc.MS_BIND)
        jail.remove_files(spec)
        return os.path.exists(f"{spec.directory}/upper-0"), place in mounts.visible(mounts.read())

    assert as_root.in_keeper(action) == (False, False)
    assert os.listdir(source) == ["x"]
