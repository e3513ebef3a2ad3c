"""Store config maps, secrets and tokens for a start without the API server.

    get, token --> API --answers--> caller, and `store` if it changed
                    `--no answer since the agent started--> `store` --> caller

Input: the API's reader, its provider of tokens, and a store that survives a reboot. Output: the same objects.
docs/decisions/0010 has the decision and the risks.

* The store is only used until the API answers the first call for a config map, secret or token after the start of the
  agent. After that, callers get the errors of the API, as without a store. Other API calls do not count.
* Config maps are stored. Secrets and tokens are stored only if `keep_secrets` is set. Secrets of type
  kubernetes.io/service-account-token are never stored: they are credentials of the cluster and do not expire.
* `keep_for` removes objects that no pod of this node needs any more. If the API answers NotFound, the object is
  removed, too.
* Callers never wait for a write. Failed writes are retried. A missing write only affects the next start without the
  API.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from podkeeper.model.errors import UNDECODABLE, ApiUnavailable, NotFound, TryLater
from podkeeper.model.k8s.core import ConfigMap, Pod, PodSpec, Secret
from podkeeper.model.wire import Wire
from podkeeper.ports.api import ObjectReader, TokenProvider
from podkeeper.ports.clock import Clock
from podkeeper.rules.container.needed_objects import CONFIG_MAP, SECRET, NeededObject, needed_objects, token_of

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Wire)
T = TypeVar("T")

ANSWER_SECONDS: Final = 10.0
"""How long the API may take for an answer before the store is read instead."""

API_RETRY_SECONDS: Final = 10.0
"""After a call without an answer, use the store at once for this time. A pod with ten objects then waits only once."""

# A missing write only affects the next start without the API, so it is not urgent.
RETRY_SECONDS: Final = 30.0
CLUSTER_CREDENTIAL: Final = "kubernetes.io/service-account-token"


class ObjectStore(Protocol):
    """Bytes by name, such as `ObjectFiles`. Calls block, and raise OSError."""

    def open(self) -> frozenset[str]:
        """Prepare the store. Returns the existing names."""

    def name_of(self, key: str) -> str:
        """Return the name for a key."""

    def read(self, name: str) -> bytes | None:
        """Return the value, or None if it does not exist."""

    def write(self, name: str, data: bytes) -> None:
        """Replace the value."""

    def remove(self, name: str) -> None:
        """Remove the value, if it exists."""


class _Envelope(msgspec.Struct, frozen=True):
    """The content of a file. It includes the key, because file names are hashes."""

    kind: str
    namespace: str
    name: str
    content: msgspec.Raw


class StoredObjects:
    """Reads objects, and stores those that the pods of this node need."""

    def __init__(
        self,
        api: ObjectReader,
        store: ObjectStore,
        clock: Clock,
        *,
        keep_secrets: bool,
        tokens: TokenProvider | None = None,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """`tokens` provides service account tokens. None: there are none. `in_thread` runs a blocking call."""
        self._api = api
        self._store = store
        self._clock = clock
        self._keep_secrets = keep_secrets
        self._tokens = tokens
        self._in_thread = in_thread
        self._api_answered = False  # since the agent started
        self._retry_api_at = 0.0
        self._opened = asyncio.Lock()
        self._names: set[str] | None = None  # of the files; None: the store has not been opened
        self._stored: dict[str, bytes] = {}  # by name: the digest of the last write since the start
        self._pending: dict[str, bytes | None] = {}  # by name: to be written; None: to be removed
        self._work = asyncio.Event()
        self._enqueued_since_drop = False  # an object was queued since the last cleanup; its pod may have been removed
        self._needed: dict[str, tuple[PodSpec, frozenset[NeededObject]]] | None = None  # by UID of the pod

    # Reading.

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        """Return an object from the API or from the store. Raises NotFound."""
        if kind is not ConfigMap and kind is not Secret:
            return await self._api.get(kind, name, namespace)
        key = NeededObject(CONFIG_MAP if kind is ConfigMap else SECRET, namespace, name)
        return await self._read(key, lambda: self._api.get(kind, name, namespace), kind)

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        """Return a token from the provider or the stored one. Raises TryLater."""
        tokens = self._tokens
        if tokens is None:
            raise TryLater("cannot get a service account token: this node has no provider of tokens")
        return await self._read(token_of(pod, audience), lambda: tokens.token(pod, audience, expiration_seconds), str)

    async def _read(self, key: NeededObject, request: Callable[[], Awaitable[T]], kind: type[T]) -> T:
        # Read the file before the request, so that the copy is at hand if the API does not answer.
        stored = None if self._api_answered else await self._load(key, kind)
        if stored is None or self._api_answered:  # the API may have answered another call while the file was read
            return await self._request(key, request)
        if self._clock.monotonic() < self._retry_api_at:
            return stored
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._request(key, request)
        except (ApiUnavailable, TimeoutError) as error:
            reason = str(error) or f"no answer within {ANSWER_SECONDS:g} s"
            if self._api_answered:  # another call was answered in the meantime
                raise ApiUnavailable(f"cannot get {key}: {reason}") from error
            self._retry_api_at = self._clock.monotonic() + API_RETRY_SECONDS
            log.warning("using stored copies of %s and other objects: the API does not answer: %s", key, reason)
            return stored

    async def _request(self, key: NeededObject, request: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await request()
        except NotFound:
            self._api_answered = True
            # NotFound is an answer, too: the object was deleted, and its stored copy must not be used again.
            self._enqueue(self._store.name_of(str(key)), None)
            raise
        self._api_answered = True
        envelope = _Envelope(key.kind, key.namespace, key.name, msgspec.Raw(msgspec.json.encode(answer)))
        # If the object may not be stored, remove an older copy: its type may have changed, or the option was removed.
        stored = msgspec.json.encode(envelope) if self._may_keep(key, answer) else None
        self._enqueue(self._store.name_of(str(key)), stored)
        return answer

    def _may_keep(self, key: NeededObject, answer: object) -> bool:
        if isinstance(answer, Secret) and answer.type == CLUSTER_CREDENTIAL:
            return False
        return key.kind == CONFIG_MAP or self._keep_secrets

    async def _load(self, key: NeededObject, kind: type[T]) -> T | None:
        if key.kind != CONFIG_MAP and not self._keep_secrets:
            return None
        name = self._store.name_of(str(key))
        try:
            await self._open()
            data = await self._in_thread(self._store.read, name)
        except OSError as error:
            log.warning("cannot read the stored copy of %s: %s", key, error)
            return None
        try:
            envelope = None if data is None else msgspec.json.decode(data, type=_Envelope)
            # File names are hashes. The key inside shows that the file belongs to this object.
            if envelope is None or NeededObject(envelope.kind, envelope.namespace, envelope.name) != key:
                return None
            return msgspec.json.decode(envelope.content, type=kind)
        except UNDECODABLE as error:
            log.warning("removing the stored copy of %s, which cannot be decoded: %s", key, error)
            self._enqueue(name, None)
            return None

    # Writing.

    def keep_for(self, pods: Iterable[Pod]) -> None:
        """Remove objects that these pods do not need. They must be all pods of the node."""
        before, now = self._needed or {}, dict[str, tuple[PodSpec, frozenset[NeededObject]]]()
        for pod in pods:
            uid = pod.metadata.uid or ""
            known = before.get(uid)
            # Housekeeping calls this every 2 s. Pods are shared values, so an unchanged spec is the same object.
            now[uid] = known if known is not None and known[0] is pod.spec else (pod.spec, needed_objects(pod))
        changed, self._needed = now != self._needed, now
        if self._names is None:
            self._work.set()  # opens the store, which removes objects that are not needed
        elif changed or self._enqueued_since_drop:  # an answer may arrive after its pod was removed
            self._drop_unneeded()

    def _drop_unneeded(self) -> None:
        self._enqueued_since_drop = False
        keys = {key for _, keys in (self._needed or {}).values() for key in keys}
        needed = {self._store.name_of(str(key)) for key in keys if key.kind == CONFIG_MAP or self._keep_secrets}
        for name in {*(self._names or ()), *self._pending} - needed:
            self._enqueue(name, None)

    def _enqueue(self, name: str, data: bytes | None) -> None:
        if data is None:
            known = name in self._pending or name in self._stored or self._names is None or name in self._names
            if not known:
                return
        elif (data == self._pending[name]) if name in self._pending else (_digest(data) == self._stored.get(name)):
            return
        self._pending[name] = data
        self._enqueued_since_drop = self._enqueued_since_drop or data is not None
        self._work.set()

    async def run(self) -> None:
        """Write and remove files, until cancelled."""
        while True:
            await self._work.wait()
            # Clear before the writes, not after them, because an object may be queued during a write.
            self._work.clear()
            try:
                await self._open()
                await self._write_all()
            except Exception as error:  # unexpected errors, too, because a bug in the store must not end the agent
                unexpected = None if isinstance(error, OSError) else error
                message = "cannot store objects of pods, will retry in %g s: %s"
                log.warning(message, RETRY_SECONDS, error, exc_info=unexpected)
                await asyncio.sleep(RETRY_SECONDS)
                self._work.set()

    async def _open(self) -> None:
        async with self._opened:
            if self._names is None:
                self._names = set(await self._in_thread(self._store.open))
                if self._needed is not None:
                    self._drop_unneeded()

    async def _write_all(self) -> None:
        refused: dict[str, OSError] = {}
        # Continue after an error, because on a full disk a removal may make room for a write.
        while (name := next((each for each in self._pending if each not in refused), None)) is not None:
            try:
                await self._write(name, self._pending[name])
            except OSError as error:
                refused[name] = error
        if refused:
            raise next(iter(refused.values()))

    async def _write(self, name: str, data: bytes | None) -> None:
        names = self._names if self._names is not None else set()
        if data is None:
            await self._in_thread(self._store.remove, name)
            names.discard(name)
            self._stored.pop(name, None)
        else:
            await self._in_thread(self._store.write, name, data)
            names.add(name)
            self._stored[name] = _digest(data)
        if self._pending.get(name) is data:  # not replaced in the meantime
            del self._pending[name]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
