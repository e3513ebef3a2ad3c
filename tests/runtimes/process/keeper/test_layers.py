"""How each part of the host's file tree is shown to a container."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podkeeper.linux.mounts import MountPoint
from podkeeper.runtimes.process.keeper import layers
from podkeeper.runtimes.process.keeper.layers import COPY, EMPTY, LINK, READ, Layer, directories_with_sockets
from tests.runtimes.process.jail_harness import state_directory

WAYS = {
    "/etc": ("ext4", False, COPY),
    "/usr": ("ext4", True, READ),
    "/opt": ("nfs4", False, READ),
    "/home": ("fuse.sshfs", False, READ),
    "/var": ("tmpfs", False, COPY),
    "/srv": ("overlay", False, None),
    "/mnt": ("autofs", False, None),
    "/proc/fs": ("ext4", False, None),
    "/sys/fs": ("ext4", False, None),
    "/dev/shm": ("tmpfs", False, None),
    "/run/netns": ("tmpfs", False, None),
    "/var/lib/docker/x": ("ext4", False, None),
    "/var/lib/kubelet": ("ext4", False, None),
    "/etc/hostname": ("ext4", False, READ),
    "/no/such/place": ("ext4", False, READ),
    "/tmp": ("ext4", False, None),  # hidden below
}


def test_the_layer_of_each_file_system_with_overlays() -> None:
    table = {"/": MountPoint(1, 0, "/", "overlay", read_only=True)}
    for point, (kind, read_only, _) in WAYS.items():
        table[point] = MountPoint(2, 1, point, kind, read_only)
    expected = [Layer("/", COPY), *(Layer(point, how) for point, (_, _, how) in WAYS.items() if how is not None)]
    assert layers.whole(table, hidden=("/tmp",)) == expected


@contextmanager
def tree() -> Iterator[str]:
    """A directory outside of /tmp and /var/tmp, which are replaced."""
    with tempfile.TemporaryDirectory(prefix="podkeeper-tree-", dir=os.path.expanduser("~")) as directory:
        yield directory


def layers_below(directory: str, found: list[Layer]) -> dict[str, tuple[str, int, str]]:
    return {
        layer.path.removeprefix(directory): (layer.how, layer.mode, layer.link)
        for layer in found
        if layer.path.startswith(f"{directory}/") or layer.path == directory
    }


def make(directory: str) -> None:
    for name in ("full/deep", "void", "mounted", "secret"):
        os.makedirs(f"{directory}/{name}")
    os.chmod(f"{directory}/void", 0o1770)
    os.chmod(directory, 0o751)
    Path(directory, "file").write_text("x")
    Path(directory, "full/file").write_text("x")
    Path(directory, "secret/file").write_text("x")
    os.symlink("full", f"{directory}/link")


def table_with(directory: str, kind: str = "tmpfs", *, read_only: bool = False) -> dict[str, MountPoint]:
    point = f"{directory}/mounted"
    return {"/": MountPoint(1, 0, "/", "ext4"), point: MountPoint(2, 1, point, kind, read_only)}


def test_a_directory_with_a_mount_below_is_split() -> None:
    with tree() as directory:
        make(directory)
        found = layers.split(table_with(directory), hidden=(f"{directory}/secret",))
        assert layers_below(directory, found) == {
            "": (EMPTY, 0o751, ""),
            "/file": (READ, 0o755, ""),
            "/full": (COPY, 0, ""),
            "/link": (LINK, 0o755, "full"),
            "/mounted": (EMPTY, 0o755, ""),  # empty, so cheaper than an overlay
            "/secret": (EMPTY, 0o755, ""),
            "/void": (EMPTY, 0o1770, ""),
        }
        Path(directory, "mounted/file").write_text("x")
        for kind, read_only, how in (("tmpfs", False, COPY), ("nfs4", False, READ), ("tmpfs", True, READ)):
            found = layers.split(table_with(directory, kind, read_only=read_only))
            assert layers_below(directory, found)["/mounted"] == (how, 0, "")
        assert layers_below(directory, layers.split(table_with(directory, "nsfs")))["/mounted"] == (EMPTY, 0o755, "")


def test_without_overlays_the_host_is_read_only_and_tmp_is_new() -> None:
    with tree() as directory:
        make(directory)
        found = layers.split(
            {"/": MountPoint(1, 0, "/", "ext4")}, overlay=False, cuts={directory, *map(str, Path(directory).parents)}
        )
        assert layers_below(directory, found) == {
            "": (EMPTY, 0o751, ""),
            "/file": (READ, 0o755, ""),
            "/full": (READ, 0, ""),
            "/link": (LINK, 0o755, "full"),
            "/mounted": (EMPTY, 0o755, ""),
            "/secret": (READ, 0, ""),
            "/void": (EMPTY, 0o1770, ""),
        }
        by_path = {layer.path: layer for layer in found}
        assert by_path["/tmp"] == Layer("/tmp", EMPTY, 0o1777)
        for own in ("/proc", "/sys", "/dev"):
            assert by_path[own] == Layer(own, EMPTY)
        assert found[0].path == "/"
        assert found[0].how == EMPTY


def test_sockets_and_pipes_are_not_shown() -> None:
    with tree() as directory, socket.socket(socket.AF_UNIX) as listener:
        make(directory)
        listener.bind(f"{directory}/full/deep/bus")
        os.mkfifo(f"{directory}/pipe")
        assert directories_with_sockets(directory) == {directory, f"{directory}/full", f"{directory}/full/deep"}
        cuts = {*directories_with_sockets(directory), *map(str, Path(directory).parents)}
        found = layers_below(directory, layers.split({"/": MountPoint(1, 0, "/", "ext4")}, overlay=False, cuts=cuts))
        assert {"/full", "/full/file", "/file"} < found.keys()
        assert not {"/pipe", "/full/deep/bus"} & found.keys()


def test_a_mount_with_mounts_below_it_is_still_shown() -> None:
    with tree() as directory:
        make(directory)
        point, inner = directory, f"{directory}/mounted"
        table = {
            "/": MountPoint(1, 0, "/", "ext4"),
            point: MountPoint(2, 1, point, "nfs4"),
            inner: MountPoint(3, 2, inner, "tmpfs"),
        }
        found = layers_below(directory, layers.split(table))
        assert (found["/full"], found["/secret"]) == ((READ, 0, ""), (READ, 0, ""))


def test_every_real_file_system_is_a_layer() -> None:
    table = {
        point: MountPoint(1, 0, point, "tmpfs")
        for point in ("/", "/proc", "/sys/x", "/dev/shm", "/tmp", "/var/lib/kubelet/x")
    }
    table |= {"/etc": MountPoint(1, 0, "/etc", "nfs4"), "/usr": MountPoint(1, 0, "/usr", "ext4", read_only=True)}
    table |= {"/bin": MountPoint(1, 0, "/bin", "autofs"), "/etc/passwd": MountPoint(1, 0, "/etc/passwd", "ext4")}
    found = {layer.path: layer.how for layer in layers.whole(table)}
    assert found == {"/": COPY, "/tmp": COPY, "/etc": READ, "/usr": READ, "/etc/passwd": READ}
    assert "/tmp" not in {layer.path for layer in layers.whole(table, hidden=("/tmp",))}


def test_a_directory_with_mounts_below_is_created_again() -> None:
    with state_directory("root", "/tmp") as state:
        for name in ("plain", "deep/mounted", "deep/other", "void"):
            os.makedirs(f"{state}/{name}")
        for name in ("plain", "deep/other"):
            with open(f"{state}/{name}/file", "w", encoding="utf-8"):
                pass
        os.symlink("plain", f"{state}/link")
        table = {
            "/": MountPoint(1, 0, "/", "ext4"),
            f"{state}/deep/mounted": MountPoint(2, 1, f"{state}/deep/mounted", "nsfs"),
        }
        found = {layer.path: layer for layer in layers.split(table)}
        assert {path.removeprefix(state): layer.how for path, layer in found.items() if f"{state}/" in path} == {
            "/plain": COPY,
            "/deep": EMPTY,
            "/deep/mounted": EMPTY,
            "/deep/other": COPY,
            "/void": EMPTY,
            "/link": "link",
        }
        assert found["/"].how == found["/proc"].how == found["/tmp"].how == EMPTY
        assert found["/tmp"].mode == 0o1777
        assert found[f"{state}/link"] == Layer(f"{state}/link", "link", link="plain")
        order = [layer.path for layer in layers.split(table)]
        assert all(order.index(os.path.dirname(path)) < order.index(path) for path in order if path != "/")
