"""Run seeds until an invariant is violated: `python -m tools.sim_catch --hours 1 SEED...`.

Prints one line of JSON: the seed and the violation, or null. `tools.mutants` runs it with a planted bug.
"""

import argparse
import json
import logging
import os
import sys
import traceback

from podkeeper.testing.sim.faults import FAULTS
from podkeeper.testing.sim.run import SimPlan, run_schedule, schedule_of
from podkeeper.testing.sim.workload import WORKLOADS


def violation_of(plan: SimPlan) -> str | None:
    """Return the violation of one run, or None."""
    try:
        violation = run_schedule(schedule_of(plan)).violation
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {where.name}"  # the agent ended the run itself
    return None if violation is None else f"{violation.invariant} after {violation.at:.0f} s"


def main(arguments: list[str]) -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable, [sys.executable, "-m", "tools.sim_catch", *arguments], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    parser = argparse.ArgumentParser(
        prog="python -m tools.sim_catch", description="Run seeds until an invariant is violated."
    )
    parser.add_argument("seeds", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--workload", default="", help="comma-separated kinds [default: all]")
    parser.add_argument("--faults", default="", help="comma-separated kinds [default: all]")
    options = parser.parse_args(arguments)
    workload = tuple(options.workload.split(",")) if options.workload else tuple(WORKLOADS)
    faults = tuple(options.faults.split(",")) if options.faults else tuple(FAULTS)
    logging.disable(logging.CRITICAL)
    for seed in options.seeds:
        if (
            what := violation_of(SimPlan(seed=seed, hours=options.hours, workload=workload, faults=faults))
        ) is not None:
            print(json.dumps({"seed": seed, "what": what}))
            return 0
    print("null")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
