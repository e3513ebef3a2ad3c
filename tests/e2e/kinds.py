"""The kinds of runtime that scenarios are played on, and marks for those that only make sense on one of them."""

import pytest

PROCESSES = "process"
CONTAINERS = "containerd"
EVERY_KIND = (PROCESSES, pytest.param(CONTAINERS, marks=pytest.mark.slow))

processes_only = pytest.mark.parametrize("on_a_node", [PROCESSES], indirect=True)
"""For what is about the process runtime itself."""

containers_only = pytest.mark.parametrize("on_a_node", EVERY_KIND[1:], indirect=True)
"""For what processes cannot do, or do in their own way."""


def chooses_kind(test: pytest.Item | pytest.Function) -> bool:
    """Whether a test says itself what it is played on."""
    return any("on_a_node" in mark.args[0] for mark in test.iter_markers("parametrize"))
