"""Play seeds one after the other until a promise is broken: `python -m tools.sim_catch --hours 1 SEED...`.

Prints one line of JSON: the seed and what broke, or null. `tools.mutants` runs it against a source with a planted bug.
"""

import argparse
import json
import logging
import os
import sys
import traceback

from podkeeper.testing.sim.mischief import FAULTS
from podkeeper.testing.sim.play import Plan, history_of, play
from podkeeper.testing.sim.workload import WORKLOADS


def broken_by(plan: Plan) -> str | None:
    """What breaks in one play; None: nothing."""
    try:
        violation = play(history_of(plan)).violation
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {where.name}"  # the agent, or what it did, broke the play itself
    return None if violation is None else f"{violation.invariant} after {violation.at:.0f} s"


def main(arguments: list[str]) -> int:
    """Play until something breaks."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable, [sys.executable, "-m", "tools.sim_catch", *arguments], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    parser = argparse.ArgumentParser(prog="python -m tools.sim_catch", description="Play seeds until a promise breaks.")
    parser.add_argument("seeds", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--workload", default="", help="only these kinds, separated by commas")
    parser.add_argument("--faults", default="", help="only these kinds, separated by commas")
    options = parser.parse_args(arguments)
    workload = tuple(options.workload.split(",")) if options.workload else tuple(WORKLOADS)
    faults = tuple(options.faults.split(",")) if options.faults else tuple(FAULTS)
    logging.disable(logging.CRITICAL)
    for seed in options.seeds:
        if (what := broken_by(Plan(seed=seed, hours=options.hours, workload=workload, faults=faults))) is not None:
            print(json.dumps({"seed": seed, "what": what}))
            return 0
    print("null")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
