"""Elastic tab stops: cells of neighbouring lines that end in a tab form a column, as wide as the widest of them.

    Name:\\tweb            Name:       web
    Node:\\tn1        ->   Node:       n1
    Containers:           Containers:          (has no tab: ends the column)

As Go's text/tabwriter does it with two spaces of padding: what kubectl prints comes out alike.
"""

from collections.abc import Iterable, Iterator, Sequence

PADDING = 2


def tabbed(lines: Iterable[str]) -> str:
    """Lines with their tabs turned into spaces; a newline in one makes it two."""
    rows = [row.split("\t") for line in lines for row in line.split("\n")]
    return "".join(f"{line}\n" for line in _formatted(rows, ()))


def _formatted(rows: Sequence[list[str]], widths: tuple[int, ...]) -> Iterator[str]:
    """Rows whose first cells have these widths: find the blocks of the next column, and go on inside them."""
    column, index = len(widths), 0
    while index < len(rows):
        end = index
        while end < len(rows) and column < len(rows[end]) - 1:
            end += 1
        if end > index:
            width = max(len(row[column]) for row in rows[index:end]) + PADDING
            yield from _formatted(rows[index:end], (*widths, width))
            index = end
        else:
            row = rows[index]
            yield "".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)) + "".join(row[column:])
            index += 1
