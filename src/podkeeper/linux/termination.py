"""Read the termination message of a container.

The message is the last 4096 bytes of the container's termination log. If that file is empty, the container failed and
its policy is `FallbackToLogsOnError`, it is the end of the container log: at most 80 lines and 2048 bytes.
Kubelet counterparts: `getTerminationMessage` and `readLastStringFromContainerLogs` in
pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

import os
from typing import Final

# The limits of the kubelet.
MAX_BYTES: Final = 4096
MAX_LOG_BYTES: Final = 2048
MAX_LOG_LINES: Final = 80
_LOG_TAIL_BYTES: Final = 65536  # more than the longest line and 80 prefixes


def termination_message(path: str, log_path: str, *, fallback_to_logs: bool) -> str:
    """Return the message, or the text of the error that prevented reading it, as the kubelet does."""
    try:
        message, _ = _tail(path, MAX_BYTES)
    except FileNotFoundError:
        message = b""
    except OSError as error:
        return f"Error on reading termination log {path}: {error.strerror}"
    if not message and fallback_to_logs and log_path:
        try:
            message = _log_tail(log_path)
        except OSError as error:
            return f"Error on reading termination message from logs: {error.strerror}"
    return message.decode("utf-8", "replace")


def _log_tail(path: str) -> bytes:
    """Return the end of a container log, without times, streams and tags."""
    data, is_complete = _tail(path, _LOG_TAIL_BYTES)
    lines = data.split(b"\n")[:-1]
    if not is_complete:
        lines = lines[1:]  # the beginning of the first line is cut off
    contents = []
    for line in lines[-MAX_LOG_LINES:]:
        _, _, tag, content = (line.split(b" ", 3) + [b""] * 3)[:4]
        contents.append(content if tag == b"P" else content + b"\n")
    return b"".join(contents)[-MAX_LOG_BYTES:]


def _tail(path: str, limit: int) -> tuple[bytes, bool]:
    """Return the end of a file and whether that is the whole file."""
    # The container controls this file: do not follow a link out of it, and do not block on a named pipe.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        return os.pread(file, limit, max(0, size - limit)), size <= limit
    finally:
        os.close(file)
