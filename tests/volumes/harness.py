"""Harness for tests of volumes: API objects, pods, a temporary root directory, and another user."""

import asyncio
import base64
import errno
import os
import pickle
import tempfile
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from podkeeper.linux.mounts import mount_tmpfs, mounts_below, unmount
from podkeeper.linux.tree import open_directory, opened
from podkeeper.model.errors import NotFound
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapVolumeSource,
    DownwardAPIVolumeFile,
    KeyToPath,
    ObjectFieldSelector,
    Pod,
    PodSecurityContext,
    ProjectedVolumeSource,
    Secret,
    SecretVolumeSource,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.wire import Wire
from podkeeper.testing.build import container, pod
from podkeeper.volumes.manager import HostVolumes

T = TypeVar("T")
K = TypeVar("K", bound=Wire)

NOBODY = 65534


class Store:
    """ConfigMaps and Secrets of the namespace `default`."""

    def __init__(self) -> None:
        self._objects: dict[tuple[type[Wire], str], Wire] = {}
        self.reads = 0

    def config_map(self, name: str, /, **data: str) -> None:
        self._objects[ConfigMap, name] = ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)

    def secret(self, name: str, /, **data: str) -> None:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
        self._objects[Secret, name] = Secret(metadata=ObjectMeta(name=name, namespace="default"), data=encoded)

    def put(self, stored: ConfigMap | Secret) -> None:
        self._objects[type(stored), stored.metadata.name or ""] = stored

    def delete(self, kind: type[Wire], name: str) -> None:
        del self._objects[kind, name]

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        self.reads += 1
        found = self._objects.get((kind, name)) if namespace == "default" else None
        if found is None:
            raise NotFound(f"{kind.__name__} {name} not found")
        return cast(K, found)


def pod_with(
    *volumes: Volume, fs_group: int | None = None, mounts: tuple[tuple[str, str], ...] = (), **labels: str
) -> Pod:
    """Return a pod with these volumes. `mounts` are (volume, path) of its only container."""
    mounted = tuple(VolumeMount(name=name, mount_path=path) for name, path in mounts) or None
    return pod(
        "web",
        container("web", volume_mounts=mounted),
        uid=str(uuid.uuid4()),
        labels=labels or None,
        volumes=volumes,
        spec={"security_context": None if fs_group is None else PodSecurityContext(fs_group=fs_group)},
    )


def cannot_mount() -> str:
    """Return the reason why this machine does not allow mounts, or ""."""
    if os.geteuid() != 0:
        return "needs root: an ordinary user may not mount"
    with tempfile.TemporaryDirectory() as directory:
        try:
            with opened(open_directory(directory)) as descriptor:
                mount_tmpfs(descriptor, "size=4k")
        except OSError as error:
            return f"cannot mount here: {error.strerror}"
        unmount(directory)
    return ""


WHY_NOT = cannot_mount()
needs_mounts = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@contextmanager
def temporary_root(within: str | None = None) -> Iterator[Path]:
    """Yield a root directory for volumes. All mounts below it are unmounted at the end."""
    with tempfile.TemporaryDirectory(prefix="volumes-", dir=within) as name:
        try:
            yield Path(name)
        finally:
            for path in reversed(mounts_below(os.path.realpath(name))):
                with suppress(OSError):
                    unmount(path)


@asynccontextmanager
async def temporary_volumes() -> AsyncIterator[HostVolumes]:
    """Yield a volume manager with a temporary root, for contracts."""
    with temporary_root() as root:
        volumes = HostVolumes(root, Store())
        yield volumes
        for uid in volumes.mounted_pods():
            await volumes.unmount(uid)


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in real time, with a timeout."""

    async def bounded() -> T:
        async with asyncio.timeout(20):
            return await scenario

    return asyncio.run(bounded())


def as_unprivileged_user(work: Callable[[], T]) -> T:
    """Call a function as an ordinary user in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.environ.pop("XDG_RUNTIME_DIR", None)
            answer = pickle.dumps((work(), None))
            code = 0
        except BaseException:
            answer = pickle.dumps((None, traceback.format_exc()))
        with open(writing, "wb") as out:
            out.write(answer)
        os._exit(code)
    os.close(writing)
    with open(reading, "rb") as answers:
        raw = answers.read()
    os.waitpid(child, 0)
    result, error = pickle.loads(raw)
    assert error is None, error
    return cast(T, result)


def content(path: str) -> dict[str, str]:
    """Return the content of all files of a volume by name."""
    found = {}
    for directory, names, files in os.walk(path, followlinks=True):
        names[:] = [name for name in names if not name.startswith("..")]
        for name in files:
            file = Path(directory, name)
            with suppress(OSError):
                found[str(file.relative_to(path))] = file.read_text()
    return found


def mode_of(path: str) -> int:
    return os.stat(path).st_mode & 0o7777


def is_gone(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def common_objects() -> Store:
    """Return a store with a ConfigMap and a Secret."""
    store = Store()
    store.config_map("settings", colour="blue", size="7")
    store.secret("password", admin="hunter2")
    return store


class IssuedTokens:
    """Issues tokens that contain their parameters."""

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        return f"{pod.metadata.name}/{pod.spec.service_account_name}/{audience}/{expiration_seconds}"


def of_map(name: str, *items: KeyToPath, **more: Any) -> Volume:
    return Volume(name="v", config_map=ConfigMapVolumeSource(name=name, items=items or None, **more))


def of_secret(name: str, *items: KeyToPath, **more: Any) -> Volume:
    return Volume(name="v", secret=SecretVolumeSource(secret_name=name, items=items or None, **more))


def projected(*sources: VolumeProjection, mode: int | None = None) -> Volume:
    return Volume(name="v", projected=ProjectedVolumeSource(sources=sources, default_mode=mode))


def of_field(path: str, field: str = "metadata.name", mode: int | None = None) -> DownwardAPIVolumeFile:
    return DownwardAPIVolumeFile(path=path, mode=mode, field_ref=ObjectFieldSelector(field_path=field))
