"""Elastic tab stops: align the cells of adjacent lines that end in a tab.

    Name:\\tweb            Name:       web
    Node:\\tn1        ->   Node:       n1
    Containers:           Containers:          (has no tab: ends the column)

The result is the same as Go's text/tabwriter with two spaces of padding, so that the output matches kubectl's.
"""

from collections.abc import Iterable, Iterator, Sequence

PADDING = 2


def tabbed(lines: Iterable[str]) -> str:
    """Replace tabs by spaces. A line with a newline counts as two lines."""
    rows = [row.split("\t") for line in lines for row in line.split("\n")]
    return "".join(f"{line}\n" for line in _formatted(rows, ()))


def _formatted(rows: Sequence[list[str]], widths: tuple[int, ...]) -> Iterator[str]:
    """Yield formatted rows.

    `widths` are the widths of the first columns. Find blocks of rows that have a next column, and recurse into each
    block.
    """
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
