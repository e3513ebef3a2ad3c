"""A runtime without containers, for tests, simulations and `--runtime fake`: scripted lives, delays and faults.

    runtime      the port itself: `FakeRuntime`
    behaviour    what a container does with its life (also from a pod's annotations)
    faults       trouble on order; calls: the door every call goes through, and the ledger
    events       the news, fanned out;  images: what can be pulled;  things: what there is

It obeys virtual time as well as real time, and outlives an agent: hand it to the next one.
"""

from podkeeper.runtimes.events import EventFilter
from podkeeper.runtimes.fake.behaviour import ANNOTATION_PREFIX, Behaviour, ExecStep
from podkeeper.runtimes.fake.calls import Call
from podkeeper.runtimes.fake.faults import FakeFaults, Fault
from podkeeper.runtimes.fake.runtime import ExecRequest, FakeRuntime, Operation

__all__ = [
    "ANNOTATION_PREFIX",
    "Behaviour",
    "Call",
    "EventFilter",
    "ExecRequest",
    "ExecStep",
    "FakeFaults",
    "FakeRuntime",
    "Fault",
    "Operation",
]
