"""Volume plans as values, paths of volumes, and the times of refreshes and measurements."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import (
    ClusterTrustBundleProjection,
    ConfigMap,
    ConfigMapProjection,
    Container,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    EphemeralContainer,
    HostPathVolumeSource,
    KeyToPath,
    Pod,
    PodSecurityContext,
    ResourceFieldSelector,
    ResourceRequirements,
    Secret,
    SecretProjection,
    SecurityContext,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.quantity import parse_quantity
from podkeeper.testing.virtual_time import simulate
from podkeeper.volumes.atomic_writer import Files, ProjectedFile
from podkeeper.volumes.empty_dir import EmptyDir
from podkeeper.volumes.host_path import HostPath
from podkeeper.volumes.kinds import PlanInputs, VolumePlan, payload_kind, payload_of, plan_of
from podkeeper.volumes.manager import HostVolumes
from podkeeper.volumes.memory import MemoryDirectories, shared_memory
from podkeeper.volumes.nested import mount_points_in
from podkeeper.volumes.paths import PodDirectory, checked
from podkeeper.volumes.payload import Payload, Unavailable
from podkeeper.volumes.projected import common_user
from podkeeper.volumes.user_namespace import in_our_group
from tests.volumes.harness import (
    IssuedTokens,
    Store,
    common_objects,
    content,
    mode_of,
    needs_root,
    of_field,
    of_map,
    of_secret,
    pod_with,
    projected,
    temporary_root,
)

GIB = 2**30


def stored() -> Store:
    store = common_objects()
    store.put(ConfigMap(metadata=ObjectMeta(name="bytes"), data={"a": "text"}, binary_data={"b": "/w=="}))
    store.put(Secret(metadata=ObjectMeta(name="both"), data={"a": "eA==", "b": "eA=="}, string_data={"b": "plain"}))
    store.put(Secret(metadata=ObjectMeta(name="broken"), data={"a": "xxx"}))
    return store


def inputs(*, tokens: IssuedTokens | None = None) -> PlanInputs:
    return PlanInputs(stored(), tokens, {"memory": parse_quantity("1Gi")})


def planned(volume: Volume, pod: Pod | None = None, *, tokens: IssuedTokens | None = None) -> VolumePlan:
    return simulate(plan_of(volume, pod or pod_with(volume), inputs(tokens=tokens)))[0]


def files(mode: int, **texts: str) -> Files:
    return {name.replace("__", "/"): ProjectedFile(text.encode(), mode) for name, text in texts.items()}


def payload(kind: str, shown: Files, *, in_memory: bool = False, group: int | None = None) -> Payload:
    return Payload("v", kind, shown, in_memory, GIB, group, ())


TOKEN = VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="t", audience="a"))
SELECTED = (KeyToPath(key="colour", path="deep/c"), KeyToPath(key="size", path="s", mode=0o600))

PLANS: dict[str, tuple[Volume, VolumePlan]] = {
    "a config map": (of_map("settings"), payload("configmap", files(0o644, colour="blue", size="7"))),
    "a config map with a mode": (
        of_map("settings", default_mode=0), payload("configmap", files(0, colour="blue", size="7"))),
    "selected keys": (
        of_map("settings", *SELECTED, default_mode=0o444),
        payload("configmap", {**files(0o444, deep__c="blue"), **files(0o600, s="7")})),
    "a selected key that is optional and missing": (
        of_map("settings", SELECTED[0], KeyToPath(key="x", path="x"), optional=True),
        payload("configmap", files(0o644, deep__c="blue"))),
    "a selected key that is missing": (
        of_map("settings", KeyToPath(key="x", path="x")),
        Unavailable("v", "configmap", "configmap references non-existent config key: x")),
    "bytes of a config map": (
        of_map("bytes"),
        payload("configmap", {"a": ProjectedFile(b"text", 0o644), "b": ProjectedFile(b"\xff", 0o644)})),
    "a config map that is missing": (
        of_map("gone"), Unavailable("v", "configmap", 'configmap "gone" not found')),
    "an optional config map that is missing": (of_map("gone", optional=True), payload("configmap", {})),
    "a secret": (of_secret("password"), payload("secret", files(0o600, admin="hunter2"), in_memory=True)),
    "a secret with a mode": (
        of_secret("password", default_mode=0o400), payload("secret", files(0o400, admin="hunter2"), in_memory=True)),
    "a secret with plain text": (of_secret("both"), payload("secret", files(0o600, a="x", b="plain"), in_memory=True)),
    "a secret that is missing": (of_secret("gone"), Unavailable("v", "secret", 'secret "gone" not found')),
    "an optional secret that is missing": (of_secret("gone", optional=True), payload("secret", {}, in_memory=True)),
    "a secret that is not base64": (
        of_secret("broken"),
        Unavailable("v", "secret", 'cannot read secret "broken": not base64: Incorrect padding')),
    "fields of the pod": (
        Volume(name="v", downward_api=DownwardAPIVolumeSource(
            items=(of_field("./name"), of_field("ns", "metadata.namespace", 0o400)), default_mode=0o640)),
        payload("downward-api", {**files(0o640, name="web"), **files(0o400, ns="default")})),
    "no fields of the pod": (
        Volume(name="v", downward_api=DownwardAPIVolumeSource()), payload("downward-api", {})),
    "unsupported fields": (
        Volume(name="v", downward_api=DownwardAPIVolumeSource(items=(
            of_field("a", "spec.nodeName"), of_field("b", "status.podIP"),
            DownwardAPIVolumeFile(path="c", resource_field_ref=ResourceFieldSelector(resource="limits.cpu"))))),
        Unavailable("v", "downward-api",
                    "[unsupported fieldPath: spec.nodeName, unsupported fieldPath: status.podIP, "
                    "container  not found]")),
    "several sources, the last one wins": (
        projected(
            VolumeProjection(config_map=ConfigMapProjection(name="settings", items=(KeyToPath(key="size", path="x"),))),
            VolumeProjection(downward_api=DownwardAPIProjection(items=(of_field("x"), of_field("y"))))),
        payload("projected", files(0o644, x="web", y="web"))),
    "a secret among sources": (
        projected(VolumeProjection(secret=SecretProjection(name="password")),
                  VolumeProjection(config_map=ConfigMapProjection(name="settings"))),
        payload("projected", {**files(0o600, admin="hunter2"), **files(0o644, colour="blue", size="7")},
                in_memory=True)),
    "sources with a mode": (
        projected(VolumeProjection(secret=SecretProjection(name="password")),
                  VolumeProjection(config_map=ConfigMapProjection(name="settings")), mode=0o440),
        payload("projected", files(0o440, admin="hunter2", colour="blue", size="7"), in_memory=True)),
    "an optional source that is missing": (
        projected(VolumeProjection(secret=SecretProjection(name="gone", optional=True))),
        payload("projected", {}, in_memory=True)),
    "sources that are missing": (
        projected(VolumeProjection(secret=SecretProjection(name="gone")),
                  VolumeProjection(config_map=ConfigMapProjection(name="gone"))),
        Unavailable("v", "projected", '[secret "gone" not found, configmap "gone" not found]')),
    "an unsupported source": (
        projected(VolumeProjection(cluster_trust_bundle=ClusterTrustBundleProjection(path="x"))),
        Unavailable("v", "projected",
                    "cannot project clusterTrustBundle: this node supports configMap, secret, downwardAPI and "
                    "serviceAccountToken; remove the source or run the pod on another node")),
    "a token without a provider": (
        projected(TOKEN),
        Unavailable("v", "projected",
                    "cannot project a service account token: this node is not in a cluster that issues tokens; "
                    "set automountServiceAccountToken: false or remove the source")),
    "a path of the host": (
        Volume(name="v", host_path=HostPathVolumeSource(path="/srv", type="Directory")),
        HostPath("v", "/srv", "Directory")),
    "a path of the host of any kind": (
        Volume(name="v", host_path=HostPathVolumeSource(path="/srv")), HostPath("v", "/srv", "")),
    "an empty directory": (
        Volume(name="v", empty_dir=EmptyDirVolumeSource(medium="Memory", size_limit="1Mi")),
        EmptyDir("v", "Memory", None, 2**20, parse_quantity("1Mi"))),
    "a volume without a kind": (Volume(name="v"), EmptyDir("v", "", None, GIB, None)),
}  # fmt: skip


@pytest.mark.parametrize("volume, expected", PLANS.values(), ids=PLANS.keys())
def test_a_volume_is_planned_from_its_spec(volume: Volume, expected: VolumePlan) -> None:
    assert planned(volume) == expected


def running_as(*users: int | None, shared: int | None = None, group: int | None = None) -> Pod:
    containers = tuple(
        Container(name=f"c{number}", security_context=None if user is None else SecurityContext(run_as_user=user))
        for number, user in enumerate(users)
    )
    pod = pod_with(projected(TOKEN))
    context = PodSecurityContext(run_as_user=shared, fs_group=group)
    return replace(pod, spec=replace(pod.spec, containers=containers, security_context=context))


USERS: dict[str, tuple[Pod, int | None, int]] = {
    "no user": (running_as(None), None, 0o644),
    "the user of the pod": (running_as(None, None, shared=7), 7, 0o600),
    "containers with the same user": (running_as(7, 7, shared=8), 7, 0o600),
    "containers with different users": (running_as(7, 8), None, 0o644),
    "one container differs from the pod": (running_as(7, None, shared=8), None, 0o644),
    "all are root": (running_as(0, 0), 0, 0o600),
    "an fsGroup": (running_as(7, 8, group=9), None, 0o600),
}


@pytest.mark.parametrize("pod, user, mode", USERS.values(), ids=USERS.keys())
def test_a_token_belongs_to_the_user_of_all_containers(pod: Pod, user: int | None, mode: int) -> None:
    assert common_user(pod) == user
    volume = projected(TOKEN, mode=0o644)
    found = planned(volume, pod, tokens=IssuedTokens())
    assert isinstance(found, Payload)
    assert (found.files, found.in_memory) == ({"t": ProjectedFile(b"web/None/a/None", mode, user)}, True)


def test_the_common_user_depends_on_every_container() -> None:
    pod = running_as(7)
    other = SecurityContext(run_as_user=8)
    for more in (
        {"init_containers": (Container(name="i", security_context=other),)},
        {"ephemeral_containers": (EphemeralContainer(name="e", security_context=other),)},
    ):
        assert common_user(replace(pod, spec=replace(pod.spec, **more))) is None


def test_a_payload_has_the_group_the_size_and_the_mount_points_of_its_pod() -> None:
    volume = of_map("settings")
    pod = pod_with(volume, fs_group=9, mounts=(("v", "/etc/app"), ("w", "/etc/app/more")))
    limited = Container(
        name="web",
        resources=ResourceRequirements(limits={"memory": "10Mi"}),
        volume_mounts=pod.spec.containers[0].volume_mounts,
    )
    pod = replace(pod, spec=replace(pod.spec, containers=(limited,)))
    shown = files(0o644, colour="blue", size="7")
    assert planned(volume, pod) == Payload("v", "configmap", shown, False, 10 * 2**20, 9, ("more",))


def test_only_volumes_with_files_have_a_payload_kind() -> None:
    kinds = [payload_kind(volume) for volume, _ in PLANS.values()]
    assert set(kinds) == {"configmap", "secret", "downward-api", "projected", None}
    assert payload_kind(Volume(name="v", empty_dir=EmptyDirVolumeSource())) is None
    found = simulate(payload_of(of_map("settings"), pod_with(), inputs()))[0]
    assert found.kind == "configmap"


def test_different_contents_have_different_fingerprints() -> None:
    one = ProjectedFile(b"1", 0o644)
    variants: list[Files] = [
        {},
        {"a": one},
        {"b": one},
        {"a": ProjectedFile(b"2", 0o644)},
        {"a": ProjectedFile(b"1", 0o600)},
        {"a": ProjectedFile(b"1", 0o644, 7)},
        {"a": one, "b": one},
    ]
    assert len({payload("configmap", each).fingerprint() for each in variants}) == len(variants)
    turned = payload("configmap", {"b": one, "a": one})
    assert turned.fingerprint() == payload("configmap", {"a": one, "b": one}).fingerprint()


# Volumes inside volumes.

NESTED: dict[str, tuple[list[tuple[str, str, str]], tuple[str, ...]]] = {
    "below it": ([("v", "/a", ""), ("w", "/a/b/c", "")], ("b/c",)),
    "only the uppermost": ([("v", "/a", ""), ("w", "/a/b", ""), ("x", "/a/b/c", ""), ("y", "/a/bc", "")], ("b", "bc")),
    "beside it": ([("v", "/a", ""), ("w", "/ab", ""), ("x", "/", "")], ()),
    "below the root": ([("v", "/", ""), ("w", "/a", "")], ("a",)),
    "relative paths": ([("v", "a/", ""), ("w", "a//b", "")], ("b",)),
    "a sub-path of it": ([("v", "/a", "part"), ("w", "/a/b", "")], ()),
    "mounted twice": ([("v", "/a", ""), ("v", "/b", ""), ("w", "/a/x", ""), ("w", "/b/y", "")], ("x", "y")),
}


@pytest.mark.parametrize("mounts, expected", NESTED.values(), ids=NESTED.keys())
def test_mount_points_of_other_volumes_inside_a_volume_are_found(
    mounts: list[tuple[str, str, str]], expected: tuple[str, ...]
) -> None:
    made = tuple(VolumeMount(name=name, mount_path=path, sub_path=part or None) for name, path, part in mounts)
    pod = pod_with()
    for more in (
        {"containers": (Container(name="c", volume_mounts=made),)},
        {"init_containers": (Container(name="c", volume_mounts=made),)},
        {"ephemeral_containers": (EphemeralContainer(name="c", volume_mounts=made),)},
    ):
        assert mount_points_in("v", replace(pod, spec=replace(pod.spec, **more))) == expected
    part = VolumeMount(name="v", mount_path="/a", sub_path_expr="$(X)")
    only = Container(name="c", volume_mounts=(part, VolumeMount(name="w", mount_path="/a/b")))
    assert mount_points_in("v", replace(pod, spec=replace(pod.spec, containers=(only,)))) == ()


# Paths of volumes.


def test_the_path_of_a_volume_has_the_pod_the_kind_and_the_name(tmp_path: Path) -> None:
    volume_directory = PodDirectory(str(tmp_path), "u").volume("empty-dir", "data")
    assert volume_directory.path == f"{tmp_path}/pods/u/volumes/kubernetes.io~empty-dir/data"
    parent = volume_directory.make_parent()
    volume_directory.make_child_of(parent, 0o2777, None)
    os.close(parent)
    assert os.listdir(os.path.dirname(volume_directory.path)) == ["data"]
    assert mode_of(volume_directory.path) == 0o2777
    assert mode_of(f"{tmp_path}/pods/u/volumes") == 0o750


@pytest.mark.parametrize("name", ["", ".", "..", "..data", "a/b", "a\0b"])
def test_a_name_that_is_not_a_directory_name_is_refused(name: str) -> None:
    with pytest.raises(TryLater, match="cannot use volume name"):
        checked(name, "volume name")


@pytest.mark.parametrize("name", ["a", ".a", "a..", "a.b"])
def test_a_valid_directory_name_is_accepted(name: str) -> None:
    assert checked(name, "volume name") == name


def test_the_order_of_directories_in_memory() -> None:
    own = f"/run/user/{os.geteuid()}"
    assert shared_memory({"XDG_RUNTIME_DIR": "/run/x"}) == ("/run/x", own, "/dev/shm")
    assert shared_memory({"XDG_RUNTIME_DIR": "relative"}) == shared_memory({}) == (own, "/dev/shm")
    assert shared_memory({"XDG_RUNTIME_DIR": own}) == (own, "/dev/shm")


@pytest.mark.parametrize(
    "medium, limit, own_mount, expected",
    [
        ("", "1Mi", True, True),
        ("", None, True, False),
        ("", "0", True, False),
        ("Memory", "1Mi", True, False),
        ("Memory", "1Mi", False, True),
    ],
)
def test_volumes_that_the_kernel_does_not_limit_are_measured(
    medium: str, limit: str | None, own_mount: bool, expected: bool
) -> None:
    directory = PodDirectory("/root", "u")
    plan = EmptyDir("v", medium, None, None, None if limit is None else parse_quantity(limit))
    path = directory.volume("empty-dir", "v").path if own_mount else "/dev/shm/x"
    assert plan.must_be_measured(directory, path) is expected


def test_directories_on_disk_are_created_with_their_modes(tmp_path: Path) -> None:
    directory, memory = PodDirectory(str(tmp_path), "u"), MemoryDirectories(str(tmp_path), ())
    empty = EmptyDir("data", "", None, None, None)
    path = empty.set_up(directory, memory)
    Path(path, "kept").write_text("x")
    os.chmod(path, 0o700)
    assert (empty.set_up(directory, memory), os.listdir(path), mode_of(path)) == (path, ["kept"], 0o700)
    with pytest.raises(TryLater, match='cannot create an emptyDir: unsupported medium "HugePages"'):
        EmptyDir("huge", "HugePages", None, None, None).set_up(directory, memory)
    plan = Payload("conf", "configmap", files(0o644, a="1"), False, None, None, ("deep/point",))
    path = plan.set_up(directory, memory)
    assert (content(path), mode_of(path), mode_of(f"{path}/deep/point")) == ({"a": "1"}, 0o777, 0o755)
    assert Unavailable("conf", "configmap", "gone").set_up(directory, memory) == path
    with pytest.raises(TryLater, match="gone"):
        Unavailable("other", "configmap", "gone").set_up(directory, memory)
    newer = Payload("conf", "configmap", files(0o644, a="2"), False, None, None, ())
    assert [newer.update(directory, memory) for _ in range(2)] == [True, False]
    assert content(path) == {"a": "2"}
    missing = Payload("never", "configmap", files(0o644, a="2"), False, None, None, ())
    assert not missing.update(directory, memory)
    assert not os.path.exists(directory.volume("configmap", "never").path)


@needs_root
def test_directories_on_disk_belong_to_their_group(tmp_path: Path) -> None:
    directory, memory = PodDirectory(str(tmp_path), "u"), MemoryDirectories(str(tmp_path), ())
    for plan in (
        EmptyDir("data", "", 4711, None, None),
        Payload("conf", "configmap", files(0o644, a="1"), False, None, 4711, ()),
    ):
        found = os.stat(plan.set_up(directory, memory))
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (4711, 0o2777)
        assert in_our_group([directory.volume("empty-dir", "data").path], 4711) == []


def test_volumes_that_keep_the_group_of_the_agent_are_found(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    paths = [str(tmp_path / "v"), str(tmp_path / "gone")]
    assert in_our_group(paths, os.getegid() + 1) == paths[:1]
    assert in_our_group(paths, os.getegid()) == []


# When volumes are refreshed and measured.


def test_volumes_are_refreshed_after_one_to_one_and_a_half_minutes() -> None:
    async def scenario(root: Path, jitter: float) -> list[float]:
        loop, times = asyncio.get_running_loop(), list[float]()

        class Watched(Store):
            async def get(self, kind: Any, name: str, namespace: str = "") -> Any:
                times.append(loop.time())
                return await super().get(kind, name, namespace)

        store = Watched()
        store.config_map("settings", colour="blue")
        volumes = HostVolumes(
            root, store, fraction=lambda: jitter, shared=(), start_thread=lambda body, _: body(), measure_seconds=1e6
        )
        await volumes.mount(pod_with(of_map("settings")))
        running = asyncio.ensure_future(volumes.run())
        await asyncio.sleep(200)
        volumes.objects_changed()
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running])
        return times

    for jitter, expected in ((0.0, [0, 60, 120, 180, 200]), (1.0, [0, 90, 180, 200])):
        with temporary_root() as root:
            assert simulate(scenario(root, jitter))[0] == expected


def test_volumes_are_measured_every_ten_seconds() -> None:
    async def scenario(root: Path) -> list[tuple[float, str, str]]:
        loop, found = asyncio.get_running_loop(), list[tuple[float, str, str]]()
        volumes = HostVolumes(
            root, Store(), shared=(), start_thread=lambda body, _: body(), refresh_seconds=1e6, fraction=lambda: 0.0
        )
        pod = pod_with(Volume(name="v", empty_dir=EmptyDirVolumeSource(size_limit="1Ki")))
        paths = await volumes.mount(pod)
        Path(paths["v"], "file").write_bytes(b"x" * 100_000)
        assert await volumes.measure() == 10.0  # no listener
        running = asyncio.ensure_future(volumes.run())
        await asyncio.sleep(15)
        volumes.on_overuse(lambda uid, message: found.append((loop.time(), uid, message)))
        await asyncio.sleep(20)
        running.cancel()
        await asyncio.wait([running])
        message = 'Usage of EmptyDir volume "v" exceeds the limit "1Ki". '
        assert [(uid, text) for _, uid, text in found] == [(pod.metadata.uid, message)] * len(found)
        return found

    with temporary_root() as root:
        found = simulate(scenario(root))[0]
        assert [at for at, *_ in found][:1] == [20.0]
        assert 1 <= len(found) <= 2
