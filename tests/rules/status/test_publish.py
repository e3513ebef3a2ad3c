from dataclasses import replace as changed

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    Container,
    ContainerStatus,
    EphemeralContainer,
    Pod,
    PodResourceClaimStatus,
    PodSpec,
    PodStatus,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION
from podkeeper.rules.patch.strategic import apply
from podkeeper.rules.status.conditions import find_condition, is_ours
from podkeeper.rules.status.normalise import equal_by_kubelet, normalised
from podkeeper.rules.status.phase import is_terminal
from podkeeper.rules.status.publish import (
    ApiSnapshot,
    CachedStatus,
    IllegalTransition,
    SendReason,
    Stored,
    StoreMode,
    Unchanged,
    accept,
    accept_status,
    aligned_with,
    can_be_deleted,
    continues,
    illegal_transition,
    is_behind,
    is_urgent,
    merged_status,
    needs_reconcile,
    send_reason,
    snapshot_of,
    status_digest,
    status_patch,
    versions_to_keep,
    would_revive,
)
from podkeeper.testing.build import container
from tests.rules.status.statuses import (
    NOON,
    NOW,
    T0,
    T1,
    condition,
    ended,
    exited,
    later,
    pod,
    pod_statuses,
    pods,
    running,
    sidecar,
    waiting,
)

A, I1, S = container("a"), container("i"), sidecar("s")
RUNS = PodStatus(phase="Running", container_statuses=(running("a"),))


def cached_status(status: PodStatus, *, version: int = 1, finished: bool = False) -> CachedStatus:
    return CachedStatus(version=version, name="web", namespace="ns", status=status, finished=finished, changed_at=None)


def stored(acceptance: object) -> CachedStatus:
    assert isinstance(acceptance, Stored)
    return acceptance.cached


# Accepting.


def test_a_first_status_gets_version_1_and_a_start_time() -> None:
    first = stored(accept_status(pod(A, generation=4), RUNS, None, None, NOW))
    assert (first.version, first.finished, first.changed_at) == (1, False, NOW)
    assert (first.name, first.namespace) == ("web", "ns")
    assert (first.status.start_time, first.status.observed_generation) == (NOON, 4)


def test_the_same_status_is_not_stored_again() -> None:
    first = stored(accept_status(pod(A), RUNS, None, None, NOW))
    assert accept_status(pod(A), RUNS, first, None, later(60)) == Unchanged()


def test_a_change_gets_the_next_version_and_keeps_the_time_of_the_oldest_unsent_change() -> None:
    first = stored(accept_status(pod(A), RUNS, None, None, NOW))
    second = stored(accept_status(pod(A), replace(RUNS, reason="R"), first, None, later(5)))
    assert (second.version, second.changed_at) == (2, NOW)
    merged = changed(second, changed_at=None)
    assert stored(accept_status(pod(A), RUNS, merged, None, later(9))).changed_at == later(9)


def test_a_pod_being_deleted_gets_a_new_version_even_without_a_change() -> None:
    first = stored(accept_status(pod(A, deleted=True), RUNS, None, None, NOW))
    assert stored(accept_status(pod(A, deleted=True), RUNS, first, None, NOW)).version == 2


def test_a_finished_status_stays_finished_except_for_a_static_pod() -> None:
    last = stored(accept(pod(A), RUNS, None, None, NOW, StoreMode.AS_LAST))
    assert last.finished
    again = replace(RUNS, reason="R")
    assert stored(accept_status(pod(A), again, last, None, NOW)).finished
    assert not stored(accept_status(pod(A, source="file"), again, last, None, NOW)).finished


def test_a_static_pod_has_the_start_time_of_its_mirror_pod() -> None:
    mirror = pod(A, status=PodStatus(start_time=T0))
    assert stored(accept_status(pod(A, source="file"), RUNS, None, mirror, NOW)).status.start_time == T0
    in_api = pod(A, status=PodStatus(start_time=T1))
    assert stored(accept_status(in_api, RUNS, None, None, NOW)).status.start_time == T1


def test_equal_conditions_take_their_times_from_the_api() -> None:
    timed = ("Ready", "ContainersReady", "Initialized", "PodReadyToStartContainers", "PodScheduled")
    shown = PodStatus(start_time=T0, conditions=tuple(condition(each, since=T0, reason="Old") for each in timed))
    ours = PodStatus(start_time=T1, conditions=tuple(condition(each, since=T1, reason="New") for each in timed))
    aligned = aligned_with(Pod(status=shown), ours, True)
    assert aligned == replace(
        ours, start_time=T0, conditions=tuple(replace(c, last_transition_time=T0) for c in ours.conditions or ())
    )


@pytest.mark.parametrize(
    "shown",
    [
        PodStatus(),
        PodStatus(conditions=(condition("Ready", "False", since=T0), condition("Initialized", since=T0))),
    ],
    ids=["the API shows nothing", "the API shows another condition status"],
)
def test_other_conditions_keep_their_times(shown: PodStatus) -> None:
    ours = PodStatus(start_time=T1, conditions=(condition("Ready", since=T1),))
    assert aligned_with(Pod(status=shown), ours, True) == ours


def test_a_status_that_revives_a_container_is_an_illegal_transition() -> None:
    first = stored(accept_status(pod(A, policy="Never"), PodStatus(container_statuses=(exited("a"),)), None, None, NOW))
    acceptance = accept_status(pod(A, policy="Never"), RUNS, first, None, NOW)
    assert acceptance == IllegalTransition(
        "terminated container a attempted illegal transition to non-terminated state"
    )


def test_the_observed_generation_never_decreases() -> None:
    first = stored(accept_status(pod(A, generation=5), RUNS, None, None, NOW))
    assert accept_status(pod(A, generation=3), RUNS, first, None, NOW) == Unchanged()


@given(pods(), st.lists(pod_statuses(), max_size=4))
def test_in_any_history_times_are_stable_and_versions_increase(given_pod: Pod, history: list[PodStatus]) -> None:
    cached: CachedStatus | None = None
    for index, status in enumerate(history):
        now = later(index)
        acceptance = accept_status(given_pod, status, cached, None, now)
        if not isinstance(acceptance, Stored):
            continue
        before, cached = cached, acceptance.cached
        assert cached.version == (1 if before is None else before.version + 1)
        old = given_pod.status if before is None else before.status
        assert before is None or cached.status.start_time == before.status.start_time
        assert (cached.status.observed_generation or 0) >= (old.observed_generation or 0)
        for each in cached.status.conditions or ():
            held = find_condition(old.conditions, each.type)
            if is_ours(each) and before is not None and held is not None and held.status == each.status:
                assert each.last_transition_time == held.last_transition_time


# Transitions of containers.

RULE = container("a", restart_policy="Never", restart_rule=("Restart", 42))
ALL = container("a", restart_policy="Never", restart_rule=("RestartAllContainers", 42))


def of(*found: ContainerStatus) -> PodStatus:
    return PodStatus(container_statuses=found)


def init_of(*found: ContainerStatus) -> PodStatus:
    return PodStatus(init_container_statuses=found)


REGULAR = "terminated container a attempted illegal transition to non-terminated state"
INIT = "terminated init container i attempted illegal transition to non-terminated state"
TRANSITIONS: dict[str, tuple[Pod, PodStatus, PodStatus, str | None]] = {
    "Always: any container may restart": (pod(A), of(exited("a")), of(running("a")), None),
    "Never: no container may restart": (pod(A, policy="Never"), of(exited("a", 1)), of(running("a")), REGULAR),
    "Never: no container may wait again": (pod(A, policy="Never"), of(exited("a", 1)), of(waiting("a")), REGULAR),
    "OnFailure: a failed container may restart": (
        pod(A, policy="OnFailure"), of(exited("a", 1)), of(running("a")), None),
    "OnFailure: a succeeded container may not restart": (
        pod(A, policy="OnFailure"), of(exited("a")), of(running("a")), REGULAR),
    "OnFailure of the pod overrides Never of the container": (
        pod(container("a", restart_policy="Never"), policy="OnFailure"), of(exited("a", 1)), of(running("a")), None),
    "a restart rule allows its exit code": (pod(RULE, policy="Never"), of(exited("a", 42)), of(running("a")), None),
    "a restart rule allows no other exit code": (
        pod(RULE, policy="Never"), of(exited("a", 1)), of(running("a")), REGULAR),
    "with RestartAllContainers, any container may restart": (
        pod(ALL, policy="Never"), of(exited("a")), of(running("a")), None),
    "an exit code may change": (pod(A, policy="Never"), of(exited("a")), of(exited("a", 1)), None),
    "a removed container did not restart": (pod(A, policy="Never"), of(exited("a")), of(), None),
    "a running container may wait": (pod(A, policy="Never"), of(running("a")), of(waiting("a")), None),
    "a succeeded init container may not restart": (
        pod(A, init=(I1,), policy="Never"), init_of(exited("i")), init_of(running("i")), INIT),
    "a failed init container may restart": (
        pod(A, init=(I1,), policy="OnFailure"), init_of(exited("i", 1)), init_of(running("i")), None),
    "a sidecar may always restart": (
        pod(A, init=(S,), policy="Never"), init_of(exited("s")), init_of(running("s")), None),
    "an init container status is in the wrong place": (
        pod(A, init=(S, I1), policy="Never"), init_of(exited("i")), init_of(),
        "found mismatch between pod spec and status, container: i"),
    "an init container is not in the spec": (
        pod(A, policy="Never"), init_of(waiting("i")), init_of(),
        "found mismatch between pod spec and status, container: i"),
}  # fmt: skip


@pytest.mark.parametrize("given_pod, old, new, problem", TRANSITIONS.values(), ids=TRANSITIONS.keys())
def test_illegal_transition(given_pod: Pod, old: PodStatus, new: PodStatus, problem: str | None) -> None:
    assert illegal_transition(given_pod.spec, old, new) == problem


@given(pods(), pod_statuses(), pod_statuses())
def test_a_container_that_may_not_restart_stays_terminated(given_pod: Pod, old: PodStatus, new: PodStatus) -> None:
    def plain(each: Container) -> Container:
        return replace(each, restart_policy=None, restart_policy_rules=None)

    spec = replace(
        given_pod.spec,
        restart_policy="Never",
        containers=tuple(map(plain, given_pod.spec.containers)),
        init_containers=tuple(map(plain, given_pod.spec.init_containers or ())),
    )
    ended = {each.name for each in old.container_statuses or () if each.state.terminated is not None}
    running = {each.name for each in new.container_statuses or () if each.state.terminated is None}
    assert not ended & running or illegal_transition(spec, old, new) is not None


# Sending.

FINISHED = pod(A, deleted=True, status=PodStatus(phase="Failed"))
LAST = cached_status(replace(RUNS, phase="Failed"), version=3, finished=True)
SEND_REASONS: dict[str, tuple[CachedStatus, int | None, bool, Pod | None, Pod | None, SendReason | None]] = {
    "never sent": (cached_status(RUNS), None, False, None, None, SendReason.NEW_VERSION),
    "an older version was sent": (cached_status(RUNS, version=2), 1, False, None, None, SendReason.NEW_VERSION),
    "this version was sent": (cached_status(RUNS), 1, False, FINISHED, FINISHED, None),
    "a wake-up sends only new versions": (LAST, 3, False, FINISHED, FINISHED, None),
    "the batch finds a pod that can be deleted": (LAST, 3, True, FINISHED, FINISHED, SendReason.DELETABLE),
    "the batch finds an overwritten status": (cached_status(RUNS), 1, True, pod(A), pod(A), SendReason.OVERWRITTEN),
    "nothing differs": (cached_status(RUNS), 1, True, pod(A), pod(A, status=RUNS), None),
    "an unknown pod": (cached_status(RUNS), 1, True, None, None, None),
    "a static pod is compared with its mirror pod only": (LAST, 3, True, None, FINISHED, SendReason.OVERWRITTEN),
}


@pytest.mark.parametrize("cached, sent, every, own, shown, reason", SEND_REASONS.values(), ids=SEND_REASONS.keys())
def test_send_reason(
    cached: CachedStatus, sent: int | None, every: bool, own: Pod | None, shown: Pod | None, reason: SendReason | None
) -> None:
    assert send_reason(cached, sent, every=every, pod=own, api_pod=shown) == reason


def test_an_equivalent_status_in_the_api_is_not_overwritten() -> None:
    in_api = replace(RUNS, start_time="2000-01-01T12:00:00.5Z", conditions=())
    assert not needs_reconcile(pod(A, status=in_api), cached_status(replace(RUNS, start_time=NOON)))


MIRROR = replace(FINISHED, metadata=ObjectMeta(deletion_timestamp=T0, annotations={CONFIG_MIRROR_ANNOTATION: "hash"}))
DELETIONS: dict[str, tuple[Pod, CachedStatus, bool]] = {
    "terminal and cleaned up": (FINISHED, LAST, True),
    "not deleted": (pod(A, status=PodStatus(phase="Failed")), LAST, False),
    "a mirror pod": (MIRROR, LAST, False),
    "not terminal in the API yet": (pod(A, deleted=True, status=PodStatus(phase="Running")), LAST, False),
    "not cleaned up yet": (FINISHED, changed(LAST, finished=False), False),
}


@pytest.mark.parametrize("given_pod, cached, expected", DELETIONS.values(), ids=DELETIONS.keys())
def test_can_be_deleted(given_pod: Pod, cached: CachedStatus, expected: bool) -> None:
    assert can_be_deleted(given_pod, cached) == expected


def test_versions_of_forgotten_pods_are_dropped() -> None:
    assert versions_to_keep({"u1": 1, "m2": 2, "u3": 3}, {"u1"}, {"m2"}) == {"u1": 1, "m2": 2}


def sent(in_api: PodStatus, new: PodStatus, *, could_run: bool = False) -> PodStatus:
    return merged_status(pod(A, status=in_api, generation=2), new, could_run=could_run, now=NOW).to_send


def test_a_new_terminal_phase_waits_until_no_container_can_run() -> None:
    in_api, new = PodStatus(phase="Running", reason="R", message="M"), PodStatus(phase="Failed", reason="Evicted")
    held = sent(in_api, new, could_run=True)
    assert (held.phase, held.reason, held.message) == ("Running", "R", "M")
    merged = sent(in_api, new)
    assert (merged.phase, merged.reason, merged.message) == ("Failed", "Evicted", None)


def test_a_pod_that_is_terminal_in_the_api_gets_another_terminal_phase_at_once() -> None:
    assert sent(PodStatus(phase="Succeeded"), PodStatus(phase="Failed"), could_run=True).phase == "Failed"


def test_a_terminal_pod_is_never_ready() -> None:
    ready = (condition("Ready", since=T0), condition("ContainersReady", "False", since=T1))
    merged = sent(PodStatus(phase="Running"), PodStatus(phase="Succeeded", conditions=ready))
    assert [(each.type, each.status, each.reason, each.last_transition_time) for each in merged.conditions or ()] == [
        ("Ready", "False", "PodCompleted", NOON),
        ("ContainersReady", "False", "PodCompleted", T1),
    ]


def test_a_disruption_is_sent_with_the_terminal_phase_and_gets_its_time() -> None:
    new = PodStatus(phase="Failed", conditions=(condition("Ready", "False"), condition("DisruptionTarget", since=T0)))
    merged = merged_status(pod(A, status=PodStatus(phase="Running")), new, could_run=False, now=NOW)
    for status in (merged.to_send, merged.cached):
        found = find_condition(status.conditions, "DisruptionTarget")
        assert found is not None
        assert found.last_transition_time == NOON


@pytest.mark.parametrize("phase, could_run", [("Running", True), ("Failed", False)])
def test_a_disruption_is_sent_only_with_a_new_terminal_phase(phase: str, could_run: bool) -> None:
    new = PodStatus(phase="Failed", conditions=(condition("DisruptionTarget", since=T0),))
    merged = merged_status(pod(A, status=PodStatus(phase=phase)), new, could_run=could_run, now=NOW)
    assert (merged.to_send.conditions, merged.cached) == (None, new)


def test_a_patch_has_the_changes_and_the_uid() -> None:
    in_api = PodStatus(phase="Pending", reason="R", pod_ip="10.0.0.2")
    patch = status_patch(pod(A, status=in_api), PodStatus(phase="Running", pod_ip="10.0.0.2"))
    assert patch == {"metadata": {"uid": "u1"}, "status": {"phase": "Running", "reason": None}}


def test_there_is_no_patch_without_a_change() -> None:
    assert status_patch(pod(A, status=RUNS), RUNS) is None


@given(pod_statuses(), pod_statuses())
def test_applying_the_patch_gives_the_status(in_api: PodStatus, desired: PodStatus) -> None:
    before = pod(A, status=in_api)
    patch = status_patch(before, desired)
    after = before.status
    if patch is not None:
        patched = apply(msgspec.json.decode(msgspec.json.encode(before)), patch, "v1/Pod")
        after = msgspec.convert(patched, Pod).status
    assert equal_by_kubelet(normalised(before.spec, after), normalised(before.spec, desired))


def test_resource_claims_of_the_api_are_kept() -> None:
    claims = (PodResourceClaimStatus(name="gpu"),)
    assert sent(PodStatus(resource_claim_statuses=claims), PodStatus()).resource_claim_statuses == claims
    assert sent(PodStatus(), PodStatus(resource_claim_statuses=claims)).resource_claim_statuses is None


@given(pod_statuses(), pod_statuses(), st.booleans())
def test_merging_keeps_conditions_of_other_writers_and_sends_ours(
    in_api: PodStatus, new: PodStatus, could_run: bool
) -> None:
    merged = sent(in_api, new, could_run=could_run)
    others = [each for each in in_api.conditions or () if each.type == "example.com/gate"]
    assert [each for each in merged.conditions or () if each.type == "example.com/gate"] == others
    ours = [each.type for each in new.conditions or () if is_ours(each)]
    assert [each.type for each in merged.conditions or () if is_ours(each)][: len(ours)] == ours
    ready = find_condition(merged.conditions, "Ready")
    assert not (is_terminal(merged.phase) and ready is not None and ready.status == "True")
    assert not (could_run and is_terminal(merged.phase) and not is_terminal(in_api.phase))


# Checkpoints of the last agent process.


def restarted(status: ContainerStatus, times: int) -> PodStatus:
    return PodStatus(phase="Running", container_statuses=(replace(status, restart_count=times),))


def statuses(*containers: ContainerStatus) -> PodStatus:
    return PodStatus(phase="Running", container_statuses=containers)


def in_backoff(name: str, *, of: str) -> ContainerStatus:
    last = replace(ended(1), container_id=of)
    return replace(waiting(name, reason="CrashLoopBackOff", last=last), container_id=f"fake://{name}")


BEHIND = {
    "the same status": (RUNS, RUNS, False),
    "the API has another restart": (restarted(running("a"), 3), restarted(running("a"), 4), True),
    "the checkpoint has another restart": (restarted(running("a"), 4), restarted(running("a"), 3), False),
    "the API shows the exit": (restarted(running("a"), 1), restarted(exited("a", 2), 1), True),
    "the API shows the exit and CrashLoopBackOff": (RUNS, statuses(in_backoff("a", of="fake://a")), True),
    "the API shows the exit of another container and CrashLoopBackOff": (
        RUNS,
        statuses(in_backoff("a", of="fake://b")),
        False,
    ),
    "both show the exit and CrashLoopBackOff": (
        statuses(in_backoff("a", of="fake://a")),
        statuses(in_backoff("a", of="fake://a")),
        False,
    ),
    "both show the exit, the checkpoint shows CrashLoopBackOff": (
        statuses(in_backoff("a", of="fake://a")),
        statuses(exited("a")),
        False,
    ),
    "both show the exit, the API shows CrashLoopBackOff": (
        statuses(exited("a")),
        statuses(in_backoff("a", of="fake://a")),
        False,
    ),
    "the checkpoint shows the exit": (restarted(exited("a", 2), 1), restarted(running("a"), 1), False),
    "the API shows a terminal phase": (RUNS, replace(RUNS, phase="Failed"), True),
    "the checkpoint shows a terminal phase": (replace(RUNS, phase="Failed"), RUNS, False),
    "an init container was restarted since": (
        PodStatus(init_container_statuses=(running("i"),)),
        PodStatus(init_container_statuses=(replace(running("i"), restart_count=1),)),
        True,
    ),
    "a container that is not in the checkpoint": (PodStatus(), restarted(running("a"), 1), False),
    "the API shows a running container": (statuses(waiting("a")), statuses(running("a")), True),
    "the API shows that the container ran": (statuses(waiting("a")), statuses(waiting("a", last=ended(1))), True),
    "the checkpoint shows that the container ran and waits": (
        statuses(waiting("a", last=ended(1))),
        statuses(running("a")),
        False,
    ),
    "the API shows a started container": (statuses(running("a", started=False)), statuses(running("a")), True),
    "the checkpoint shows a started container": (statuses(running("a")), statuses(running("a", started=False)), False),
    "another container has started": (statuses(replace(running("a", started=False), container_id="b")), RUNS, False),
    "the checkpoint shows the exit, the API a started container": (statuses(exited("a")), RUNS, False),
}


def checkpoint(status: PodStatus, shown: ApiSnapshot | None = None) -> CachedStatus:
    return CachedStatus(
        version=3, name="web", namespace="ns", status=status, finished=False, changed_at=None, shown=shown
    )


@pytest.mark.parametrize(("ours", "shown", "expected"), BEHIND.values(), ids=BEHIND.keys())
def test_a_checkpoint_is_behind_if_the_api_shows_progress(ours: PodStatus, shown: PodStatus, expected: bool) -> None:
    assert is_behind(checkpoint(ours), in_api(shown, "20")) is expected


@given(pod_statuses())
def test_a_checkpoint_is_never_behind_the_same_status(status: PodStatus) -> None:
    shown = snapshot_of(in_api(RUNS, "10"))
    assert not is_behind(checkpoint(status), in_api(status, "20"))
    assert not is_behind(checkpoint(status, shown), in_api(status, "20"))


def in_api(status: PodStatus, version: str, uid: str = "uid-web") -> Pod:
    return Pod(metadata=ObjectMeta(name="web", namespace="ns", uid=uid, resource_version=version), status=status)


NONE_READY = statuses(running("a", ready=False), running("b", ready=False))
B_READY = statuses(running("a", ready=False), running("b", ready=True))
ALL_READY = statuses(running("a", ready=True), running("b", ready=True))
I_UNREADY, I_READY = (replace(B_READY, init_container_statuses=(running("i", ready=each),)) for each in (False, True))
OTHERS_CONDITION = replace(NONE_READY, conditions=(condition("example.com/gate", "True"),))
READY_CONDITION = replace(NONE_READY, conditions=(condition("Ready", "False"),))

SENT_LATER = {
    "the API shows the old status": (B_READY, NONE_READY, "20", "uid-web", (), False),
    "the API shows the checkpoint": (B_READY, B_READY, "20", "uid-web", (), False),
    "the API shows the status in flight": (B_READY, ALL_READY, "20", "uid-web", (ALL_READY,), False),
    "the API shows the status sent before the last one": (
        B_READY,
        ALL_READY,
        "20",
        "uid-web",
        (ALL_READY, RUNS),
        False,
    ),
    "the API shows another status": (B_READY, ALL_READY, "20", "uid-web", (), True),
    "the API shows another status of an init container": (I_UNREADY, I_READY, "20", "uid-web", (), True),
    "the API shows another status than the one in flight": (B_READY, ALL_READY, "20", "uid-web", (RUNS,), True),
    "the API shows a container that is no longer ready": (ALL_READY, B_READY, "20", "uid-web", (), True),
    "another client set a condition": (B_READY, OTHERS_CONDITION, "20", "uid-web", (), False),
    "another client set the Ready condition": (B_READY, READY_CONDITION, "20", "uid-web", (), False),
    "the list is as old as the checkpoint": (B_READY, ALL_READY, "10", "uid-web", (), False),
    "the list is older than the checkpoint": (B_READY, ALL_READY, "9", "uid-web", (), False),
    "the versions cannot be compared": (B_READY, ALL_READY, "x", "uid-web", (), False),
    "the list has no version": (B_READY, ALL_READY, "", "uid-web", (), False),
    "another object": (B_READY, ALL_READY, "20", "uid-mirror", (), False),
    "the checkpoint shows the exit": (
        statuses(exited("a"), running("b", ready=False)),
        ALL_READY,
        "20",
        "uid-web",
        (),
        False,
    ),
    "the checkpoint shows a terminal phase": (
        replace(NONE_READY, phase="Failed"),
        ALL_READY,
        "20",
        "uid-web",
        (),
        False,
    ),
}


@pytest.mark.parametrize(
    ("ours", "shown", "version", "uid", "sent", "expected"), SENT_LATER.values(), ids=SENT_LATER.keys()
)
def test_a_checkpoint_is_behind_if_the_api_shows_a_later_status(
    ours: PodStatus, shown: PodStatus, version: str, uid: str, sent: tuple[PodStatus, ...], expected: bool
) -> None:
    snapshot = snapshot_of(in_api(NONE_READY, "10"), tuple(map(status_digest, sent)))
    assert is_behind(checkpoint(ours, snapshot), in_api(shown, version, uid)) is expected


CONTINUES = {
    "the same container": (RUNS, RUNS, True),
    "the same container has exited": (RUNS, statuses(exited("a")), True),
    "another container": (RUNS, statuses(replace(running("a"), container_id="fake://b")), False),
    "one container more": (RUNS, statuses(running("a"), running("b")), False),
    "another init container": (RUNS, replace(RUNS, init_container_statuses=(running("i"),)), False),
    "nothing has started": (statuses(waiting("a")), statuses(waiting("a")), True),
    "the pod is finished": (RUNS, replace(RUNS, phase="Failed"), False),
}


@pytest.mark.parametrize(("restored", "shown", "expected"), CONTINUES.values(), ids=CONTINUES.keys())
def test_continues(restored: PodStatus, shown: PodStatus, expected: bool) -> None:
    assert continues(restored, shown) is expected


@pytest.mark.parametrize(
    ("shown", "ours", "expected"),
    [
        (restarted(running("a"), 2), restarted(running("a"), 1), 2),
        (restarted(exited("a"), 2), restarted(running("a"), 1), 2),
        (restarted(running("a"), 1), restarted(running("a"), 2), 2),
        (restarted(replace(running("a"), container_id="fake://b"), 2), restarted(running("a"), 1), 1),
        (restarted(waiting("a"), 2), restarted(waiting("a"), 1), 1),
        (PodStatus(), restarted(running("a"), 1), 1),
    ],
    ids=["higher", "higher, and it exited", "lower", "of another container", "of no container", "not shown"],
)
@pytest.mark.parametrize("init", [False, True])
def test_the_restart_count_of_a_container_is_at_least_the_one_in_the_api(
    shown: PodStatus, ours: PodStatus, expected: int, init: bool
) -> None:
    if init:
        shown, ours = (
            replace(each, container_statuses=None, init_container_statuses=each.container_statuses)
            for each in (shown, ours)
        )
    raised = aligned_with(Pod(status=shown), ours, True)
    (found,) = (raised.init_container_statuses if init else raised.container_statuses) or ()
    assert found.restart_count == expected
    assert aligned_with(Pod(status=ours), ours, True) == ours
    assert aligned_with(Pod(status=shown), ours, False) == ours


REVIVALS = {
    "a failed pod becomes running":     ("Failed", "Running", False, True),
    "a succeeded pod becomes pending":     ("Succeeded", "Pending", False, True),
    "a failed pod stays failed":    ("Failed", "Failed", False, False),
    "a running pod stays running":        ("Running", "Running", False, False),
    "a running pod fails":       ("Running", "Failed", False, False),
    "a static pod runs again":     ("Failed", "Running", True, False),
}  # fmt: skip


@pytest.mark.parametrize(("shown", "ours", "mirror", "expected"), REVIVALS.values(), ids=REVIVALS.keys())
def test_would_revive(shown: str, ours: str, mirror: bool, expected: bool) -> None:
    annotations = {CONFIG_MIRROR_ANNOTATION: "u1"} if mirror else None
    in_api = Pod(metadata=ObjectMeta(name="web", annotations=annotations), status=PodStatus(phase=shown))
    assert would_revive(in_api, PodStatus(phase=ours)) is expected


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("in_spec", "shown", "ours", "expected"),
    [
        (["debug"], ["debug"], [], ["debug"]),
        (["debug", "more"], ["more", "debug"], ["debug"], ["debug", "more"]),
        (["debug"], ["debug"], ["debug"], ["debug"]),
        (["debug"], [], [], []),
        ([], ["debug"], [], []),
        ([], [], ["debug"], ["debug"]),
    ],
)
def test_ephemeral_containers_that_only_the_api_shows_are_added(
    in_spec: list[str], shown: list[str], ours: list[str], expected: list[str], first: bool
) -> None:
    def status(names: list[str], ready: bool = False) -> PodStatus:
        found = tuple(running(name, ready=ready) for name in names)
        return PodStatus(phase="Running", ephemeral_container_statuses=found or None)

    spec = PodSpec(containers=(A,), ephemeral_containers=tuple(EphemeralContainer(name=name) for name in in_spec))
    aligned = aligned_with(Pod(spec=spec, status=status(shown)), status(ours, ready=True), first)
    assert [(each.name, each.ready) for each in aligned.ephemeral_container_statuses or ()] == [
        (name, name in ours) for name in expected
    ]


def shown_as(phase: str, ready: str | None = None) -> PodStatus:
    other = condition("ContainersReady")
    return PodStatus(phase=phase, conditions=(other,) if ready is None else (other, condition("Ready", ready)))


PENDING, UNREADY, READY_POD = shown_as("Pending"), shown_as("Running", "False"), shown_as("Running", "True")
URGENT: dict[str, tuple[PodStatus | None, PodStatus, bool]] = {
    "a first status": (None, PENDING, False),
    "a first status that is not ready": (None, UNREADY, False),
    "a first status that is ready": (None, READY_POD, True),
    "a first status of a finished pod": (None, shown_as("Failed"), True),
    "it started to run": (PENDING, UNREADY, False),
    "it became ready": (UNREADY, READY_POD, True),
    "it became unready": (READY_POD, UNREADY, True),
    "it stays ready": (READY_POD, READY_POD, False),
    "its Ready condition is unknown": (READY_POD, shown_as("Running", "Unknown"), True),
    "it succeeded": (UNREADY, shown_as("Succeeded", "False"), True),
    "it failed": (PENDING, shown_as("Failed"), True),
    "it succeeded and is unready": (READY_POD, shown_as("Succeeded", "False"), True),
    "it stays finished": (shown_as("Failed"), shown_as("Succeeded"), False),
    "it runs again": (shown_as("Failed"), PENDING, True),
}


@pytest.mark.parametrize(("old", "new", "expected"), URGENT.values(), ids=URGENT.keys())
def test_a_status_is_urgent_if_the_pod_became_ready_or_unready_or_ended(
    old: PodStatus | None, new: PodStatus, expected: bool
) -> None:
    assert is_urgent(old, new) is expected
