"""Kill the agent at random moments, again and again: `python -m tools.torture [--rounds N] [--seed N]`.

`podkeeper run` works on a folder of manifests: servers with probes, jobs, sidecars, crash loops; pods come, change and
go, and now and then a container is killed. Each round kills the agent (-9) at some moment, some more happens while
there is none, and another one is started. Then must hold, by what the containers themselves wrote down and by /proc:

* no container that goes on for ever was restarted (same process), none is lost, none runs twice;
* no job ran twice, and its exit code is told, also when it ended while there was no agent;
* a container that was killed is started again exactly once, and its exit code is told;
  (one that was made, but whose start a kill prevented, counts as a restart too: so it does in the reference);
* a pod that was Ready is Ready, since the same moment: nobody sees it flap;
* what was taken away is gone, and at the end nothing at all is left.

One round in four does not wait for that: the next kill meets an agent that is still starting. A seed gives the same
deeds in the same order; the moments are as near as a machine allows.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tools.torture_pods import Kind
from tools.torture_seen import Progress, lines_of
from tools.tortured_agent import Broken, Torture


def main(arguments: list[str]) -> int:
    """Torture, and tell how it went."""
    parser = argparse.ArgumentParser(prog="python -m tools.torture", description="Kill the agent at random moments.")
    parser.add_argument("--rounds", type=int, default=200, help="how often [200]")
    parser.add_argument("--seed", type=int, help="which deeds [another one each time]")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"torture: seed {seed}, {options.rounds} rounds", flush=True)
    place = Path(tempfile.mkdtemp(prefix="podkeeper-torture-"))
    torture, progress, begun, number = Torture(place, seed), Progress(options.rounds, sys.stderr), time.monotonic(), 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is cleared away then too
    try:
        for kind in Kind:
            torture.add(kind)
        torture.start()
        for number in range(1, options.rounds + 1):
            torture.round()
            progress.tell(number, f"{len(torture.pods)} pods, {torture.strikes} containers killed")
        torture.end()
    except BaseException as error:
        progress.end()
        torture.clear_away()
        if not isinstance(error, Broken):
            shutil.rmtree(place, ignore_errors=True)
            raise
        print(f"FAILED in round {number} of {options.rounds}, seed {seed}: {error}")
        print("What was done last:", *(f"    {deed}" for deed in torture.deeds[-25:]), sep="\n")
        print("What the agent said last:", *(f"    {line}" for line in lines_of(place / "agent.log")[-25:]), sep="\n")
        print(f"Everything else is in {place}. Again: make torture ROUNDS={options.rounds} SEED={seed}")
        return 1
    progress.end()
    shutil.rmtree(place, ignore_errors=True)
    print(
        f"torture: seed {seed}: {torture.kills} kills in {time.monotonic() - begun:.0f} s, {torture.checks} times "
        f"everything was looked at; {torture.strikes} containers killed, {torture.jobs} jobs, {len(torture.gone)} pods "
        "taken away or changed. No pod restarted, none lost, none doubled, no job ran twice."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
