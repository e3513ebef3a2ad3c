"""API server rules for one object: metadata, defaults, patches and graceful deletion.

Pure functions over typed objects. `memory_api` stores the results. Kubernetes counterparts: `BeforeCreate` and
`BeforeDelete` in apiserver's pkg/registry/rest, and the pod strategy in pkg/registry/core/pod.
"""

from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from podkeeper.model.errors import BadInput, Conflict, Problem
from podkeeper.model.k8s.core import Pod, PodStatus
from podkeeper.model.k8s.kinds import KINDS
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.times import format_time, parse_time
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.rules.patch import strategic
from podkeeper.rules.qos import qos_class

K = TypeVar("K", bound=Wire)

_NAMES = {kind: f"{version}/{name}" for (version, name), kind in KINDS.items()}
_TERMINAL = ("Failed", "Succeeded")


def meta_of(what: Wire) -> ObjectMeta:
    """Return the metadata. Raise BadInput for a type without metadata."""
    metadata = getattr(what, "metadata", None)
    if not isinstance(metadata, ObjectMeta):
        raise BadInput(Problem(f"cannot store a {type(what).__name__}: it has no metadata", "metadata"))
    return metadata


def with_meta(what: K, **changes: Any) -> K:
    return replace(what, metadata=replace(meta_of(what), **changes))


def kind_name(kind: type[Wire]) -> str:
    """Return the version and name of a kind, such as `v1/Pod`."""
    return _NAMES.get(kind, kind.__name__)


def as_created(what: K) -> K:
    """Return an object as the server stores it after a create: not deleted, and for a pod without the given status."""
    what = with_meta(what, generation=None, deletion_timestamp=None, deletion_grace_period_seconds=None)
    return as_stored(cast(K, replace(what, status=PodStatus())) if isinstance(what, Pod) else what)


def as_stored(what: K) -> K:
    """Return the object with the server's defaults."""
    if not isinstance(what, Pod):
        return what
    pod = default_pod(what)
    phase, qos = pod.status.phase or "Pending", pod.status.qos_class or qos_class(pod.spec)
    pod = replace(pod, status=replace(pod.status, phase=phase, qos_class=qos))
    return cast(K, with_meta(pod, generation=pod.metadata.generation or 1))


def check_preconditions(what: Wire, uid: str | None, version: str | None = None) -> None:
    """Raise Conflict if the object does not have the given UID and version."""
    meta = meta_of(what)
    if uid is not None and uid != meta.uid:
        raise Conflict(f"cannot change {type(what).__name__} {meta.name}: its UID is {meta.uid}, not {uid}")
    if version is not None and version != meta.resource_version:
        raise Conflict(f"cannot change {type(what).__name__} {meta.name}: it has changed since version {version}")


def patched(what: K, patch: JSONObject) -> K:
    """Return the object after a patch. The status does not change. A changed spec increases the generation."""
    new = _merged(what, patch)
    generation = meta_of(what).generation
    if generation is not None and getattr(new, "spec", None) != getattr(what, "spec", None):
        generation += 1
    new = with_meta(new, **_fixed(meta_of(what)), generation=generation)
    if hasattr(what, "status"):
        new = replace(new, status=what.status)
    return what if new == what else new


def status_patched(what: K, patch: JSONObject) -> K:
    """Return the object after a status patch. Labels, annotations and finalizers may change, too, but nothing else."""
    if not hasattr(what, "status"):
        raise BadInput(Problem(f"cannot patch the status of a {type(what).__name__}: it has none", "status"))
    # Leave out the spec, because merging it would only take time.
    changeable: Any = {"metadata": meta_of(what), "status": what.status}
    new = _merged(type(what)(**changeable), {key: patch[key] for key in changeable if key in patch})
    status: Any = getattr(new, "status", None)
    if isinstance(what, Pod) and isinstance(status, PodStatus) and not status.qos_class:
        status = replace(status, qos_class=what.status.qos_class)
    meta = meta_of(new)
    changed = with_meta(what, labels=meta.labels, annotations=meta.annotations, finalizers=meta.finalizers)
    changed = replace(changed, status=status)
    return what if changed == what else changed


def deleted(what: K, grace_seconds: int | None, now: datetime) -> K | None:
    """Return the object after a delete: marked, unchanged, or None if it is removed."""
    # The API server treats a negative grace period as 1 s.
    grace = None if grace_seconds is None else grace_seconds if grace_seconds >= 0 else 1
    meta = meta_of(what)
    if not isinstance(what, Pod):
        marked = what if meta.deletion_timestamp else _marked(what, now, 0)
    elif meta.deletion_timestamp is None:
        marked = _marked(what, now, _first_grace(what, grace))
    else:
        marked = _shortened(what, grace, now)
    return None if is_removable(marked) else marked


def is_removable(what: Wire) -> bool:
    """Return whether an object is deleted and has no remaining grace period and no finalizer."""
    meta = meta_of(what)
    return bool(meta.deletion_timestamp) and not meta.deletion_grace_period_seconds and not meta.finalizers


def _first_grace(pod: Pod, requested: int | None) -> int:
    grace = (pod.spec.termination_grace_period_seconds or 0) if requested is None else requested
    if not pod.spec.node_name or pod.status.phase in _TERMINAL:
        return 0  # no containers have to be stopped
    return grace if grace >= 0 else 1


def _marked(what: K, now: datetime, grace: int) -> K:
    generation = meta_of(what).generation
    return with_meta(
        what,
        deletion_timestamp=format_time(now + timedelta(seconds=grace)),
        deletion_grace_period_seconds=grace,
        generation=generation + 1 if generation else generation,
    )


def _shortened(what: K, requested: int | None, now: datetime) -> K:
    """Return the object after a repeated delete, which can only shorten the grace period."""
    meta = meta_of(what)
    before = meta.deletion_grace_period_seconds or 0
    if requested is None or requested >= before or meta.deletion_timestamp is None:
        return what
    at = parse_time(meta.deletion_timestamp) + timedelta(seconds=requested - before)
    if at < now:
        at, requested = now, min(requested, 1)
    return with_meta(what, deletion_timestamp=format_time(at), deletion_grace_period_seconds=requested)


def _merged(what: K, patch: JSONObject) -> K:
    kind = type(what)
    plain = msgspec.json.decode(msgspec.json.encode(what))
    try:
        return msgspec.convert(strategic.apply(plain, patch, kind_name(kind)), kind)
    except msgspec.ValidationError as error:
        raise BadInput(Problem(f"cannot patch {kind.__name__} {meta_of(what).name}: {error}")) from error


def _fixed(meta: ObjectMeta) -> dict[str, Any]:
    """Return the fields that no client can change."""
    return {
        "name": meta.name,
        "namespace": meta.namespace,
        "uid": meta.uid,
        "resource_version": meta.resource_version,
        "creation_timestamp": meta.creation_timestamp,
        "deletion_timestamp": meta.deletion_timestamp,
        "deletion_grace_period_seconds": meta.deletion_grace_period_seconds,
    }
