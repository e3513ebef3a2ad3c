"""What a container sees of the machine, as root's and as an ordinary user's keeper makes it."""

import os
from dataclasses import replace

import pytest

from podkeeper.runtimes.process.keeper import libc, mounts
from podkeeper.runtimes.process.keeper.jail import Jail
from podkeeper.runtimes.process.keeper.launch import Bind
from tests.runtimes.process.jailing import Broken, World, end, run, start, worlds

here = worlds("root", "user")
on_disk = worlds("root", "user", place="/tmp")
as_root = worlds("root", place="/tmp")

SEEN = {
    "the pod's hostname": ("hostname", "pod-1"),
    "itself as process 1": ("echo $$", "1"),
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
    "a terminal multiplexer of its own": ("ls /dev/pts", "ptmx"),
    "/dev/stdout as a file it can write to": ("echo hi > /dev/stdout", "hi"),
    "a /dev/shm that all can write to": ("stat -c %a /dev/shm; touch /dev/shm/x", "1777"),
    "a /tmp that all can write to": ("stat -c %a /tmp; touch /tmp/podkeeper-test", "1777"),
    "a /sys that is read-only": ("grep -c ' /sys ro,' /proc/self/mountinfo", "1"),
    "kernel switches that are read-only": ("echo 1 2>&- > /proc/sys/kernel/panic || echo no", "no"),
    "nothing in /proc/keys": ("wc -c < /proc/keys", "0"),
    "nothing in /sys/firmware": ("ls /sys/firmware | wc -l", "0"),
    "a root directory it can write to": ("mkdir /made && rmdir /made && echo yes", "yes"),
    "the host's network": ("ls -d /proc/sys/net/ipv4/conf/lo", "/proc/sys/net/ipv4/conf/lo"),
    "the umask of containers": ("umask", "0022"),
    "the root directory as its working directory": ("pwd", "/"),
}  # fmt: skip


@pytest.mark.parametrize("script, expected", SEEN.values(), ids=SEEN.keys())
def test_a_container_sees(here: World, script: str, expected: str) -> None:
    assert here.run(script, {"hostname": "pod-1"})[1].strip() == expected


def test_what_a_container_writes_stays_its_own(here: World) -> None:
    mark = f"podkeeper-{os.getpid()}"
    code, output = here.run(f"echo mine > /tmp/{mark} && cat /tmp/{mark}; touch /etc/{mark}")
    assert (code, output) == (0, "mine\n")
    assert not os.path.exists(f"/tmp/{mark}")
    assert not os.path.exists(f"/etc/{mark}")


def test_a_container_can_change_the_hosts_files_for_itself(as_root: World) -> None:
    before = os.stat("/etc/passwd").st_mtime_ns
    code, output = as_root.run("echo new > /etc/passwd && cat /etc/passwd && rm -r /etc/ssl && ls -d /etc/ssl")
    assert (code != 0, output.splitlines()[0]) == (True, "new")
    assert os.stat("/etc/passwd").st_mtime_ns == before
    assert os.path.isdir("/etc/ssl")


def test_containers_do_not_see_each_others_writes(here: World) -> None:
    def action() -> tuple[int, str]:
        jail = Jail(isolation=here.isolation)
        run(jail, here.spec("echo one > /tmp/shared", "one"))
        return run(jail, here.spec("cat /tmp/shared", "two"))

    code, _ = here.keep(action)
    assert code == 1


def test_no_mount_reaches_the_host_and_none_stays(here: World) -> None:
    def table() -> list[str]:
        """What is mounted in this test's directory: all that a container mounts would show there, if it showed."""
        return [mount.point for mount in mounts.read() if mounts.is_below(mount.point, here.state)]

    def action() -> tuple[list[str], list[str]]:
        if here.who == "root":  # the host of this test, where mounts propagate wherever nobody prevents it
            libc.unshare(libc.CLONE_NEWNS)
            libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
            libc.mount(None, "/", None, libc.MS_REC | libc.MS_SHARED)
        jail = Jail(isolation=here.isolation, hostname="pod-1", share_pid=True, shm=f"{here.state}/shm")
        pid = start(jail, here.spec("sleep 60", binds=(Bind(here.state, "/data"),)))
        during = table()
        end(pid)
        jail.close()
        return during, table()

    assert here.keep(action) == ([], [])
    assert table() == []


VOLUMES = {
    "at a directory that the host does not have": "/data",
    "deep in a directory that the host does not have": "/srv/a/b/c",
    "in a directory of root's": "/etc/podkeeper-test/conf",
    "at a directory of the host's": "/opt",
    "behind a symbolic link of the host's": "/var/run/podkeeper-test/secrets",
    "in /dev": "/dev/volume",
    "in /tmp": "/tmp/podkeeper-test/volume",
}


@pytest.mark.parametrize("target", VOLUMES.values(), ids=VOLUMES.keys())
def test_a_volume_appears(here: World, target: str) -> None:
    source = here.make("volume")
    here.make("volume/greeting", "hello")
    code, output = here.run(f"cat {target}/greeting && echo bye > {target}/answer", binds=(Bind(source, target),))
    assert (code, output) == (0, "hello")
    with open(f"{source}/answer", encoding="utf-8") as file:
        assert file.read() == "bye\n"
    assert not os.path.exists("/etc/podkeeper-test")


FILES = ("/dev/termination-log", "/etc/hosts", "/etc/podkeeper-test.conf", "/new/place/file")


@pytest.mark.parametrize("target", FILES)
def test_a_single_file_appears(here: World, target: str) -> None:
    source = here.make("file", "old\n")
    code, output = here.run(f"cat {target} && echo new > {target}", binds=(Bind(source, target),))
    assert (code, output) == (0, "old\n")
    with open(source, encoding="utf-8") as file:
        assert file.read() == "new\n"


def test_a_read_only_volume_can_be_read_and_no_more(here: World) -> None:
    source = here.make("volume")
    here.make("volume/greeting", "hello")
    binds = (Bind(source, "/data", read_only=True), Bind(source, "/also"))
    code, output = here.run("cat /data/greeting; touch /data/x || touch /also/x", binds=binds)
    assert (code, "Read-only file system" in output) == (0, True)
    assert os.path.exists(f"{source}/x")


def test_a_volume_within_a_volume_appears_whatever_their_order(here: World) -> None:
    outer, inner = here.make("outer"), here.make("inner")
    here.make("inner/x", "inside")
    code, output = here.run("cat /data/sub/x", binds=(Bind(inner, "/data/sub"), Bind(outer, "/data")))
    assert (code, output) == (0, "inside")


def test_a_volume_that_is_not_there_is_named(here: World) -> None:
    with pytest.raises(Broken, match="cannot mount /no/such/place at /data: no such file or directory"):
        here.run("true", binds=(Bind("/no/such/place", "/data"),))


def test_the_agents_own_directory_looks_empty_but_its_volumes_do_not(on_disk: World) -> None:
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


def test_a_read_only_root_is_read_only_but_for_volumes_and_devices(here: World) -> None:
    script = "for x in /x /tmp/x /etc/x /usr/x; do touch $x 2>/dev/null && echo $x; done; touch /data/x /dev/shm/x"
    code, output = here.run(script, read_only_root=True, binds=(Bind(here.make("volume"), "/data"),))
    assert (code, output) == (0, "")


def test_a_volume_in_place_of_a_whole_layer_stays_writable_below_a_read_only_root(here: World) -> None:
    source = here.make("volume")
    assert here.run("touch /tmp/x", read_only_root=True, binds=(Bind(source, "/tmp"),)) == (0, "")
    assert os.listdir(source) == ["x"]


def test_a_working_directory_in_a_volume_is_made_there(here: World) -> None:
    source = here.make("volume")
    assert here.run("pwd", cwd="/data/sub", binds=(Bind(source, "/data"),)) == (0, "/data/sub\n")
    assert os.listdir(source) == ["sub"]


def test_a_missing_working_directory_is_made(here: World) -> None:
    assert here.run("pwd", cwd="/place/of/mine") == (0, "/place/of/mine\n")


def test_a_working_directory_that_cannot_be_entered_is_named(here: World) -> None:
    with pytest.raises(Broken, match=r'chdir to cwd \("/etc/passwd"\) set in config.json failed: not a directory'):
        here.run("true", cwd="/etc/passwd")


def test_a_device_that_a_container_makes_is_of_no_use_unless_it_is_privileged(as_root: World) -> None:
    script = "mknod /tmp/podkeeper-zero c 1 5 && head -c 1 /tmp/podkeeper-zero | wc -c"
    assert "Permission denied" in as_root.run(script)[1]
    assert as_root.run(script, name="b", privileged=True) == (0, "1\n")


def test_the_containers_of_a_pod_share_memory_and_message_queues(here: World) -> None:
    def action() -> tuple[tuple[int, str], bool]:
        shm = f"{here.state}/shm"
        jail = Jail(isolation=here.isolation, shm=shm)
        run(jail, here.spec("echo from-one > /dev/shm/x; mkdir -p /dev/mqueue; touch /dev/mqueue/q", "one"))
        answer = run(jail, here.spec("cat /dev/shm/x; ls /dev/mqueue", "two"))
        jail.close()
        return answer, os.path.exists(shm)

    assert here.keep(action) == ((0, "from-one\nq\n"), False)


def test_two_pods_have_message_queues_of_their_own(here: World) -> None:
    here.run("touch /dev/mqueue/q", name="one")
    assert here.run("ls /dev/mqueue", name="two") == (0, "")


def test_host_ipc_is_the_hosts(here: World) -> None:
    assert here.run("readlink /proc/self/ns/ipc", {"host_ipc": True})[1].strip() == os.readlink("/proc/self/ns/ipc")
    assert here.run("readlink /proc/self/ns/ipc", name="b")[1].strip() != os.readlink("/proc/self/ns/ipc")


def test_without_a_hostname_it_is_the_hosts(here: World) -> None:
    assert here.run("hostname")[1].strip() == os.uname().nodename
    assert here.run("hostname", name="b", uts="own", hostname="other")[1].strip() == "other"


def test_a_mount_on_the_host_reaches_a_volume_that_asks_for_it(as_root: World) -> None:
    def action(propagation: str) -> tuple[bool, bool]:
        source = f"{as_root.state}/{propagation or 'private'}"
        os.mkdir(source)
        libc.unshare(libc.CLONE_NEWNS)  # the host of this test
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("tmpfs", source, "tmpfs", 0)
        libc.mount(None, source, None, libc.MS_SHARED)
        os.mkdir(f"{source}/late")
        os.mkdir(f"{source}/back")
        jail = Jail(isolation=as_root.isolation)
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

    assert as_root.keep(lambda: action("")) == (False, False)
    assert as_root.keep(lambda: action("HostToContainer")) == (True, False)
    assert as_root.keep(lambda: action("Bidirectional")) == (True, True)


def test_bidirectional_propagation_needs_a_shared_mount_and_root(here: World) -> None:
    def action() -> None:
        if here.who == "root":
            libc.unshare(libc.CLONE_NEWNS)
            libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        run(
            Jail(isolation=here.isolation),
            here.spec("true", binds=(Bind(here.state, "/data", propagation="Bidirectional"),)),
        )

    reason = "but it is not a shared mount" if here.who == "root" else "only root may"
    with pytest.raises(Broken, match=reason):
        here.keep(action)


def test_a_file_system_below_the_root_is_seen_and_writable_in_private(as_root: World) -> None:
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
        return run(Jail(isolation=as_root.isolation), as_root.spec(script)), os.listdir(disk)

    assert as_root.keep(action) == ((0, "on diskfixedy\nno\n"), ["x"])


def test_writes_go_to_memory_where_the_disk_cannot_hold_them(here: World) -> None:
    memory = replace(here.isolation, upper="memory")

    def action() -> tuple[tuple[int, str], list[str]]:
        return run(Jail(isolation=memory), here.spec("touch /tmp/podkeeper-test /new && ls /new")), os.listdir(
            f"{here.state}/c"
        )

    assert here.keep(action) == ((0, "/new\n"), [])


def test_without_overlays_the_host_is_read_only_but_volumes_and_tmp_work(here: World) -> None:
    plain = replace(here.isolation, overlay="", overlay_options="")
    source = here.make("volume")
    here.make("volume/x", "hello\n")

    def action() -> tuple[int, str]:
        script = "cat /etc/podkeeper-test/x; touch /tmp/a /var/tmp/b && ls /tmp; touch /usr/x 2>&- || ls /usr/bin/env"
        return run(Jail(isolation=plain), here.spec(script, binds=(Bind(source, "/etc/podkeeper-test"),)))

    assert here.keep(action) == (0, "hello\na\n/usr/bin/env\n")
    assert not os.path.exists("/etc/podkeeper-test")


def test_a_privileged_container_has_every_device_and_a_writable_sys(as_root: World) -> None:
    code, output = as_root.run(
        "find /dev -type b -o -type c | wc -l; grep -c ' /sys rw,' /proc/self/mountinfo", privileged=True
    )
    devices, writable = map(int, output.split())
    assert (code, devices > 6, writable) == (0, True, 1)


def test_dismantling_deletes_what_a_container_wrote_and_nothing_else(on_disk: World) -> None:
    source = on_disk.make("volume")
    on_disk.make("volume/x", "x")

    def action() -> tuple[list[str], list[str]]:
        jail = Jail(isolation=on_disk.isolation)
        spec = on_disk.spec(
            "mkdir -p /tmp/a/b; touch /tmp/a/b/c; ln -s /etc /tmp/link; chmod 0 /tmp/a", binds=(Bind(source, "/data"),)
        )
        run(jail, spec)
        made = os.listdir(spec.directory)
        with open(f"{spec.directory}/state.json", "w", encoding="utf-8"):
            pass
        jail.dismantle(spec)
        jail.dismantle(spec)  # once more: nothing to do
        return made, os.listdir(spec.directory)

    made, left = on_disk.keep(action)
    assert "upper-0" in made or on_disk.isolation.overlay == "split"
    assert left == ["state.json"]
    assert os.listdir(source) == ["x"]
    assert os.path.exists("/etc/passwd")


def test_dismantling_takes_a_mount_off_instead_of_emptying_it(as_root: World) -> None:
    source = as_root.make("volume")
    as_root.make("volume/x", "x")

    def action() -> tuple[bool, bool]:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        jail = Jail(isolation=as_root.isolation)
        spec = as_root.spec("mkdir /mounted")
        run(jail, spec)
        place = f"{spec.directory}/upper-0/mounted"
        libc.mount(source, place, None, libc.MS_BIND)
        jail.dismantle(spec)
        return os.path.exists(f"{spec.directory}/upper-0"), place in mounts.visible(mounts.read())

    assert as_root.keep(action) == (False, False)
    assert os.listdir(source) == ["x"]
