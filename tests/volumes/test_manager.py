"""The house of volumes: restarts, refreshes, clean-up, and what is left alone."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

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
from podkeeper.volumes.kernel import file_system_of, mount_tmpfs, mounts_below, unmount
from podkeeper.volumes.manager import HostVolumes
from podkeeper.volumes.tree import open_directory, opened
from podkeeper.volumes.usage import OverUse
from tests.volumes.bind import bind
from tests.volumes.volume_house import K, Store, content, house, is_gone, needs_mounts, pod_with, run, uid_of

DISK = Volume(name="disk", empty_dir=EmptyDirVolumeSource())
MEMORY = Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory", size_limit="1Mi"))
SETTINGS = Volume(name="settings", config_map=ConfigMapVolumeSource(name="settings"))
SECRET = Volume(name="secret", secret=SecretVolumeSource(secret_name="password"))


def stored() -> Store:
    store = Store()
    store.config_map("settings", colour="blue")
    store.secret("password", admin="hunter2")
    return store


def test_volumes_lie_where_those_of_the_kubelet_do() -> None:
    async def scenario() -> None:
        pod = pod_with(DISK, SETTINGS)
        paths = await HostVolumes(root, stored()).mount(pod)
        volumes = f"{os.path.realpath(root)}/pods/{uid_of(pod)}/volumes"
        assert paths == {
            "disk": f"{volumes}/kubernetes.io~empty-dir/disk",
            "settings": f"{volumes}/kubernetes.io~configmap/settings",
        }

    with house() as root:
        run(scenario())


def test_an_agent_that_starts_anew_finds_what_is_there() -> None:
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

    with house() as root:
        run(scenario())


def test_what_is_ready_stays_when_its_object_is_gone() -> None:
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

    with house() as root:
        run(scenario())


@needs_mounts
def test_secrets_and_memory_volumes_are_mounts_of_their_own() -> None:
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

    with house() as root:
        run(scenario())


@needs_mounts
def test_a_volume_that_lost_its_mount_gets_another() -> None:
    async def scenario() -> None:
        pod = pod_with(SECRET)
        volumes = HostVolumes(root, stored())
        paths = await volumes.mount(pod)
        unmount(paths["secret"])  # as after a restart of the machine: the directory is there and empty
        assert await volumes.mount(pod) == paths
        assert (file_system_of(paths["secret"]), content(paths["secret"])) == ("tmpfs", {"admin": "hunter2"})
        await volumes.unmount(uid_of(pod))

    with house() as root:
        run(scenario())


@needs_mounts
def test_what_others_mounted_inside_a_volume_is_unmounted_and_not_deleted(tmp_path: Path) -> None:
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

    with house() as root:
        run(scenario())


@needs_mounts
def test_a_mount_that_is_in_use_is_tried_again_later() -> None:
    async def scenario() -> None:
        pod = pod_with(MEMORY, DISK)
        volumes = HostVolumes(root, stored())
        paths = await volumes.mount(pod)
        with open(Path(paths["memory"], "held"), "w"), pytest.raises(TryLater, match=r"cannot unmount .* busy"):
            await volumes.unmount(uid_of(pod))
        assert uid_of(pod) in volumes.mounted_pods()
        await volumes.unmount(uid_of(pod))
        assert volumes.mounted_pods() == frozenset()

    with house() as root:
        run(scenario())


@needs_mounts
def test_a_directory_with_a_mount_of_whomever_is_known_and_stays() -> None:
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

    with house() as root:
        run(scenario())


def test_links_that_a_container_planted_lead_nowhere(tmp_path: Path) -> None:
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

    with house() as root:
        run(scenario())


def test_what_lies_at_a_host_path_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "kept").write_text("x")
        pod = pod_with(DISK, Volume(name="host", host_path=HostPathVolumeSource(path=str(tmp_path))))
        volumes = HostVolumes(root, stored())
        assert (await volumes.mount(pod))["host"] == str(tmp_path)
        await volumes.unmount(uid_of(pod))
        await volumes.remove_directory(uid_of(pod))
        assert (tmp_path / "kept").read_text() == "x"

    with house() as root:
        run(scenario())


@pytest.mark.parametrize("uid", ["..", ".", "a/b", "../../etc", ""])
def test_a_uid_that_is_no_name_of_a_directory_is_refused(uid: str) -> None:
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

    with house() as root:
        run(scenario())
        assert os.listdir(root) == []


def test_what_the_disk_refuses_is_tried_again_later(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file where a directory should be")

    async def scenario() -> None:
        volumes = HostVolumes(tmp_path / "root", stored())
        with pytest.raises(TryLater, match="cannot make its directory"):
            await volumes.mount(pod_with(DISK))
        with pytest.raises(TryLater, match="cannot list the directories of pods"):
            await volumes.directories()
        with pytest.raises(TryLater, match="cannot list the directories of pods"):
            volumes.mounted_pods()

    run(scenario())


def test_a_volume_name_that_is_no_name_of_a_directory_is_refused() -> None:
    async def scenario() -> None:
        await HostVolumes(root, stored()).mount(pod_with(Volume(name="../x", empty_dir=EmptyDirVolumeSource())))

    with house() as root, pytest.raises(TryLater, match=r'cannot use volume name "\.\./x"'):
        run(scenario())


def test_a_refresh_shows_what_objects_say_now_and_reads_each_once() -> None:
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

    with house() as root:
        run(scenario())


def test_a_refresh_that_is_overtaken_by_a_mount_shows_nothing_old() -> None:
    class SlowStore(Store):
        """Holds up the next reader of a secret."""

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

    with house() as root:
        run(scenario())


@contextmanager
def small_files() -> Iterator[None]:
    """A limit on the size of files is a disk that is full, for every user."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_update_that_failed_is_made_by_the_next_refresh() -> None:
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

    with house() as root:
        run(scenario())


def test_an_update_that_failed_and_is_no_longer_wanted_changes_nothing() -> None:
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

    with house() as root:
        run(scenario())


def test_a_mount_that_failed_leaves_nothing_to_refresh_and_succeeds_later() -> None:
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

    with house() as root:
        run(scenario())


def test_an_object_that_cannot_be_read_keeps_no_other_from_being_refreshed() -> None:
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

    with house() as root:
        run(scenario())


class GatedStore(Store):
    """Waits before each answer until a gate is open."""

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

    with house() as root:
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

    with house() as root:
        run(scenario())


def test_a_mount_of_a_newer_pod_shows_its_labels() -> None:
    async def scenario() -> None:
        item = DownwardAPIVolumeFile(path="labels", field_ref=ObjectFieldSelector(field_path="metadata.labels"))
        pod = pod_with(Volume(name="me", downward_api=DownwardAPIVolumeSource(items=(item,))), app="old")
        volumes = HostVolumes(root, stored())
        path = (await volumes.mount(pod))["me"]
        await volumes.mount(replace(pod, metadata=replace(pod.metadata, labels={"app": "new"})))
        assert content(path) == {"labels": 'app="new"'}

    with house() as root:
        run(scenario())


PATIENT, EAGER = 3600.0, 0.02
KEPT_FRESH = {"news are shown at once": (PATIENT, True), "without news it is looked after a while": (EAGER, False)}


@pytest.mark.parametrize(("refresh_seconds", "is_told"), KEPT_FRESH.values(), ids=KEPT_FRESH.keys())
def test_while_it_runs(refresh_seconds: float, is_told: bool) -> None:
    async def scenario() -> None:
        store = stored()
        volumes = HostVolumes(root, store, refresh_seconds=refresh_seconds)
        path = (await volumes.mount(pod_with(SETTINGS)))["settings"]
        running = asyncio.create_task(volumes.run())
        for colour in ("red", "green"):
            store.config_map("settings", colour=colour)
            if is_told:
                volumes.objects_changed()
            while content(path) != {"colour": colour}:
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with house() as root:
        run(scenario())


def test_a_volume_beyond_its_limit_is_told_as_long_as_it_is() -> None:
    told: list[OverUse] = []

    async def scenario() -> PodUID:
        volume = Volume(name="small", empty_dir=EmptyDirVolumeSource(size_limit="100Ki"))
        pod = pod_with(volume, DISK)
        volumes = HostVolumes(root, stored(), over_use=told.append)
        paths = await volumes.mount(pod)
        Path(paths["disk"], "large").write_bytes(b"x" * 200_000)
        Path(paths["small"], "file").write_bytes(b"x" * 50_000)
        await volumes.measure()
        assert told == []
        Path(paths["small"], "more").write_bytes(b"x" * 60_000)
        assert await volumes.measure() >= 10
        await volumes.measure()
        assert len(told) == 2
        Path(paths["small"], "more").unlink()
        await volumes.measure()
        assert len(told) == 2
        Path(paths["small"], "more").write_bytes(b"x" * 60_000)
        await volumes.unmount(uid_of(pod))
        await volumes.measure()
        return uid_of(pod)

    with house() as root:
        uid = run(scenario())
    assert [(one.uid, one.volume, one.message) for one in told] == [
        (uid, "small", 'Usage of EmptyDir volume "small" exceeds the limit "100Ki". ')
    ] * 2


class BrokenStore(Store):
    """A store that unexpectedly fails, so many times."""

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

    with house() as root:
        run(scenario())


@pytest.mark.parametrize("error", [TryLater("not now"), RuntimeError("a bug")], ids=["trouble", "a bug"])
def test_after_a_failure_volumes_are_still_measured(error: Exception) -> None:
    failures, told = [error, error], asyncio.Event()

    def over_use(found: OverUse) -> None:
        if failures:
            raise failures.pop()
        told.set()

    async def scenario() -> None:
        volume = Volume(name="small", empty_dir=EmptyDirVolumeSource(size_limit="1Ki"))
        volumes = HostVolumes(root, stored(), over_use=over_use, measure_seconds=EAGER)
        Path((await volumes.mount(pod_with(volume)))["small"], "file").write_bytes(b"x" * 5_000)
        running = asyncio.create_task(volumes.run())
        await told.wait()
        running.cancel()
        await asyncio.wait([running])

    with house() as root:
        run(scenario())


def test_a_pod_that_is_unmounted_while_it_is_measured_is_not_told_of() -> None:
    told: list[OverUse] = []

    async def scenario() -> None:
        volume = Volume(name="small", empty_dir=EmptyDirVolumeSource(size_limit="1Ki"))
        volumes = HostVolumes(root, stored(), over_use=told.append)
        pod = pod_with(volume)
        Path((await volumes.mount(pod))["small"], "file").write_bytes(b"x" * 5_000)
        measuring = asyncio.create_task(volumes.measure())
        await asyncio.sleep(0)  # the files are being looked at
        removing = asyncio.create_task(volumes.unmount(uid_of(pod)))
        await asyncio.sleep(0)
        await asyncio.gather(measuring, removing)
        assert told == []

    with house() as root:
        run(scenario())


def test_objects_of_a_pod_that_was_unmounted_are_not_read_any_more() -> None:
    async def scenario() -> None:
        store = stored()
        volumes = HostVolumes(root, store)
        pod = pod_with(SETTINGS)
        await volumes.mount(pod)
        await volumes.unmount(uid_of(pod))
        store.reads = 0
        await volumes.refresh()
        assert store.reads == 0

    with house() as root:
        run(scenario())


def pods_of(count: int) -> list[Pod]:
    return [pod_with(DISK, SETTINGS, SECRET) for _ in range(count)]


def test_many_pods_at_once_are_all_served() -> None:
    async def scenario() -> None:
        volumes = HostVolumes(root, stored())
        pods = pods_of(30)
        paths = await asyncio.gather(*map(volumes.mount, pods))
        assert [content(each["settings"]) for each in paths] == [{"colour": "blue"}] * 30
        assert volumes.mounted_pods() == await volumes.directories() == {uid_of(pod) for pod in pods}
        await asyncio.gather(*(volumes.unmount(uid_of(pod)) for pod in pods))
        assert volumes.mounted_pods() == frozenset()

    with house() as root:
        run(scenario())
