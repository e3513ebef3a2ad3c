"""Crash-safe local state behind the journal port.

It stores facts that neither the runtime nor the API can report after a restart.

`file.FileJournal` is the journal. `records` is its file format, `disk` does the blocking file operations, and `lock`
prevents a second agent from opening it. `docs/decisions/0012-journal-file.md` compares it with SQLite.
"""
