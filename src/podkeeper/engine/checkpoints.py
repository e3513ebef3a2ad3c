"""Checkpoints: one value per key in the journal.

Callers can wait until a value is durable.

Inputs: `write` and `drop`, which do not wait. Outputs: `take` returns a value of the last agent process, and `settle`
returns when a value is durable. The first caller of `settle` syncs the journal for all writes so far, and other callers
wait for that sync (group commit). If the disk hangs or fails, `settle` waits at most `SYNC_TIMEOUT_SECONDS`, and
`try_again` syncs again later. Without a journal, nothing is stored and `settle` returns at once.
Kubelet counterpart: pkg/kubelet/checkpointmanager, which has no group commit.
"""

import asyncio
import logging
from collections.abc import Iterable

from podkeeper.model.errors import TryLater
from podkeeper.ports.journal import Journal

log = logging.getLogger(__name__)

# Then continue without durability, so that a disk that hangs stops no start and no status (decision 11). The cost:
# after a crash at this moment, the next agent may restart a container too early or publish an older status.
SYNC_TIMEOUT_SECONDS = 1.0


class Checkpoints:
    """The values with one key prefix in a journal. `prefix` ends with a slash."""

    def __init__(self, journal: Journal | None, prefix: str) -> None:
        self._journal = journal
        self._prefix = prefix
        found = {} if journal is None else journal.load()
        self._old = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
        self._marks: dict[str, int] = {}  # the number of each key's last write
        self._written = 0
        self._durable = 0  # the number of the last durable write
        self._settled = 0  # the number of the last write that is durable or was waited for long enough
        self._syncing = False
        self._synced = asyncio.Event()  # set and cleared at the end of each sync

    def old_keys(self) -> Iterable[str]:
        """Return the keys of the last agent process that were not taken, written or dropped since."""
        return self._old.keys()

    def take(self, key: str) -> bytes | None:
        """Return the value of the last agent process, once. It stays in the journal."""
        return self._old.pop(key, None)

    def write(self, key: str, value: bytes) -> None:
        """Write a value without waiting. It is durable after `settle`."""
        self._old.pop(key, None)
        if self._journal is not None:
            self._journal.put(self._prefix + key, value)
            self._written += 1
            self._marks[key] = self._written

    def drop(self, key: str) -> None:
        """Remove a value. An unknown key is ignored."""
        self._old.pop(key, None)
        self._marks.pop(key, None)
        if self._journal is not None:
            self._journal.drop(self._prefix + key)
            self._written += 1

    def purge(self) -> None:
        """Erase replaced and dropped values from the disk. They are gone after `settle`."""
        if self._journal is not None:
            self._journal.purge()
            self._written += 1

    async def settle(self, key: str | None = None) -> None:
        """Return when a value is durable, or after a timeout. None: all writes so far."""
        mark = self._written if key is None else self._marks.get(key, 0)
        # In a loop, because a sync in progress may have begun before this write and then does not cover it.
        while self._settled < mark:
            if self._syncing:
                await self._synced.wait()
            else:
                await self._sync()

    def is_durable(self, key: str) -> bool:
        """Return whether the last write of a key survives a crash. True without a journal, which stores nothing."""
        return self._journal is None or self._marks.get(key, 0) <= self._durable

    async def try_again(self) -> None:
        """Sync the journal if an earlier sync failed or took too long."""
        # `_settled` is also true after a failed sync, so compare with `_durable`.
        if self._durable < self._written and not self._syncing:
            await self._sync()

    async def _sync(self) -> None:
        if self._journal is None:
            return
        # Before the sync: writes that arrive during it are not covered by it.
        written = self._written
        self._syncing = True
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_SECONDS):
                await self._journal.sync()
            self._durable = written
        except TimeoutError:
            log.warning(
                "cannot write checkpoints %s to disk within %g s, will retry", self._prefix, SYNC_TIMEOUT_SECONDS
            )
        except TryLater as error:
            log.warning("cannot sync checkpoints %s, will retry: %s", self._prefix, error)
        except Exception:
            log.exception("unexpected error while syncing checkpoints %s, will retry", self._prefix)
        finally:
            self._syncing = False
            # Set and clear in one step: it wakes the waiting callers and never lets a later caller pass.
            self._synced.set()
            self._synced.clear()
        # Also after a failure, because `settle` only waits once. `try_again` makes the values durable later.
        self._settled = written
