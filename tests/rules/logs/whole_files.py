"""Read whole log files with `begin` and `advance`."""

from collections.abc import Iterator

from podkeeper.rules.logs.reading import Chunk, LogOptions, advance, begin


def read_log(file: bytes, options: LogOptions) -> Iterator[Chunk]:
    *lines, last = file.split(b"\n")
    state = begin(options)
    for line in (*(line + b"\n" for line in lines), *([last] if last else ())):
        if state is None:
            return
        state, chunk = advance(state, line)
        if chunk is not None:
            yield chunk
