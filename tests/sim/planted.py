"""Promises that nobody gave, to be broken: for tests of how a failure is found, shrunk and told."""

import os
import signal
from pathlib import Path

from podkeeper.testing.sim.records import PodChanged, TroubleBegan
from podkeeper.testing.sim.world import World


def no_deletion_after_trouble(world: World) -> None:
    """No pod is deleted once news were repeated: takes a pod, its deletion, and that trouble before it."""
    troubled: list[float] = []

    def see_trouble(it: TroubleBegan) -> None:
        troubled.append(it.at)

    def see_pod(it: PodChanged) -> None:
        world.checked("planted")
        if troubled and it.new is not None and it.new.metadata.deletion_timestamp and not it.by:
            world.broken("planted", it.new.metadata.uid or "", f"{it.new.metadata.name} was deleted")

    world.bus.subscribe(TroubleBegan, see_trouble)
    world.bus.subscribe(PodChanged, see_pod)


def no_odd_seeds(world: World) -> None:
    """No seed is odd."""
    if isinstance(world.seed, int) and world.seed % 2:
        world.broken("even", "", f"{world.seed} is odd")


def no_play_at_all(world: World) -> None:
    """Something is wrong with the invariant itself."""
    raise ZeroDivisionError(f"nothing to divide by in seed {world.seed}")


def interrupted_at_the_fourth(world: World) -> None:
    """Somebody presses Ctrl-C while the fourth seed is played."""
    if world.seed == 3:
        os.kill(os.getppid(), signal.SIGINT)


def killed_once(world: World) -> None:
    """The command is killed while the third seed is played, unless the file that KILLED_ONCE names exists already."""
    marker = Path(os.environ["KILLED_ONCE"])
    if world.seed == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getppid(), signal.SIGKILL)
