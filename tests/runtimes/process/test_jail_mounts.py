"""The host's mounts as tables, the probe, and the ways of an ordinary user."""

import os

import pytest

from podkeeper.runtimes.process.keeper import idmap, libc, mounts
from podkeeper.runtimes.process.keeper.demolition import demolish
from podkeeper.runtimes.process.keeper.isolation import Isolation, probe
from podkeeper.runtimes.process.keeper.jail import Jail
from podkeeper.runtimes.process.keeper.mounts import COPY, EMPTY, READ, Layer, Mount
from tests.runtimes.process.jailing import World, in_keeper, run, state_directory

INFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw - sysfs sysfs rw
24 27 0:6 / /dev rw shared:3 - devtmpfs devtmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
28 27 0:25 / /boot ro,nosuid - ext4 /dev/vdb rw
30 27 0:26 / /srv/with\040space rw - tmpfs tmpfs rw
31 27 0:27 / /home rw master:7 - nfs4 server:/home rw
32 27 0:28 / /run rw - tmpfs tmpfs rw
33 32 0:29 / /run/user/1 rw - tmpfs tmpfs rw
34 27 0:30 / /run rw - tmpfs other rw
35 34 0:31 / /run/netns/a rw - nsfs nsfs rw
36 27 0:32 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
""".strip()


def test_mountinfo_is_read_with_its_quirks() -> None:
    found = {mount.id: mount for mount in mounts.parse(INFO)}
    assert found[27] == Mount(27, 1, "/", "ext4", shared=True)
    assert found[28] == Mount(28, 27, "/boot", "ext4", read_only=True)
    assert found[30].point == "/srv/with space"
    assert not found[31].shared


def test_a_covered_mount_is_not_visible() -> None:
    table = mounts.visible(mounts.parse(INFO))
    assert table["/run"].id == 34
    assert "/run/user/1" not in table
    assert next(iter(table)) == "/"


def test_a_mount_over_the_root_itself_counts() -> None:
    info = "1 0 0:1 / / rw - rootfs rootfs rw\n2 1 0:2 / / rw - ext4 a rw\n3 2 0:3 / /proc rw - proc proc rw"
    assert {point: mount.id for point, mount in mounts.visible(mounts.parse(info)).items()} == {"/": 2, "/proc": 3}


def test_every_real_file_system_has_a_layer_of_its_own() -> None:
    table = {
        point: Mount(1, 0, point, "tmpfs")
        for point in ("/", "/proc", "/sys/x", "/dev/shm", "/tmp", "/var/lib/kubelet/x")
    }
    table |= {"/etc": Mount(1, 0, "/etc", "nfs4"), "/usr": Mount(1, 0, "/usr", "ext4", read_only=True)}
    table |= {"/bin": Mount(1, 0, "/bin", "autofs"), "/etc/passwd": Mount(1, 0, "/etc/passwd", "ext4")}
    layers = {layer.path: layer.how for layer in mounts.whole(table)}
    assert layers == {"/": COPY, "/tmp": COPY, "/etc": READ, "/usr": READ, "/etc/passwd": READ}
    assert "/tmp" not in {layer.path for layer in mounts.whole(table, hidden=("/tmp",))}


def test_a_directory_with_mounts_below_is_made_anew() -> None:
    with state_directory("root", "/tmp") as state:
        for name in ("plain", "deep/mounted", "deep/other", "void"):
            os.makedirs(f"{state}/{name}")
        for name in ("plain", "deep/other"):
            with open(f"{state}/{name}/file", "w", encoding="utf-8"):
                pass
        os.symlink("plain", f"{state}/link")
        table = {"/": Mount(1, 0, "/", "ext4"), f"{state}/deep/mounted": Mount(2, 1, f"{state}/deep/mounted", "nsfs")}
        layers = {layer.path: layer for layer in mounts.split(table)}
        assert {path.removeprefix(state): layer.how for path, layer in layers.items() if f"{state}/" in path} == {
            "/plain": COPY,
            "/deep": EMPTY,
            "/deep/mounted": EMPTY,
            "/deep/other": COPY,
            "/void": EMPTY,
            "/link": "link",
        }
        assert layers["/"].how == layers["/proc"].how == layers["/tmp"].how == EMPTY
        assert layers["/tmp"].mode == 0o1777
        assert layers[f"{state}/link"] == Layer(f"{state}/link", "link", link="plain")
        order = [layer.path for layer in mounts.split(table)]
        assert all(order.index(os.path.dirname(path)) < order.index(path) for path in order if path != "/")


@pytest.mark.parametrize("who", ["root", "user"])
def test_the_probe_leaves_nothing_behind(who: str) -> None:
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root")

    def action(state: str) -> tuple[Isolation, list[str]]:
        return probe(f"{state}/new"), os.listdir(f"{state}/new")

    with state_directory(who) as state:
        found, left = in_keeper(lambda: action(state), who)
        assert [mount.point for mount in mounts.read() if mounts.is_below(mount.point, state)] == []
    assert left == []
    assert found.namespaces in ({"root": ("full", "user", "none"), "user": ("user", "none")}[who])
    assert bool(found.warnings) == (not (found.pid and found.overlay and found.upper == "disk"))
    assert Isolation.from_json(found.to_json()) == found
    assert (",userxattr" in found.overlay_options) is (found.namespaces == "user" and bool(found.overlay))
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    assert found.counts is (found.namespaces == "user" and release >= (5, 14))
    assert (found.uids == idmap.NO_IDS) is (found.gids == idmap.NO_IDS)


def test_on_an_overlay_the_probe_finds_a_place_in_memory() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")

    def action(state: str) -> tuple[Isolation, tuple[int, str]]:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(f"{state}/{name}")
        options = f"lowerdir={state}/lower,upperdir={state}/upper,workdir={state}/work"
        libc.mount("overlay", f"{state}/merged", "overlay", 0, options)
        found = probe(f"{state}/merged/state")
        spec = World("root", f"{state}/merged/state", found).spec(
            "echo x > /tmp/podkeeper-test && cat /tmp/podkeeper-test"
        )
        return found, run(Jail(isolation=found), spec)

    with state_directory("root", "/tmp") as state:
        found, answer = in_keeper(lambda: action(state))
    assert answer == (0, "x\n")
    assert found.upper == "memory"
    assert "held in memory" in found.warnings[0]


def test_where_namespaces_are_refused_the_probe_says_what_would_help() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to take the powers of a root away")

    def action(state: str) -> Isolation:
        # A root without powers, in a user namespace that allows no further ones: what a locked-down machine is like.
        os.setresuid(65534, 65534, 65534)
        libc.prctl(libc.PR_SET_DUMPABLE, 1)
        idmap.enter_user_namespace(idmap.NO_IDS, idmap.NO_IDS)
        with open("/proc/sys/user/max_user_namespaces", "wb", 0) as limit:
            limit.write(b"0")
        with open("/proc/sys/user/max_mnt_namespaces", "wb", 0) as limit:
            limit.write(b"0")
        return probe(state)

    with state_directory("user") as state:
        found = in_keeper(lambda: action(state))
    assert found.namespaces == "none"
    assert "namespaces are refused" in found.warnings[0]
    assert "user.max_user_namespaces" in found.warnings[0]


def test_demolition_follows_no_link_and_forgives_what_is_gone() -> None:
    with state_directory("root") as state:
        os.makedirs(f"{state}/keep")
        os.makedirs(f"{state}/tree/locked/deep")
        os.chmod(f"{state}/tree/locked", 0)
        os.symlink(f"{state}/keep", f"{state}/tree/link")
        with open(f"{state}/keep/x", "w", encoding="utf-8"):
            pass
        demolish(f"{state}/tree")
        demolish(f"{state}/tree")
        demolish(f"{state}/never/was")
        assert os.listdir(state) == ["keep"]
        assert os.listdir(f"{state}/keep") == ["x"]
