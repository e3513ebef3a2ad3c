"""Draw the faults of a node: which, when, and for how long.

    actions = fault_actions(Random("7/mischief"), segments, profile, FAULTS)

Each kind of fault happens a number of times an hour, but not in calm phases. Each kind has its own random source, so
selecting fewer kinds does not change the remaining ones. The kinds are defined in `faults_calls` (calls that fail or
hang), `faults_services` (runtime, API, manifests) and `faults_agent` (the agent and its machine).

Rare combinations find the most bugs. Therefore some faults bring companions that begin seconds later: `CLUSTERS` in
`profile` lists the combinations, `Profile.clusters` is their share. Companions have their own random source and are
added to the other faults, so without clusters all other faults stay the same. A cluster happens only if all its kinds
are selected.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from podkeeper.testing.sim import faults_agent as agent
from podkeeper.testing.sim import faults_calls as calls
from podkeeper.testing.sim import faults_services as services
from podkeeper.testing.sim.profile import CLUSTERS, Profile
from podkeeper.testing.sim.schedule import Action, Segment

FAULTS: Mapping[str, str] = {
    "crash": "the agent is killed, at a random time or call, maybe several times",
    "graceful-restart": "the agent is stopped gracefully and started again",
    "reboot": "the machine reboots",
    "runtime-errors": "a share of the runtime calls fails",
    "slow-calls": "a share of the runtime calls is slow",
    "hung-calls": "the runtime calls of one pod hang",
    "lost-answers": "runtime calls take effect, then fail or time out",
    "runtime-down": "the runtime does not answer; containers keep running",
    "lost-events": "container events are lost",
    "repeated-events": "container events are delivered twice",
    "late-events": "container events are late and out of order",
    "broken-events": "the event stream breaks or ends",
    "api-down": "the API does not answer",
    "api-errors": "a share of the API calls fails",
    "api-conflicts": "a few API writes fail with a conflict",
    "api-lost-answers": "API writes take effect, but the answer is lost",
    "watch-gone": "watches must restart with a list (410 Gone)",
    "watch-stale": "watches are late or deliver nothing",
    "watch-broken": "watches break or end",
    "stale-lists": "lists are answered from an old cache",
    "clock-jump": "the wall clock jumps",
    "disk-full": "the journal's disk is full or slow",
    "late-wakeups": "wake-ups of the agent are late",
    "unreadable-sources": "manifests of static pods cannot be read",
    "volume-trouble": "volumes cannot be mounted or unmounted, hang, or are in use",
    "cgroup-trouble": "cgroups cannot be created or removed, or hang",
}
"""All kinds of faults, with a short description. `--faults` selects among them."""

_DRAWS: Mapping[str, Callable[[Random, float], calls.Drawn]] = {
    "crash": agent.crash,
    "graceful-restart": agent.graceful_restart,
    "reboot": agent.reboot,
    "runtime-errors": calls.runtime_errors,
    "slow-calls": calls.slow_calls,
    "hung-calls": calls.hung_calls,
    "lost-answers": calls.lost_answers,
    "runtime-down": services.runtime_down,
    "lost-events": services.lost_events,
    "repeated-events": services.repeated_events,
    "late-events": services.late_events,
    "broken-events": services.broken_events,
    "api-down": services.api_down,
    "api-errors": calls.api_errors,
    "api-conflicts": calls.api_conflicts,
    "api-lost-answers": calls.api_lost_answers,
    "watch-gone": services.watch_gone,
    "watch-stale": services.watch_stale,
    "watch-broken": services.watch_broken,
    "stale-lists": agent.stale_lists,
    "clock-jump": agent.clock_jump,
    "disk-full": agent.disk_full,
    "late-wakeups": agent.late_wakeups,
    "unreadable-sources": services.unreadable_sources,
    "volume-trouble": services.volume_faults,
    "cgroup-trouble": calls.cgroup_faults,
}
_PAUSE_SECONDS = 120.0
"""Minimum pause between two faults of one kind.

Without it, stale lists could last so long that the agent must accept them.
"""


def fault_actions(
    random: Random, segments: Sequence[Segment], profile: Profile, kinds: Collection[str]
) -> list[tuple[float, Action]]:
    """Draw all faults and their times. No fault begins in a calm phase."""
    actions: list[tuple[float, Action]] = []
    if "late-wakeups" in kinds and segments and profile.fault_rate("late-wakeups") > 0:
        actions.append((segments[0].begins, agent.LateWakeups(*agent.BASE_LATE_WAKEUPS)))
    kinds = [kind for kind in kinds if profile.fault_rate(kind) > 0]
    faults: dict[str, list[_DrawnFault]] = {}
    for kind in FAULTS:
        # Draw for every kind, so that the selection does not change the other kinds.
        chance = Random(random.getrandbits(64))
        if kind in kinds:
            per_hour = profile.fault_rate(kind)
            faults[kind] = [fault for segment in segments for fault in _in_segment(chance, segment, kind, per_hour)]
    faults_drawn = [fault for each in faults.values() for fault in each]
    for kind in CLUSTERS:
        chance = Random(random.getrandbits(64))
        for leader in faults.get(kind, ()):
            faults_drawn += _companions(chance, leader, profile, kinds, faults_drawn)
    for fault in faults_drawn:
        actions += fault.actions(kinds)
    return actions


@dataclass(frozen=True, slots=True)
class _DrawnFault:
    """One fault: when it begins, and what was drawn for it."""

    kind: str
    at: float
    segment: Segment
    drawn: calls.Drawn

    def actions(self, kinds: Collection[str]) -> calls.Drawn:
        """Return the timed actions. Actions of another kind are left out unless that kind is selected, too."""
        timed = ((self.at + after, action) for after, action in self.drawn if action.kind in kinds)
        return [(at, action) for at, action in timed if at < self.segment.calm_from]


def _in_segment(random: Random, segment: Segment, kind: str, per_hour: float) -> Iterator[_DrawnFault]:
    """Draw the faults of one kind in one segment."""
    at = segment.begins + random.expovariate(per_hour / 3600.0)
    while at < segment.calm_from:
        yield _DrawnFault(kind, at, segment, _DRAWS[kind](random, segment.calm_from - at))
        at += random.expovariate(per_hour / 3600.0) + _PAUSE_SECONDS


def _companions(
    random: Random, leader: _DrawnFault, profile: Profile, kinds: Collection[str], others: Collection[_DrawnFault]
) -> list[_DrawnFault]:
    """Draw the companions of a fault, if it has any."""
    # Draw everything before the decision, so that the number of draws does not depend on the selected kinds.
    brings, cluster = random.random() < profile.clusters, random.choice(CLUSTERS[leader.kind])
    found = []
    for kind in cluster:
        at = leader.at + random.uniform(0.0, profile.cluster_seconds)
        left = leader.segment.calm_from - at
        chance = Random(random.getrandbits(64))
        if left > 0:
            found.append(_DrawnFault(kind, at, leader.segment, _DRAWS[kind](chance, left)))
    if not brings or not set(cluster) <= set(kinds):
        return []
    return [fault for fault in found if not _is_too_close(fault, others)]


def _is_too_close(fault: _DrawnFault, others: Iterable[_DrawnFault]) -> bool:
    """Whether a companion would prolong stale lists. After a long time, the agent must accept stale lists."""
    if fault.kind != "stale-lists":
        return False
    return any(other.kind == fault.kind and abs(other.at - fault.at) < _PAUSE_SECONDS for other in others)
