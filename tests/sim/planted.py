"""Artificial invariants that are violated, for tests of how a failure is found, shrunk and printed."""

import multiprocessing
import os
import signal
from pathlib import Path

from podkeeper.testing.sim.records import FaultBegan, PodChanged
from podkeeper.testing.sim.world import World


def no_deletion_after_a_fault(world: World) -> None:
    """No pod is deleted after a fault. A violation needs a pod, a fault, and then its deletion."""
    faults: list[float] = []

    def on_fault(it: FaultBegan) -> None:
        faults.append(it.at)

    def on_pod_changed(it: PodChanged) -> None:
        world.checked("planted")
        if faults and it.new is not None and it.new.metadata.deletion_timestamp and not it.by:
            world.violated("planted", it.new.metadata.uid or "", f"{it.new.metadata.name} was deleted")

    world.bus.subscribe(FaultBegan, on_fault)
    world.bus.subscribe(PodChanged, on_pod_changed)


def no_odd_seeds(world: World) -> None:
    """All seeds are even."""
    if isinstance(world.seed, int) and world.seed % 2:
        world.violated("even", "", f"{world.seed} is odd")


def raises_an_error(world: World) -> None:
    """The invariant itself raises an error."""
    raise ZeroDivisionError(f"nothing to divide by in seed {world.seed}")


def interrupted_at_the_fourth(world: World) -> None:
    """The command receives Ctrl-C while the fourth seed runs."""
    if world.seed == 3:
        _send(signal.SIGINT)


def killed_once(world: World) -> None:
    """The command is killed while the third seed runs, unless the file in KILLED_ONCE exists."""
    marker = Path(os.environ["KILLED_ONCE"])
    if world.seed == 2 and not marker.exists():
        marker.touch()
        _send(signal.SIGKILL)


def _send(number: signal.Signals) -> None:
    """Send a signal to the command, which is not the parent of this process: a fork server is."""
    command = multiprocessing.parent_process()
    assert command is not None
    assert command.pid is not None
    os.kill(command.pid, number)
