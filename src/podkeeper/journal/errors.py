"""Errors of opening a journal. Later errors are `TryLater`, raised by `sync`."""

from podkeeper.model.errors import AgentError


class JournalUnusable(AgentError):
    """The journal cannot be opened. The message contains the next step."""


class JournalInUse(JournalUnusable):
    """Another process has the journal open. `pid` is its id, 0 if unknown."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid
