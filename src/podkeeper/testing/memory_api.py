"""In-memory Kubernetes API with versions, watches, graceful deletion and injected faults.

    api = MemoryApi(clock)
    api.put(pod)                                    # a change by another client: at once and without faults
    api.faults.lose_answer("patch_status", "web")   # the next patch of web's status takes effect, its response is lost
    api.go_down(); api.come_up(); api.break_watches(); api.expire()

Calls of the node use the port and have its delays and faults. Changes by the rest of the cluster (`put`,
`replace_spec`, `remove`, `mark_deleted`) take effect at once. The cost of a patch grows with the size of its object. A
change is sent to the watches of its node and to the watches of all nodes.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import TypeVar, cast
from weakref import WeakSet

from podkeeper.model.api import Listed, ObjectEvent, WatchType
from podkeeper.model.errors import AgentError, AlreadyExists, ApiUnavailable, BadInput, Gone, NotFound, Problem
from podkeeper.model.k8s import certificates, core, storage
from podkeeper.model.times import format_time
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.fake.calls import Calls, FaultInjection
from podkeeper.runtimes.fake.faults import FakeFaults
from podkeeper.testing.memory_objects import (
    as_created,
    as_stored,
    check_preconditions,
    deleted,
    is_removable,
    meta_of,
    patched,
    status_patched,
    with_meta,
)
from podkeeper.testing.memory_watch import Change, Selector, Watch, WatchSettings, selector_of

K = TypeVar("K", bound=Wire)
Key = tuple[str, str]  # namespace, name

CLUSTER_SCOPED = frozenset(
    {
        core.Namespace,
        core.Node,
        core.PersistentVolume,
        certificates.CertificateSigningRequest,
        storage.CSIDriver,
        storage.CSINode,
        storage.StorageClass,
        storage.VolumeAttachment,
        storage.VolumeAttributesClass,
    }
)
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # as in Kubernetes: no vowels, so that no words appear


class _KindStore:
    """The objects of one kind, their latest changes, and the watches by node (None: all nodes)."""

    def __init__(self, history_limit: int) -> None:
        self.objects: dict[Key, Wire] = {}
        self.history: deque[Change] = deque()
        self.history_limit = history_limit
        self.compacted = 0  # version of the newest removed change; a watch from an earlier version is Gone
        self.watches: defaultdict[str | None, WeakSet[Watch[Wire]]] = defaultdict(WeakSet)
        self.on_change: Callable[[Change], None] | None = None

    def as_of(self, version: int) -> tuple[Wire, ...]:
        """Return the objects at a version, as far back as the history goes."""
        objects = dict(self.objects)
        for change in reversed(self.history):
            if change.version <= version:
                break
            what = change.new if change.new is not None else change.old
            key = (meta_of(what).namespace or "", meta_of(what).name or "") if what is not None else ("", "")
            if change.old is None:
                objects.pop(key, None)
            else:
                objects[key] = change.old
        return tuple(objects.values())

    def add_change(self, change: Change) -> None:
        """Add a change to the history and to the watches of its node."""
        if self.on_change is not None:
            self.on_change(change)
        self.history.append(change)
        if len(self.history) > self.history_limit:
            self.compacted = self.history.popleft().version
        for node in {None, _node_of(change.old), _node_of(change.new)}:
            if node in self.watches:
                for watch in self.watches[node]:
                    watch.put(change)

    def all_watches(self) -> list[Watch[Wire]]:
        return [watch for group in self.watches.values() for watch in group]


class MemoryApi(FaultInjection):
    """An API server that keeps its objects in dictionaries."""

    def __init__(
        self,
        clock: Clock,
        *,
        delays: Mapping[str, float] | None = None,
        history_limit: int = 4096,
        call_log_size: int | None = 4096,
    ) -> None:
        self._clock = clock
        faults = FakeFaults(failure=ApiUnavailable, lost_answer=ApiUnavailable)
        self._calls = Calls(clock, ApiUnavailable, faults, delays=delays, call_log_size=call_log_size)
        self._stores: defaultdict[type[Wire], _KindStore] = defaultdict(lambda: _KindStore(history_limit))
        self._version = 1  # never 0, because that means "any version" in a request
        self._uids = 0
        self._watch_settings = WatchSettings()
        # `list` returns the objects at this version, like an API server with a stale watch cache.
        self.lists_as_of: int | None = None

    # ---- Port methods ----

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        async with self._calls.call("get", name, kind.__name__):
            return self._get(kind, name, namespace)

    async def list(self, kind: type[K], *, namespace: str = "", field_selector: str = "") -> Listed[K]:
        """Return the matching objects, at version `lists_as_of` if it is set."""
        selector = selector_of(kind, namespace, field_selector)
        async with self._calls.call("list", kind.__name__, kind.__name__):
            if self.lists_as_of is not None:
                version = max(self.lists_as_of, self._stores[kind].compacted)
                found = filter(selector.matches, self._stores[kind].as_of(version))
                return Listed(cast("tuple[K, ...]", tuple(found)), str(version))
            return Listed(cast("tuple[K, ...]", self._selected(kind, selector)), str(self._version))

    def watch(self, kind: type[K], resource_version: str, *, namespace: str = "", field_selector: str = "") -> Watch[K]:
        """Watch changes after a version. For "" and "0", send all existing objects first."""
        selector = selector_of(kind, namespace, field_selector)
        opening = self._calls.call("watch", kind.__name__, kind.__name__)
        watch = Watch(kind, selector, self._watch_settings, opening, lambda: self._version)
        try:
            self._begin(watch, kind, selector, resource_version)
        except Gone as error:
            watch.close(error)
        return watch

    async def create(self, what: K) -> K:
        """Store a new object. Generate its name if it has only `generateName`."""
        meta = meta_of(what)
        async with self._calls.call("create", meta.name or meta.generate_name or "", type(what).__name__, what):
            what = self._named(what)
            if self.peek(type(what), meta_of(what).name or "", meta_of(what).namespace or "") is not None:
                raise AlreadyExists(f"cannot create {type(what).__name__} {meta_of(what).name}: it already exists")
            new = with_meta(as_created(what), uid=self._new_uid(), creation_timestamp=format_time(self._clock.now()))
            return self._store(None, new)

    async def patch(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Apply a strategic merge patch to the object, without its status."""
        async with self._calls.call("patch", name, kind.__name__, patch):
            return self._patch(kind, name, namespace, patch, patched)

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Apply a strategic merge patch to the status."""
        async with self._calls.call("patch_status", name, kind.__name__, patch):
            return self._patch(kind, name, namespace, patch, status_patched)

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Delete an object. A pod on a node is only marked until it is deleted with a grace period of 0."""
        async with self._calls.call("delete", name, kind.__name__, grace_seconds):
            self.mark_deleted(kind, name, namespace, grace_seconds=grace_seconds, uid=uid)

    # ---- Changes by the rest of the cluster ----

    def put(self, what: K) -> K:
        """Create or replace an object. Set only the metadata and defaults that every stored object has.

        If an object with the same name and another UID exists, remove it first.
        """
        what = as_stored(self._named(what))
        meta = meta_of(what)
        old = self.peek(type(what), meta.name or "", meta.namespace or "")
        if old is not None and meta.uid not in (None, meta_of(old).uid):
            self.remove(type(what), meta.name or "", meta.namespace or "")
            old = None
        known = meta if old is None else meta_of(old)
        created = meta.creation_timestamp or known.creation_timestamp or format_time(self._clock.now())
        return self._store(old, with_meta(what, uid=known.uid or self._new_uid(), creation_timestamp=created))

    def replace_spec(self, name: str, spec: core.PodSpec, namespace: str = "default") -> core.Pod:
        """Replace the spec of a pod and increase its generation."""
        old = self._get(core.Pod, name, namespace)
        generation = (old.metadata.generation or 0) + 1
        new = core.Pod(metadata=old.metadata, spec=spec, status=old.status)
        return self._store(old, with_meta(as_stored(new), generation=generation))

    def mark_deleted(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Delete an object like a user: gracefully if it is a pod on a node."""
        old = self._get(kind, name, namespace)
        check_preconditions(old, uid)
        new = deleted(old, grace_seconds, self._clock.now())
        if new is None:
            self.remove(kind, name, namespace)
        elif new is not old:
            self._store(old, new)

    def remove(self, kind: type[K], name: str, namespace: str = "") -> None:
        """Remove an object at once, without grace period and in spite of finalizers."""
        old = self._get(kind, name, namespace)
        store = self._stores[kind]
        del store.objects[_key(kind, name, namespace)]
        self._version += 1
        store.add_change(Change(self._version, with_meta(old, resource_version=str(self._version)), None))

    def peek(self, kind: type[K], name: str, namespace: str = "") -> K | None:
        """Return the object or None, without delay, fault or entry in the call log."""
        return cast("K | None", self._stores[kind].objects.get(_key(kind, name, namespace)))

    def objects(self, kind: type[K]) -> tuple[K, ...]:
        """Return all objects of a kind, without delay, fault or entry in the call log."""
        return tuple(cast("dict[Key, K]", self._stores[kind].objects).values())

    @property
    def version(self) -> int:
        """The newest version."""
        return self._version

    def on_change(self, kind: type[Wire], callback: Callable[[Change], None]) -> None:
        """Call a function for every change to objects of a kind, synchronously."""
        self._stores[kind].on_change = callback

    # ---- Faults ----

    def go_down(self, why: str = "connection refused") -> None:
        """Fail every call until `come_up`, and break all watches."""
        self._calls.down = why
        self.break_watches()

    def come_up(self) -> None:
        self._calls.down = ""

    def break_watches(self) -> None:
        """Break every watch, like a lost connection."""
        self._close(ApiUnavailable("cannot continue the watch: the connection was lost"))

    def end_watches(self) -> None:
        """End every watch, like an API server does every few minutes."""
        self._close(StopAsyncIteration())

    def expire(self) -> None:
        """Compact the whole history. Every watch and every version so far is then Gone."""
        for store in self._stores.values():
            store.history.clear()
            # The newest version must be Gone, too, because a watch may start from it.
            store.compacted = self._version + 1
        self._version += 1
        self._close(Gone("cannot continue the watch: the version is too old"))

    def set_watch_pace(self, *, delay_seconds: float = 0.0, stalled: bool = False) -> None:
        """Delay the events of all watches, or hold them back (`stalled`). Without arguments, restore the default."""
        self._watch_settings.delay_seconds = delay_seconds
        self._watch_settings.stalled = stalled
        for store in self._stores.values():
            for watch in store.all_watches():
                watch.wake()

    def send_bookmarks(self) -> None:
        """Send a bookmark with the newest version to every watch."""
        for store in self._stores.values():
            for watch in store.all_watches():
                watch.bookmark()

    # ---- Helpers ----

    def _get(self, kind: type[K], name: str, namespace: str) -> K:
        found = self.peek(kind, name, namespace)
        if found is None:
            raise NotFound(f"cannot find {kind.__name__} {name} in namespace {namespace or '-'}")
        return found

    def _selected(self, kind: type[Wire], selector: Selector) -> tuple[Wire, ...]:
        return tuple(filter(selector.matches, self._stores[kind].objects.values()))

    def _store(self, old: K | None, new: K) -> K:
        self._version += 1
        new = with_meta(new, resource_version=str(self._version))
        meta = meta_of(new)
        store = self._stores[type(new)]
        store.objects[meta.namespace or "", meta.name or ""] = new
        store.add_change(Change(self._version, old, new))
        return new

    def _patch(
        self, kind: type[K], name: str, namespace: str, patch: JSONObject, apply: Callable[[K, JSONObject], K]
    ) -> K:
        old = self._get(kind, name, namespace)
        metadata = patch.get("metadata")
        if isinstance(metadata, dict):
            check_preconditions(old, metadata.get("uid"), metadata.get("resourceVersion"))
        new = apply(old, patch)
        # As in the API server, a patch without effect makes no new version and no event.
        if new is old:
            return old
        new = self._store(old, new)
        # The patch may have removed the last finalizer of a deleted object.
        if is_removable(new):
            self.remove(kind, name, namespace)
        return new

    def _begin(self, watch: Watch[K], kind: type[K], selector: Selector, resource_version: str) -> None:
        """Send the missed changes to a new watch and register it."""
        store = self._stores[kind]
        if resource_version in ("", "0"):
            for what in self._selected(kind, selector):
                watch.put_event(ObjectEvent(WatchType.ADDED, what, meta_of(what).resource_version or ""))
        else:
            since = _version_of(resource_version)
            if since < store.compacted:
                raise Gone(f"cannot watch {kind.__name__} from version {since}: the oldest is {store.compacted}")
            missed = []
            for change in reversed(store.history):
                if change.version <= since:
                    break
                missed.append(change)
            for change in reversed(missed):
                watch.put(change)
        if self._calls.down:
            watch.close(ApiUnavailable(f"cannot watch: {self._calls.down}"))
        store.watches[selector.node].add(cast("Watch[Wire]", watch))

    def _close(self, end: AgentError | StopAsyncIteration) -> None:
        for store in self._stores.values():
            for watch in store.all_watches():
                watch.close(end)
            store.watches.clear()

    def _named(self, what: K) -> K:
        meta = meta_of(what)
        name = meta.name or (meta.generate_name or "") + "".join(
            _SUFFIX_LETTERS[int(self._clock.fraction() * len(_SUFFIX_LETTERS))] for _ in range(5)
        )
        if not meta.name and not meta.generate_name:
            raise BadInput(Problem(f"cannot create a {type(what).__name__} without a name", "metadata.name"))
        namespace = None if type(what) in CLUSTER_SCOPED else meta.namespace or "default"
        return with_meta(what, name=name, namespace=namespace)

    def _new_uid(self) -> str:
        self._uids += 1
        return f"00000000-0000-4000-8000-{self._uids:012x}"


def _key(kind: type[Wire], name: str, namespace: str) -> Key:
    return ("", name) if kind in CLUSTER_SCOPED else (namespace or "default", name)


def _node_of(what: Wire | None) -> str | None:
    return what.spec.node_name or "" if isinstance(what, core.Pod) else None


def _version_of(text: str) -> int:
    if not text.isdecimal():
        raise BadInput(Problem(f"cannot watch from version {text!r}: expected the resource version of a list"))
    return int(text)
