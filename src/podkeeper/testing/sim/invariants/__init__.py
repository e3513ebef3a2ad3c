"""Invariants of the agent: they hold in every run, under all faults.

    world = World(seed)
    watch(world)            # before the run; every invariant is then checked at each step that could violate it

Each module has the invariants of one subject. It subscribes to the bus and compares the agent's calls and statuses with
the ground truth. It counts each real check (`World.checked`) and reports violations (`World.violated`). `quiescence`
checks the settled node at the end of each segment, after all faults have ended.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from podkeeper.testing.sim.invariants.call_rate import CallRate
from podkeeper.testing.sim.invariants.causes import StopCauses
from podkeeper.testing.sim.invariants.containers import UniqueContainers
from podkeeper.testing.sim.invariants.created_specs import CreatedSpecs
from podkeeper.testing.sim.invariants.exits import ExitStatuses
from podkeeper.testing.sim.invariants.foreign_fields import ForeignFields
from podkeeper.testing.sim.invariants.grace import GracePeriods
from podkeeper.testing.sim.invariants.in_use import ResourcesInUse
from podkeeper.testing.sim.invariants.phases import MonotonicStatus
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.invariants.probe_states import ProbeTracker
from podkeeper.testing.sim.invariants.probing import ProbeOverlap
from podkeeper.testing.sim.invariants.promptness import Promptness
from podkeeper.testing.sim.invariants.readiness import Readiness
from podkeeper.testing.sim.invariants.restarts import StaticPodRestarts
from podkeeper.testing.sim.invariants.retries import RestartDelays
from podkeeper.testing.sim.invariants.running import PublishedRunning
from podkeeper.testing.sim.invariants.starts import AllowedStarts
from podkeeper.testing.sim.world import World

INVARIANTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "I1": "a terminal phase never changes, and (except in mirror pods) is published only when no container runs",
        "I2": "success is never reported for a container that did not run and succeed",
        "I3": "a pod never has two running containers of one name, and a static pod never runs twice",
        "I4": "the API object is deleted only when no container of the pod runs",
        "I5": "preStop, TERM and KILL fit into the grace period, and a grace period never grows",
        "I6": "after all faults, deleted pods leave the API in time, and exactly the desired pods run",
        "I7": "a crash of the agent changes no Ready condition, repeats no finished container and loses no exit code",
        "I8": "a hung call for one pod delays no other pod",
        "I9": "if events are lost, repeated or reordered, the node ends in the same state",
        "I10": "after a change of a static pod, exactly the new spec runs",
        "I11": "the final status of every terminated pod reaches the API, at the latest after the next start",
        "I12": "nothing is started in a pod after its termination was observed",
        "I13": "restart counts only grow",
        "I14": "static pods run through any API outage",
        "I15": "no container of a desired pod is stopped without a cause",
        "I16": "failures are retried with backoff, and not too often",
        "I17": "a status update removes no conditions of others and changes no transition time without a transition",
        "I18": "a container that was published as running stays published as running while it runs",
        "I19": "a probe of a container is never executed twice at the same time",
        "I20": "a static pod runs again if its source removes and adds it again",
        "I21": "volumes, directory and cgroup of a pod stay while one of its containers runs",
        "I22": "no call is repeated too often, neither for one pod nor for the node",
    }
)


def watch(world: World) -> ProbeTracker:
    """Check all invariants of a world from now on. Returns the probe tracker, which `Quiescence` shares."""
    pods = TrackedPods(world)
    MonotonicStatus(world, pods)
    ExitStatuses(world, pods)
    UniqueContainers(world, pods)
    created = CreatedSpecs(world)
    AllowedStarts(world, pods, created)
    StopCauses(world, pods, created)
    GracePeriods(world, pods)
    probes = ProbeTracker(world, pods)
    Readiness(world, probes)
    probes.liveness_listeners.append(RestartDelays(world, pods).on_liveness_result)
    Promptness(world)
    ForeignFields(world)
    PublishedRunning(world, pods)
    ProbeOverlap(world, pods)
    StaticPodRestarts(world, pods)
    ResourcesInUse(world)
    CallRate(world)
    return probes
