"""Medians with their range, and the output of a benchmark.

spreads(measured)                      for each name the median, and the range as `name_min` and `name_max`
print_figures(figures, as_json=...)    one JSON object, or one line for each figure
"""

import json
import statistics
from collections.abc import Mapping, Sequence

Figures = dict[str, float]


def spreads(measured: Mapping[str, Sequence[float]]) -> Figures:
    """Return the median and the range of figures that were measured several times."""
    figures: Figures = {}
    for name, values in measured.items():
        figures |= {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
    return figures


def print_figures(figures: Mapping[str, float | str], *, as_json: bool) -> None:
    """Print figures. A text is the reason why a figure is absent."""
    rounded = {name: value if isinstance(value, str) else round(value, 3) for name, value in figures.items()}
    if as_json:
        print(json.dumps(rounded, indent=2))
        return
    for name, value in rounded.items():
        print(f"{name:34} {value}" if isinstance(value, str) else f"{name:34} {value:10.3f}")
