"""Crash-safe local state behind the journal port: what the runtime cannot tell after a restart.

`file.FileJournal` is the journal; `records` is its format, `disk` the blocking work on its file, `lock` keeps a second
agent away from it.
"""
