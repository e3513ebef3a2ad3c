"""Each kind of volume, set up with real files: content and errors."""

import base64
import os
import socket
from pathlib import Path

import pytest

from podkeeper.model.errors import TryLater
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    KeyToPath,
    NFSVolumeSource,
    PersistentVolumeClaimVolumeSource,
    Pod,
    PodSecurityContext,
    ResourceFieldSelector,
    ResourceRequirements,
    Secret,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.pods import uid_of
from podkeeper.model.quantity import parse_quantity
from podkeeper.testing import build
from podkeeper.volumes.empty_dir import memory_size
from podkeeper.volumes.manager import HostVolumes
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
    run,
    temporary_root,
)


def shown(volume: Volume, *, tokens: IssuedTokens | None = None) -> dict[str, str]:
    """Return the content of a volume."""

    async def scenario() -> dict[str, str]:
        pod = pod_with(volume, app="web", tier="front")
        volumes = HostVolumes(root, common_objects(), tokens=tokens, allocatable=lambda: {"cpu": parse_quantity("4")})
        paths = await volumes.mount(pod)
        seen = content(paths[volume.name])
        await volumes.unmount(uid_of(pod))
        return seen

    with temporary_root() as root:
        return run(scenario())


def error(volume: Volume) -> str:
    """Return the error of a volume that cannot be set up."""
    with pytest.raises(TryLater) as raised:
        shown(volume)
    return str(raised.value)


def downward(*items: DownwardAPIVolumeFile) -> Volume:
    return Volume(name="v", downward_api=DownwardAPIVolumeSource(items=items))


def of_resource(path: str, container: str, resource: str) -> DownwardAPIVolumeFile:
    selector = ResourceFieldSelector(container_name=container, resource=resource)
    return DownwardAPIVolumeFile(path=path, resource_field_ref=selector)


TOKEN = VolumeProjection(
    service_account_token=ServiceAccountTokenProjection(path="token", audience="them", expiration_seconds=3600)
)
OF_MAP = VolumeProjection(config_map=ConfigMapProjection(name="settings"))
OF_SECRET = VolumeProjection(secret=SecretProjection(name="password", items=(KeyToPath(key="admin", path="colour"),)))
OF_POD = VolumeProjection(downward_api=DownwardAPIProjection(items=(of_field("pod/name", "metadata.name"),)))

SHOWN = {
    "all keys of a config map": (of_map("settings"), {"colour": "blue", "size": "7"}),
    "selected keys at selected paths": (of_map("settings", KeyToPath(key="size", path="a/b")), {"a/b": "7"}),
    "a config map that is optional and missing": (of_map("none", optional=True), {}),
    "a key that is optional and missing": (
        of_map("settings", KeyToPath(key="none", path="x"), KeyToPath(key="size", path="y"), optional=True),
        {"y": "7"},
    ),
    "all keys of a secret": (of_secret("password"), {"admin": "hunter2"}),
    "a secret that is optional and missing": (of_secret("none", optional=True), {}),
    "fields of the pod": (
        downward(of_field("l", "metadata.labels"), of_field("a", "metadata.labels['app']")),
        {"l": 'app="web"\ntier="front"', "a": "web"},
    ),
    "resources of a container": (downward(of_resource("cpu", "web", "limits.cpu")), {"cpu": "4"}),
    "several sources, the last one wins": (
        projected(OF_MAP, OF_SECRET, OF_POD),
        {"colour": "hunter2", "size": "7", "pod/name": "web"},
    ),
    "a volume without a kind is an emptyDir": (Volume(name="v"), {}),
}


@pytest.mark.parametrize(("volume", "expected"), SHOWN.values(), ids=SHOWN.keys())
def test_the_content_of_a_volume(volume: Volume, expected: dict[str, str]) -> None:
    assert shown(volume) == expected


def test_a_token_comes_from_the_token_provider() -> None:
    assert shown(projected(TOKEN), tokens=IssuedTokens()) == {"token": "web/None/them/3600"}


COMPLAINTS = {
    "a missing config map": (of_map("none"), 'configmap "none" not found'),
    "a missing key": (
        of_map("settings", KeyToPath(key="none", path="x")),
        "configmap references non-existent config key: none",
    ),
    "a missing secret": (of_secret("none"), 'secret "none" not found'),
    "a missing secret key": (
        of_secret("password", KeyToPath(key="none", path="x")),
        "references non-existent secret key: none",
    ),
    "a path that leads out": (
        of_map("settings", KeyToPath(key="size", path="../x")),
        "invalid path: must not contain '..': ../x",
    ),
    "several sources that are missing": (
        projected(
            VolumeProjection(config_map=ConfigMapProjection(name="none")),
            VolumeProjection(secret=SecretProjection(name="none")),
        ),
        '[configmap "none" not found, secret "none" not found]',
    ),
    "a token without a provider": (
        projected(TOKEN),
        "cannot project a service account token: this node is not in a cluster that issues tokens; "
        "set automountServiceAccountToken: false or remove the source",
    ),
    "a field that is not supported in files": (
        downward(of_field("x", "status.podIP")),
        "unsupported fieldPath: status.podIP",
    ),
    "an unknown container": (downward(of_resource("x", "none", "limits.cpu")), "container none not found"),
    "huge pages": (
        Volume(name="v", empty_dir=EmptyDirVolumeSource(medium="HugePages")),
        'cannot create an emptyDir: unsupported medium "HugePages": '
        "expected Memory, or no medium for a directory on disk",
    ),
    "an unsupported kind": (
        Volume(name="v", nfs=NFSVolumeSource(server="files", path="/")),
        'cannot mount volume "v": this node does not support nfs volumes; use one of emptyDir, hostPath, configMap, '
        "secret, projected, downwardAPI, or run the pod on a node that supports nfs",
    ),
    "a claim": (
        Volume(name="v", persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name="c")),
        'cannot mount volume "v": this node does not support persistentVolumeClaim volumes; use one of emptyDir, '
        "hostPath, configMap, secret, projected, downwardAPI, or run the pod on a node that supports "
        "persistentVolumeClaim",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("volume", "expected"), COMPLAINTS.values(), ids=COMPLAINTS.keys())
def test_a_volume_that_cannot_be_set_up_reports_the_reason(volume: Volume, expected: str) -> None:
    assert error(volume) == f'MountVolume.SetUp failed for volume "v" : {expected}'


def test_an_invalid_size_limit_is_reported() -> None:
    assert '"much"' in error(Volume(name="v", empty_dir=EmptyDirVolumeSource(size_limit="much")))


def test_several_failed_volumes_are_all_reported() -> None:
    async def scenario() -> None:
        missing = pod_with(of_map("none"), Volume(name="other", secret=SecretVolumeSource(secret_name="gone")))
        await HostVolumes(root, common_objects()).mount(missing)

    with temporary_root() as root, pytest.raises(TryLater) as raised:
        run(scenario())
    assert str(raised.value) == (
        'MountVolume.SetUp failed for volume "v" : configmap "none" not found; '
        'MountVolume.SetUp failed for volume "other" : secret "gone" not found'
    )


def test_binary_data_and_plain_text_of_a_secret_are_read() -> None:
    async def scenario() -> tuple[bytes, str]:
        store = Store()
        raw = base64.b64encode(bytes(range(256))).decode()
        store.put(ConfigMap(metadata=ObjectMeta(name="m"), binary_data={"raw": raw[:40] + "\n" + raw[40:]}))
        store.put(Secret(metadata=ObjectMeta(name="s"), data={"k": "b2xk"}, string_data={"k": "new"}))
        pod = pod_with(
            Volume(name="m", config_map=ConfigMapVolumeSource(name="m")),
            Volume(name="s", secret=SecretVolumeSource(secret_name="s")),
        )
        volumes = HostVolumes(root, store)
        paths = await volumes.mount(pod)
        found = Path(paths["m"], "raw").read_bytes(), Path(paths["s"], "k").read_text()
        await volumes.unmount(uid_of(pod))
        return found

    with temporary_root() as root:
        assert run(scenario()) == (bytes(range(256)), "new")


def test_the_mode_comes_from_the_item_the_volume_or_the_kind() -> None:
    async def scenario() -> dict[str, int]:
        items = (KeyToPath(key="size", path="own", mode=0o400), KeyToPath(key="size", path="common"))
        pod = pod_with(
            Volume(name="m", config_map=ConfigMapVolumeSource(name="settings", items=items, default_mode=0o640)),
            Volume(name="plain", config_map=ConfigMapVolumeSource(name="settings")),
            Volume(name="s", secret=SecretVolumeSource(secret_name="password")),
        )
        volumes = HostVolumes(root, common_objects())
        paths = await volumes.mount(pod)
        files = ("m", "own"), ("m", "common"), ("plain", "size"), ("s", "admin")
        modes = {f"{volume}/{file}": mode_of(f"{paths[volume]}/{file}") for volume, file in files}
        await volumes.unmount(uid_of(pod))
        return modes

    with temporary_root() as root:
        assert run(scenario()) == {"m/own": 0o400, "m/common": 0o640, "plain/size": 0o644, "s/admin": 0o600}


@needs_root
def test_volumes_belong_to_the_group_of_the_pod() -> None:
    async def scenario() -> dict[str, tuple[int, int]]:
        pod = pod_with(
            Volume(name="disk", empty_dir=EmptyDirVolumeSource()),
            Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory")),
            Volume(name="m", config_map=ConfigMapVolumeSource(name="settings")),
            Volume(name="s", secret=SecretVolumeSource(secret_name="password")),
            projected(TOKEN),
            fs_group=4711,
        )
        volumes = HostVolumes(root, common_objects(), tokens=IssuedTokens())
        paths = await volumes.mount(pod)
        files = [*paths.values(), f"{paths['m']}/size", f"{paths['s']}/admin", f"{paths['v']}/token"]
        found = {os.path.relpath(path, os.path.dirname(paths["m"])): os.stat(path) for path in files}
        await volumes.unmount(uid_of(pod))
        return {name.rpartition("~")[2]: (one.st_gid, one.st_mode & 0o2777) for name, one in found.items()}

    with temporary_root() as root:
        assert run(scenario()) == {
            "empty-dir/disk": (4711, 0o2777),
            "empty-dir/memory": (4711, 0o2777),
            "m": (4711, 0o2777),
            "secret/s": (4711, 0o2777),
            "projected/v": (4711, 0o2777),
            "m/size": (4711, 0o644),
            "secret/s/admin": (4711, 0o640),
            "projected/v/token": (4711, 0o640),
        }


def test_a_read_only_volume_has_mount_points_for_nested_volumes() -> None:
    async def scenario() -> list[str]:
        pod = pod_with(
            of_map("settings"),
            Volume(name="cache", empty_dir=EmptyDirVolumeSource()),
            mounts=(("v", "/etc/app"), ("cache", "/etc/app/var/cache"), ("cache", "/etc/app/var/cache/deeper")),
        )
        volumes = HostVolumes(root, common_objects())
        paths = await volumes.mount(pod)
        assert await volumes.mount(pod) == paths
        return sorted(name for name in os.listdir(paths["v"]) if not name.startswith("..")) + os.listdir(
            f"{paths['v']}/var"
        )

    with temporary_root() as root:
        assert run(scenario()) == ["colour", "size", "var", "cache"]


HOST_PATHS = {
    "any path without a type": ("nowhere", "", None),
    "a directory": ("dir", "Directory", None),
    "not a directory": ("file", "Directory", "hostPath type check failed: {} is not a directory"),
    "a missing directory": ("new", "Directory", "hostPath type check failed: {} is not a directory"),
    "a created directory": ("new/deep", "DirectoryOrCreate", None),
    "an existing directory": ("dir", "DirectoryOrCreate", None),
    "a file instead of a directory": (
        "file", "DirectoryOrCreate", "hostPath type check failed: {} is not a directory",
    ),
    "a directory that cannot be created": ("file/new", "DirectoryOrCreate", "mkdir {}: not a directory"),
    "a file": ("file", "File", None),
    "not a file": ("dir", "File", "hostPath type check failed: {} is not a file"),
    "a created file": ("new", "FileOrCreate", None),
    "a file in no directory": ("no/new", "FileOrCreate", "open {}: no such file or directory"),
    "a directory instead of a file": ("dir", "FileOrCreate", "hostPath type check failed: {} is not a file"),
    "a socket": ("socket", "Socket", None),
    "not a socket": ("file", "Socket", "hostPath type check failed: {} is not a socket file"),
    "a character device": ("/dev/null", "CharDevice", None),
    "not a character device": ("file", "CharDevice", "hostPath type check failed: {} is not a character device"),
    "not a block device": ("/dev/null", "BlockDevice", "hostPath type check failed: {} is not a block device"),
    "an unknown type": ("dir", "Tape", "Tape is an invalid volume type"),
    "a missing file": ("gone", "File", "hostPath type check failed: {} is not a file"),
    "a file, not a block device": ("file", "BlockDevice", "hostPath type check failed: {} is not a block device"),
    "a path with .. of any type": ("a/../b", "", "invalid HostPath `{}`: must not contain '..'"),
    "a path with ..": ("dir/../file", "File", "invalid HostPath `{}`: must not contain '..'"),
    "a link to a directory": ("link", "Directory", None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "why_not"), HOST_PATHS.values(), ids=HOST_PATHS.keys())
def test_a_host_path(name: str, kind: str, why_not: str | None, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "kept").write_text("x")
    (tmp_path / "file").write_text("x")
    os.symlink("dir", tmp_path / "link")
    path = os.path.join(tmp_path, name)

    async def scenario() -> None:
        pod = pod_with(Volume(name="v", host_path=HostPathVolumeSource(path=path, type=kind)), fs_group=4711)
        volumes = HostVolumes(root, Store())
        assert await volumes.mount(pod) == {"v": path}
        assert volumes.mounted_pods() == frozenset()
        await volumes.unmount(uid_of(pod))
        await volumes.remove_directory(uid_of(pod))

    with temporary_root() as root, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        is_made = kind.endswith("OrCreate") and why_not is None and not os.path.exists(path)
        before = os.umask(0)
        try:
            if why_not is None:
                run(scenario())
            else:
                with pytest.raises(TryLater) as raised:
                    run(scenario())
                assert str(raised.value) == f'MountVolume.SetUp failed for volume "v" : {why_not.format(path)}'
        finally:
            os.umask(before)
    assert (tmp_path / "dir" / "kept").read_text() == (tmp_path / "file").read_text() == "x"
    assert os.stat(tmp_path / "dir").st_gid != 4711
    assert os.path.isdir(path) or kind != "DirectoryOrCreate" or why_not is not None
    assert os.path.isfile(path) or kind != "FileOrCreate" or why_not is not None
    assert not is_made or mode_of(path) == (0o755 if kind.startswith("Dir") else 0o644)


def limited(*limits: str | None) -> Pod:
    containers = tuple(
        build.container(f"c{number}", resources=ResourceRequirements(limits=(limit and {"memory": limit}) or None))
        for number, limit in enumerate(limits)
    )
    return build.pod("web", *containers, spec={"security_context": PodSecurityContext()})


SIZES = {
    "nothing limits it": (limited(None), None, {}, None),
    "the node's memory": (limited(None), None, {"memory": "1Gi"}, 2**30),
    "the pod's limit": (limited("10Mi", "20Mi"), None, {"memory": "1Gi"}, 30 * 2**20),
    "a container without a limit has the node's memory": (limited("10Mi", None), None, {"memory": "1Gi"}, 2**30),
    "the volume's limit": (limited("10Mi"), "1Mi", {"memory": "1Gi"}, 2**20),
    "a limit above the pod's is ignored": (limited("10Mi"), "20Mi", {"memory": "1Gi"}, 10 * 2**20),
    "a limit of zero is ignored": (limited("10Mi"), "0", {}, 10 * 2**20),
}


@pytest.mark.parametrize(("pod", "limit", "allocatable", "size"), SIZES.values(), ids=SIZES.keys())
def test_the_size_of_memory(pod: Pod, limit: str | None, allocatable: dict[str, str], size: int | None) -> None:
    amounts = {name: parse_quantity(text) for name, text in allocatable.items()}
    assert memory_size(pod, amounts, None if limit is None else parse_quantity(limit)) == size
