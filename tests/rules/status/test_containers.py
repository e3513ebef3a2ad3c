from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.k8s.core import (
    Container,
    ContainerStatus,
    EphemeralContainer,
    Pod,
    VolumeMount,
    VolumeMountStatus,
)
from podkeeper.model.runtime import ContainerRecord, LinuxUser, PodRecord, RecordState
from podkeeper.rules.status.containers import (
    ContainerView,
    StartFailure,
    ephemeral_statuses,
    init_statuses,
    regular_statuses,
)
from podkeeper.testing.build import container
from tests.rules.status.statuses import container_statuses, ended, exited, pod, running, sidecar, waiting

AT = datetime(2000, 1, 1, 0, 0, 7, 500000, tzinfo=UTC)
SINCE = "2000-01-01T00:00:07Z"
A, I1, S = container("a"), container("i"), sidecar("s")


def record(
    name: str = "a", state: str = "running", *, id: str = "1", exit_code: int = 0, restarts: int = 0, reason: str = ""
) -> ContainerRecord:
    return ContainerRecord(
        id=id,
        name=name,
        state=RecordState(state),
        image=f"{name}:seen",
        image_id=f"sha256:{name}",
        restart_count=restarts,
        started_at=AT,
        finished_at=AT,
        exit_code=exit_code,
        reason=reason,
    )


def view(
    *records: ContainerRecord,
    of: Pod | None = None,
    failures: dict[str, StartFailure] | None = None,
    restarting_all: bool = False,
) -> ContainerView:
    return ContainerView(
        pod=of or pod(A),
        record=PodRecord(uid="u1", containers=records),
        runtime_name="fake",
        start_failures=failures or {},
        restarting_all=restarting_all,
    )


def the_status(seen: ContainerView, *old: ContainerStatus) -> ContainerStatus:
    (status,) = regular_statuses(seen, old)
    return status


def brief(status: ContainerStatus) -> str:
    """`state last restarts`, such as `exited(1):Error - 2`."""

    def state(found: object) -> str:
        running, terminated, waiting = (getattr(found, each) for each in ("running", "terminated", "waiting"))
        if terminated is not None:
            return f"exited({terminated.exit_code}):{terminated.reason or ''}"
        if waiting is not None:
            return f"waiting:{waiting.reason or ''}"
        return "running" if running is not None else "-"

    return f"{state(status.state)} {state(status.last_state)} {status.restart_count}"


def counted(status: ContainerStatus, restarts: int, **changes: object) -> ContainerStatus:
    return replace(status, restart_count=restarts, **changes)


LOST = "exited(137):ContainerStatusUnknown"
AGAIN = "RestartingAllContainers"
BACKOFF = {"a": StartFailure("CrashLoopBackOff", "back-off 10s")}

REGULAR: dict[str, tuple[ContainerView, tuple[ContainerStatus, ...], str]] = {
    "never created": (view(), (), "waiting:ContainerCreating - 0"),
    "never created, with init containers": (view(of=pod(A, init=(I1,))), (), "waiting:PodInitializing - 0"),
    "still waiting, with an old last state": (
        view(), (counted(waiting("a", reason="X", last=ended(1)), 4),), "waiting:ContainerCreating exited(1): 4"),
    "runs": (view(record(restarts=2)), (), "running - 2"),
    "only created": (view(record(state="created")), (), "waiting: - 0"),
    "exited": (view(record(state="exited", exit_code=3, reason="Error")), (), "exited(3):Error - 0"),
    "in unknown state, never running before": (view(record(state="unknown")), (), "waiting: - 0"),
    "in unknown state, running before": (
        view(record(state="unknown")), (counted(running("a"), 2),), f"{LOST} - 3"),
    "the previous record is the last state": (
        view(record(id="2", restarts=1), record(id="1", state="exited", exit_code=1)), (), "running exited(1): 1"),
    "older records are ignored": (
        view(record(id="3"), record(id="2", state="exited", exit_code=2), record(id="1", state="exited", exit_code=1)),
        (), "running exited(2): 0"),
    "a container that never started hides no exit code": (
        view(record(id="3", restarts=2), record(id="2", state="created", restarts=1),
             record(id="1", state="exited", exit_code=3)),
        (), "running exited(3): 2"),
    "a container that never started does not replace the old last state": (
        view(record(id="3", restarts=2), record(id="2", state="created", restarts=1)), (exited("a", 9),),
        "running exited(9): 2"),
    "the runtime has removed the previous container": (
        view(record(id="2", restarts=1)), (exited("a", 9),), "running exited(9): 1"),
    "the runtime has removed the two previous containers": (
        view(record(id="1")), (replace(running("a"), last_state=exited("a", 8).state),), "running exited(8): 0"),
    "the current exit is not the last state": (
        view(record(id="a", state="exited", exit_code=9)), (exited("a", 9),), "exited(9): - 0"),
    "the count of the runtime restarts at 0, ours continues": (
        view(record()), (counted(running("a"), 5),), "running - 5"),
    "it restarted, and the runtime did not count it": (
        view(record(id="2", restarts=0)), (counted(exited("a", 1), 5),), "running exited(1): 6"),
    "exited and removed: the exit stays": (view(), (counted(exited("a", 3), 2),), "exited(3): - 2"),
    "ran and disappeared: its exit is unknown": (
        view(), (counted(running("a"), 2),), f"waiting:ContainerCreating {LOST} 3"),
    "ran and disappeared during deletion: not a restart": (
        view(of=pod(A, deleted=True)), (counted(running("a"), 2),), f"waiting:ContainerCreating {LOST} 2"),
    "ran and disappeared, with an earlier exit": (
        view(), (counted(replace(running("a"), last_state=exited("a", 1).state), 2),),
        "waiting:ContainerCreating exited(1): 2"),
    "could not start": (view(failures=BACKOFF), (), "waiting:CrashLoopBackOff - 0"),
    "exited and could not restart": (
        view(record(state="exited", exit_code=1), failures=BACKOFF), (), "waiting:CrashLoopBackOff exited(1): 0"),
    "a failure of a container that need not start is not shown": (
        view(record(state="exited"), failures=BACKOFF, of=pod(A, policy="Never")), (), "exited(0): - 0"),
    "a start failure of a running container is not shown": (view(record(), failures=BACKOFF), (), "running - 0"),
    "a start failure in a pod that is being deleted is not shown": (
        view(failures=BACKOFF, of=pod(A, deleted=True)), (), "waiting:ContainerCreating - 0"),
    "removed for a restart of all containers": (
        view(restarting_all=True), (counted(running("a"), 1),), f"waiting:{AGAIN} exited(137):{AGAIN} 2"),
    "exited and removed for a restart of all containers": (
        view(restarting_all=True), (counted(exited("a", 42), 1),), f"waiting:{AGAIN} exited(137):{AGAIN} 2"),
    "already waiting during a restart of all containers": (
        view(restarting_all=True), (counted(waiting("a", last=ended(1)), 1),),
        "waiting:ContainerCreating exited(1): 1"),
    "lost during a restart of all containers": (
        view(record(state="unknown"), restarting_all=True), (running("a"),), f"exited(137):{AGAIN} - 1"),
}  # fmt: skip


@pytest.mark.parametrize("seen, old, expected", REGULAR.values(), ids=REGULAR.keys())
def test_a_regular_container(seen: ContainerView, old: tuple[ContainerStatus, ...], expected: str) -> None:
    assert brief(the_status(seen, *old)) == expected


def test_fields_from_the_runtime() -> None:
    status = the_status(view(record(state="exited", exit_code=1)))
    assert (status.image, status.image_id, status.container_id) == ("a:seen", "sha256:a", "fake://1")
    terminated = status.state.terminated
    assert terminated is not None
    assert (terminated.started_at, terminated.finished_at, terminated.container_id) == (SINCE, SINCE, "fake://1")


def test_the_image_reference_is_shown_instead_of_the_image_id() -> None:
    assert the_status(view(replace(record(), image_ref="reg.test/a@sha256:5"))).image_id == "reg.test/a@sha256:5"


def test_a_running_container_keeps_its_started_flag_until_a_probe_result() -> None:
    seen, unseen = (replace(running("a", started=each), container_id="fake://1") for each in (True, None))
    assert the_status(view(record()), seen).started is True
    assert the_status(view(record()), unseen).started is None
    assert the_status(view(record(state="exited")), seen).started is None
    assert the_status(view(record())).started is None


def test_the_started_flag_of_the_last_container_does_not_apply_to_the_next() -> None:
    before = replace(running("a", started=True), container_id="fake://0")
    assert the_status(view(record()), before).started is None


def test_the_user_of_a_container_is_shown() -> None:
    user = LinuxUser(uid=1, gid=2, supplemental_groups=(3,))
    found = ContainerRecord(id="1", name="a", state=RecordState.RUNNING, user=user)
    shown = the_status(view(found)).user
    assert shown is not None
    assert shown.linux is not None
    assert (shown.linux.uid, shown.linux.gid, shown.linux.supplemental_groups) == (1, 2, (3,))


def mounted(**mount: object) -> Container:
    return replace(A, volume_mounts=(VolumeMount(name="v", mount_path="/v", **mount),))  # type: ignore[arg-type]  # any field


MOUNTS: dict[str, tuple[Container, bool, bool | None, str | None]] = {
    "writable": (mounted(), True, None, None),
    "read-only": (mounted(read_only=True), True, True, "Disabled"),
    "recursive, supported by the runtime": (
        mounted(read_only=True, recursive_read_only="Enabled"), True, True, "Enabled"),
    "recursive, not supported by the runtime": (
        mounted(read_only=True, recursive_read_only="IfPossible"), False, True, "Disabled"),
    "recursive, with mount propagation": (
        mounted(read_only=True, recursive_read_only="IfPossible", mount_propagation="HostToContainer"),
        True, True, "Disabled"),
}  # fmt: skip


@pytest.mark.parametrize("spec, supported, read_only, mode", MOUNTS.values(), ids=MOUNTS.keys())
def test_mounts(spec: Container, supported: bool, read_only: bool | None, mode: str | None) -> None:
    seen = ContainerView(pod=pod(spec), record=PodRecord(uid="u1"), runtime_name="fake", recursive_read_only=supported)
    expected = VolumeMountStatus(name="v", mount_path="/v", read_only=read_only, recursive_read_only=mode)
    assert the_status(seen).volume_mounts == (expected,)
    running_now = replace(the_status(seen), volume_mounts=(expected,))
    assert the_status(view(record(), of=pod(spec)), running_now).volume_mounts == (expected,)


INITS: dict[str, tuple[ContainerView, tuple[ContainerStatus, ...], str]] = {
    "done": (view(record("i", "exited"), of=pod(A, init=(I1,))), (), "exited(0): - 0"),
    "done, so an old start failure is not shown": (
        view(record("i", "exited"), of=pod(A, init=(I1,)), failures={"i": StartFailure("ErrImagePull")}), (),
        "exited(0): - 0"),
    "failed and could not restart": (
        view(record("i", "exited", exit_code=1), of=pod(A, init=(I1,)), failures={"i": StartFailure("ErrImagePull")}),
        (), "waiting:ErrImagePull exited(1): 0"),
    "removed, and a regular container exists": (
        view(record("a"), of=pod(A, init=(I1,))), (), "exited(0):Completed - 0"),
    "removed, and the regular container is in unknown state": (
        view(record("a", "unknown"), of=pod(A, init=(I1,))), (), "waiting:PodInitializing - 0"),
    "a removed sidecar restarts": (
        view(record("a"), of=pod(A, init=(S,))), (), "waiting:PodInitializing - 0"),
    "removed, and its exit is in the old status": (
        view(record("a"), of=pod(A, init=(I1,))), (exited("i", 5),), "exited(5): - 0"),
}  # fmt: skip


@pytest.mark.parametrize("seen, old, expected", INITS.values(), ids=INITS.keys())
def test_an_init_container(seen: ContainerView, old: tuple[ContainerStatus, ...], expected: str) -> None:
    (status,) = init_statuses(seen, old)
    assert brief(status) == expected


def test_regular_statuses_are_sorted_and_init_statuses_follow_the_spec() -> None:
    many = pod(container("z"), A, init=(container("y"), I1))
    assert [each.name for each in regular_statuses(view(of=many), None)] == ["a", "z"]
    assert [each.name for each in init_statuses(view(of=many), None)] == ["y", "i"]


def test_an_ephemeral_container_has_the_status_of_a_regular_one() -> None:
    debugged = pod(A)
    ephemeral = (EphemeralContainer(name="e", image="e:v1", target_container_name="a"),)
    debugged = replace(debugged, spec=replace(debugged.spec, ephemeral_containers=ephemeral))
    (status,) = ephemeral_statuses(view(of=debugged), None)
    assert (status.image, brief(status)) == ("e:v1", "waiting:ContainerCreating - 0")
    (status,) = ephemeral_statuses(view(record("e", "exited"), of=debugged), None)
    assert brief(status) == "exited(0): - 0"


def records() -> st.SearchStrategy[tuple[ContainerRecord, ...]]:
    every = [
        record(state=state.value, id=id, exit_code=code, restarts=restarts)
        for state, id, code, restarts in product(RecordState, ("a-0", "a-1"), (0, 1), (0, 2))
    ]
    return st.lists(st.sampled_from(every), max_size=3).map(tuple)


@given(records(), container_statuses("a"), st.booleans(), st.booleans(), st.sampled_from(["Always", "Never"]))
def test_restart_counts_never_decrease(
    found: tuple[ContainerRecord, ...], old: ContainerStatus, restarting_all: bool, fails: bool, policy: str
) -> None:
    seen = view(*found, of=pod(A, policy=policy), failures=BACKOFF if fails else {}, restarting_all=restarting_all)
    status = the_status(seen, old)
    assert status.restart_count >= old.restart_count
    if found and found[0].state is not RecordState.UNKNOWN:
        assert status.restart_count >= found[0].restart_count


@given(records(), st.none() | container_statuses("a"), st.booleans())
def test_a_container_is_in_one_state(
    found: tuple[ContainerRecord, ...], old: ContainerStatus | None, restarting_all: bool
) -> None:
    status = the_status(view(*found, restarting_all=restarting_all), *([] if old is None else [old]))
    states = (status.state.running, status.state.waiting, status.state.terminated)
    assert sum(state is not None for state in states) == 1
