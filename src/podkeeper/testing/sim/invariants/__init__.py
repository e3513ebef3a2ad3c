"""The invariants: what no seed may break, whatever happens to the node.

    world = World(seed)
    watch(world)            # before the play; from then on every promise is checked the moment it could be broken

Each room here keeps the promises of one theme. It listens to the bus, compares what the agent does and says with
the truth, counts each real test (`World.checked`) and reports the first break (`World.broken`). What the node promises
for the time after all trouble has ended is judged by `rest`, which the play asks at the end of each chapter.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from podkeeper.testing.sim.invariants.causes import Causes
from podkeeper.testing.sim.invariants.containers import Containers
from podkeeper.testing.sim.invariants.exits import Exits
from podkeeper.testing.sim.invariants.grace import Graces
from podkeeper.testing.sim.invariants.makings import Makings
from podkeeper.testing.sim.invariants.phases import Phases
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.invariants.probe_book import ProbeBook
from podkeeper.testing.sim.invariants.probing import Probing
from podkeeper.testing.sim.invariants.promptness import Promptness
from podkeeper.testing.sim.invariants.readiness import Readiness
from podkeeper.testing.sim.invariants.restarts import Restarts
from podkeeper.testing.sim.invariants.retries import Retries
from podkeeper.testing.sim.invariants.running import Running
from podkeeper.testing.sim.invariants.starts import Starts
from podkeeper.testing.sim.invariants.storms import Storms
from podkeeper.testing.sim.invariants.upkeep import Upkeep
from podkeeper.testing.sim.invariants.words import Words
from podkeeper.testing.sim.world import World

INVARIANTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "I1": "a terminal phase never changes, and (mirrors apart) is published only when no container runs",
        "I2": "success is never reported for a container that did not run and succeed",
        "I3": "never two live containers of one name in a pod, nor two live pods of one static name",
        "I4": "the API object is deleted only when no process of the pod lives",
        "I5": "preStop, TERM and KILL fit the grace, and a grace never grows",
        "I6": "once trouble ends, deleted pods leave the API in time, and what runs is what is wanted",
        "I7": "a crash of the agent changes no Ready bit, re-runs nothing finished and loses no exit code",
        "I8": "a hung call for one pod delays no other",
        "I9": "whatever events are lost, repeated or reordered, the node ends in the same state",
        "I10": "a changed static pod ends in exactly the new spec running",
        "I11": "the final status of every terminated pod reaches the API, at the latest at the next start",
        "I12": "nothing is started in a pod after its termination was observed",
        "I13": "restart counts only grow",
        "I14": "static pods run through any API outage",
        "I15": "nothing that is wanted is stopped without a cause",
        "I16": "what fails is tried again, neither in haste nor too often",
        "I17": "a status takes nothing away from what others said, and dates nothing anew",
        "I18": "a container that was published as running stays so for as long as it runs",
        "I19": "a probe of a container is never executed twice at the same time",
        "I20": "a static pod that its source names again runs again",
        "I21": "volumes, directory and cgroup of a pod stay while a container of it runs",
        "I22": "no call is repeated in a storm, neither for one pod nor for the node",
    }
)


def watch(world: World) -> ProbeBook:
    """Have every promise of a world checked from now on. Returns the book of probes, for `Rest` to share."""
    pods = Pods(world)
    Phases(world, pods)
    Exits(world, pods)
    Containers(world, pods)
    makings = Makings(world)
    Starts(world, pods, makings)
    Causes(world, pods, makings)
    Graces(world, pods)
    probes = ProbeBook(world, pods)
    Readiness(world, probes)
    probes.liveness.append(Retries(world, pods).hear_liveness)
    Promptness(world)
    Words(world)
    Running(world, pods)
    Probing(world, pods)
    Restarts(world, pods)
    Upkeep(world)
    Storms(world)
    return probes
