"""Tables of the plan of one sync. `test_laws` has its laws."""

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, Probe
from podkeeper.model.messages import ProbeResult
from podkeeper.model.runtime import ContainerRecord, NetworkMode, PodRecord, SandboxRecord
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.plan import compute_pod_actions, is_stranded
from podkeeper.rules.plan.actions import ContainerToKill, ContainerToReset, PodActions
from podkeeper.rules.plan.sandbox import SandboxChange, sandbox_change
from podkeeper.testing.build import container
from tests.rules.plan.planning import CREATED, DEAD_SANDBOX, EXITED, RUNNING, SANDBOX, UNKNOWN, debug, pod, ran, runtime

SUCCESS, FAILURE, UNKNOWN_RESULT = ProbeResult

A, B = container("a"), container("b")
FIRST, NEXT = container("i"), container("j")
S, T = container("s", restart_policy="Always"), container("t", restart_policy="Always")
PROBED = container("p", restart_policy="Always", liveness=Probe(), startup=Probe())
RESETTER = container("r", restart_policy="Never", restart_rule=("RestartAllContainers", 42))


def plan(
    *,
    init: tuple[int, ...] = (),
    app: tuple[int, ...] = (),
    debug: tuple[int, ...] = (),
    kill: tuple[ContainerToKill, ...] = (),
    kill_pod: bool = False,
) -> PodActions:
    """A plan in the current sandbox."""
    return PodActions(
        sandbox_id="sb",
        kill_pod=kill_pod,
        init_containers_to_start=init,
        containers_to_start=app,
        ephemeral_containers_to_start=debug,
        containers_to_kill=kill,
    )


def new_sandbox(*, init: tuple[int, ...] = (), app: tuple[int, ...] = (), attempt: int = 1) -> PodActions:
    """A plan with a new sandbox."""
    starting = PodActions(kill_pod=True, create_sandbox=True, attempt=attempt, sandbox_id="sb" if attempt else "")
    return replace(starting, init_containers_to_start=init, containers_to_start=app)


KILL_ONLY = PodActions(kill_pod=True, sandbox_id="sb", attempt=1)


def kill(identity: str, message: str, reason: KillReason) -> ContainerToKill:
    return ContainerToKill(identity, identity.partition("-")[0], message, reason)


APP_CASES = {
    "all containers of a new sandbox start": (pod(A, B), runtime(), plan(app=(0, 1))),
    "running containers are left alone": (pod(A, B), runtime(ran(A, RUNNING), ran(B, RUNNING)), plan()),
    "an exited container restarts": (pod(A, B), runtime(ran(A, EXITED), ran(B, RUNNING)), plan(app=(0,))),
    "a container that was created but not started is started": (pod(A), runtime(ran(A, CREATED)), plan(app=(0,))),
    "only the newest record of a name counts": (
        pod(A), runtime(ran(A, RUNNING, run=1), ran(A, EXITED, 1)), plan(),
    ),
    "a container in unknown state is killed before it starts": (
        pod(A, B), runtime(ran(A, RUNNING), ran(B, UNKNOWN)),
        plan(app=(1,), kill=(
            kill("b-0", 'Container is in "unknown" state, try killing it before restart', KillReason.UNKNOWN),)),
    ),
    "a changed spec replaces a running container, even with Never": (
        pod(A, policy="Never"), runtime(ran(A, RUNNING, changed=True)),
        plan(app=(0,), kill=(
            kill("a-0", "Container a definition changed, will be restarted", KillReason.SPEC_CHANGED),)),
    ),
    "with OnFailure, a success does not restart": (
        pod(A, B, policy="OnFailure"), runtime(ran(A, EXITED), ran(B, RUNNING)), plan(),
    ),
    "with OnFailure, a failure restarts": (
        pod(A, B, policy="OnFailure"), runtime(ran(A, EXITED, 1), ran(B, RUNNING)), plan(app=(0,))),
    "a pod whose containers have all completed is stopped": (
        pod(A, B, policy="Never"), runtime(ran(A, EXITED, 1), ran(B, EXITED)), plan(kill_pod=True),
    ),
    "a pod that is being deleted starts nothing": (
        pod(A, B, deleted=True), runtime(ran(A, EXITED, 1), ran(B, RUNNING)), plan(),
    ),
    "the policy of a container takes precedence over that of the pod": (
        pod(container("a", restart_policy="Always"), B, policy="Never"),
        runtime(ran(A, EXITED), ran(B, RUNNING)), plan(app=(0,)),
    ),
    "a rule takes precedence over the policy of the container": (
        pod(container("a", restart_policy="Never", restart_rule=("Restart", 42)), B),
        runtime(ran(A, EXITED, 42), ran(B, RUNNING)), plan(app=(0,)),
    ),
    "an ephemeral container starts once": (
        pod(A, debug=debug("d", "e")), runtime(ran(A, RUNNING), ran(container("d"), EXITED)), plan(debug=(1,)),
    ),
    "an ephemeral container does not wait for initialization": (
        pod(A, init=(FIRST,), debug=debug("d")), runtime(ran(FIRST, RUNNING)), plan(debug=(0,)),
    ),
}  # fmt: skip

INIT_CASES = {
    "the first init container of a new sandbox starts alone": (pod(A, init=(FIRST, NEXT)), runtime(), plan(init=(0,))),
    "while an init container runs, all others wait": (pod(A, init=(FIRST, NEXT)), runtime(ran(FIRST, RUNNING)), plan()),
    "after a success, the next init container starts": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(FIRST, EXITED)), plan(init=(1,))),
    "after the last success, the app container starts": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(NEXT, EXITED)), plan(app=(0,))),
    "a failed init container restarts": (pod(A, init=(FIRST, NEXT)), runtime(ran(FIRST, EXITED, 1)), plan(init=(0,))),
    "a failed init container terminates a pod with Never": (
        pod(A, init=(FIRST, NEXT), policy="Never"), runtime(ran(FIRST, EXITED, 1)), plan(kill_pod=True),
    ),
    "unless its own policy restarts it": (
        pod(A, init=(container("i", restart_policy="OnFailure"),), policy="Never"),
        runtime(ran(FIRST, EXITED, 1)), plan(init=(0,)),
    ),
    "unless a rule restarts it": (
        pod(A, init=(container("i", restart_policy="Never", restart_rule=("Restart", 42)),)),
        runtime(ran(FIRST, EXITED, 42)), plan(init=(0,)),
    ),
    "OOM-killed is a failure with any exit code": (
        pod(A, init=(FIRST,)), runtime(ran(FIRST, EXITED, 0, reason="OOMKilled")), plan(init=(0,)),
    ),
    "a container that was created but not started is started": (
        pod(A, init=(FIRST,)), runtime(ran(FIRST, CREATED)), plan(init=(0,)),
    ),
    "an init container in unknown state is killed before its restart": (
        pod(A, init=(FIRST,)), runtime(ran(FIRST, UNKNOWN)),
        plan(init=(0,), kill=(
            kill("i-0", 'Init container is in "unknown" state, try killing it before restart', KillReason.UNKNOWN),)),
    ),
    "an init container in unknown state terminates a pod with Never": (
        pod(A, init=(FIRST,), policy="Never"), runtime(ran(FIRST, UNKNOWN)), plan(kill_pod=True),
    ),
    "removed init containers do not run again": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(NEXT, RUNNING)), plan(),
    ),
    "a running app shows that initialization is done": (pod(A, init=(FIRST, NEXT)), runtime(ran(A, RUNNING)), plan()),
    "a created app container shows that initialization is done": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(A, CREATED)), plan(app=(0,)),
    ),
    "an exited app container does not, because it may be from the former sandbox": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(A, EXITED)), plan(init=(0,)),
    ),
    "a changed image does not restart an init container": (
        pod(A, init=(FIRST,)), runtime(ran(FIRST, EXITED, changed=True), ran(A, RUNNING)), plan(),
    ),
}  # fmt: skip

SIDECAR_CASES = {
    "after a sidecar has started, the next init container starts": (
        pod(A, init=(S, NEXT)), runtime(ran(S, RUNNING)), plan(init=(1,))),
    "a sidecar that exited early restarts before the next one": (
        pod(A, init=(S, NEXT)), runtime(ran(S, EXITED)), plan(init=(0,)),
    ),
    "a sidecar before the frontier restarts together with it": (
        pod(A, init=(S, NEXT)), runtime(ran(S, EXITED, 1), ran(NEXT, RUNNING)), plan(init=(0,)),
    ),
    "a missing sidecar restarts in a running pod": (pod(A, init=(S, T)), runtime(ran(A, RUNNING)), plan(init=(0, 1))),
    "a sidecar restarts even in a pod with Never": (
        pod(A, init=(S,), policy="Never"), runtime(ran(S, EXITED), ran(A, RUNNING)), plan(init=(0,)),
    ),
    "no sidecar restarts when the app has completed": (
        pod(A, init=(S, T), policy="Never"), runtime(ran(S, EXITED), ran(T, RUNNING), ran(A, EXITED)),
        plan(kill_pod=True),
    ),
    "a sidecar with a changed spec is replaced, and the next one starts": (
        pod(A, init=(S, NEXT)), runtime(ran(S, RUNNING, changed=True)),
        plan(init=(0, 1), kill=(kill("s-0", "Init container s definition changed", KillReason.SPEC_CHANGED),)),
    ),
    "a sidecar in unknown state is killed and started": (
        pod(A, init=(S,)), runtime(ran(S, UNKNOWN), ran(A, RUNNING)),
        plan(init=(0,), kill=(
            kill("s-0", 'Init container is in "unknown" state, try killing it before restart', KillReason.UNKNOWN),)),
    ),
}  # fmt: skip

SANDBOX_CASES = {
    "a new pod gets a sandbox and all its containers": (
        pod(A, B), runtime(sandbox=None), new_sandbox(app=(0, 1), attempt=0)),
    "with init containers, only the first one starts": (
        pod(A, B, init=(FIRST, NEXT)), runtime(sandbox=None), new_sandbox(init=(0,), attempt=0),
    ),
    "a dead sandbox is replaced and all containers start": (
        pod(A, init=(FIRST, NEXT)), runtime(ran(NEXT, EXITED), ran(A, RUNNING), sandbox=DEAD_SANDBOX),
        new_sandbox(init=(0,)),
    ),
    "a pod with Never that has run gets no new sandbox": (
        pod(A, policy="Never"), runtime(ran(A, EXITED, 1), sandbox=DEAD_SANDBOX), KILL_ONLY,
    ),
    "a pod with Never whose sandboxes are all missing has not run": (
        pod(A, policy="Never"), runtime(ran(A, EXITED, 1), sandbox=None), new_sandbox(app=(0,), attempt=0),
    ),
    "a pod with Never that has not run gets a new sandbox": (
        pod(A, policy="Never"), runtime(sandbox=DEAD_SANDBOX), new_sandbox(app=(0,)),
    ),
    "with OnFailure, a new sandbox does not repeat a success": (
        pod(A, B, policy="OnFailure"), runtime(ran(A, EXITED), ran(B, EXITED, 1), sandbox=DEAD_SANDBOX),
        new_sandbox(app=(1,)),
    ),
    "a completed pod gets no new sandbox": (
        pod(A, policy="OnFailure"), runtime(ran(A, EXITED), sandbox=DEAD_SANDBOX), KILL_ONLY,
    ),
    "a pod without app containers in its spec still initializes": (
        pod(init=(FIRST,), spec={"containers": ()}), runtime(ran(FIRST, EXITED), sandbox=DEAD_SANDBOX),
        new_sandbox(init=(0,)),
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
    "only a sidecar has started": (pod(A, init=(S,), policy="Never"), (ran(S, EXITED, 255),), True),
    "only its init container has completed": (pod(A, init=(FIRST,), policy="Never"), (ran(FIRST, EXITED),), True),
    "one container has not started": (pod(A, B, policy="Never"), (ran(A, EXITED, 1), ran(B, CREATED)), True),
    "all have started": (pod(A, B, policy="Never"), (ran(A, EXITED, 1), ran(B, EXITED)), False),
    "nothing has started": (pod(A, policy="Never"), (), False),
    "it restarts": (pod(A, init=(FIRST,)), (ran(FIRST, EXITED),), False),
}  # fmt: skip


@pytest.mark.parametrize("spec, found, expected", STRANDED.values(), ids=STRANDED.keys())
def test_a_pod_that_lost_its_sandbox_is_stranded(spec: Pod, found: tuple[ContainerRecord, ...], expected: bool) -> None:
    assert is_stranded(spec, runtime(*found, sandbox=DEAD_SANDBOX)) is expected
    assert not is_stranded(spec, runtime(*found))


APP_PROBES = {
    "no result yet keeps it": ("Always", None, None, plan()),
    "success keeps it": ("Always", SUCCESS, SUCCESS, plan()),
    "an unknown result keeps it": ("Always", UNKNOWN_RESULT, UNKNOWN_RESULT, plan()),
    "a failed liveness probe restarts it": ("Always", FAILURE, SUCCESS, plan(app=(0,), kill=(
        kill("a-0", "Container a failed liveness probe, will be restarted", KillReason.LIVENESS_PROBE),))),
    "a failed startup probe restarts it": ("OnFailure", SUCCESS, FAILURE, plan(app=(0,), kill=(
        kill("a-0", "Container a failed startup probe, will be restarted", KillReason.STARTUP_PROBE),))),
    "of two failures, the liveness probe is reported": ("Always", FAILURE, FAILURE, plan(app=(0,), kill=(
        kill("a-0", "Container a failed liveness probe, will be restarted", KillReason.LIVENESS_PROBE),))),
    "with Never, it is only killed": ("Never", FAILURE, None, plan(kill_pod=True, kill=(
        kill("a-0", "Container a failed liveness probe", KillReason.LIVENESS_PROBE),))),
}  # fmt: skip


@pytest.mark.parametrize("policy, liveness, startup, expected", APP_PROBES.values(), ids=APP_PROBES.keys())
def test_probes_of_an_app_container(
    policy: str, liveness: ProbeResult | None, startup: ProbeResult | None, expected: PodActions
) -> None:
    results = [{} if result is None else {"a-0": result} for result in (liveness, startup)]
    assert compute_pod_actions(pod(A, policy=policy), runtime(ran(A, RUNNING)), results[0], results[1]) == expected


SIDECAR_PROBES = {
    "without a startup result it has not started": (None, None, plan()),
    "with an unknown startup result it has not started": (SUCCESS, UNKNOWN_RESULT, plan()),
    "after a startup success, the next one starts": (None, SUCCESS, plan(init=(1,))),
    "a failed startup probe restarts it and blocks the next one": (SUCCESS, FAILURE, plan(init=(0,), kill=(
        kill("p-0", "Init container p failed startup probe", KillReason.STARTUP_PROBE),))),
    "a failed liveness probe restarts it but does not block the next one": (FAILURE, SUCCESS, plan(
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


def test_a_restart_of_all_containers_removes_its_cause_last() -> None:
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
    "no sandbox: the first one": (False, (), SandboxChange(True, 0, "")),
    "the newest is ready: it is kept": (False, (NEWEST, OLDER), SandboxChange(False, 7, "sb")),
    "the newest is dead": (False, (replace(NEWEST, ready=False), OLDER), SandboxChange(True, 8, "sb")),
    "only an older one is ready": (
        False, (replace(NEWEST, ready=False), replace(OLDER, ready=True)), SandboxChange(True, 8, "sb")),
    "two are ready": (False, (NEWEST, replace(OLDER, ready=True)), SandboxChange(True, 8, "sb")),
    "the network mode changed: there is no old sandbox": (True, (NEWEST,), SandboxChange(True, 8, "")),
    "without a reported network mode, it is that of the pod": (
        False, (replace(NEWEST, network=None),), SandboxChange(False, 7, "sb")),
    "it has no address any more": (False, (replace(NEWEST, ip=""),), SandboxChange(True, 8, "sb")),
    "its address is unknown": (False, (replace(NEWEST, ip=None),), SandboxChange(False, 7, "sb")),
    "in the host network it needs no address": (
        True, (replace(NEWEST, network=NetworkMode.NODE, ip=""),), SandboxChange(False, 7, "sb")),
}  # fmt: skip


@pytest.mark.parametrize("host_network, sandboxes, expected", SANDBOXES.values(), ids=SANDBOXES.keys())
def test_sandbox(host_network: bool, sandboxes: tuple[SandboxRecord, ...], expected: SandboxChange) -> None:
    assert sandbox_change(host_network, sandboxes) == expected
