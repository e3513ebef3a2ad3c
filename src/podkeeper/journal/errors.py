"""Why a journal cannot be opened at all. What goes wrong later is `TryLater`, raised by `sync`."""

from podkeeper.model.errors import AgentError


class JournalUnusable(AgentError):
    """The journal cannot be opened; the message says what a person should do."""


class JournalInUse(JournalUnusable):
    """Another agent has the journal open; `pid` is its process, 0 when it did not say."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid
