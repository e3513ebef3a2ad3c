"""Mischief: what is done to a node beside its work, drawn from a chance before anything is played.

    deeds = mischief_deeds(Random("7/mischief"), chapters, profile, FAULTS)

Every kind of fault happens so many times an hour while a chapter is not yet calm, each kind with a chance of its own:
choosing fewer kinds changes nothing about those that are left. What a deed does is in `mischief_calls` (calls that go
wrong), `mischief_around` (runtime, API, files) and `mischief_agent` (the agent and its machine).

Rare combinations find the most bugs. Therefore some faults bring companions that begin seconds later: `CLUSTERS` in
`profile` lists the combinations, `Profile.clusters` is their share. Companions are drawn from a chance of their own and
come on top: without clusters all other faults stay the same. A cluster happens only if all its kinds are chosen.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from podkeeper.testing.sim import mischief_agent as agent
from podkeeper.testing.sim import mischief_around as around
from podkeeper.testing.sim import mischief_calls as calls
from podkeeper.testing.sim.history import Chapter, Deed
from podkeeper.testing.sim.profile import CLUSTERS, Profile

FAULTS: Mapping[str, str] = {
    "crash": "the agent is killed, at a moment or at a call, perhaps several times",
    "graceful-restart": "the agent is asked to end, and started again",
    "reboot": "the machine starts anew",
    "runtime-errors": "a share of the runtime's calls is refused",
    "slow-calls": "a share of the runtime's calls takes long",
    "hung-calls": "one pod's runtime calls hang",
    "lost-answers": "runtime calls take effect, and then fail or time out",
    "runtime-down": "the runtime answers nobody; containers live on",
    "lost-events": "news of containers is lost",
    "repeated-events": "news of containers is told twice",
    "late-events": "news of containers is late, and out of order",
    "broken-events": "the stream of news breaks or ends",
    "api-down": "the API answers nobody",
    "api-errors": "a share of the API's calls fails",
    "api-conflicts": "a few writes meet somebody else's",
    "api-lost-answers": "writes happen, and the answer is lost",
    "watch-gone": "the API forgets its history: 410",
    "watch-stale": "watches are late, or say nothing",
    "watch-broken": "watches break or end",
    "stale-lists": "lists are answered from an old cache",
    "clock-jump": "the wall clock jumps",
    "disk-full": "the journal's disk is full, or slow",
    "dawdle": "the agent's wake-ups come late",
    "unreadable-sources": "manifests of static pods cannot be read",
    "volume-trouble": "volumes cannot be mounted or unmounted, hang, or are in use",
    "cgroup-trouble": "cgroups cannot be made or removed, or hang",
}
"""Every kind, and what it is: what `--faults` chooses by."""

_DRAWS: Mapping[str, Callable[[Random, float], calls.Drawn]] = {
    "crash": agent.crash,
    "graceful-restart": agent.graceful_restart,
    "reboot": agent.reboot,
    "runtime-errors": calls.runtime_errors,
    "slow-calls": calls.slow_calls,
    "hung-calls": calls.hung_calls,
    "lost-answers": calls.lost_answers,
    "runtime-down": around.runtime_down,
    "lost-events": around.lost_events,
    "repeated-events": around.repeated_events,
    "late-events": around.late_events,
    "broken-events": around.broken_events,
    "api-down": around.api_down,
    "api-errors": calls.api_errors,
    "api-conflicts": calls.api_conflicts,
    "api-lost-answers": calls.api_lost_answers,
    "watch-gone": around.watch_gone,
    "watch-stale": around.watch_stale,
    "watch-broken": around.watch_broken,
    "stale-lists": agent.stale_lists,
    "clock-jump": agent.clock_jump,
    "disk-full": agent.disk_full,
    "dawdle": agent.dawdle,
    "unreadable-sources": around.unreadable_sources,
    "volume-trouble": around.volume_trouble,
    "cgroup-trouble": calls.cgroup_trouble,
}
_PAUSE_SECONDS = 120.0
"""Between two faults of one kind: stale lists without end would be believed, and right so."""


def mischief_deeds(
    random: Random, chapters: Sequence[Chapter], profile: Profile, kinds: Collection[str]
) -> list[tuple[float, Deed]]:
    """Draw what goes wrong and when; nothing begins after calm has come."""
    deeds: list[tuple[float, Deed]] = []
    if "dawdle" in kinds and chapters and profile.fault_rate("dawdle") > 0:
        deeds.append((chapters[0].begins, agent.Dawdle(*agent.BASE_DAWDLE)))
    kinds = [kind for kind in kinds if profile.fault_rate(kind) > 0]
    faults: dict[str, list[_Fault]] = {}
    for kind in FAULTS:
        chance = Random(random.getrandbits(64))  # drawn for every kind, chosen or not
        if kind in kinds:
            per_hour = profile.fault_rate(kind)
            faults[kind] = [fault for chapter in chapters for fault in _in_chapter(chance, chapter, kind, per_hour)]
    alone = [fault for each in faults.values() for fault in each]
    for kind in CLUSTERS:
        chance = Random(random.getrandbits(64))
        for leader in faults.get(kind, ()):
            alone += _companions(chance, leader, profile, kinds, alone)
    for fault in alone:
        deeds += fault.deeds(kinds)
    return deeds


@dataclass(frozen=True, slots=True)
class _Fault:
    """One fault: when it begins, and what was drawn for it."""

    kind: str
    at: float
    chapter: Chapter
    drawn: calls.Drawn

    def deeds(self, kinds: Collection[str]) -> calls.Drawn:
        """What is done. What a fault draws besides its own kind is done only if chosen too."""
        timed = ((self.at + after, deed) for after, deed in self.drawn if deed.kind in kinds)
        return [(at, deed) for at, deed in timed if at < self.chapter.calm_from]


def _in_chapter(random: Random, chapter: Chapter, kind: str, per_hour: float) -> Iterator[_Fault]:
    """One kind's faults in one chapter."""
    at = chapter.begins + random.expovariate(per_hour / 3600.0)
    while at < chapter.calm_from:
        yield _Fault(kind, at, chapter, _DRAWS[kind](random, chapter.calm_from - at))
        at += random.expovariate(per_hour / 3600.0) + _PAUSE_SECONDS


def _companions(
    random: Random, leader: _Fault, profile: Profile, kinds: Collection[str], others: Collection[_Fault]
) -> list[_Fault]:
    """Draw the faults that a fault brings with it, if it brings any."""
    brings, cluster = random.random() < profile.clusters, random.choice(CLUSTERS[leader.kind])
    found = []
    for kind in cluster:
        at = leader.at + random.uniform(0.0, profile.cluster_seconds)
        left = leader.chapter.calm_from - at
        chance = Random(random.getrandbits(64))
        if left > 0:
            found.append(_Fault(kind, at, leader.chapter, _DRAWS[kind](chance, left)))
    if not brings or not set(cluster) <= set(kinds):
        return []
    return [fault for fault in found if not _is_too_close(fault, others)]


def _is_too_close(fault: _Fault, others: Iterable[_Fault]) -> bool:
    """Whether a companion would prolong a fault that must not last: stale lists are believed after a while."""
    if fault.kind != "stale-lists":
        return False
    return any(other.kind == fault.kind and abs(other.at - fault.at) < _PAUSE_SECONDS for other in others)
