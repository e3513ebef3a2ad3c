"""Calls that go wrong for a while: refused, slow, hung, or carried out and never answered.

A `CallTrouble` is a window over one of the fakes: which operations, about whom, how many of the calls, and what becomes
of those. Any number of windows may be open at once; the oldest that has something to say to a call decides. When a
window closes, what it slowed or hung goes on, and only that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isinf
from random import Random

from podkeeper.model.errors import (
    AgentError,
    ApiUnavailable,
    CallTimedOut,
    Conflict,
    ImagePullFailed,
    NetworkNotReady,
    RuntimeRefused,
    RuntimeUnavailable,
    TryLater,
)
from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION, PodUID
from podkeeper.runtimes.fake import FakeFaults, Fault
from podkeeper.testing.sim.history import Deed
from podkeeper.testing.sim.world import World

STARTS = ("run_sandbox", "create_container", "start_container")
STOPS = ("stop_container", "stop_sandbox", "remove_container", "remove_sandbox")
IMAGES = ("image", "pull_image")  # these are about an image, not about a pod
LOOKS = ("list_pods", "health")  # and these about nobody
OF_ONE_POD = (*STARTS, *STOPS, "pod_record", "exec_sync")
OF_THE_NODE = (*OF_ONE_POD, *IMAGES, *LOOKS)
API_CALLS = ("get", "list", "watch", "create", "patch", "patch_status", "delete")
API_WRITES = ("create", "patch", "patch_status", "delete")
VOLUME_CALLS = ("mount", "unmount", "remove_directory")  # of one pod; `directories` is about nobody
CGROUP_CALLS = ("ensure", "remove", "throttle")  # of one pod; `list_pods` is about nobody

Drawn = list[tuple[float, Deed]]
"""The deeds of one fault, each so many seconds after its beginning."""


@dataclass(frozen=True, slots=True)
class Ill:
    """What becomes of a call: a delay, then perhaps an error, instead of the effect or after it."""

    delay_seconds: float = 0.0  # infinite: until the window closes
    error: type[AgentError] | None = None
    takes_effect: bool = False

    def __str__(self) -> str:
        how = "hangs" if isinf(self.delay_seconds) else f"{self.delay_seconds:.1f} s" if self.delay_seconds else ""
        effect = "done" if self.takes_effect else ""
        return " ".join(filter(None, (effect, how, "" if self.error is None else self.error.__name__)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrouble:
    """Some calls to one room go wrong for a while."""

    kind: str
    room: str  # runtime, api, volumes, cgroups
    operations: tuple[str, ...]
    ills: tuple[Ill, ...]  # one of them befalls a call
    seconds: float
    seed: int
    share: float = 1.0  # of the calls
    at_most: int | None = None  # so many calls; None: all
    victim: int | None = None  # of the pods there are then, counted round; None: everybody

    def __str__(self) -> str:
        whose = "everybody's" if self.victim is None else f"pod {self.victim}'s"
        ills = ", ".join(map(str, self.ills))
        share = f"{self.share:.0%} of {whose}" if self.at_most is None else f"{self.at_most} of {whose}"
        return f"{self.kind}: {share} {self.room} {' '.join(self.operations)}: {ills}; for {self.seconds:.0f} s"

    def play(self, world: World) -> None:
        """Open the window."""
        uid, about = None, None
        if self.victim is not None:
            victims = pods_there(world)
            if not victims:
                return
            uid, name = victims[self.victim % len(victims)]
            about = name if self.room == "api" else uid
        faults = _faults_of(world)[self.room]
        window = _Window(self, about)
        faults.add_policy(window)

        def close() -> None:
            faults.remove_policy(window)
            for fault in window.faults:
                faults.release(fault)

        world.trouble(self.kind, self.seconds, close, uid)


class _Window:
    """Decides, while it is open, what becomes of each call."""

    def __init__(self, trouble: CallTrouble, about: str | None) -> None:
        self.faults = tuple(
            Fault(times=None, delay_seconds=ill.delay_seconds, error=ill.error, takes_effect=ill.takes_effect)
            for ill in trouble.ills
        )
        self._operations = trouble.operations
        self._about = about
        self._share = trouble.share
        self._left = inf if trouble.at_most is None else trouble.at_most
        self._random = Random(trouble.seed)

    def __call__(self, operation: str, about: str) -> Fault | None:
        if operation not in self._operations or self._about not in (None, about) or self._left <= 0:
            return None
        if self._random.random() >= self._share:
            return None
        self._left -= 1
        return self._random.choice(self.faults)


def _faults_of(world: World) -> Mapping[str, FakeFaults]:
    return {
        "runtime": world.runtime.faults,
        "api": world.api.faults,
        "volumes": world.volumes.faults,
        "cgroups": world.cgroups.faults,
    }


def pods_there(world: World) -> list[tuple[PodUID, str]]:
    """Every pod that somebody wants here or that runs here: the UID its runtime calls are about, and its name."""
    pods = {runtime_uid(pod): pod.metadata.name or "" for pod in world.api.objects(Pod)}
    for pod in (*world.files.pods(), *world.web.pods()):
        pods[runtime_uid(pod)] = pod.metadata.name or ""
    for uid, _ in world.runtime.live_containers():
        pods.setdefault(uid, "")
    return sorted(pods.items())


def runtime_uid(pod: Pod) -> PodUID:
    """The UID under which a pod runs: a mirror's is that of its static pod."""
    return PodUID((pod.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) or pod.metadata.uid or "")


# What is drawn. Each draws one fault: from a chance, and the seconds until calm.


def runtime_errors(random: Random, left: float) -> Drawn:
    """A share of some operations is refused."""
    victim = _perhaps_one(random)
    operations = _some(random, OF_THE_NODE if victim is None else OF_ONE_POD)
    errors: list[type[AgentError]] = [RuntimeRefused, RuntimeUnavailable, CallTimedOut]
    if operations == ("run_sandbox",):
        errors.append(NetworkNotReady)
    if operations == ("pull_image",):
        errors.append(ImagePullFailed)
    ill = Ill(random.choice((0.0, 0.0, random.uniform(0.1, 10.0))), random.choice(errors))
    return _window(random, left, "runtime-errors", "runtime", operations, (ill,), victim=victim)


def slow_calls(random: Random, left: float) -> Drawn:
    """A share of some operations takes long."""
    victim = _perhaps_one(random)
    operations = _some(random, OF_THE_NODE if victim is None else OF_ONE_POD)
    longest = random.choice((1.0, 10.0, 60.0))
    ills = tuple(Ill(random.uniform(0.1, longest), None, random.random() < 0.3) for _ in range(3))
    return _window(random, left, "slow-calls", "runtime", operations, ills, victim=victim)


def hung_calls(random: Random, left: float) -> Drawn:
    """One pod's calls hang, perhaps for longer than the agent has patience."""
    operations = _some(random, OF_ONE_POD)
    ills = (Ill(inf), Ill(inf, None, takes_effect=True))[: random.randint(1, 2)]
    victim, seconds = random.randrange(1000), random.choice((30.0, 90.0, 200.0, 300.0))
    return _window(random, left, "hung-calls", "runtime", operations, ills, victim=victim, longest=seconds, share=1.0)


def lost_answers(random: Random, left: float) -> Drawn:
    """Calls take effect, and then fail, at once or late."""
    victim = _perhaps_one(random)
    operations = _some(random, (*STARTS, *STOPS, "pull_image", "exec_sync") if victim is None else (*STARTS, *STOPS))
    error = random.choice((CallTimedOut, RuntimeUnavailable, RuntimeRefused))
    ills = (Ill(0.0, error, takes_effect=True), Ill(random.uniform(0.1, 60.0), error, takes_effect=True))
    return _window(random, left, "lost-answers", "runtime", operations, ills, victim=victim)


def api_errors(random: Random, left: float) -> Drawn:
    """A share of the API's calls fails."""
    victim = _perhaps_one(random)
    operations = API_WRITES if victim is not None else _some(random, API_CALLS)
    ills = (Ill(0.0, ApiUnavailable), Ill(random.uniform(0.1, 30.0), ApiUnavailable))[: random.randint(1, 2)]
    return _window(random, left, "api-errors", "api", operations, ills, victim=victim)


def api_conflicts(random: Random, left: float) -> Drawn:
    """A few writes meet somebody else's."""
    operations, few = _some(random, ("patch", "patch_status", "delete")), random.randint(1, 5)
    return _window(random, left, "api-conflicts", "api", operations, (Ill(0.0, Conflict),), at_most=few)


def api_lost_answers(random: Random, left: float) -> Drawn:
    """Writes happen, and nobody hears of it."""
    error = Ill(random.choice((0.0, random.uniform(0.1, 30.0))), ApiUnavailable, takes_effect=True)
    return _window(random, left, "api-lost-answers", "api", _some(random, API_WRITES), (error,))


def cgroup_trouble(random: Random, left: float) -> Drawn:
    """Cgroups cannot be made, removed or listed, or only slowly."""
    return _ground_trouble(random, left, "cgroup-trouble", "cgroups", CGROUP_CALLS, "list_pods")


def volume_call_trouble(random: Random, left: float) -> Drawn:
    """Volumes cannot be mounted or unmounted, or only slowly."""
    return _ground_trouble(random, left, "volume-trouble", "volumes", VOLUME_CALLS, "directories")


def _ground_trouble(random: Random, left: float, kind: str, room: str, calls: tuple[str, ...], look: str) -> Drawn:
    one = random.random() < 0.5  # only one pod's calls may hang: the others' promises are judged
    ills = [Ill(0.0, TryLater), Ill(random.uniform(0.1, 30.0)), Ill(random.uniform(0.1, 30.0), TryLater, True)]
    if one:
        ills.append(Ill(inf))
    victim = random.randrange(1000) if one else None
    operations = _some(random, calls if one else (*calls, look))
    return _window(random, left, kind, room, operations, (random.choice(ills),), victim=victim)


def _window(
    random: Random,
    left: float,
    kind: str,
    room: str,
    operations: tuple[str, ...],
    ills: tuple[Ill, ...],
    *,
    victim: int | None = None,
    longest: float = 180.0,
    share: float | None = None,
    at_most: int | None = None,
) -> Drawn:
    seconds = min(left, random.uniform(longest / 20, longest))
    share = share if share is not None else random.choice((0.1, 0.3, 0.5, 1.0))
    deed = CallTrouble(
        kind=kind,
        room=room,
        operations=operations,
        ills=ills,
        seconds=seconds,
        seed=random.getrandbits(32),
        share=share,
        at_most=at_most,
        victim=victim,
    )
    return [(0.0, deed)]


def _some(random: Random, operations: tuple[str, ...]) -> tuple[str, ...]:
    """One of them, a few, or all; in their order."""
    chosen = random.sample(operations, random.choice((1, 1, min(3, len(operations)), len(operations))))
    return tuple(operation for operation in operations if operation in chosen)


def _perhaps_one(random: Random) -> int | None:
    return random.randrange(1000) if random.random() < 0.5 else None
