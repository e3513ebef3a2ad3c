"""Small pods and statuses for the tests of the status rules."""

from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import cycle, permutations, product

from hypothesis import strategies as st

from podkeeper.model.k8s.core import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
)
from podkeeper.rules.status.phase import RESTARTING_ALL_CONTAINERS
from podkeeper.testing import build
from podkeeper.testing.build import container

NOW = datetime(2000, 1, 1, 12, tzinfo=UTC)
T0, T1, T2 = (f"2000-01-01T0{hour}:00:00Z" for hour in range(3))
NOON = "2000-01-01T12:00:00Z"


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


pod = partial(build.pod, "web", namespace="ns", uid="u1")


def sidecar(name: str) -> Container:
    return container(name, restart_policy="Always")


def ended(exit_code: int = 0, reason: str | None = None) -> ContainerStateTerminated:
    return ContainerStateTerminated(exit_code=exit_code, reason=reason)


def waiting(
    name: str = "app", *, reason: str | None = None, last: ContainerStateTerminated | None = None
) -> ContainerStatus:
    state = ContainerState(waiting=ContainerStateWaiting(reason=reason))
    return ContainerStatus(name=name, state=state, last_state=ContainerState(terminated=last))


def running(name: str = "app", *, started: bool | None = True, ready: bool = True) -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning(started_at=T0))
    return ContainerStatus(name=name, container_id=f"fake://{name}", state=state, started=started, ready=ready)


def exited(name: str = "app", exit_code: int = 0, *, reason: str | None = None, ready: bool = False) -> ContainerStatus:
    state = ContainerState(terminated=ended(exit_code, reason))
    return ContainerStatus(name=name, container_id=f"fake://{name}", state=state, ready=ready)


def nothing(name: str = "app") -> ContainerStatus:
    return ContainerStatus(name=name)


def condition(type_: str, status: str = "True", *, since: str | None = None, reason: str | None = None) -> PodCondition:
    return PodCondition(type=type_, status=status, reason=reason, last_transition_time=since)


# For the laws: all parts are made once and drawn from pools, because building structs draw by draw is slow.

POLICIES = ("Always", "OnFailure", "Never")
PHASES = (None, "Pending", "Running", "Succeeded", "Failed")
TIMES = (None, T0, T1, T2, "2000-01-01T00:00:00.75Z", "2000-01-01T02:00:00+02:00")
REASONS = (None, "", "R")
CONDITION_TYPES = ("Ready", "ContainersReady", "Initialized", "PodScheduled", "DisruptionTarget", "example.com/gate")

policies = st.sampled_from(POLICIES)
phases = st.sampled_from(PHASES)

STATES = (
    ContainerState(),
    *(ContainerState(waiting=ContainerStateWaiting(reason=reason)) for reason in REASONS),
    *(ContainerState(running=ContainerStateRunning(started_at=time)) for time in TIMES),
    *(ContainerState(terminated=ended(code)) for code in (0, 1, 42)),
    ContainerState(terminated=ended(1, RESTARTING_ALL_CONTAINERS)),
    *(
        ContainerState(terminated=ContainerStateTerminated(finished_at=T0, message=message))
        for message in ("", "m", "m" * 9000, "é" * 5000)
    ),
)


@cache
def every_container_status(name: str) -> tuple[ContainerStatus, ...]:
    every = product(STATES, (None, ended(0), ended(1)), (None, False, True), (False, True), (0, 3))
    ids = cycle((None, f"fake://{name}-0", f"fake://{name}-1"))
    return tuple(
        ContainerStatus(
            name=name,
            container_id=container_id,
            state=state,
            last_state=ContainerState(terminated=last),
            started=started,
            ready=ready,
            restart_count=restarts,
        )
        for container_id, (state, last, started, ready, restarts) in zip(ids, every, strict=False)
    )


@cache
def every_container(name: str, *, init: bool = False) -> tuple[Container, ...]:
    own = (None, "Always") if init else (None, *POLICIES)
    rules = (None, ("Restart", 0), ("Restart", 42), ("RestartAllContainers", 1))
    return tuple(container(name, restart_policy=policy, restart_rule=rule) for policy, rule in product(own, rules))


def container_statuses(name: str) -> st.SearchStrategy[ContainerStatus]:
    return st.sampled_from(every_container_status(name))


def some_statuses(*names: str) -> st.SearchStrategy[tuple[ContainerStatus, ...]]:
    """Statuses of some of these containers, in any order."""
    pools = [st.sampled_from((None, *every_container_status(name))) for name in names]
    return st.builds(
        lambda order, found: tuple(found[index] for index in order if found[index] is not None),
        st.sampled_from(tuple(permutations(range(len(names))))),
        st.tuples(*pools),
    )


def condition_lists() -> st.SearchStrategy[tuple[PodCondition, ...]]:
    def of_type(type_: str) -> st.SearchStrategy[PodCondition | None]:
        every = product(("True", "False"), TIMES, REASONS)
        return st.sampled_from((None, *(condition(type_, one, since=two, reason=three) for one, two, three in every)))

    return st.tuples(*map(of_type, CONDITION_TYPES)).map(
        lambda found: tuple(each for each in found if each is not None)
    )


def pod_statuses() -> st.SearchStrategy[PodStatus]:
    return st.builds(
        lambda phase, conditions, regular, init, rest: PodStatus(
            phase=phase,
            conditions=conditions,
            container_statuses=regular,
            init_container_statuses=init or None,
            start_time=rest[0],
            observed_generation=rest[1],
            reason=rest[2],
        ),
        phases,
        condition_lists(),
        some_statuses("a", "b"),
        some_statuses("i", "j"),
        st.sampled_from(tuple(product(TIMES, (None, 0, 1, 3), REASONS))),
    )


def pods() -> st.SearchStrategy[Pod]:
    """Pods with the regular containers a and b and the init containers i and j."""
    return st.builds(
        lambda a, b, i, j, status, rest: pod(
            a, b, init=(i, j), status=status, generation=2, policy=rest[0], deleted=rest[1], source=rest[2]
        ),
        st.sampled_from(every_container("a")),
        st.sampled_from(every_container("b")),
        st.sampled_from(every_container("i", init=True)),
        st.sampled_from(every_container("j", init=True)),
        pod_statuses(),
        st.sampled_from(tuple(product(POLICIES, (False, True), (None, "api", "file")))),
    )
