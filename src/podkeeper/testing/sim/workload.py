"""The workload of a simulation: pods of all kinds that come, live, are tampered with and go.

    deeds = workload_deeds(Random("7/workload"), chapters, Profile(), WORKLOADS)

The workload is made of stories (`stories`, `stories_static`), each the life of one pod. They are told in the time
that is not calm: a story that has not ended when calm comes goes on in the next chapter, so that pods live through
calm too. All chance is drawn here; the deeds bring everything with them.
"""

from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

from podkeeper.model.probing import (
    Answered,
    Endpoint,
    GrpcEnd,
    HttpAnswer,
    HttpEnd,
    HttpRequest,
    NoAnswer,
    NotConnected,
)
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.fakes import SERVING
from podkeeper.testing.sim import stories, stories_static
from podkeeper.testing.sim.deeds import Succeed
from podkeeper.testing.sim.history import Chapter, Deed
from podkeeper.testing.sim.pods import Draw
from podkeeper.testing.sim.profile import Profile
from podkeeper.testing.sim.records import SandboxChanged
from podkeeper.testing.sim.stories import Setting, Story
from podkeeper.testing.sim.world import World

SETTLED_BEFORE_CALM = 1.0  # so long before calm the last deed is done
FIRST_SECONDS = 120.0  # within so long those are there that the node begins with
NOT_SERVING = 2

_STORIES: Mapping[str, tuple[str, Story]] = {  # by kind: how its pods are called, and what becomes of them
    "servers": ("server", stories.server),
    "probes": ("probed", stories.probes),
    "jobs": ("job", stories.job),
    "crash-loops": ("crash", stories.crash_loop),
    "out-of-memory": ("oom", stories.out_of_memory),
    "init-containers": ("init", stories.init_containers),
    "sidecars": ("side", stories.sidecars),
    "hooks": ("hook", stories.hooks),
    "deadlines": ("deadline", stories.deadline),
    "updates": ("update", stories.update),
    "deletes": ("delete", stories.delete),
    "successors": ("heir", stories.successors),
    "static-files": ("file", stories_static.static_file),
    "static-web": ("web", stories_static.static_web),
    "mirrors": ("mirror", stories_static.mirrors),
    "evictions": ("evict", stories.eviction),
    "preemption": ("critical", stories.preemption),
    "rejections": ("reject", stories.rejection),
    "missing-images": ("image", stories.missing_image),
    "refused-starts": ("refused", stories.refused_start),
    "accidents": ("accident", stories.accidents),
    "ephemeral": ("debug", stories.ephemeral),
    "volumes": ("volume", stories.volumes),
    "stubborn": ("stubborn", stories.stubborn),
    "bursts": ("burst", stories.burst),
}

WORKLOADS: Mapping[str, str] = {kind: (story.__doc__ or "").rstrip(".") for kind, (_, story) in _STORIES.items()}
"""The kinds of workload there are, each in a sentence."""


def workload_deeds(
    random: Random, chapters: Sequence[Chapter], profile: Profile, kinds: Collection[str]
) -> list[tuple[float, Deed]]:
    """Draw the workload of some kinds, for all chapters."""
    chosen = [kind for kind in WORKLOADS if kind in kinds and profile.shares.get(kind, 0.0) > 0]
    shares = [profile.shares[kind] for kind in chosen]
    draw = Draw(random, profile)
    days = _Days(chapters)
    deeds: list[tuple[float, Deed]] = []
    for number, begins in enumerate(_beginnings(random, days.length, profile, chosen), start=1):
        kind = random.choices(chosen, shares)[0]
        name, story = _STORIES[kind]
        for after, deed in story(Setting(draw, kind, f"{name}-{number}", draw.life_seconds())):
            moment = days.moment(begins + after)
            if moment is not None:
                deeds.append(_timely(*moment, deed))
    return deeds


def _beginnings(random: Random, length: float, profile: Profile, kinds: Collection[str]) -> list[float]:
    """When stories begin: as many at first as a node has that has long been there, then one after the other."""
    per_hour = profile.stories_per_hour(kinds)
    if per_hour <= 0:
        return []
    moments = [random.uniform(0, FIRST_SECONDS) for _ in range(round(profile.pods * 0.8))]
    at = FIRST_SECONDS
    while (at := at + random.uniform(0.2, 1.8) * 3600.0 / per_hour) < length:
        moments.append(at)
    return moments


class _Days:
    """The time in which things happen: all chapters without their calm, put together."""

    def __init__(self, chapters: Sequence[Chapter]) -> None:
        self._chapters = chapters
        self._ends = list(
            accumulate(max(0.0, chapter.calm_from - SETTLED_BEFORE_CALM - chapter.begins) for chapter in chapters)
        )

    @property
    def length(self) -> float:
        """How long it is."""
        return self._ends[-1] if self._ends else 0.0

    def moment(self, at: float) -> tuple[float, Chapter] | None:
        """When that really is, and in which chapter; None: later than all chapters."""
        number = bisect(self._ends, at)
        if number == len(self._chapters):
            return None
        chapter = self._chapters[number]
        before = self._ends[number - 1] if number else 0.0
        return round(chapter.begins + at - before, 3), chapter


def _timely(at: float, chapter: Chapter, deed: Deed) -> tuple[float, Deed]:
    """A deed that waits for something gives up when calm comes."""
    if isinstance(deed, Succeed):
        deed = replace(deed, patience_seconds=round(chapter.calm_from - at, 3))
    return at, deed


# Probes and hooks over the network.


def answer_probes(world: World) -> None:
    """Have what the pods' scripts say answered over the network, too. To be called once per play."""
    network = _Network(world)
    world.prober.http_script = network.http
    world.prober.tcp_script = network.tcp
    world.prober.grpc_script = network.grpc


class _Network:
    """Who has which address, and what is answered there."""

    def __init__(self, world: World) -> None:
        self._runtime = world.runtime
        self._sandboxes: dict[str, str] = {}  # by address
        world.bus.subscribe(SandboxChanged, self._see)

    def http(self, request: HttpRequest) -> HttpEnd:
        host, _, port = request.url.partition("://")[2].partition("/")[0].partition(":")
        answer = self._answer(host, port)
        if answer is None:
            return NoAnswer(f"Get {request.url!r}: connection refused")
        return HttpAnswer(200 if _is_good(answer) else 500)

    def tcp(self, endpoint: Endpoint) -> str | None:
        answer = self._answer(endpoint.host, str(endpoint.port))
        return None if answer is not None and _is_good(answer) else f"dial tcp {endpoint}: connection refused"

    def grpc(self, endpoint: Endpoint, service: str) -> GrpcEnd:
        answer = self._answer(endpoint.host, str(endpoint.port))
        if answer is None:
            return NotConnected(f"dial tcp {endpoint}: connection refused")
        return Answered(SERVING if _is_good(answer) else NOT_SERVING)

    def _answer(self, host: str, port: str) -> ExecStep | None:
        sandbox_id = self._sandboxes.get(host)
        return None if sandbox_id is None else self._runtime.answer_in(sandbox_id, port)

    def _see(self, change: SandboxChanged) -> None:
        if change.happened is RuntimeEventType.STARTED and change.record.ip:
            self._sandboxes[change.record.ip] = change.record.id


def _is_good(step: ExecStep) -> bool:
    """Over the network, being slow is as bad as being wrong: nobody waits here."""
    return step.exit_code == 0 and step.takes_seconds == 0
