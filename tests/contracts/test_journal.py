"""Every journal against the journal contract."""

from dataclasses import dataclass, field

import pytest

from podkeeper.ports.journal import Journal
from podkeeper.testing.contracts import Implementation, name_of, opened
from podkeeper.testing.contracts.contract import Scenario
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


def fake(keep: int) -> JournalSubject:
    return FakeSubject(keep)


IMPLEMENTATIONS = {
    "fake that loses all": Implementation(opened(lambda: fake(keep=0))),
    "fake that loses some": Implementation(opened(lambda: fake(keep=4))),
    "fake that loses nothing": Implementation(opened(lambda: fake(keep=1000))),
}


@pytest.mark.parametrize("scenario", JOURNAL.scenarios, ids=name_of)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_a_promise_is_kept(implementation: Implementation[JournalSubject], scenario: Scenario[JournalSubject]) -> None:
    implementation.check(scenario)
