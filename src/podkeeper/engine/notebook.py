"""The notebook: one note per key in the journal, and the word when it is safe.

In: `write` and `drop`, which return at once. Out: after a restart, each note to whoever asks for it first (`take`), and
`settle`, which returns when a note is durable. Whoever comes first to `settle` has the journal synced for all that was
written until then, and the others wait for that (group commit). A disk that hangs or refuses holds nobody up for longer
than `PATIENCE_SECONDS`; `try_again` then makes durable what was not. Without a journal nothing is kept, and nobody
waits.
"""

import asyncio
import logging
from collections.abc import Iterable

from podkeeper.model.errors import TryLater
from podkeeper.ports.journal import Journal

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0


class Notebook:
    """Notes under one prefix of a journal; `prefix` ends in a slash."""

    def __init__(self, journal: Journal | None, prefix: str) -> None:
        self._journal = journal
        self._prefix = prefix
        found = {} if journal is None else journal.load()
        self._old = {key.removeprefix(prefix): note for key, note in found.items() if key.startswith(prefix)}
        self._marks: dict[str, int] = {}  # the number of each key's last write
        self._written = 0
        self._durable = 0  # of the writes, so many are safe
        self._settled = 0  # so many are safe, or were waited for long enough
        self._syncing = False
        self._synced = asyncio.Event()  # set for a moment at the end of each sync

    def old_keys(self) -> Iterable[str]:
        """The keys of notes from before the restart that nobody has taken or changed."""
        return self._old.keys()

    def take(self, key: str) -> bytes | None:
        """The note of before the restart, once. It stays in the journal."""
        return self._old.pop(key, None)

    def write(self, key: str, note: bytes) -> None:
        """Write a note; `settle` tells when it is safe."""
        self._old.pop(key, None)
        if self._journal is not None:
            self._journal.put(self._prefix + key, note)
            self._written += 1
            self._marks[key] = self._written

    def drop(self, key: str) -> None:
        """Forget a note; unknown is forgotten."""
        self._old.pop(key, None)
        self._marks.pop(key, None)
        if self._journal is not None:
            self._journal.drop(self._prefix + key)
            self._written += 1

    def purge(self) -> None:
        """Have replaced and dropped notes removed from the disk; `settle` returns when they are."""
        if self._journal is not None:
            self._journal.purge()
            self._written += 1

    async def settle(self, key: str | None = None) -> None:
        """Return once a key's note is safe (None: all notes so far), or patience has ended."""
        mark = self._written if key is None else self._marks.get(key, 0)
        while self._settled < mark:
            if self._syncing:
                await self._synced.wait()
            else:
                await self._sync()

    def is_durable(self, key: str) -> bool:
        """Whether a crash would keep a key's last write. True without a journal: then nothing is kept anyway."""
        return self._journal is None or self._marks.get(key, 0) <= self._durable

    async def try_again(self) -> None:
        """Make durable what patience gave up, if there is any."""
        if self._durable < self._written and not self._syncing:
            await self._sync()

    async def _sync(self) -> None:
        if self._journal is None:
            return
        written = self._written
        self._syncing = True
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._journal.sync()
            self._durable = written
        except TimeoutError:
            log.warning("notes under %s are not durable after %g s, will retry", self._prefix, PATIENCE_SECONDS)
        except TryLater as error:
            log.warning("notes under %s are not durable, will retry: %s", self._prefix, error)
        except Exception:
            log.exception("notes under %s are not durable for an unforeseen reason, will retry", self._prefix)
        finally:
            self._syncing = False
            self._synced.set()
            self._synced.clear()
        self._settled = written
