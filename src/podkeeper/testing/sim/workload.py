"""Draw the workload of a node: pods of all kinds, and their timed actions.

    actions = workload_actions(Random("7/workload"), segments, Profile(), WORKLOADS)

Each pod has a script (`pod_scripts`, `static_pod_scripts`). Scripts run only outside of calm phases. A script that has
not ended when calm begins continues in the next segment, so pods also run through calm phases. All random choices are
made here, and the actions contain their results.
"""

from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

from podkeeper.model.probing import (
    Endpoint,
    GrpcEnd,
    HealthAnswer,
    HttpAnswer,
    HttpEnd,
    HttpRequest,
    NoHttpAnswer,
    NotConnected,
)
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.fakes import SERVING
from podkeeper.testing.sim import pod_scripts, static_pod_scripts
from podkeeper.testing.sim.actions import Replace
from podkeeper.testing.sim.pod_scripts import PodScript, ScriptContext
from podkeeper.testing.sim.pods import Draw
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.records import SandboxChanged
from podkeeper.testing.sim.schedule import Action, Segment
from podkeeper.testing.sim.world import World

SETTLED_BEFORE_CALM = 1.0  # the last action runs this long before a calm phase
FIRST_SECONDS = 120.0  # the initial pods of the node are created within this time
NOT_SERVING = 2

_SCRIPTS: Mapping[str, tuple[str, PodScript]] = {  # by kind: prefix of the pod names, and script
    "servers": ("server", pod_scripts.server),
    "probes": ("probed", pod_scripts.probes),
    "jobs": ("job", pod_scripts.job),
    "crash-loops": ("crash", pod_scripts.crash_loop),
    "out-of-memory": ("oom", pod_scripts.out_of_memory),
    "init-containers": ("init", pod_scripts.init_containers),
    "sidecars": ("side", pod_scripts.sidecars),
    "hooks": ("hook", pod_scripts.hooks),
    "deadlines": ("deadline", pod_scripts.deadline),
    "updates": ("update", pod_scripts.update),
    "deletes": ("delete", pod_scripts.delete),
    "successors": ("heir", pod_scripts.successors),
    "static-files": ("file", static_pod_scripts.static_file),
    "static-web": ("web", static_pod_scripts.static_web),
    "mirrors": ("mirror", static_pod_scripts.mirrors),
    "evictions": ("evict", pod_scripts.eviction),
    "preemption": ("critical", pod_scripts.preemption),
    "rejections": ("reject", pod_scripts.rejection),
    "missing-images": ("image", pod_scripts.missing_image),
    "refused-starts": ("refused", pod_scripts.refused_start),
    "accidents": ("accident", pod_scripts.accidents),
    "ephemeral": ("debug", pod_scripts.ephemeral),
    "volumes": ("volume", pod_scripts.volumes),
    "stubborn": ("stubborn", pod_scripts.stubborn),
    "bursts": ("burst", pod_scripts.burst),
}

WORKLOADS: Mapping[str, str] = {kind: (script.__doc__ or "").rstrip(".") for kind, (_, script) in _SCRIPTS.items()}
"""All kinds of workload, with a short description."""


def workload_actions(
    random: Random, segments: Sequence[Segment], profile: Profile, kinds: Collection[str]
) -> list[tuple[float, Action]]:
    """Draw the workload of some kinds for all segments."""
    chosen = [kind for kind in WORKLOADS if kind in kinds and profile.shares.get(kind, 0.0) > 0]
    shares = [profile.shares[kind] for kind in chosen]
    draw = Draw(random, profile)
    active_time = _ActiveTime(segments)
    actions: list[tuple[float, Action]] = []
    for number, begins in enumerate(_start_times(random, active_time.length, profile, chosen), start=1):
        kind = random.choices(chosen, shares)[0]
        name, script = _SCRIPTS[kind]
        for after, action in script(ScriptContext(draw, kind, f"{name}-{number}", draw.lifetime_seconds())):
            time = active_time.time_of(begins + after)
            if time is not None:
                actions.append(_with_deadline(*time, action))
    return actions


def _start_times(random: Random, length: float, profile: Profile, kinds: Collection[str]) -> list[float]:
    """Draw when scripts begin: first as many as a node has after some time, then one after the other."""
    per_hour = profile.scripts_per_hour(kinds)
    if per_hour <= 0:
        return []
    times = [random.uniform(0, FIRST_SECONDS) for _ in range(round(profile.pods * 0.8))]
    at = FIRST_SECONDS
    while (at := at + random.uniform(0.2, 1.8) * 3600.0 / per_hour) < length:
        times.append(at)
    return times


class _ActiveTime:
    """The time in which actions run: all segments without their calm phases, joined."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._ends = list(
            accumulate(max(0.0, segment.calm_from - SETTLED_BEFORE_CALM - segment.begins) for segment in segments)
        )

    @property
    def length(self) -> float:
        """Length in seconds."""
        return self._ends[-1] if self._ends else 0.0

    def time_of(self, at: float) -> tuple[float, Segment] | None:
        """Return the time and segment for a position. None: after the last segment."""
        number = bisect(self._ends, at)
        if number == len(self._segments):
            return None
        segment = self._segments[number]
        before = self._ends[number - 1] if number else 0.0
        return round(segment.begins + at - before, 3), segment


def _with_deadline(at: float, segment: Segment, action: Action) -> tuple[float, Action]:
    """Limit the waiting time of an action, so that it gives up when calm begins."""
    if isinstance(action, Replace):
        action = replace(action, patience_seconds=round(segment.calm_from - at, 3))
    return at, action


# Probes and hooks over the network.


def answer_probes(world: World) -> None:
    """Let the prober answer network probes and hooks as the scripts of the pods define. Call it once per run."""
    network = _Network(world)
    world.prober.http_script = network.http
    world.prober.tcp_script = network.tcp
    world.prober.grpc_script = network.grpc


class _Network:
    """The addresses of the sandboxes, and the answers there."""

    def __init__(self, world: World) -> None:
        self._runtime = world.runtime
        self._sandboxes: dict[str, str] = {}  # by address
        world.bus.subscribe(SandboxChanged, self._on_sandbox_changed)

    def http(self, request: HttpRequest) -> HttpEnd:
        host, _, port = request.url.partition("://")[2].partition("/")[0].partition(":")
        answer = self._answer(host, port)
        if answer is None:
            return NoHttpAnswer(f"Get {request.url!r}: connection refused")
        return HttpAnswer(200 if _is_good(answer) else 500)

    def tcp(self, endpoint: Endpoint) -> str | None:
        answer = self._answer(endpoint.host, str(endpoint.port))
        return None if answer is not None and _is_good(answer) else f"dial tcp {endpoint}: connection refused"

    def grpc(self, endpoint: Endpoint, service: str) -> GrpcEnd:
        answer = self._answer(endpoint.host, str(endpoint.port))
        if answer is None:
            return NotConnected(f"dial tcp {endpoint}: connection refused")
        return HealthAnswer(SERVING if _is_good(answer) else NOT_SERVING)

    def _answer(self, host: str, port: str) -> ExecStep | None:
        sandbox_id = self._sandboxes.get(host)
        return None if sandbox_id is None else self._runtime.answer_in(sandbox_id, port)

    def _on_sandbox_changed(self, change: SandboxChanged) -> None:
        if change.happened is RuntimeEventType.STARTED and change.record.ip:
            self._sandboxes[change.record.ip] = change.record.id


def _is_good(step: ExecStep) -> bool:
    """Whether an answer is a success. A slow answer is not, because network probes take no time here."""
    return step.exit_code == 0 and step.takes_seconds == 0
