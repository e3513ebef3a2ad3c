"""Kill the agent repeatedly at random times: `python -m tools.torture [--rounds N] [--seed N]`.

`podkeeper run` works on a directory of manifests: servers with probes, jobs, sidecars, crash loops. Pods are added,
changed and removed, and containers are killed. Each round kills the agent (-9) at a random time, makes some changes
without an agent, and starts another agent. Each container logs its starts in a file. By these files and /proc:

* No long-running container was restarted (same process), lost or started twice.
* No job ran twice. Its exit code is reported, even if it ended while no agent ran.
* A killed container is restarted exactly once, and its exit code is reported. A created container whose start was
  prevented by the kill of the agent counts as a restart, as in the kubelet.
* A pod that was Ready is Ready since the same time.
* Removed pods are gone. At the end, nothing is left.

One round in four does not wait for these checks, so that the next kill hits an agent that is still starting. The same
seed gives the same actions in the same order, at about the same times.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tools.torture_agent import Broken, Torture
from tools.torture_observe import Progress, lines_of
from tools.torture_pods import Kind


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.torture", description="Kill the agent at random moments.")
    parser.add_argument("--rounds", type=int, default=200, help="number of kills [default: 200]")
    parser.add_argument("--seed", type=int, help="seed of the actions [default: random]")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"torture: seed {seed}, {options.rounds} rounds", flush=True)
    place = Path(tempfile.mkdtemp(prefix="podkeeper-torture-"))
    torture, progress, begun, number = Torture(place, seed), Progress(options.rounds, sys.stderr), time.monotonic(), 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cleanup below runs, too
    try:
        for kind in Kind:
            torture.add(kind)
        torture.start()
        for number in range(1, options.rounds + 1):
            torture.round()
            progress.update(number, f"{len(torture.pods)} pods, {torture.strikes} containers killed")
        torture.end()
    except BaseException as error:
        progress.end()
        torture.clear_away()
        if not isinstance(error, Broken):
            shutil.rmtree(place, ignore_errors=True)
            raise
        print(f"FAILED in round {number} of {options.rounds}, seed {seed}: {error}")
        print("Last actions:", *(f"    {action}" for action in torture.actions[-25:]), sep="\n")
        print(
            "Last lines of the agent's log:", *(f"    {line}" for line in lines_of(place / "agent.log")[-25:]), sep="\n"
        )
        print(f"All files are in {place}. To repeat: make torture ROUNDS={options.rounds} SEED={seed}")
        return 1
    progress.end()
    shutil.rmtree(place, ignore_errors=True)
    print(
        f"torture: seed {seed}: {torture.kills} kills in {time.monotonic() - begun:.0f} s, {torture.checks} checks; "
        f"{torture.strikes} containers killed, {torture.jobs} jobs, {len(torture.gone)} pods removed or changed. "
        "No pod was restarted, lost or started twice, and no job ran twice."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
