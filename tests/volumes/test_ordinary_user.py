"""What an ordinary user gets: secrets in shared memory, closed to others, and gone in the end."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import EmptyDirVolumeSource, SecretVolumeSource, Volume
from podkeeper.volumes.kernel import file_system_of
from podkeeper.volumes.manager import HostVolumes
from podkeeper.volumes.memory import shared_memory
from podkeeper.volumes.usage import OverUse
from tests.volumes.volume_house import (
    NOBODY,
    Store,
    as_nobody,
    content,
    is_gone,
    mode_of,
    needs_root,
    pod_with,
    run,
    uid_of,
)

pytestmark = needs_root

SECRET = Volume(name="secret", secret=SecretVolumeSource(secret_name="password"))
MEMORY = Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory", size_limit="100Ki"))


@pytest.fixture
def home() -> Iterator[str]:
    """A directory of nobody's own."""
    path = tempfile.mkdtemp(prefix="volumes-")
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def shared() -> Iterator[str]:
    """A directory in memory that everybody may write into."""
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


def test_secrets_lie_in_shared_memory_closed_to_others_until_they_are_unmounted(home: str, shared: str) -> None:
    async def scenario() -> None:
        pod = pod_with(SECRET)
        volumes = HostVolumes(home, stored(), shared=[shared])
        path = (await volumes.mount(pod))["secret"]
        assert path.startswith(f"{shared}/podkeeper-{NOBODY}-")
        assert (file_system_of(path), content(path)) == ("tmpfs", {"admin": "hunter2"})
        (base,) = Path(shared).iterdir()
        assert (mode_of(str(base)), mode_of(f"{path}/admin")) == (0o700, 0o600)
        sign = f"{os.path.realpath(home)}/pods/{uid_of(pod)}/volumes/kubernetes.io~secret/secret"
        assert os.readlink(sign) == path

        again = HostVolumes(home, stored(), shared=[shared])
        assert again.mounted_pods() == {uid_of(pod)}
        assert await again.mount(pod) == {"secret": path}
        with pytest.raises(TryLater):
            await again.remove_directory(uid_of(pod))
        await again.unmount(uid_of(pod))
        assert (again.mounted_pods(), os.listdir(shared)) == (frozenset(), [])
        await again.remove_directory(uid_of(pod))
        assert os.listdir(f"{home}/pods") == []

    as_nobody(lambda: run(scenario()))


def test_memory_that_was_lost_is_made_anew(home: str, shared: str) -> None:
    async def scenario() -> None:
        pod = pod_with(SECRET)
        volumes = HostVolumes(home, stored(), shared=[shared])
        path = (await volumes.mount(pod))["secret"]
        shutil.rmtree(next(Path(shared).iterdir()))  # as a restart of the machine, or a logout, does
        assert await volumes.mount(pod) == {"secret": path}
        assert content(path) == {"admin": "hunter2"}
        await volumes.unmount(uid_of(pod))

    as_nobody(lambda: run(scenario()))


def test_the_size_of_a_memory_volume_is_measured_where_the_kernel_does_not_keep_it(home: str, shared: str) -> None:
    async def scenario() -> None:
        told: list[OverUse] = []
        pod = pod_with(MEMORY)
        volumes = HostVolumes(home, stored(), shared=[shared], over_use=told.append)
        path = (await volumes.mount(pod))["memory"]
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o1777
        Path(path, "large").write_bytes(b"x" * 200_000)
        await volumes.measure()
        assert [one.volume for one in told] == ["memory"]
        await volumes.unmount(uid_of(pod))
        assert is_gone(path)

    as_nobody(lambda: run(scenario()))


def test_a_directory_that_somebody_else_planted_is_not_used(home: str, shared: str) -> None:
    async def place() -> str:
        pod = pod_with(SECRET)
        volumes = HostVolumes(home, stored(), shared=[shared])
        path = (await volumes.mount(pod))["secret"]
        await volumes.unmount(uid_of(pod))
        return path

    async def refused() -> str:
        with pytest.raises(TryLater) as raised:
            await HostVolumes(home, stored(), shared=[shared]).mount(pod_with(SECRET))
        return str(raised.value)

    base = Path(shared, as_nobody(lambda: run(place())).removeprefix(shared + "/").partition("/")[0])
    base.mkdir(mode=0o777)  # root's
    assert "is somebody else's: remove it" in as_nobody(lambda: run(refused()))
    base.rmdir()
    os.symlink(home, base)
    os.chown(base, NOBODY, NOBODY, follow_symlinks=False)
    assert "is somebody else's: remove it" in as_nobody(lambda: run(refused()))


def test_without_any_memory_a_secret_is_not_written_to_disk(home: str) -> None:
    async def scenario() -> str:
        with pytest.raises(TryLater) as raised:
            await HostVolumes(home, stored(), shared=[home]).mount(pod_with(SECRET))
        return str(raised.value)

    message = as_nobody(lambda: run(scenario()))
    assert message.startswith('MountVolume.SetUp failed for volume "secret" : cannot keep volume secret in memory')
    assert f"{home} does not lie in memory" in message
    found = [path for path in Path(home).rglob("*") if path.is_file()]
    assert found == []


def test_a_link_in_the_place_of_a_volume_does_not_lead_the_removal(home: str, shared: str) -> None:
    async def scenario() -> None:
        precious = Path(home, "precious")
        precious.mkdir()
        (precious / "kept").write_text("x")
        pod = pod_with(SECRET)
        volumes = HostVolumes(home, stored(), shared=[shared])
        await volumes.mount(pod)
        sign = f"{home}/pods/{uid_of(pod)}/volumes/kubernetes.io~secret/secret"
        os.unlink(sign)
        os.symlink(precious, sign)
        await volumes.unmount(uid_of(pod))
        assert (precious / "kept").read_text() == "x"
        assert (is_gone(sign), os.listdir(shared)) == (True, [])

    as_nobody(lambda: run(scenario()))


def test_where_an_ordinary_user_finds_memory() -> None:
    own = f"/run/user/{os.geteuid()}"
    assert shared_memory({"XDG_RUNTIME_DIR": "/run/mine"}) == ("/run/mine", own, "/dev/shm")
    assert shared_memory({"XDG_RUNTIME_DIR": own}) == (own, "/dev/shm")
    assert shared_memory({}) == (own, "/dev/shm")
