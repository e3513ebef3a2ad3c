"""The kinds of runtime that scenarios run on, and marks for scenarios of only some kinds.

Without PODKEEPER_TEST_RUNTIME=crio, only the tests that are specific to CRI-O report a skip. Otherwise about a hundred
tests would report the same reason.
"""

import pytest

from tests.runtimes.cri.crio import why_skipped

PROCESS = "process"
CONTAINERD = "containerd"
CRIO = "crio"
_CONTAINERD_PARAM = pytest.param(CONTAINERD, marks=pytest.mark.slow)
_CRIO_PARAM = pytest.param(CRIO, marks=pytest.mark.slow)
AND_CRIO = () if why_skipped() else (CRIO,)
CONTAINERS = (_CONTAINERD_PARAM, _CRIO_PARAM) if AND_CRIO else (_CONTAINERD_PARAM,)
ALL_RUNTIMES = (PROCESS, *CONTAINERS)

processes_only = pytest.mark.parametrize("run_on_node", [PROCESS], indirect=True)
"""For features of the process runtime itself."""

containers_only = pytest.mark.parametrize("run_on_node", CONTAINERS, indirect=True)
"""For features that the process runtime lacks or implements differently."""

containerd_only = pytest.mark.parametrize("run_on_node", [_CONTAINERD_PARAM], indirect=True)
"""For behaviour specific to Debian's containerd (1.6), including the errors for features that it lacks."""

not_on_containerd = pytest.mark.parametrize("run_on_node", [PROCESS, _CRIO_PARAM], indirect=True)
"""For features that Debian's containerd (1.6) lacks."""

not_on_crio = pytest.mark.parametrize("run_on_node", [PROCESS, _CONTAINERD_PARAM], indirect=True)
"""For behaviour in which CRI-O differs."""

crio_only = pytest.mark.parametrize("run_on_node", [_CRIO_PARAM], indirect=True)
"""For features of newer runtimes."""


def selects_runtime(test: pytest.Item | pytest.Function) -> bool:
    """Return whether a test selects its runtimes by a mark."""
    return any("run_on_node" in mark.args[0] for mark in test.iter_markers("parametrize"))
