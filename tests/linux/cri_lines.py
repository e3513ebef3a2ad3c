"""Lines of a container log in the CRI format, for tests of readers."""

from podkeeper.linux.logline import LogLine


def cri_line(line: LogLine) -> bytes:
    """Return the text of a line. Its content has no newline except at its end."""
    tag = "F" if line.content.endswith(b"\n") else "P"
    return f"{line.time} {line.stream} {tag} ".encode() + line.content.removesuffix(b"\n") + b"\n"
