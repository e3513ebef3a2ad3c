"""Mischief: what is done to a node beside its work, drawn from a chance before anything is played.

    deeds = mischief_deeds(Random("7/mischief"), chapters, profile, FAULTS)

Every kind of fault happens so many times an hour while a chapter is not yet calm, each kind with a chance of its own:
choosing fewer kinds changes nothing about those that are left. What a deed does is in `mischief_calls` (calls that go
wrong), `mischief_around` (runtime, API, files) and `mischief_agent` (the agent and its machine).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

from podkeeper.testing.sim import mischief_agent as agent
from podkeeper.testing.sim import mischief_around as around
from podkeeper.testing.sim import mischief_calls as calls
from podkeeper.testing.sim.history import Chapter, Deed
from podkeeper.testing.sim.profile import Profile

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
    for kind in FAULTS:
        chance = Random(random.getrandbits(64))  # drawn for every kind, chosen or not
        per_hour = profile.fault_rate(kind) if kind in kinds else 0.0
        for chapter in chapters if per_hour > 0 else ():
            deeds += _in_chapter(chance, chapter, kind, per_hour, kinds)
    return deeds


def _in_chapter(
    random: Random, chapter: Chapter, kind: str, per_hour: float, kinds: Collection[str]
) -> list[tuple[float, Deed]]:
    """One kind's deeds in one chapter. What a fault draws besides its own kind is done only if chosen too."""
    deeds: list[tuple[float, Deed]] = []
    at = chapter.begins + random.expovariate(per_hour / 3600.0)
    while at < chapter.calm_from:
        drawn = _DRAWS[kind](random, chapter.calm_from - at)
        deeds += [(at + after, deed) for after, deed in drawn if deed.kind in kinds and at + after < chapter.calm_from]
        at += random.expovariate(per_hour / 3600.0) + _PAUSE_SECONDS
    return deeds
