"""What one sync has to do: tables of the plan. Its laws are in `test_plan_laws`."""

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod
from podkeeper.model.messages import ProbeResult
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, SandboxRecord
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.plan import compute_pod_actions, is_stranded
from podkeeper.rules.plan.actions import ContainerToKill, ContainerToReset, PodActions
from podkeeper.rules.plan.sandbox import SandboxChange, sandbox_change
from tests.rules.planning import CREATED, DEAD_SANDBOX, EXITED, RUNNING, SANDBOX, UNKNOWN, container, pod, ran, runtime

SUCCESS, FAILURE, UNDECIDED = ProbeResult

A, B = container("a"), container("b")
FIRST, NEXT = container("i"), container("j")
S, T = container("s", "Always"), container("t", "Always")
PROBED = container("p", "Always", probed=True)
RESETTER = container("r", "Never", rule="RestartAllContainers")


def plan(
    *,
    init: tuple[int, ...] = (),
    app: tuple[int, ...] = (),
    debug: tuple[int, ...] = (),
    kill: tuple[ContainerToKill, ...] = (),
    kill_pod: bool = False,
) -> PodActions:
    """A plan inside the sandbox there is."""
    return PodActions(
        sandbox_id="sb",
        kill_pod=kill_pod,
        init_containers_to_start=init,
        containers_to_start=app,
        ephemeral_containers_to_start=debug,
        containers_to_kill=kill,
    )


def anew(*, init: tuple[int, ...] = (), app: tuple[int, ...] = (), attempt: int = 1) -> PodActions:
    """A plan that begins in a new sandbox."""
    starting = PodActions(kill_pod=True, create_sandbox=True, attempt=attempt, sandbox_id="sb" if attempt else "")
    return replace(starting, init_containers_to_start=init, containers_to_start=app)


STOP_FOR_GOOD = PodActions(kill_pod=True, sandbox_id="sb", attempt=1)


def kill(identity: str, message: str, reason: KillReason) -> ContainerToKill:
    return ContainerToKill(identity, identity.partition("-")[0], message, reason)


APP_CASES = {
    "all containers of a new sandbox start": (pod(A, B), runtime(), plan(app=(0, 1))),
    "what runs is left alone": (pod(A, B), runtime(ran(A, RUNNING), ran(B, RUNNING)), plan()),
    "an exited one starts again": (pod(A, B), runtime(ran(A, EXITED), ran(B, RUNNING)), plan(app=(0,))),
    "one that was created but not started is started": (pod(A), runtime(ran(A, CREATED)), plan(app=(0,))),
    "only the newest record of a name counts": (
        pod(A), runtime(ran(A, RUNNING, run=1), ran(A, EXITED, 1)), plan(),
    ),
    "one in an unknown state is killed before it starts": (
        pod(A, B), runtime(ran(A, RUNNING), ran(B, UNKNOWN)),
        plan(app=(1,), kill=(
            kill("b-0", 'Container is in "unknown" state, try killing it before restart', KillReason.UNKNOWN),)),
    ),
    "a changed spec replaces what runs, even under Never": (
        pod(A, policy="Never"), runtime(ran(A, RUNNING, changed=True)),
        plan(app=(0,), kill=(
            kill("a-0", "Container a definition changed, will be restarted", KillReason.SPEC_CHANGED),)),
    ),
    "a success is enough under OnFailure": (
        pod(A, B, policy="OnFailure"), runtime(ran(A, EXITED), ran(B, RUNNING)), plan(),
    ),
    "a failure is not": (pod(A, B, policy="OnFailure"), runtime(ran(A, EXITED, 1), ran(B, RUNNING)), plan(app=(0,))),
    "a pod whose containers are all done is stopped": (
        pod(A, B, policy="Never"), runtime(ran(A, EXITED, 1), ran(B, EXITED)), plan(kill_pod=True),
    ),
    "a pod that is being deleted starts nothing": (
        pod(A, B, deleting=True), runtime(ran(A, EXITED, 1), ran(B, RUNNING)), plan(),
    ),
    "a container's own policy goes before the pod's": (
        pod(container("a", "Always"), B, policy="Never"), runtime(ran(A, EXITED), ran(B, RUNNING)), plan(app=(0,)),
    ),
    "a rule goes before the container's own policy": (
        pod(container("a", "Never", rule="Restart"), B), runtime(ran(A, EXITED, 42), ran(B, RUNNING)), plan(app=(0,)),
    ),
    "a debug container starts once": (
        pod(A, debug=("d", "e")), runtime(ran(A, RUNNING), ran(container("d"), EXITED)), plan(debug=(1,)),
    ),
    "a debug container does not wait for initialization": (
        pod(A, init=(FIRST,), debug=("d",)), runtime(ran(FIRST, RUNNING)), plan(debug=(0,)),
    ),
}  # fmt: skip

INIT_CASES = {
    "the first init container of a new sandbox starts alone": (pod(A, init=(FIRST, NEXT)), runtime(), plan(init=(0,))),
    "while it runs, all wait": (pod(A, init=(FIRST, NEXT)), runtime(ran(FIRST, RUNNING)), plan()),
    "its success lets the next one start": (pod(A, init=(FIRST, NEXT)), runtime(ran(FIRST, EXITED)), plan(init=(1,))),
    "the last success lets the app start": (pod(A, init=(FIRST, NEXT)), runtime(ran(NEXT, EXITED)), plan(app=(0,))),
    "a failed one is tried again": (pod(A, init=(FIRST, NEXT)), runtime(ran(FIRST, EXITED, 1)), plan(init=(0,))),
    "a failed one ends a pod that runs once": (
        pod(A, init=(FIRST, NEXT), policy="Never"), runtime(ran(FIRST, EXITED, 1)), plan(kill_pod=True),
    ),
    "unless its own policy says otherwise": (
        pod(A, init=(container("i", "OnFailure"),), policy="Never"), runtime(ran(FIRST, EXITED, 1)), plan(init=(0,)),
    ),
    "or a rule does": (
        pod(A, init=(container("i", "Never", rule="Restart"),)), runtime(ran(FIRST, EXITED, 42)), plan(init=(0,)),
    ),
    "out of memory is a failure whatever the exit code": (
        pod(A, init=(FIRST,)), runtime(ran(FIRST, EXITED, 0, reason="OOMKilled")), plan(init=(0,)),
    ),
    "one that was created but not started is started": (
        pod(A, init=(FIRST,)), runtime(ran(FIRST, CREATED)), plan(init=(0,)),
    ),
    "one in an unknown state is killed before it is tried again": (
        pod(A, init=(FIRST,)), runtime(ran(FIRST, UNKNOWN)),
        plan(init=(0,), kill=(
            kill("i-0", 'Init container is in "unknown" state, try killing it before restart', KillReason.UNKNOWN),)),
    ),
    "one in an unknown state ends a pod that runs once": (
        pod(A, init=(FIRST,), policy="Never"), runtime(ran(FIRST, UNKNOWN)), plan(kill_pod=True),
    ),
    "those removed by the runtime are not run again": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(NEXT, RUNNING)), plan(),
    ),
    "a running app shows that initialization is done": (pod(A, init=(FIRST, NEXT)), runtime(ran(A, RUNNING)), plan()),
    "so does an app that was only created": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(A, CREATED)), plan(app=(0,)),
    ),
    "an exited app does not, it may be of the sandbox before": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(A, EXITED)), plan(init=(0,)),
    ),
    "a changed image does not run an init container again": (
        pod(A, init=(FIRST,)), runtime(ran(FIRST, EXITED, changed=True), ran(A, RUNNING)), plan(),
    ),
}  # fmt: skip

SIDECAR_CASES = {
    "a running sidecar lets the next one start": (pod(A, init=(S, NEXT)), runtime(ran(S, RUNNING)), plan(init=(1,))),
    "one that died early comes back before the next": (
        pod(A, init=(S, NEXT)), runtime(ran(S, EXITED)), plan(init=(0,)),
    ),
    "one behind the frontier comes back beside it": (
        pod(A, init=(S, NEXT)), runtime(ran(S, EXITED, 1), ran(NEXT, RUNNING)), plan(init=(0,)),
    ),
    "a lost one comes back in a running pod": (pod(A, init=(S, T)), runtime(ran(A, RUNNING)), plan(init=(0, 1))),
    "one comes back although the pod runs once": (
        pod(A, init=(S,), policy="Never"), runtime(ran(S, EXITED), ran(A, RUNNING)), plan(init=(0,)),
    ),
    "none comes back when the app is done": (
        pod(A, init=(S, T), policy="Never"), runtime(ran(S, EXITED), ran(T, RUNNING), ran(A, EXITED)),
        plan(kill_pod=True),
    ),
    "one with a changed spec is replaced, and lets the next one start": (
        pod(A, init=(S, NEXT)), runtime(ran(S, RUNNING, changed=True)),
        plan(init=(0, 1), kill=(kill("s-0", "Init container s definition changed", KillReason.SPEC_CHANGED),)),
    ),
    "one in an unknown state is killed and started": (
        pod(A, init=(S,)), runtime(ran(S, UNKNOWN), ran(A, RUNNING)),
        plan(init=(0,), kill=(
            kill("s-0", 'Init container is in "unknown" state, try killing it before restart', KillReason.UNKNOWN),)),
    ),
}  # fmt: skip

SANDBOX_CASES = {
    "a new pod gets a sandbox and all its containers": (pod(A, B), runtime(sandbox=None), anew(app=(0, 1), attempt=0)),
    "with init containers only the first of these": (
        pod(A, B, init=(FIRST, NEXT)), runtime(sandbox=None), anew(init=(0,), attempt=0),
    ),
    "a dead sandbox is replaced and all begins anew": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(NEXT, EXITED), ran(A, RUNNING), sandbox=DEAD_SANDBOX), anew(init=(0,)),
    ),
    "not for a pod that runs once and has run": (
        pod(A, policy="Never"), runtime(ran(A, EXITED, 1), sandbox=DEAD_SANDBOX), STOP_FOR_GOOD,
    ),
    "but if all its sandboxes are lost, it has not run": (
        pod(A, policy="Never"), runtime(ran(A, EXITED, 1), sandbox=None), anew(app=(0,), attempt=0),
    ),
    "and if it never came to run, its sandbox is tried again": (
        pod(A, policy="Never"), runtime(sandbox=DEAD_SANDBOX), anew(app=(0,)),
    ),
    "a new sandbox does not repeat a success under OnFailure": (
        pod(A, B, policy="OnFailure"), runtime(ran(A, EXITED), ran(B, EXITED, 1), sandbox=DEAD_SANDBOX), anew(app=(1,)),
    ),
    "with nothing left to do there is no new sandbox": (
        pod(A, policy="OnFailure"), runtime(ran(A, EXITED), sandbox=DEAD_SANDBOX), STOP_FOR_GOOD,
    ),
    "a pod without app containers in its spec still initializes": (
        pod(init=(FIRST,)), runtime(ran(FIRST, EXITED), sandbox=DEAD_SANDBOX), anew(init=(0,)),
    ),
}  # fmt: skip


def case_table(
    cases: dict[str, tuple[Pod, PodRecord, PodActions]],
) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("spec, record, expected", cases.values(), ids=cases.keys())


@case_table(APP_CASES)
def test_app_containers(spec: Pod, record: PodRecord, expected: PodActions) -> None:
    assert compute_pod_actions(spec, record, {}, {}) == expected


@case_table(INIT_CASES)
def test_init_containers(spec: Pod, record: PodRecord, expected: PodActions) -> None:
    assert compute_pod_actions(spec, record, {}, {}) == expected


@case_table(SIDECAR_CASES)
def test_sidecars(spec: Pod, record: PodRecord, expected: PodActions) -> None:
    assert compute_pod_actions(spec, record, {}, {}) == expected


@case_table(SANDBOX_CASES)
def test_a_new_sandbox(spec: Pod, record: PodRecord, expected: PodActions) -> None:
    assert compute_pod_actions(spec, record, {}, {}) == expected


STRANDED = {
    "only a sidecar has begun": (pod(A, init=(S,), policy="Never"), (ran(S, EXITED, 255),), True),
    "it is initialised, and nothing more": (pod(A, init=(FIRST,), policy="Never"), (ran(FIRST, EXITED),), True),
    "one container has yet to begin": (pod(A, B, policy="Never"), (ran(A, EXITED, 1), ran(B, CREATED)), True),
    "all have begun: their ends tell": (pod(A, B, policy="Never"), (ran(A, EXITED, 1), ran(B, EXITED)), False),
    "nothing has begun: it may begin anew": (pod(A, policy="Never"), (), False),
    "it runs again": (pod(A, init=(FIRST,)), (ran(FIRST, EXITED),), False),
}  # fmt: skip


@pytest.mark.parametrize("spec, found, expected", STRANDED.values(), ids=STRANDED.keys())
def test_a_pod_that_lost_its_sandbox_is_stranded(spec: Pod, found: tuple[ContainerRecord, ...], expected: bool) -> None:
    assert is_stranded(spec, runtime(*found, sandbox=DEAD_SANDBOX)) is expected
    assert not is_stranded(spec, runtime(*found))


APP_PROBES = {
    "no result yet keeps it": ("Always", None, None, plan()),
    "success keeps it": ("Always", SUCCESS, SUCCESS, plan()),
    "an undecided result keeps it": ("Always", UNDECIDED, UNDECIDED, plan()),
    "a failed liveness probe restarts it": ("Always", FAILURE, SUCCESS, plan(app=(0,), kill=(
        kill("a-0", "Container a failed liveness probe, will be restarted", KillReason.LIVENESS_PROBE),))),
    "a failed startup probe restarts it": ("OnFailure", SUCCESS, FAILURE, plan(app=(0,), kill=(
        kill("a-0", "Container a failed startup probe, will be restarted", KillReason.STARTUP_PROBE),))),
    "of two failures liveness is named": ("Always", FAILURE, FAILURE, plan(app=(0,), kill=(
        kill("a-0", "Container a failed liveness probe, will be restarted", KillReason.LIVENESS_PROBE),))),
    "under Never it only ends": ("Never", FAILURE, None, plan(kill_pod=True, kill=(
        kill("a-0", "Container a failed liveness probe", KillReason.LIVENESS_PROBE),))),
}  # fmt: skip


@pytest.mark.parametrize("policy, liveness, startup, expected", APP_PROBES.values(), ids=APP_PROBES.keys())
def test_probes_of_an_app_container(
    policy: str, liveness: ProbeResult | None, startup: ProbeResult | None, expected: PodActions
) -> None:
    results = [{} if result is None else {"a-0": result} for result in (liveness, startup)]
    assert compute_pod_actions(pod(A, policy=policy), runtime(ran(A, RUNNING)), results[0], results[1]) == expected


SIDECAR_PROBES = {
    "it has not started before its startup probe says so": (None, None, plan()),
    "nor while that is undecided": (SUCCESS, UNDECIDED, plan()),
    "then the next one may start": (None, SUCCESS, plan(init=(1,))),
    "a failed startup probe restarts it and holds the next one back": (SUCCESS, FAILURE, plan(init=(0,), kill=(
        kill("p-0", "Init container p failed startup probe", KillReason.STARTUP_PROBE),))),
    "a failed liveness probe restarts it but does not hold the next one back": (FAILURE, SUCCESS, plan(
        init=(0, 1), kill=(kill("p-0", "Init container p failed liveness probe", KillReason.LIVENESS_PROBE),))),
}  # fmt: skip


@pytest.mark.parametrize("liveness, startup, expected", SIDECAR_PROBES.values(), ids=SIDECAR_PROBES.keys())
def test_probes_of_a_sidecar(liveness: ProbeResult | None, startup: ProbeResult | None, expected: PodActions) -> None:
    results = [{} if result is None else {"p-0": result} for result in (liveness, startup)]
    spec, record = pod(A, init=(PROBED, NEXT)), runtime(ran(PROBED, RUNNING))
    assert compute_pod_actions(spec, record, results[0], results[1]) == expected


def test_results_count_for_a_sidecar_only_if_it_has_the_probe() -> None:
    stale = {"s-0": FAILURE}
    actions = compute_pod_actions(pod(A, init=(S,)), runtime(ran(S, RUNNING), ran(A, RUNNING)), stale, stale)
    assert actions == plan()


def test_when_all_start_over_those_that_asked_for_it_are_removed_last() -> None:
    spec = pod(RESETTER, A, init=(FIRST, S))
    record = runtime(
        ran(FIRST, EXITED), ran(S, RUNNING), ran(RESETTER, EXITED, 42, run=1), ran(RESETTER, EXITED, 1), ran(A, RUNNING)
    )
    assert compute_pod_actions(spec, record, {}, {}, restart_all_containers=True) == PodActions(
        sandbox_id="sb",
        containers_to_reset=(
            ContainerToReset("r-0", "r", kill_first=False),
            ContainerToReset("a-0", "a", kill_first=True),
            ContainerToReset("i-0", "i", kill_first=False),
            ContainerToReset("s-0", "s", kill_first=True),
            ContainerToReset("r-1", "r", kill_first=False),
        ),
    )


# The sandbox.

OLDER = SandboxRecord(id="older", ready=False, attempt=6)
NEWEST = replace(SANDBOX, attempt=7)

SANDBOXES = {
    "none: a first one": (False, (), SandboxChange(True, 0, "")),
    "the newest is ready: kept": (False, (NEWEST, OLDER), SandboxChange(False, 7, "sb")),
    "the newest is dead": (False, (replace(NEWEST, ready=False), OLDER), SandboxChange(True, 8, "sb")),
    "only an older one is ready": (
        False, (replace(NEWEST, ready=False), replace(OLDER, ready=True)), SandboxChange(True, 8, "sb")),
    "two are ready": (False, (NEWEST, replace(OLDER, ready=True)), SandboxChange(True, 8, "sb")),
    "the network changed: the old one is forgotten": (True, (NEWEST,), SandboxChange(True, 8, "")),
    "a runtime that does not tell its network means the pod's": (
        False, (replace(NEWEST, network=None),), SandboxChange(False, 7, "sb")),
    "it lost its address": (False, (replace(NEWEST, ip=""),), SandboxChange(True, 8, "sb")),
    "nothing is known of its address": (False, (replace(NEWEST, ip=None),), SandboxChange(False, 7, "sb")),
    "on the node's network it needs none": (
        True, (replace(NEWEST, network=NetworkMode.NODE, ip=""),), SandboxChange(False, 7, "sb")),
}  # fmt: skip


@pytest.mark.parametrize("host_network, sandboxes, expected", SANDBOXES.values(), ids=SANDBOXES.keys())
def test_sandbox(host_network: bool, sandboxes: tuple[SandboxRecord, ...], expected: SandboxChange) -> None:
    assert sandbox_change(host_network, sandboxes) == expected
