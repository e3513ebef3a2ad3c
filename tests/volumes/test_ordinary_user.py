"""Volumes of an ordinary user: secrets in shared memory, closed to other users, and removed at the end."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeeper.linux.mounts import file_system_of
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import EmptyDirVolumeSource, SecretVolumeSource, Volume
from podkeeper.model.pods import uid_of
from podkeeper.volumes.manager import HostVolumes
from podkeeper.volumes.memory import shared_memory
from podkeeper.volumes.usage import Overuse
from tests.volumes.harness import (
    NOBODY,
    Store,
    as_unprivileged_user,
    content,
    is_gone,
    mode_of,
    needs_root,
    pod_with,
    run,
)

pytestmark = needs_root

SECRET = Volume(name="secret", secret=SecretVolumeSource(secret_name="password"))
MEMORY = Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory", size_limit="100Ki"))


@pytest.fixture
def shared() -> Iterator[str]:
    """A directory in memory that every user may write to."""
    if file_system_of("/dev/shm") != "tmpfs":
        pytest.skip("there is no memory at /dev/shm")
    path = tempfile.mkdtemp(prefix="volumes-", dir="/dev/shm")
    os.chmod(path, 0o1777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def stored() -> Store:
    store = Store()
    store.secret("password", admin="hunter2")
    return store


def test_secrets_are_in_shared_memory_closed_to_others_until_unmounted(root: str, shared: str) -> None:
    async def scenario() -> None:
        pod = pod_with(SECRET)
        volumes = HostVolumes(root, stored(), shared=[shared])
        path = (await volumes.mount(pod))["secret"]
        assert path.startswith(f"{shared}/podkeeper-{NOBODY}-")
        assert (file_system_of(path), content(path)) == ("tmpfs", {"admin": "hunter2"})
        (base,) = Path(shared).iterdir()
        assert (mode_of(str(base)), mode_of(f"{path}/admin")) == (0o700, 0o600)
        sign = f"{os.path.realpath(root)}/pods/{uid_of(pod)}/volumes/kubernetes.io~secret/secret"
        assert os.readlink(sign) == path

        again = HostVolumes(root, stored(), shared=[shared])
        assert again.mounted_pods() == {uid_of(pod)}
        assert await again.mount(pod) == {"secret": path}
        with pytest.raises(TryLater):
            await again.remove_directory(uid_of(pod))
        await again.unmount(uid_of(pod))
        assert (again.mounted_pods(), os.listdir(shared)) == (frozenset(), [])
        await again.remove_directory(uid_of(pod))
        assert os.listdir(f"{root}/pods") == []

    as_unprivileged_user(lambda: run(scenario()))


def test_a_lost_directory_in_memory_is_created_again(root: str, shared: str) -> None:
    async def scenario() -> None:
        pod = pod_with(SECRET)
        volumes = HostVolumes(root, stored(), shared=[shared])
        path = (await volumes.mount(pod))["secret"]
        shutil.rmtree(next(Path(shared).iterdir()))  # as a restart of the machine, or a logout, does
        assert await volumes.mount(pod) == {"secret": path}
        assert content(path) == {"admin": "hunter2"}
        await volumes.unmount(uid_of(pod))

    as_unprivileged_user(lambda: run(scenario()))


def test_the_size_of_a_shared_memory_volume_is_measured(root: str, shared: str) -> None:
    async def scenario() -> None:
        reported: list[Overuse] = []
        pod = pod_with(MEMORY)
        volumes = HostVolumes(root, stored(), shared=[shared], overuse=reported.append)
        path = (await volumes.mount(pod))["memory"]
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o1777
        Path(path, "large").write_bytes(b"x" * 200_000)
        await volumes.measure()
        assert [one.volume for one in reported] == ["memory"]
        await volumes.unmount(uid_of(pod))
        assert is_gone(path)

    as_unprivileged_user(lambda: run(scenario()))


def test_a_directory_of_another_user_is_not_used(root: str, shared: str) -> None:
    async def path_of_the_secret() -> str:
        pod = pod_with(SECRET)
        volumes = HostVolumes(root, stored(), shared=[shared])
        path = (await volumes.mount(pod))["secret"]
        await volumes.unmount(uid_of(pod))
        return path

    async def refused() -> str:
        with pytest.raises(TryLater) as raised:
            await HostVolumes(root, stored(), shared=[shared]).mount(pod_with(SECRET))
        return str(raised.value)

    base = Path(
        shared, as_unprivileged_user(lambda: run(path_of_the_secret())).removeprefix(shared + "/").partition("/")[0]
    )
    reason = f"{base} is not a directory of this user with mode 0700; remove it"
    base.mkdir(mode=0o777)  # root's
    assert reason in as_unprivileged_user(lambda: run(refused()))
    base.rmdir()
    os.symlink(root, base)
    os.chown(base, NOBODY, NOBODY, follow_symlinks=False)
    assert reason in as_unprivileged_user(lambda: run(refused()))


def test_without_a_directory_in_memory_a_secret_is_not_written_to_disk(root: str) -> None:
    async def scenario() -> str:
        with pytest.raises(TryLater) as raised:
            await HostVolumes(root, stored(), shared=[root]).mount(pod_with(SECRET))
        return str(raised.value)

    message = as_unprivileged_user(lambda: run(scenario()))
    assert message.startswith('MountVolume.SetUp failed for volume "secret" : cannot create volume secret in memory')
    assert f"{root} is not in memory" in message
    found = [path for path in Path(root).rglob("*") if path.is_file()]
    assert found == []


def test_removal_does_not_follow_a_link_instead_of_a_volume(root: str, shared: str) -> None:
    async def scenario() -> None:
        precious = Path(root, "precious")
        precious.mkdir()
        (precious / "kept").write_text("x")
        pod = pod_with(SECRET)
        volumes = HostVolumes(root, stored(), shared=[shared])
        await volumes.mount(pod)
        sign = f"{root}/pods/{uid_of(pod)}/volumes/kubernetes.io~secret/secret"
        os.unlink(sign)
        os.symlink(precious, sign)
        await volumes.unmount(uid_of(pod))
        assert (precious / "kept").read_text() == "x"
        assert (is_gone(sign), os.listdir(shared)) == (True, [])

    as_unprivileged_user(lambda: run(scenario()))


def test_directories_in_memory_for_ordinary_users() -> None:
    own = f"/run/user/{os.geteuid()}"
    assert shared_memory({"XDG_RUNTIME_DIR": "/run/mine"}) == ("/run/mine", own, "/dev/shm")
    assert shared_memory({"XDG_RUNTIME_DIR": own}) == (own, "/dev/shm")
    assert shared_memory({}) == (own, "/dev/shm")
