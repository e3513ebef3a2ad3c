from collections.abc import Callable
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    NodeAllocatableResourceClaimStatus,
    PodExtendedResourceClaimStatus,
    PodResourceClaimStatus,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    VolumeMountStatus,
)
from podkeeper.rules.status.normalise import MAX_POD_MESSAGE_BYTES, equal_by_kubelet, normalised
from podkeeper.testing.build import container
from tests.rules.status.statuses import T0, T1, condition, nothing, pod_statuses, running

SPEC = PodSpec(containers=(container("a"), container("b")), init_containers=(container("i"), container("j")))


def with_message(name: str, message: str) -> ContainerStatus:
    return ContainerStatus(name=name, state=ContainerState(terminated=ContainerStateTerminated(message=message)))


def message_after(message: str, spec: PodSpec = SPEC) -> str | None:
    found = normalised(spec, PodStatus(container_statuses=(with_message("a", message),))).container_statuses
    assert found is not None
    assert found[0].state.terminated is not None
    return found[0].state.terminated.message


def names(statuses: tuple[ContainerStatus, ...] | None) -> str:
    return "".join(status.name for status in statuses or ())


def test_regular_containers_are_sorted_and_init_containers_follow_the_spec() -> None:
    spec = replace(SPEC, init_containers=(container("z"), container("y"), container("x")))
    status = PodStatus(
        container_statuses=tuple(map(nothing, "cab")),
        init_container_statuses=tuple(map(nothing, "xyz")),
        ephemeral_container_statuses=tuple(map(nothing, "ed")),
    )
    after = normalised(spec, status)
    assert names(after.container_statuses) == "abc"
    assert names(after.init_container_statuses) == "zyx"
    assert names(after.ephemeral_container_statuses) == "de"


def test_unknown_init_containers_come_last() -> None:
    status = PodStatus(init_container_statuses=tuple(map(nothing, "?ji")))
    assert names(normalised(SPEC, status).init_container_statuses) == "ij?"


def test_all_containers_share_the_message_limit() -> None:
    share = MAX_POD_MESSAGE_BYTES // 4
    assert message_after("m" * share) == "m" * share
    assert message_after("m" * (share + 1)) == "m" * share
    assert message_after("m" * 20000, PodSpec()) == "m" * MAX_POD_MESSAGE_BYTES


def test_a_message_is_never_cut_inside_a_character() -> None:
    assert message_after("m" + "é" * 3000) == "m" + "é" * 1535


def test_times_are_whole_seconds_in_utc() -> None:
    status = PodStatus(start_time="2000-01-01T02:00:00.999+02:00", conditions=(condition("Ready", since=T1),))
    assert normalised(SPEC, status).start_time == T0
    assert normalised(SPEC, status).conditions == status.conditions


def test_empty_lists_become_absent() -> None:
    assert normalised(SPEC, PodStatus(conditions=(), container_statuses=(), init_container_statuses=())) == PodStatus()


@given(pod_statuses())
def test_normalizing_twice_changes_nothing_more(status: PodStatus) -> None:
    once = normalised(SPEC, status)
    assert normalised(SPEC, once) == once


Change = Callable[[PodStatus], PodStatus]
BASE = PodStatus(
    phase="Running",
    conditions=(condition("Ready", since=T0), condition("example.com/gate")),
    container_statuses=(running("a"),),
)


def on_container(**changes: object) -> Change:
    def change(status: PodStatus) -> PodStatus:
        assert status.container_statuses is not None
        return replace(status, container_statuses=(replace(status.container_statuses[0], **changes),))

    return change


def conditions(*found: tuple[str, str] | tuple[str, str, str]) -> Change:
    return lambda status: replace(status, conditions=tuple(condition(*each[:2]) for each in found))


EQUAL: dict[str, Change] = {
    "the same object": lambda status: status,
    "the time of a condition": lambda status: replace(status, conditions=(condition("Ready", since=T1),)),
    "a condition of another owner": conditions(("Ready", "True"), ("example.com/other", "False")),
    "an order of conditions": conditions(("example.com/gate", "True"), ("Ready", "True")),
    "resource claims, which others write": lambda status: replace(
        status, resource_claim_statuses=(PodResourceClaimStatus(name="gpu"),)
    ),
    "the claim of extended resources, which others write": lambda status: replace(
        status, extended_resource_claim_status=PodExtendedResourceClaimStatus(resource_claim_name="gpu")
    ),
    "claims of node allocatable resources, which others write": lambda status: replace(
        status,
        node_allocatable_resource_claim_statuses=(NodeAllocatableResourceClaimStatus(resource_claim_name="cpu"),),
    ),
    "an empty or absent text": lambda status: replace(status, reason="", message=""),
    "an empty or absent list": lambda status: replace(status, init_container_statuses=()),
    "generation 0 or absent": lambda status: replace(status, observed_generation=0),
    "an empty or absent map": on_container(allocated_resources={}),
}

DIFFERENT: dict[str, Change] = {
    "another phase": lambda status: replace(status, phase="Failed"),
    "another status of our condition": conditions(("Ready", "False"), ("example.com/gate", "True")),
    "one more condition of ours": conditions(("Ready", "True"), ("Initialized", "True")),
    "a disruption, which we share": conditions(("Ready", "True"), ("DisruptionTarget", "True")),
    "none of our conditions": lambda status: replace(status, conditions=None),
    "another reason of our condition": lambda status: replace(status, conditions=(condition("Ready", reason="R"),)),
    "another message of our condition": lambda status: replace(
        status, conditions=(replace(condition("Ready"), message="M"),)
    ),
    "a flag of a container": on_container(ready=False),
    "started is true or unknown": on_container(started=None),
    "resources are empty or absent": on_container(resources=ResourceRequirements()),
    "a new list": lambda status: replace(status, init_container_statuses=(nothing("i"),)),
}


@pytest.mark.parametrize("change", EQUAL.values(), ids=EQUAL.keys())
def test_changes_that_do_not_count(change: Change) -> None:
    assert equal_by_kubelet(BASE, change(BASE))
    assert equal_by_kubelet(change(BASE), BASE)


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_changes_that_count(change: Change) -> None:
    assert not equal_by_kubelet(BASE, change(BASE))
    assert not equal_by_kubelet(change(BASE), BASE)


def test_started_false_and_unknown_differ() -> None:
    assert not equal_by_kubelet(on_container(started=False)(BASE), on_container(started=None)(BASE))


def test_quantities_are_compared_by_value() -> None:
    def amounts(cpu: str) -> PodStatus:
        return on_container(resources=ResourceRequirements(limits={"cpu": cpu}))(BASE)

    assert equal_by_kubelet(amounts("1"), amounts("1000m"))
    assert not equal_by_kubelet(amounts("1"), amounts("2"))
    assert not equal_by_kubelet(
        amounts("1"), on_container(resources=ResourceRequirements(limits={"memory": "1"}))(BASE)
    )


@pytest.mark.parametrize("place", ["limits", "requests", "allocated"])
def test_quantities_are_compared_by_value_in_every_field(place: str) -> None:
    def amounts(cpu: str) -> PodStatus:
        amount: dict[str, int | float | str] = {"cpu": cpu}
        if place == "allocated":
            return on_container(allocated_resources=amount)(BASE)
        stated = ResourceRequirements(limits=amount) if place == "limits" else ResourceRequirements(requests=amount)
        return on_container(resources=stated)(BASE)

    assert equal_by_kubelet(amounts("1"), amounts("1000m"))
    assert not equal_by_kubelet(amounts("1"), amounts("1001m"))


HALF_PAST = "2000-01-01T00:00:00.75Z"  # the API stores whole seconds
WHOLE = "2000-01-01T00:00:00Z"


def test_every_time_is_in_whole_seconds_of_utc() -> None:
    for time, expected in ((HALF_PAST, WHOLE), ("2000-01-01T02:00:00+02:00", WHOLE), (WHOLE, WHOLE), (None, None)):
        ended = ContainerState(terminated=ContainerStateTerminated(exit_code=1, started_at=time, finished_at=time))
        runs = ContainerState(running=ContainerStateRunning(started_at=time))
        first, second = ContainerStatus(name="a", state=runs, last_state=ended), ContainerStatus(name="b", state=ended)
        status = normalised(SPEC, PodStatus(container_statuses=(first, second), start_time=time))
        assert status.start_time == expected
        found = status.container_statuses
        assert found is not None
        assert [found[0].state.running, found[0].last_state.terminated, found[1].state.terminated] == [
            ContainerStateRunning(started_at=expected),
            ContainerStateTerminated(exit_code=1, started_at=expected, finished_at=expected),
            ContainerStateTerminated(exit_code=1, started_at=expected, finished_at=expected),
        ]


@pytest.mark.parametrize("probed", [HALF_PAST, WHOLE, None])
@pytest.mark.parametrize("changed", [HALF_PAST, WHOLE, None])
def test_both_times_of_a_condition_are_in_whole_seconds(probed: str | None, changed: str | None) -> None:
    given = replace(condition("Ready", since=changed), last_probe_time=probed)
    (found,) = normalised(SPEC, PodStatus(conditions=(given,), start_time=changed)).conditions or ()
    assert found == replace(given, last_probe_time=probed and WHOLE, last_transition_time=changed and WHOLE)


def test_read_only_false_and_absent_are_equal() -> None:
    explicit, absent = (
        on_container(volume_mounts=(VolumeMountStatus(name="v", read_only=read_only),))(BASE)
        for read_only in (False, None)
    )
    assert equal_by_kubelet(explicit, absent)


def changed_statuses() -> st.SearchStrategy[PodStatus]:
    """The base status after up to two of the changes above. Two of them are often equal, often not."""
    changes = st.lists(st.sampled_from([*EQUAL.values(), *DIFFERENT.values()]), max_size=2)
    return changes.map(lambda chosen: normalised(SPEC, reduce(lambda status, change: change(status), chosen, BASE)))


@given(changed_statuses(), changed_statuses(), changed_statuses())
def test_equality_is_an_equivalence(a: PodStatus, b: PodStatus, c: PodStatus) -> None:
    assert equal_by_kubelet(a, a)
    assert equal_by_kubelet(a, b) == equal_by_kubelet(b, a)
    assert not (equal_by_kubelet(a, b) and equal_by_kubelet(b, c)) or equal_by_kubelet(a, c)


@given(pod_statuses(), st.data())
def test_statuses_that_differ_only_in_fields_of_others_are_equal(status: PodStatus, data: st.DataObject) -> None:
    times = st.sampled_from([None, T0, T1])
    changed_statuses = tuple(replace(each, last_transition_time=data.draw(times)) for each in status.conditions or ())
    other = replace(status, conditions=(*changed_statuses, condition("example.com/added")))
    assert equal_by_kubelet(normalised(SPEC, status), normalised(SPEC, other))
