"""The API in memory: dictionaries of typed objects, versions, watches, graceful deletion, and faults on order.

    api = MemoryApi(clock)
    api.put(pod)                                    # as any other client would, at once and without faults
    api.faults.lose_answer("patch_status", "web")   # the next write of web's status happens; nobody hears of it
    api.go_down(); api.come_up(); api.break_watches(); api.expire()

What the node does goes through the port, with its delays and faults; what the rest of the cluster does (`put`,
`replace_spec`, `remove`, `mark_deleted`) happens at once. A patch costs as much as its object is large; a change is
told to the watchers of its node, and to those who watch all.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast
from weakref import WeakSet

from podkeeper.model.api import Listed, WatchEvent, WatchType
from podkeeper.model.errors import AgentError, AlreadyExists, ApiUnavailable, BadInput, Gone, NotFound, Problem
from podkeeper.model.k8s import certificates, core, storage
from podkeeper.model.times import format_time
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.ports.clock import Clock
from podkeeper.runtimes.fake.calls import Call, Calls
from podkeeper.runtimes.fake.faults import FakeFaults
from podkeeper.testing.memory_objects import (
    as_created,
    as_stored,
    check_preconditions,
    deleted,
    is_to_go,
    meta_of,
    patched,
    status_patched,
    with_meta,
)
from podkeeper.testing.memory_watch import Change, Pace, Selector, Watch, selector_of

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
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words


class _Shelf:
    """All of one kind: the objects, what happened to them lately, and who watches (by node; None: all)."""

    def __init__(self, history_limit: int) -> None:
        self.objects: dict[Key, Wire] = {}
        self.history: deque[Change] = deque()
        self.history_limit = history_limit
        self.forgotten = 0  # the version of the newest change that is forgotten: nobody can watch from before it
        self.watches: defaultdict[str | None, WeakSet[Watch[Wire]]] = defaultdict(WeakSet)
        self.witness: Callable[[Change], None] | None = None

    def as_of(self, version: int) -> tuple[Wire, ...]:
        """The objects as they were at a version; as far back as the history goes."""
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

    def note(self, change: Change) -> None:
        """Remember a change, and tell the watchers it may concern."""
        if self.witness is not None:
            self.witness(change)
        self.history.append(change)
        if len(self.history) > self.history_limit:
            self.forgotten = self.history.popleft().version
        for node in {None, _node_of(change.old), _node_of(change.new)}:
            if node in self.watches:
                for watch in self.watches[node]:
                    watch.put(change)

    def all_watches(self) -> list[Watch[Wire]]:
        """Every open stream."""
        return [watch for group in self.watches.values() for watch in group]


class MemoryApi:
    """An API server that is a few dictionaries."""

    def __init__(
        self,
        clock: Clock,
        *,
        delays: Mapping[str, float] | None = None,
        history_limit: int = 4096,
        ledger_size: int | None = 4096,
    ) -> None:
        self._clock = clock
        faults = FakeFaults(failure=ApiUnavailable, lost_answer=ApiUnavailable)
        self._calls = Calls(clock, ApiUnavailable, faults, delays=delays, ledger_size=ledger_size)
        self._shelves: defaultdict[type[Wire], _Shelf] = defaultdict(lambda: _Shelf(history_limit))
        self._version = 1  # no server's is 0, which means "any"
        self._uids = 0
        self._pace = Pace()
        self.lists_as_of: int | None = (
            None  # lists are answered from a cache that stopped at this version, if that is remembered
        )

    # ---- the port ----

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        """The object as it is."""
        async with self._calls.call("get", name, kind.__name__):
            return self._get(kind, name, namespace)

    async def list(self, kind: type[K], *, namespace: str = "", field_selector: str = "") -> Listed[K]:
        """All that the selector means."""
        selector = selector_of(kind, namespace, field_selector)
        async with self._calls.call("list", kind.__name__, kind.__name__):
            if self.lists_as_of is not None:
                version = max(self.lists_as_of, self._shelves[kind].forgotten)
                found = filter(selector.matches, self._shelves[kind].as_of(version))
                return Listed(cast("tuple[K, ...]", tuple(found)), str(version))
            return Listed(cast("tuple[K, ...]", self._selected(kind, selector)), str(self._version))

    def watch(self, kind: type[K], resource_version: str, *, namespace: str = "", field_selector: str = "") -> Watch[K]:
        """What changes after a version; "" and "0": first all there is."""
        selector = selector_of(kind, namespace, field_selector)
        opening = self._calls.call("watch", kind.__name__, kind.__name__)
        watch = Watch(kind, selector, self._pace, opening, lambda: self._version)
        try:
            self._begin(watch, kind, selector, resource_version)
        except Gone as error:
            watch.close(error)
        return watch

    async def create(self, what: K) -> K:
        """Store a new object, under a name of its own if it brings only the beginning of one."""
        meta = meta_of(what)
        async with self._calls.call("create", meta.name or meta.generate_name or "", type(what).__name__, what):
            what = self._named(what)
            if self.peek(type(what), meta_of(what).name or "", meta_of(what).namespace or "") is not None:
                raise AlreadyExists(f"cannot create {type(what).__name__} {meta_of(what).name}: there is one")
            new = with_meta(as_created(what), uid=self._new_uid(), creation_timestamp=format_time(self._clock.now()))
            return self._store(None, new)

    async def patch(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Strategic merge patch of the object itself."""
        async with self._calls.call("patch", name, kind.__name__, patch):
            return self._patch(kind, name, namespace, patch, patched)

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        """Strategic merge patch of the status."""
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
        """Delete an object; a pod that runs somewhere is only marked, until somebody deletes it with grace 0."""
        async with self._calls.call("delete", name, kind.__name__, grace_seconds):
            self.mark_deleted(kind, name, namespace, grace_seconds=grace_seconds, uid=uid)

    # ---- what the rest of the cluster does ----

    def put(self, what: K) -> K:
        """Store an object as it is, new or changed; only what every object has is filled in.

        Under another UID it is another object: the one that bore the name is removed first.
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
        """Change what a pod should be."""
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
        """Delete an object as a user does: gracefully if it is a pod on a node."""
        old = self._get(kind, name, namespace)
        check_preconditions(old, uid)
        new = deleted(old, grace_seconds, self._clock.now())
        if new is None:
            self.remove(kind, name, namespace)
        elif new is not old:
            self._store(old, new)

    def remove(self, kind: type[K], name: str, namespace: str = "") -> None:
        """Take an object away, whatever anybody thinks of it."""
        old = self._get(kind, name, namespace)
        shelf = self._shelves[kind]
        del shelf.objects[_key(kind, name, namespace)]
        self._version += 1
        shelf.note(Change(self._version, with_meta(old, resource_version=str(self._version)), None))

    def peek(self, kind: type[K], name: str, namespace: str = "") -> K | None:
        """The object, if there is one; nobody notices."""
        return cast("K | None", self._shelves[kind].objects.get(_key(kind, name, namespace)))

    def objects(self, kind: type[K]) -> tuple[K, ...]:
        """All of a kind; nobody notices."""
        return tuple(cast("dict[Key, K]", self._shelves[kind].objects).values())

    @property
    def version(self) -> int:
        """The newest version of all."""
        return self._version

    def witness(self, kind: type[Wire], witness: Callable[[Change], None]) -> None:
        """Tell somebody of every change to objects of a kind, the moment it happens."""
        self._shelves[kind].witness = witness

    # ---- trouble ----

    @property
    def faults(self) -> FakeFaults:
        """Trouble on order: by method, and the object's name (for `list` and `watch` the kind's)."""
        return self._calls.faults

    @property
    def delays(self) -> dict[str, float]:
        """How long each method takes, in seconds."""
        return self._calls.delays

    @property
    def ledger(self) -> Sequence[Call]:
        """The newest calls, oldest first."""
        return self._calls.ledger

    def go_down(self, why: str = "connection refused") -> None:
        """Answer nobody from now on; watches break."""
        self._calls.down = why
        self.break_watches()

    def come_up(self) -> None:
        """Answer again."""
        self._calls.down = ""

    def break_watches(self) -> None:
        """Break every watch, as a lost connection does."""
        self._close(ApiUnavailable("cannot go on: the connection broke"))

    def end_watches(self) -> None:
        """End every watch, as a server does every few minutes."""
        self._close(StopAsyncIteration())

    def expire(self) -> None:
        """Forget all history: every watch, and every version from before now, is Gone."""
        for shelf in self._shelves.values():
            shelf.history.clear()
            shelf.forgotten = self._version + 1
        self._version += 1
        self._close(Gone("cannot go on: the version is too old"))

    def set_watch_pace(self, *, delay_seconds: float = 0.0, stalled: bool = False) -> None:
        """Make watches slow, or let them say nothing at all; called without arguments: as ever."""
        self._pace.delay_seconds = delay_seconds
        self._pace.stalled = stalled
        for shelf in self._shelves.values():
            for watch in shelf.all_watches():
                watch.wake()

    def send_bookmarks(self) -> None:
        """Tell every watcher the newest version."""
        for shelf in self._shelves.values():
            for watch in shelf.all_watches():
                watch.bookmark()

    # ---- small parts ----

    def _get(self, kind: type[K], name: str, namespace: str) -> K:
        found = self.peek(kind, name, namespace)
        if found is None:
            raise NotFound(f"cannot find {kind.__name__} {name} in namespace {namespace or '-'}")
        return found

    def _selected(self, kind: type[Wire], selector: Selector) -> tuple[Wire, ...]:
        return tuple(filter(selector.matches, self._shelves[kind].objects.values()))

    def _store(self, old: K | None, new: K) -> K:
        self._version += 1
        new = with_meta(new, resource_version=str(self._version))
        meta = meta_of(new)
        shelf = self._shelves[type(new)]
        shelf.objects[meta.namespace or "", meta.name or ""] = new
        shelf.note(Change(self._version, old, new))
        return new

    def _patch(
        self, kind: type[K], name: str, namespace: str, patch: JSONObject, apply: Callable[[K, JSONObject], K]
    ) -> K:
        old = self._get(kind, name, namespace)
        meant = patch.get("metadata")
        if isinstance(meant, dict):
            check_preconditions(old, meant.get("uid"), meant.get("resourceVersion"))
        new = apply(old, patch)
        if new is old:
            return old
        new = self._store(old, new)
        if is_to_go(new):
            self.remove(kind, name, namespace)
        return new

    def _begin(self, watch: Watch[K], kind: type[K], selector: Selector, resource_version: str) -> None:
        """Tell a new watcher what it missed, and remember it."""
        shelf = self._shelves[kind]
        if resource_version in ("", "0"):
            for what in self._selected(kind, selector):
                watch.put_event(WatchEvent(WatchType.ADDED, what, meta_of(what).resource_version or ""))
        else:
            since = _version_of(resource_version)
            if since < shelf.forgotten:
                raise Gone(f"cannot watch {kind.__name__} from version {since}: the oldest is {shelf.forgotten}")
            missed = []
            for change in reversed(shelf.history):
                if change.version <= since:
                    break
                missed.append(change)
            for change in reversed(missed):
                watch.put(change)
        if self._calls.down:
            watch.close(ApiUnavailable(f"cannot watch: {self._calls.down}"))
        shelf.watches[selector.node].add(cast("Watch[Wire]", watch))

    def _close(self, end: AgentError | StopAsyncIteration) -> None:
        for shelf in self._shelves.values():
            for watch in shelf.all_watches():
                watch.close(end)
            shelf.watches.clear()

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
        raise BadInput(Problem(f"cannot watch from version {text!r}; right would be one that a list told"))
    return int(text)
