"""The kinds of runtime that scenarios are played on, and marks for those that only make sense on one of them."""

import pytest

PROCESSES = "process"
CONTAINERD = "containerd"
CRIO = "crio"
CONTAINERS = tuple(pytest.param(kind, marks=pytest.mark.slow) for kind in (CONTAINERD, CRIO))
EVERY_KIND = (PROCESSES, *CONTAINERS)

processes_only = pytest.mark.parametrize("on_a_node", [PROCESSES], indirect=True)
"""For what is about the process runtime itself."""

containers_only = pytest.mark.parametrize("on_a_node", CONTAINERS, indirect=True)
"""For what processes cannot do, or do in their own way."""

containerd_only = pytest.mark.parametrize("on_a_node", CONTAINERS[:1], indirect=True)
"""For what containerd (Debian's, 1.6) does in its own way, or cannot do and says so."""

not_on_containerd = pytest.mark.parametrize("on_a_node", [PROCESSES, *CONTAINERS[1:]], indirect=True)
"""For what Debian's containerd (1.6) cannot do."""

not_on_crio = pytest.mark.parametrize("on_a_node", [PROCESSES, *CONTAINERS[:1]], indirect=True)
"""For what CRI-O does in its own way."""

crio_only = pytest.mark.parametrize("on_a_node", CONTAINERS[1:], indirect=True)
"""For what only newer runtimes can do."""


def chooses_kind(test: pytest.Item | pytest.Function) -> bool:
    """Whether a test says itself what it is played on."""
    return any("on_a_node" in mark.args[0] for mark in test.iter_markers("parametrize"))
