"""The kinds of runtime that scenarios are played on, and marks for those that only make sense on one of them.

Where nobody asks for CRI-O, only those say so that are about it alone: it would be some hundred times the same.
"""

import pytest

from tests.runtimes.cri.crio import left_out

PROCESSES = "process"
CONTAINERD = "containerd"
CRIO = "crio"
_ON_CONTAINERD = pytest.param(CONTAINERD, marks=pytest.mark.slow)
_ON_CRIO = pytest.param(CRIO, marks=pytest.mark.slow)
AND_CRIO = () if left_out() else (CRIO,)
CONTAINERS = (_ON_CONTAINERD, _ON_CRIO) if AND_CRIO else (_ON_CONTAINERD,)
EVERY_KIND = (PROCESSES, *CONTAINERS)

processes_only = pytest.mark.parametrize("on_a_node", [PROCESSES], indirect=True)
"""For what is about the process runtime itself."""

containers_only = pytest.mark.parametrize("on_a_node", CONTAINERS, indirect=True)
"""For what processes cannot do, or do in their own way."""

containerd_only = pytest.mark.parametrize("on_a_node", [_ON_CONTAINERD], indirect=True)
"""For what containerd (Debian's, 1.6) does in its own way, or cannot do and says so."""

not_on_containerd = pytest.mark.parametrize("on_a_node", [PROCESSES, _ON_CRIO], indirect=True)
"""For what Debian's containerd (1.6) cannot do."""

not_on_crio = pytest.mark.parametrize("on_a_node", [PROCESSES, _ON_CONTAINERD], indirect=True)
"""For what CRI-O does in its own way."""

crio_only = pytest.mark.parametrize("on_a_node", [_ON_CRIO], indirect=True)
"""For what only newer runtimes can do."""


def chooses_kind(test: pytest.Item | pytest.Function) -> bool:
    """Whether a test says itself what it is played on."""
    return any("on_a_node" in mark.args[0] for mark in test.iter_markers("parametrize"))
