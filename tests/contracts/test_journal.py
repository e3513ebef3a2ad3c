"""Each journal against the journal contract."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from podkeeper.journal.file import FileJournal
from podkeeper.ports.journal import Journal
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import ContractCase
from podkeeper.testing.contracts.journal import JOURNAL, JournalSubject
from podkeeper.testing.fakes import FakeJournal


@dataclass
class FakeSubject:
    """A fake that keeps some of its unsynced writes when it crashes."""

    keep: int
    journal: FakeJournal = field(default_factory=FakeJournal)

    async def open(self) -> Journal:
        return self.journal

    async def crash(self) -> None:
        self.journal.crash(self.keep)


@dataclass
class FileSubject:
    """A real file. A crash happens at the start of a sync, during its write, or at its end."""

    root: Path
    progress: float
    spare_bytes: int
    crashes: int = 0
    journals: list[FileJournal] = field(default_factory=list)

    async def open(self) -> Journal:
        self.journals.append(FileJournal.open(self._path, spare_bytes=self.spare_bytes))
        return self.journals[-1]

    async def crash(self) -> None:
        """Continue with a copy of the file as it was at some moment of a last sync."""
        path = self._path
        before = path.read_bytes() if path.exists() else b""
        await self.journals[-1].sync()
        after = path.read_bytes() if path.exists() else b""
        self.crashes += 1
        self._path.parent.mkdir()
        if not after.startswith(before):  # rewritten, so a crash leaves the old file, the new one, or both
            self._path.write_bytes(after if self.progress >= 1 else before)
            self._path.with_name("journal.new").write_bytes(after[: int(len(after) * self.progress)])
        else:
            self._path.write_bytes(after[: len(before) + int((len(after) - len(before)) * self.progress)])

    @property
    def _path(self) -> Path:
        return self.root / f"after-{self.crashes}-crashes" / "journal"


def fake(keep: int) -> JournalSubject:
    return FakeSubject(keep)


def file(progress: float, spare_bytes: int = 1024 * 1024) -> Callable[[], AbstractAsyncContextManager[JournalSubject]]:
    @asynccontextmanager
    async def open_subject() -> AsyncIterator[JournalSubject]:
        root = Path(tempfile.mkdtemp(prefix="podkeeper-journal-"))
        subject = FileSubject(root, progress, spare_bytes)
        try:
            yield subject
        finally:
            for journal in subject.journals:
                await journal.close()
            shutil.rmtree(root)

    return open_subject


IMPLEMENTATIONS = {
    "fake that loses all unsynced writes": Implementation(opened(lambda: fake(keep=0))),
    "fake that loses some unsynced writes": Implementation(opened(lambda: fake(keep=4))),
    "fake that loses nothing": Implementation(opened(lambda: fake(keep=1000))),
    "file that loses all unsynced writes": Implementation(file(0.0), run=asyncio.run),
    "file with a torn write": Implementation(file(0.47), run=asyncio.run),
    "file that loses nothing": Implementation(file(1.0), run=asyncio.run),
    "often rewritten file with a torn write": Implementation(file(0.47, spare_bytes=0), run=asyncio.run),
}


@pytest.mark.parametrize("scenario", JOURNAL.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_contract(implementation: Implementation[JournalSubject], scenario: ContractCase[JournalSubject]) -> None:
    implementation.check(scenario)
