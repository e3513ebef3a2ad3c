"""Replays for the pod workers: two tables of grace periods, and the `podworkers` scripts.

Each script runs twice: with the decisions alone, and with the real workers in virtual time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from podkeeper.model.k8s.core import Pod, PodSpec
from podkeeper.rules.grace import effective_grace
from podkeeper.rules.worker.updates import kill_request
from podkeeper.testing.virtual_time import simulate
from tests.oracle.compare import Difference, Json, Replay, answers
from tests.oracle.podworkers_async import PodWorkersDriver
from tests.oracle.podworkers_world import DirectDriver, run_script

# The scripts contain failures that the workers log. Only differences count here.
logging.getLogger("podkeeper").addHandler(logging.NullHandler())


def replay_script(script: Json) -> Iterable[Difference]:
    """Run a script with each driver."""
    for make_driver in (DirectDriver, PodWorkersDriver):
        found, _ = simulate(run_script(script, make_driver))
        yield from found


def _effective_grace_period(given: Json) -> Json:
    grace = effective_grace(
        given["current"] or None,  # in the recording, 0 means none yet
        deletion_seconds=given["deletion_grace_period_seconds"],
        override_seconds=given["override"],
        spec_seconds=given["termination_grace_period_seconds"],
    )
    return {"grace": grace.seconds, "shortened": grace.changed}


def _kill_pod_timeout(given: Json) -> Json:
    pod = Pod(spec=PodSpec(termination_grace_period_seconds=given["termination_grace_period_seconds"]))
    request = kill_request(pod, asyncio.Event(), evict=given["evict"], grace_override_seconds=given["grace_override"])
    event, kill = request.on_timeout, request.update.kill
    assert kill is not None
    return {
        "error": True,  # in every row, the wait times out
        "event": f"{event.type} {event.reason} {event.message}",
        "passed_evict": kill.evict,
        "passed_grace_override": kill.grace_override_seconds,
        "timeout_seconds": request.timeout_seconds,
    }


TABLES: dict[str, Replay] = {
    "effective_grace_period": answers(_effective_grace_period),
    "kill_pod_timeout": answers(_kill_pod_timeout),
}

SCRIPTS: dict[str, Callable[[Json], Iterable[Difference]]] = {"podworkers": replay_script}
