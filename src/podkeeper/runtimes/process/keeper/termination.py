"""The last words of a container: what its status shows as the message of its end.

The file it may write, at most its last 4096 bytes. If it wrote none, ended badly and its spec wants so
(`FallbackToLogsOnError`), the end of its log: at most 80 lines and 2048 bytes. The Go ancestors are
`getTerminationMessage` and `readLastStringFromContainerLogs` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

import os
from typing import Final

MAX_BYTES: Final = 4096
MAX_LOG_BYTES: Final = 2048
MAX_LOG_LINES: Final = 80
_LOG_TAIL_BYTES: Final = 65536  # more than a longest line and 80 prefixes


def last_words(path: str, log_path: str, *, ask_log: bool) -> str:
    """The message; `ask_log`: the end of the log will do if the file is empty."""
    try:
        words, _ = _tail(path, MAX_BYTES)
    except FileNotFoundError:
        words = b""
    except OSError as error:
        return f"Error on reading termination log {path}: {error.strerror}"
    if not words and ask_log and log_path:
        try:
            words = _log_tail(log_path)
        except OSError as error:
            return f"Error on reading termination message from logs: {error.strerror}"
    return words.decode("utf-8", "replace")


def _log_tail(path: str) -> bytes:
    """What a container wrote last, without times and tags."""
    data, whole = _tail(path, _LOG_TAIL_BYTES)
    lines = data.split(b"\n")[:-1]
    if not whole:
        lines = lines[1:]  # its beginning is cut off
    contents = []
    for line in lines[-MAX_LOG_LINES:]:
        _, _, tag, content = (line.split(b" ", 3) + [b""] * 3)[:4]
        contents.append(content if tag == b"P" else content + b"\n")
    return b"".join(contents)[-MAX_LOG_BYTES:]


def _tail(path: str, limit: int) -> tuple[bytes, bool]:
    """The end of a file, and whether that is all of it."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        return os.pread(file, limit, max(0, size - limit)), size <= limit
    finally:
        os.close(file)
