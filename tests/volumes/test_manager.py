"""The volume manager: restarts, refreshes, measurements and cleanup."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from podkeeper.linux.mounts import file_system_of, mount_tmpfs, mounts_below, unmount
from podkeeper.linux.tree import open_directory, opened
from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapVolumeSource,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    ObjectFieldSelector,
    Pod,
    Secret,
    SecretVolumeSource,
    Volume,
)
from podkeeper.model.messages import PodUID
from podkeeper.model.pods import uid_of
from podkeeper.volumes.manager import HostVolumes
from podkeeper.volumes.usage import Overuse
from tests.volumes.bind import bind
from tests.volumes.harness import K, Store, content, is_gone, needs_mounts, pod_with, run, temporary_root

DISK = Volume(name="disk", empty_dir=EmptyDirVolumeSource())
MEMORY = Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory", size_limit="1Mi"))
SETTINGS = Volume(name="settings", config_map=ConfigMapVolumeSource(name="settings"))
SECRET = Volume(name="secret", secret=SecretVolumeSource(secret_name="password"))


def stored() -> Store:
    store = Store()
    store.config_map("settings", colour="blue")
    store.secret("password", admin="hunter2")
    return store


def test_volumes_use_the_kubelets_paths() -> None:
    async def scenario() -> None:
        pod = pod_with(DISK, SETTINGS)
        paths = await HostVolumes(root, stored()).mount(pod)
        volumes = f"{os.path.realpath(root)}/pods/{uid_of(pod)}/volumes"
        assert paths == {
            "disk": f"{volumes}/kubernetes.io~empty-dir/disk",
            "settings": f"{volumes}/kubernetes.io~configmap/settings",
        }

    with temporary_root() as root:
        run(scenario())


def test_a_restarted_agent_finds_existing_volumes() -> None:
    async def scenario() -> None:
        store = stored()
        pod = pod_with(DISK, MEMORY, SETTINGS, SECRET)
        paths = await HostVolumes(root, store).mount(pod)
        for name in ("disk", "memory"):
            Path(paths[name], "work").write_text("x")
        os.chmod(paths["disk"], 0o700)  # the container's own will
        versions = [os.readlink(f"{paths[name]}/..data") for name in ("settings", "secret")]

        again = HostVolumes(root, store)
        assert uid_of(pod) in again.mounted_pods()
        assert await again.mount(pod) == paths
        assert [content(paths[name]) for name in ("disk", "memory")] == [{"work": "x"}] * 2
        assert os.stat(paths["disk"]).st_mode & 0o777 == 0o700
        assert [os.readlink(f"{paths[name]}/..data") for name in ("settings", "secret")] == versions

        last = HostVolumes(root, store)
        await last.unmount(uid_of(pod))
        assert last.mounted_pods() == frozenset()
        await last.remove_directory(uid_of(pod))
        assert os.listdir(root / "pods") == []

    with temporary_root() as root:
        run(scenario())


def test_a_mounted_volume_stays_if_its_object_is_deleted() -> None:
    async def scenario() -> None:
        store = stored()
        pod = pod_with(SETTINGS)
        paths = await HostVolumes(root, store).mount(pod)
        store.delete(ConfigMap, "settings")
        volumes = HostVolumes(root, store)
        assert await volumes.mount(pod) == paths
        await volumes.refresh()
        assert content(paths["settings"]) == {"colour": "blue"}
        with pytest.raises(TryLater, match='configmap "settings" not found'):
            await volumes.mount(pod_with(SETTINGS))

    with temporary_root() as root:
        run(scenario())


@needs_mounts
def test_secrets_and_memory_volumes_are_separate_mounts() -> None:
    async def scenario() -> None:
        pod = pod_with(MEMORY, SECRET)
        volumes = HostVolumes(root, stored())
        paths = await volumes.mount(pod)
        assert [file_system_of(path) for path in paths.values()] == ["tmpfs", "tmpfs"]
        assert sorted(mounts_below(os.path.realpath(root))) == sorted(paths.values())
        size = os.statvfs(paths["memory"])
        assert size.f_blocks * size.f_frsize == 2**20
        with pytest.raises(OSError, match="No space left"):
            Path(paths["memory"], "large").write_bytes(b"x" * (2**20 + 1))
        await volumes.unmount(uid_of(pod))
        assert mounts_below(os.path.realpath(root)) == []
        assert all(map(is_gone, paths.values()))

    with temporary_root() as root:
        run(scenario())


@needs_mounts
def test_a_lost_mount_is_mounted_again() -> None:
    async def scenario() -> None:
        pod = pod_with(SECRET)
        volumes = HostVolumes(root, stored())
        paths = await volumes.mount(pod)
        unmount(paths["secret"])  # as after a restart of the machine: the directory is there and empty
        assert await volumes.mount(pod) == paths
        assert (file_system_of(paths["secret"]), content(paths["secret"])) == ("tmpfs", {"admin": "hunter2"})
        await volumes.unmount(uid_of(pod))

    with temporary_root() as root:
        run(scenario())


@needs_mounts
def test_a_foreign_mount_inside_a_volume_is_unmounted_and_not_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "kept").write_text("x")
        pod = pod_with(DISK)
        volumes = HostVolumes(root, stored())
        inside = Path((await volumes.mount(pod))["disk"], "inside")
        inside.mkdir()
        bind(tmp_path, inside)
        with opened(open_directory(str(inside))) as directory:
            mount_tmpfs(directory, "size=1m")  # one on top of the other
        (inside / "deeper").mkdir()
        with opened(open_directory(str(inside / "deeper"))) as directory:
            mount_tmpfs(directory, "size=1m")
        await volumes.unmount(uid_of(pod))
        assert volumes.mounted_pods() == frozenset()
        assert (tmp_path / "kept").read_text() == "x"
        await volumes.remove_directory(uid_of(pod))

    with temporary_root() as root:
        run(scenario())


@needs_mounts
def test_unmounting_a_mount_in_use_is_retried() -> None:
    async def scenario() -> None:
        pod = pod_with(MEMORY, DISK)
        volumes = HostVolumes(root, stored())
        paths = await volumes.mount(pod)
        with open(Path(paths["memory"], "held"), "w"), pytest.raises(TryLater, match=r"cannot unmount .* busy"):
            await volumes.unmount(uid_of(pod))
        assert uid_of(pod) in volumes.mounted_pods()
        await volumes.unmount(uid_of(pod))
        assert volumes.mounted_pods() == frozenset()

    with temporary_root() as root:
        run(scenario())


@needs_mounts
def test_a_directory_with_a_foreign_mount_is_listed_and_stays() -> None:
    async def scenario() -> None:
        inside = root / "pods" / "someone" / "containers" / "web"
        inside.mkdir(parents=True)
        with opened(open_directory(str(inside))) as directory:
            mount_tmpfs(directory, "size=1m")
        (inside / "kept").write_text("x")
        volumes = HostVolumes(root, stored())
        assert volumes.mounted_pods() == {"someone"}
        with pytest.raises(TryLater, match="containers/web is mounted"):
            await volumes.remove_directory(PodUID("someone"))
        assert (inside / "kept").read_text() == "x"
        await volumes.unmount(PodUID("someone"))
        assert volumes.mounted_pods() == frozenset()
        await volumes.remove_directory(PodUID("someone"))

    with temporary_root() as root:
        run(scenario())


def test_links_created_by_a_container_are_not_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "kept").write_text("x")
        pod = pod_with(DISK)
        volumes = HostVolumes(root, stored())
        disk = Path((await volumes.mount(pod))["disk"])
        os.symlink(tmp_path, disk / "link")
        (disk / "a").mkdir()
        os.symlink(tmp_path / "kept", disk / "a" / "file")
        await volumes.unmount(uid_of(pod))
        await volumes.remove_directory(uid_of(pod))
        assert (tmp_path / "kept").read_text() == "x"

    with temporary_root() as root:
        run(scenario())


def test_files_of_a_host_path_are_not_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "kept").write_text("x")
        pod = pod_with(DISK, Volume(name="host", host_path=HostPathVolumeSource(path=str(tmp_path))))
        volumes = HostVolumes(root, stored())
        assert (await volumes.mount(pod))["host"] == str(tmp_path)
        await volumes.unmount(uid_of(pod))
        await volumes.remove_directory(uid_of(pod))
        assert (tmp_path / "kept").read_text() == "x"

    with temporary_root() as root:
        run(scenario())


@pytest.mark.parametrize("uid", ["..", ".", "a/b", "../../etc", ""])
def test_a_uid_that_is_not_a_directory_name_is_refused(uid: str) -> None:
    async def scenario() -> None:
        volumes = HostVolumes(root, stored())
        pod = pod_with(DISK)
        for call in (
            volumes.mount(replace(pod, metadata=replace(pod.metadata, uid=uid))),
            volumes.unmount(PodUID(uid)),
            volumes.remove_directory(PodUID(uid)),
        ):
            with pytest.raises(TryLater, match="cannot use pod UID"):
                await call

    with temporary_root() as root:
        run(scenario())
        assert os.listdir(root) == []


def test_disk_errors_are_retried(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file where a directory should be")

    async def scenario() -> None:
        volumes = HostVolumes(tmp_path / "root", stored())
        with pytest.raises(TryLater, match="cannot create its directory"):
            await volumes.mount(pod_with(DISK))
        with pytest.raises(TryLater, match="cannot list the directories of pods"):
            await volumes.directories()
        with pytest.raises(TryLater, match="cannot list the directories of pods"):
            volumes.mounted_pods()

    run(scenario())


def test_a_volume_name_that_is_not_a_directory_name_is_refused() -> None:
    async def scenario() -> None:
        await HostVolumes(root, stored()).mount(pod_with(Volume(name="../x", empty_dir=EmptyDirVolumeSource())))

    with temporary_root() as root, pytest.raises(TryLater, match=r'cannot use volume name "\.\./x"'):
        run(scenario())


def test_a_refresh_writes_current_content_and_reads_each_object_once() -> None:
    async def scenario() -> None:
        store = stored()
        volumes = HostVolumes(root, store)
        paths = [await volumes.mount(pod_with(SETTINGS, SECRET)) for _ in range(3)]
        versions = [os.readlink(f"{each['secret']}/..data") for each in paths]
        store.config_map("settings", colour="red", shape="round")
        store.reads = 0
        await volumes.refresh()
        assert [content(each["settings"]) for each in paths] == [{"colour": "red", "shape": "round"}] * 3
        assert [os.readlink(f"{each['secret']}/..data") for each in paths] == versions
        assert store.reads == 2
        for uid in volumes.mounted_pods():
            await volumes.unmount(uid)
        store.config_map("settings", colour="green")
        await volumes.refresh()
        assert volumes.mounted_pods() == frozenset()

    with temporary_root() as root:
        run(scenario())


def test_a_refresh_does_not_overwrite_a_newer_mount() -> None:
    class SlowStore(Store):
        """Delays the next read of a secret."""

        hold: asyncio.Event | None = None

        async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
            found = await super().get(kind, name, namespace)
            if kind is Secret and self.hold is not None:
                hold, self.hold = self.hold, None
                await hold.wait()
            return found

    async def scenario() -> None:
        store = SlowStore()
        store.config_map("settings", colour="blue")
        store.secret("password", admin="hunter2")
        volumes = HostVolumes(root, store)
        pod = pod_with(SETTINGS, SECRET)
        path = (await volumes.mount(pod))["settings"]
        store.config_map("settings", colour="red")
        hold = store.hold = asyncio.Event()
        refreshing = asyncio.create_task(volumes.refresh())
        while store.hold is not None:
            await asyncio.sleep(0)
        store.config_map("settings", colour="green")
        await volumes.mount(pod)
        hold.set()
        await refreshing
        assert content(path) == {"colour": "green"}
        await volumes.unmount(uid_of(pod))

    with temporary_root() as root:
        run(scenario())


@contextmanager
def small_files() -> Iterator[None]:
    """Limit the size of files, which has the effect of a full disk for every user."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_failed_update_is_repeated_by_the_next_refresh() -> None:
    async def scenario() -> None:
        store = stored()
        volumes = HostVolumes(root, store)
        large, other = pod_with(SETTINGS), pod_with(Volume(name="b", config_map=ConfigMapVolumeSource(name="b")))
        store.config_map("b", colour="blue")
        path, beside = (await volumes.mount(large))["settings"], (await volumes.mount(other))["b"]
        store.config_map("settings", colour="x" * 40_000)
        store.config_map("b", colour="red")
        with small_files():
            for _ in range(2):
                await volumes.refresh()
                assert content(path) == {"colour": "blue"}
        assert content(beside) == {"colour": "red"}
        await volumes.refresh()
        assert content(path) == {"colour": "x" * 40_000}

    with temporary_root() as root:
        run(scenario())


def test_a_failed_update_that_was_reverted_changes_nothing() -> None:
    async def scenario() -> None:
        store = stored()
        volumes = HostVolumes(root, store)
        path = (await volumes.mount(pod_with(SETTINGS)))["settings"]
        before = os.readlink(f"{path}/..data")
        store.config_map("settings", colour="x" * 40_000)
        with small_files():
            await volumes.refresh()
        store.config_map("settings", colour="blue")
        await volumes.refresh()
        assert (content(path), os.readlink(f"{path}/..data")) == ({"colour": "blue"}, before)
        assert sorted(name for name in os.listdir(path) if name.startswith("..")) == sorted([before, "..data"])

    with temporary_root() as root:
        run(scenario())


def test_a_failed_mount_is_not_refreshed_and_succeeds_later() -> None:
    async def scenario() -> None:
        store = stored()
        volumes = HostVolumes(root, store)
        pod = pod_with(SETTINGS, DISK)
        store.config_map("settings", colour="x" * 40_000)
        with small_files(), pytest.raises(TryLater, match="settings"):
            await volumes.mount(pod)
        store.reads = 0
        await volumes.refresh()
        assert store.reads == 0
        assert content((await volumes.mount(pod))["settings"]) == {"colour": "x" * 40_000}

    with temporary_root() as root:
        run(scenario())


def test_an_unreadable_object_does_not_stop_other_refreshes() -> None:
    async def scenario() -> None:
        store = stored()
        store.config_map("b", colour="blue")
        volumes = HostVolumes(root, store)
        both = pod_with(SETTINGS, Volume(name="b", config_map=ConfigMapVolumeSource(name="b")))
        paths = await volumes.mount(both)
        store.delete(ConfigMap, "settings")
        store.config_map("b", colour="red")
        await volumes.refresh()
        assert [content(paths[name]) for name in ("settings", "b")] == [{"colour": "blue"}, {"colour": "red"}]
        store.config_map("settings", colour="green")
        await volumes.refresh()
        assert content(paths["settings"]) == {"colour": "green"}

    with temporary_root() as root:
        run(scenario())


class GatedStore(Store):
    """Delays each read until a gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = 0

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        found = await super().get(kind, name, namespace)
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return found


def test_objects_that_change_during_a_refresh_are_refreshed_again() -> None:
    async def scenario() -> None:
        store = GatedStore()
        store.gate.set()
        store.config_map("settings", colour="blue")
        volumes = HostVolumes(root, store, refresh_seconds=3600)
        path = (await volumes.mount(pod_with(SETTINGS)))["settings"]
        running = asyncio.create_task(volumes.run())
        store.gate.clear()
        volumes.objects_changed()
        while not store.waiting:
            await asyncio.sleep(0)
        store.config_map("settings", colour="red")  # the refresh under way has read before
        volumes.objects_changed()
        store.gate.set()
        while content(path) != {"colour": "red"}:
            await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait([running])

    with temporary_root() as root:
        run(scenario())


def test_a_pod_that_is_unmounted_during_a_refresh_stays_unmounted() -> None:
    async def scenario() -> None:
        store = GatedStore()
        store.gate.set()
        store.config_map("settings", colour="blue")
        volumes = HostVolumes(root, store)
        pod = pod_with(SETTINGS)
        await volumes.mount(pod)
        store.config_map("settings", colour="red")
        store.gate.clear()
        refreshing = asyncio.create_task(volumes.refresh())
        while not store.waiting:
            await asyncio.sleep(0)
        await volumes.unmount(uid_of(pod))
        store.gate.set()
        await refreshing
        assert volumes.mounted_pods() == frozenset()

    with temporary_root() as root:
        run(scenario())


def test_mounting_an_updated_pod_writes_its_labels() -> None:
    async def scenario() -> None:
        item = DownwardAPIVolumeFile(path="labels", field_ref=ObjectFieldSelector(field_path="metadata.labels"))
        pod = pod_with(Volume(name="me", downward_api=DownwardAPIVolumeSource(items=(item,))), app="old")
        volumes = HostVolumes(root, stored())
        path = (await volumes.mount(pod))["me"]
        await volumes.mount(replace(pod, metadata=replace(pod.metadata, labels={"app": "new"})))
        assert content(path) == {"labels": 'app="new"'}

    with temporary_root() as root:
        run(scenario())


PATIENT, EAGER = 3600.0, 0.02
KEPT_FRESH = {
    "a reported change is shown at once": (PATIENT, True),
    "an unreported change is found by the periodic refresh": (EAGER, False),
}


@pytest.mark.parametrize(("refresh_seconds", "is_notified"), KEPT_FRESH.values(), ids=KEPT_FRESH.keys())
def test_running_refreshes_volumes(refresh_seconds: float, is_notified: bool) -> None:
    async def scenario() -> None:
        store = stored()
        volumes = HostVolumes(root, store, refresh_seconds=refresh_seconds)
        path = (await volumes.mount(pod_with(SETTINGS)))["settings"]
        running = asyncio.create_task(volumes.run())
        for colour in ("red", "green"):
            store.config_map("settings", colour=colour)
            if is_notified:
                volumes.objects_changed()
            while content(path) != {"colour": colour}:
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with temporary_root() as root:
        run(scenario())


def test_a_volume_over_its_limit_is_reported_at_every_measurement() -> None:
    reported: list[Overuse] = []

    async def scenario() -> PodUID:
        volume = Volume(name="small", empty_dir=EmptyDirVolumeSource(size_limit="100Ki"))
        pod = pod_with(volume, DISK)
        volumes = HostVolumes(root, stored(), overuse=reported.append)
        paths = await volumes.mount(pod)
        Path(paths["disk"], "large").write_bytes(b"x" * 200_000)
        Path(paths["small"], "file").write_bytes(b"x" * 50_000)
        await volumes.measure()
        assert reported == []
        Path(paths["small"], "more").write_bytes(b"x" * 60_000)
        assert await volumes.measure() >= 10
        await volumes.measure()
        assert len(reported) == 2
        Path(paths["small"], "more").unlink()
        await volumes.measure()
        assert len(reported) == 2
        Path(paths["small"], "more").write_bytes(b"x" * 60_000)
        await volumes.unmount(uid_of(pod))
        await volumes.measure()
        return uid_of(pod)

    with temporary_root() as root:
        uid = run(scenario())
    assert [(one.uid, one.volume, one.message) for one in reported] == [
        (uid, "small", 'Usage of EmptyDir volume "small" exceeds the limit "100Ki". ')
    ] * 2


class BrokenStore(Store):
    """A store that fails unexpectedly a number of times."""

    failures = 0

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a bug")
        return await super().get(kind, name, namespace)


def test_after_an_unexpected_failure_volumes_are_still_refreshed() -> None:
    async def scenario() -> None:
        store = BrokenStore()
        store.config_map("settings", colour="blue")
        volumes = HostVolumes(root, store, refresh_seconds=EAGER)
        path = (await volumes.mount(pod_with(SETTINGS)))["settings"]
        running = asyncio.create_task(volumes.run())
        store.failures = 2
        store.config_map("settings", colour="red")
        while content(path) != {"colour": "red"}:
            await asyncio.sleep(0.005)
        assert store.failures == 0
        running.cancel()
        await asyncio.wait([running])

    with temporary_root() as root:
        run(scenario())


@pytest.mark.parametrize("error", [TryLater("not now"), RuntimeError("a bug")], ids=["trouble", "a bug"])
def test_after_a_failure_volumes_are_still_measured(error: Exception) -> None:
    failures, reported = [error, error], asyncio.Event()

    def overuse(found: Overuse) -> None:
        if failures:
            raise failures.pop()
        reported.set()

    async def scenario() -> None:
        volume = Volume(name="small", empty_dir=EmptyDirVolumeSource(size_limit="1Ki"))
        volumes = HostVolumes(root, stored(), overuse=overuse, measure_seconds=EAGER)
        Path((await volumes.mount(pod_with(volume)))["small"], "file").write_bytes(b"x" * 5_000)
        running = asyncio.create_task(volumes.run())
        await reported.wait()
        running.cancel()
        await asyncio.wait([running])

    with temporary_root() as root:
        run(scenario())


def test_a_pod_unmounted_during_a_measurement_is_not_reported() -> None:
    reported: list[Overuse] = []

    async def scenario() -> None:
        volume = Volume(name="small", empty_dir=EmptyDirVolumeSource(size_limit="1Ki"))
        volumes = HostVolumes(root, stored(), overuse=reported.append)
        pod = pod_with(volume)
        Path((await volumes.mount(pod))["small"], "file").write_bytes(b"x" * 5_000)
        measuring = asyncio.create_task(volumes.measure())
        await asyncio.sleep(0)  # the files are being measured
        removing = asyncio.create_task(volumes.unmount(uid_of(pod)))
        await asyncio.sleep(0)
        await asyncio.gather(measuring, removing)
        assert reported == []

    with temporary_root() as root:
        run(scenario())


def test_objects_of_an_unmounted_pod_are_not_read() -> None:
    async def scenario() -> None:
        store = stored()
        volumes = HostVolumes(root, store)
        pod = pod_with(SETTINGS)
        await volumes.mount(pod)
        await volumes.unmount(uid_of(pod))
        store.reads = 0
        await volumes.refresh()
        assert store.reads == 0

    with temporary_root() as root:
        run(scenario())


def pods_of(count: int) -> list[Pod]:
    return [pod_with(DISK, SETTINGS, SECRET) for _ in range(count)]


def test_many_pods_are_mounted_at_once() -> None:
    async def scenario() -> None:
        volumes = HostVolumes(root, stored())
        pods = pods_of(30)
        paths = await asyncio.gather(*map(volumes.mount, pods))
        assert [content(each["settings"]) for each in paths] == [{"colour": "blue"}] * 30
        assert volumes.mounted_pods() == await volumes.directories() == {uid_of(pod) for pod in pods}
        await asyncio.gather(*(volumes.unmount(uid_of(pod)) for pod in pods))
        assert volumes.mounted_pods() == frozenset()

    with temporary_root() as root:
        run(scenario())
