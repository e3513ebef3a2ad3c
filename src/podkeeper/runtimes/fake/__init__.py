"""A runtime without containers: scripted behaviour, delays, faults.

For tests, simulations and `--runtime fake`.

    runtime      `FakeRuntime`, the implementation of the runtime port
    node         the state: sandboxes and containers; objects: their types
    behaviour    the script of a container, also from a pod's annotations
    faults       injected faults;  calls: the call log;  images: the images that can be pulled

It works in virtual and in real time. It outlives an agent, so a test can pass it to the next agent.
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
