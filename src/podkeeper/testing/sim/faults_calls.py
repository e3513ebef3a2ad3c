"""Faults of single calls: errors, delays, hangs and lost answers.

A `CallFaultWindow` is open for some time on one port. It selects operations, a pod and a share of the calls. Several
windows may be open at once: the oldest one that matches a call decides. When a window closes, the calls that it delays
continue.
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
from podkeeper.testing.sim.schedule import Action
from podkeeper.testing.sim.world import World

STARTS = ("run_sandbox", "create_container", "start_container")
STOPS = ("stop_container", "stop_sandbox", "remove_container", "remove_sandbox")
IMAGES = ("image", "pull_image")  # about an image, not about a pod
INSPECTIONS = ("list_pods", "health")  # about the whole node
OF_ONE_POD = (*STARTS, *STOPS, "pod_record", "exec_sync")
OF_THE_NODE = (*OF_ONE_POD, *IMAGES, *INSPECTIONS)
API_CALLS = ("get", "list", "watch", "create", "patch", "patch_status", "delete")
API_WRITES = ("create", "patch", "patch_status", "delete")
VOLUME_CALLS = ("mount", "unmount", "remove_directory")  # about one pod; `directories` is about the node
CGROUP_CALLS = ("ensure", "remove", "throttle")  # about one pod; `list_pods` is about the node

Drawn = list[tuple[float, Action]]
"""The actions of one fault, each with its delay in seconds after the start of the fault."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """The effect on one call: a delay, then maybe an error, instead of the effect of the call or after it."""

    delay_seconds: float = 0.0  # infinite: until the window closes
    error: type[AgentError] | None = None
    takes_effect: bool = False

    def __str__(self) -> str:
        how = "hangs" if isinf(self.delay_seconds) else f"{self.delay_seconds:.1f} s" if self.delay_seconds else ""
        effect = "done" if self.takes_effect else ""
        return " ".join(filter(None, (effect, how, "" if self.error is None else self.error.__name__)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFaultWindow:
    """Some calls to one port fail or are slow for some time."""

    kind: str
    port: str  # runtime, api, volumes, cgroups
    operations: tuple[str, ...]
    faults: tuple[CallFault, ...]  # one of them, chosen at random, for each call
    seconds: float
    seed: int
    share: float = 1.0  # of the calls
    at_most: int | None = None  # number of calls; None: no limit
    victim: int | None = None  # index modulo the number of pods at that time; None: all pods

    def __str__(self) -> str:
        whose = "all pods'" if self.victim is None else f"pod {self.victim}'s"
        faults = ", ".join(map(str, self.faults))
        share = f"{self.share:.0%} of {whose}" if self.at_most is None else f"{self.at_most} of {whose}"
        return f"{self.kind}: {share} {self.port} {' '.join(self.operations)}: {faults}; for {self.seconds:.0f} s"

    def run(self, world: World) -> None:
        uid, about = None, None
        if self.victim is not None:
            victims = pods_on_node(world)
            if not victims:
                return
            uid, name = victims[self.victim % len(victims)]
            about = name if self.port == "api" else uid
        faults = _faults_of(world)[self.port]
        window = _WindowPolicy(self, about)
        faults.add_policy(window)

        def close() -> None:
            faults.remove_policy(window)
            for fault in window.faults:
                faults.release(fault)

        world.begin_fault(self.kind, self.seconds, close, uid)


class _WindowPolicy:
    """Decides the effect on each call while the window is open."""

    def __init__(self, window: CallFaultWindow, about: str | None) -> None:
        self.faults = tuple(
            Fault(times=None, delay_seconds=fault.delay_seconds, error=fault.error, takes_effect=fault.takes_effect)
            for fault in window.faults
        )
        self._operations = window.operations
        self._about = about
        self._share = window.share
        self._left = inf if window.at_most is None else window.at_most
        self._random = Random(window.seed)

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


def pods_on_node(world: World) -> list[tuple[PodUID, str]]:
    """Return every pod that is desired or runs on this node: the UID of its runtime calls, and its name."""
    pods = {runtime_uid(pod): pod.metadata.name or "" for pod in world.api.objects(Pod)}
    for pod in (*world.files.pods(), *world.web.pods()):
        pods[runtime_uid(pod)] = pod.metadata.name or ""
    for uid, _ in world.runtime.live_containers():
        pods.setdefault(uid, "")
    return sorted(pods.items())


def runtime_uid(pod: Pod) -> PodUID:
    """Return the UID under which a pod runs. For a mirror pod, this is the UID of its static pod."""
    return PodUID((pod.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION) or pod.metadata.uid or "")


# Drawing. Each function draws one fault. `left` is the time until the next calm phase.


def runtime_errors(random: Random, left: float) -> Drawn:
    """Draw errors of a share of some operations."""
    victim = _maybe_one_pod(random)
    operations = _some_of(random, OF_THE_NODE if victim is None else OF_ONE_POD)
    errors: list[type[AgentError]] = [RuntimeRefused, RuntimeUnavailable, CallTimedOut]
    if operations == ("run_sandbox",):
        errors.append(NetworkNotReady)
    if operations == ("pull_image",):
        errors.append(ImagePullFailed)
    fault = CallFault(random.choice((0.0, 0.0, random.uniform(0.1, 10.0))), random.choice(errors))
    return _window(random, left, "runtime-errors", "runtime", operations, (fault,), victim=victim)


def slow_calls(random: Random, left: float) -> Drawn:
    """Draw delays of a share of some operations."""
    victim = _maybe_one_pod(random)
    operations = _some_of(random, OF_THE_NODE if victim is None else OF_ONE_POD)
    longest = random.choice((1.0, 10.0, 60.0))
    faults = tuple(CallFault(random.uniform(0.1, longest), None, random.random() < 0.3) for _ in range(3))
    return _window(random, left, "slow-calls", "runtime", operations, faults, victim=victim)


def hung_calls(random: Random, left: float) -> Drawn:
    """Draw hung calls of one pod, maybe longer than the agent's deadline."""
    operations = _some_of(random, OF_ONE_POD)
    faults = (CallFault(inf), CallFault(inf, None, takes_effect=True))[: random.randint(1, 2)]
    victim, seconds = random.randrange(1000), random.choice((30.0, 90.0, 200.0, 300.0))
    return _window(random, left, "hung-calls", "runtime", operations, faults, victim=victim, longest=seconds, share=1.0)


def lost_answers(random: Random, left: float) -> Drawn:
    """Draw calls that take effect and then fail, at once or late."""
    victim = _maybe_one_pod(random)
    operations = _some_of(random, (*STARTS, *STOPS, "pull_image", "exec_sync") if victim is None else (*STARTS, *STOPS))
    error = random.choice((CallTimedOut, RuntimeUnavailable, RuntimeRefused))
    faults = (CallFault(0.0, error, takes_effect=True), CallFault(random.uniform(0.1, 60.0), error, takes_effect=True))
    return _window(random, left, "lost-answers", "runtime", operations, faults, victim=victim)


def api_errors(random: Random, left: float) -> Drawn:
    """Draw errors of a share of the API calls."""
    victim = _maybe_one_pod(random)
    operations = API_WRITES if victim is not None else _some_of(random, API_CALLS)
    faults = (CallFault(0.0, ApiUnavailable), CallFault(random.uniform(0.1, 30.0), ApiUnavailable))[
        : random.randint(1, 2)
    ]
    return _window(random, left, "api-errors", "api", operations, faults, victim=victim)


def api_conflicts(random: Random, left: float) -> Drawn:
    """Draw a few API writes that fail with a conflict."""
    operations, few = _some_of(random, ("patch", "patch_status", "delete")), random.randint(1, 5)
    return _window(random, left, "api-conflicts", "api", operations, (CallFault(0.0, Conflict),), at_most=few)


def api_lost_answers(random: Random, left: float) -> Drawn:
    """Draw API writes that take effect and return an error."""
    error = CallFault(random.choice((0.0, random.uniform(0.1, 30.0))), ApiUnavailable, takes_effect=True)
    return _window(random, left, "api-lost-answers", "api", _some_of(random, API_WRITES), (error,))


def cgroup_faults(random: Random, left: float) -> Drawn:
    """Draw cgroup calls that fail or are slow."""
    return _host_call_faults(random, left, "cgroup-trouble", "cgroups", CGROUP_CALLS, "list_pods")


def volume_call_faults(random: Random, left: float) -> Drawn:
    """Draw volume calls that fail or are slow."""
    return _host_call_faults(random, left, "volume-trouble", "volumes", VOLUME_CALLS, "directories")


def _host_call_faults(random: Random, left: float, kind: str, port: str, calls: tuple[str, ...], listing: str) -> Drawn:
    one = random.random() < 0.5  # only the calls of one pod may hang, because the other pods must stay prompt
    faults = [
        CallFault(0.0, TryLater),
        CallFault(random.uniform(0.1, 30.0)),
        CallFault(random.uniform(0.1, 30.0), TryLater, True),
    ]
    if one:
        faults.append(CallFault(inf))
    victim = random.randrange(1000) if one else None
    operations = _some_of(random, calls if one else (*calls, listing))
    return _window(random, left, kind, port, operations, (random.choice(faults),), victim=victim)


def _window(
    random: Random,
    left: float,
    kind: str,
    port: str,
    operations: tuple[str, ...],
    faults: tuple[CallFault, ...],
    *,
    victim: int | None = None,
    longest: float = 180.0,
    share: float | None = None,
    at_most: int | None = None,
) -> Drawn:
    seconds = min(left, random.uniform(longest / 20, longest))
    share = share if share is not None else random.choice((0.1, 0.3, 0.5, 1.0))
    action = CallFaultWindow(
        kind=kind,
        port=port,
        operations=operations,
        faults=faults,
        seconds=seconds,
        seed=random.getrandbits(32),
        share=share,
        at_most=at_most,
        victim=victim,
    )
    return [(0.0, action)]


def _some_of(random: Random, operations: tuple[str, ...]) -> tuple[str, ...]:
    """Return one of the operations, a few, or all, in their order."""
    chosen = random.sample(operations, random.choice((1, 1, min(3, len(operations)), len(operations))))
    return tuple(operation for operation in operations if operation in chosen)


def _maybe_one_pod(random: Random) -> int | None:
    return random.randrange(1000) if random.random() < 0.5 else None
