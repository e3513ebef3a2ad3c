"""Profile of a simulation: number and kinds of pods, rates of faults, durations.

Each pod has a script (`workload`): it is created, changed and finally deleted. The number of scripts follows from the
number of pods at a time and their lifetime. The shares define their kinds. The report prints the profile.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import log

SHARES: Mapping[str, float] = {
    "servers": 4.0,
    "probes": 3.0,
    "jobs": 3.0,
    "crash-loops": 1.5,
    "out-of-memory": 1.0,
    "init-containers": 2.5,
    "sidecars": 2.5,
    "hooks": 2.5,
    "deadlines": 1.5,
    "updates": 2.0,
    "deletes": 2.5,
    "successors": 2.0,
    "static-files": 2.5,
    "static-web": 1.5,
    "mirrors": 1.5,
    "evictions": 2.0,
    "preemption": 1.0,
    "rejections": 1.0,
    "missing-images": 1.5,
    "refused-starts": 1.0,
    "accidents": 2.0,
    "ephemeral": 1.0,
    "volumes": 1.5,
    "stubborn": 1.5,
    "bursts": 0.5,
}
"""Relative share of each kind of workload."""

FAULT_RATES: Mapping[str, float] = {
    "crash": 5.0,
    "graceful-restart": 1.5,
    "reboot": 0.5,
    "runtime-errors": 4.0,
    "slow-calls": 3.0,
    "hung-calls": 2.0,
    "lost-answers": 3.0,
    "runtime-down": 1.0,
    "lost-events": 2.0,
    "repeated-events": 1.5,
    "late-events": 2.0,
    "broken-events": 1.5,
    "api-down": 1.5,
    "api-errors": 3.0,
    "api-conflicts": 2.0,
    "api-lost-answers": 3.0,
    "watch-gone": 1.5,
    "watch-stale": 2.0,
    "watch-broken": 2.0,
    "stale-lists": 1.5,
    "clock-jump": 1.0,
    "disk-full": 1.0,
    "late-wakeups": 4.0,
    "unreadable-sources": 1.0,
    "volume-trouble": 1.5,
    "cgroup-trouble": 1.5,
}
"""Rate of each kind of fault, per hour."""

CLUSTERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "crash": (
        ("stale-lists", "watch-stale"),
        ("unreadable-sources",),
        ("disk-full",),
        ("crash", "slow-calls"),
        ("lost-events", "lost-answers"),
    ),
    "graceful-restart": (("stale-lists", "watch-gone"), ("unreadable-sources", "crash")),
    "reboot": (("unreadable-sources",), ("stale-lists", "crash")),
    "slow-calls": (("lost-events",), ("late-events", "crash"), ("crash", "crash")),
    "hung-calls": (("crash",), ("api-down",)),
    "lost-answers": (("crash",), ("lost-events", "late-wakeups")),
    "runtime-down": (("crash",), ("lost-events",)),
    "lost-events": (("slow-calls", "crash"),),
    "api-down": (("crash",), ("disk-full", "crash")),
    "api-lost-answers": (("crash",), ("watch-stale",)),
    "watch-gone": (("stale-lists", "api-errors"),),
    "stale-lists": (("disk-full", "crash"), ("watch-stale", "crash")),
    "disk-full": (("crash",), ("crash", "stale-lists")),
    "unreadable-sources": (("crash",), ("crash", "api-down")),
}
"""Faults that can bring companions. Each inner tuple is one possible cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Amounts and rates of a simulated node."""

    pods: float = 11.5  # desired at a time; some of them have not started, wait or have ended
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    life_minutes: tuple[float, float] = (4.0, 60.0)  # lifetime of a pod; short ones are more frequent
    graces_seconds: tuple[int, ...] = (0, 1, 2, 5, 10, 10, 30, 30, 60)
    periods_seconds: tuple[int, ...] = (10, 15, 30, 30, 60, 60)  # of probes
    polite: float = 0.5  # share of the containers that exit at once on SIGTERM
    fault_rates: Mapping[str, float] = field(default_factory=lambda: dict(FAULT_RATES))
    faults_per_hour: float = 1.0  # factor for all rates; 0: no faults
    clusters: float = 0.2  # share of the faults with companions, among those that can have companions
    cluster_seconds: float = 8.0  # companions begin at most this long after their fault

    def scripts_per_hour(self, kinds: Collection[str]) -> float:
        """Return how many scripts must start per hour to reach the desired number of pods with these kinds."""
        shortest, longest = self.life_minutes
        mean = (longest - shortest) / log(longest / shortest) if longest > shortest else longest
        return self.pods * 60.0 / mean if any(self.shares.get(kind, 0.0) > 0 for kind in kinds) else 0.0

    def fault_rate(self, kind: str) -> float:
        """Return the rate of a kind of fault, per hour."""
        return self.fault_rates.get(kind, 0.0) * self.faults_per_hour

    def described(self) -> tuple[str, ...]:
        """Describe the profile in a few lines."""
        least, most = self.life_minutes
        faults = ", ".join(f"{kind} {self.fault_rate(kind):g}" for kind in self.fault_rates)
        return (
            f"{self.pods:g} pods at a time, each for {least:g} to {most:g} minutes: "
            f"{self.scripts_per_hour(self.shares.keys()):.0f} new pods per hour",
            "relative shares: " + ", ".join(f"{kind} {share:g}" for kind, share in self.shares.items()),
            f"grace periods of {min(self.graces_seconds)} to {max(self.graces_seconds)} s, "
            f"probes every {min(self.periods_seconds)} to {max(self.periods_seconds)} s, "
            f"{self.polite:.0%} of the containers exit at once on SIGTERM",
            f"faults per hour: {faults}",
            f"{self.clusters:.0%} of the faults of these kinds bring companions within {self.cluster_seconds:g} s: "
            + ", ".join(CLUSTERS),
        )
