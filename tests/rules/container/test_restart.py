"""Restart decisions: rules by exit code, then the container's policy, then the pod's."""

from functools import partial
from itertools import product

import pytest

from podkeeper.model.k8s.core import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
)
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.container.restart import (
    all_containers_are_removed,
    all_containers_should_restart,
    container_should_restart,
    could_restart_all,
    is_sidecar,
    matching_rule,
    restarts_after_exit,
    restarts_on_failure,
    runs_until_success,
)
from podkeeper.testing import build

POLICIES = [None, "Always", "OnFailure", "Never"]


def rule(action: str, operator: str, *codes: int) -> ContainerRestartRule:
    return ContainerRestartRule(
        action=action, exit_codes=ContainerRestartRuleOnExitCodes(operator=operator, values=codes or None)
    )


def ruled(policy: str | None = None, *rules: ContainerRestartRule, name: str = "c") -> Container:
    """A container with its own restart policy and rules."""
    return build.container(name, restart_policy=policy, restart_policy_rules=rules or None)


pod = partial(build.pod, "web")


def ran(state: str, code: int = 0, name: str = "c") -> ContainerRecord:
    return ContainerRecord(id=f"{name}-0", name=name, state=RecordState(state), exit_code=code)


EXITS = {
    "the pod's Always restarts a success": (ruled(), "Always", 0, True),
    "an unset policy is Always": (ruled(), None, 0, True),
    "an unknown policy is Always": (ruled(), "Sometimes", 0, True),
    "OnFailure leaves a success alone": (ruled(), "OnFailure", 0, False),
    "OnFailure restarts a failure": (ruled(), "OnFailure", 3, True),
    "Never restarts nothing": (ruled(), "Never", 3, False),
    "the container's policy has priority over the pod's": (ruled("Never"), "Always", 3, False),
    "the container's policy may restart in a pod with Never": (ruled("OnFailure"), "Never", 3, True),
    "an unknown policy of a container leaves it to the pod": (ruled("Sometimes"), "Never", 3, False),
    "a rule has priority over the container's policy": (ruled("Never", rule("Restart", "In", 3)), "Never", 3, True),
    "a rule that does not match is ignored": (ruled("Never", rule("Restart", "In", 4)), "Always", 3, False),
    "NotIn matches the codes it does not list": (ruled("Never", rule("Restart", "NotIn", 4)), "Never", 3, True),
    "NotIn does not match the codes it lists": (ruled("Never", rule("Restart", "NotIn", 3)), "Never", 3, False),
    "NotIn without codes matches all": (ruled("Never", rule("Restart", "NotIn")), "Never", 3, True),
    "RestartAllContainers restarts this one too": (
        ruled("Never", rule("RestartAllContainers", "In", 3)), "Never", 3, True),
    "a rule with an unknown action is ignored": (ruled("Never", rule("Dance", "In", 3)), "Always", 3, False),
    "a rule with an unknown action hides later rules": (
        ruled("Never", rule("Dance", "In", 3), rule("Restart", "In", 3)), "Always", 3, False),
    "an unknown operator matches nothing": (ruled("Never", rule("Restart", "Near", 3)), "Always", 3, False),
    "a rule without exit codes matches nothing": (
        ruled("Never", ContainerRestartRule(action="Restart")), "Always", 3, False),
    "rules need a container-level policy": (
        ruled(None, rule("Restart", "In", 3)), "Never", 3, False),
}  # fmt: skip


@pytest.mark.parametrize("spec, pod_policy, code, expected", EXITS.values(), ids=EXITS.keys())
def test_restarts_after_exit(spec: Container, pod_policy: str | None, code: int, expected: bool) -> None:
    assert restarts_after_exit(spec, PodSpec(restart_policy=pod_policy), code) is expected


def test_the_first_matching_rule_applies() -> None:
    first, second = rule("RestartAllContainers", "In", 3), rule("Restart", "NotIn", 0)
    assert matching_rule(ruled("Never", first, second), 3) is first
    assert matching_rule(ruled("Never", first, second), 4) is second
    assert matching_rule(ruled("Never", first, second), 0) is None


STATES = {
    "never seen, it starts": (None, False, True),
    "running, it is left alone": (ran("running"), False, False),
    "created but not started, it starts": (ran("created"), False, True),
    "in an unknown state, it starts": (ran("unknown"), False, True),
    "exited, the policy decides: no": (ran("exited", 0), False, False),
    "exited, the policy decides: yes": (ran("exited", 1), False, True),
    "in a deleted pod nothing starts": (
        None, True, False),
    "in a deleted pod a failure is not restarted": (
        ran("exited", 1), True, False),
}  # fmt: skip


@pytest.mark.parametrize("newest, deleting, expected", STATES.values(), ids=STATES.keys())
def test_by_state(newest: ContainerRecord | None, deleting: bool, expected: bool) -> None:
    spec = ruled()
    assert container_should_restart(spec, pod(spec, policy="OnFailure", deleted=deleting), newest) is expected


def test_without_an_exit_code_only_policies_apply() -> None:
    always_restart = rule("Restart", "NotIn")
    for own, of_pod in product(POLICIES, POLICIES):
        spec = PodSpec(restart_policy=of_pod)
        effective = own if own is not None else of_pod
        assert restarts_on_failure(ruled(own, always_restart), spec) is (effective != "Never")
        assert runs_until_success(ruled(own, always_restart), spec) is (effective == "OnFailure")


def test_only_an_init_container_that_always_restarts_is_a_sidecar() -> None:
    assert [policy for policy in POLICIES if is_sidecar(ruled(policy))] == ["Always"]


RESETTER = ruled("Never", rule("RestartAllContainers", "In", 42))
RESTARTING = PodStatus(conditions=(PodCondition(type="AllContainersRestarting", status="True"),))
NO_LONGER = PodStatus(conditions=(PodCondition(type="AllContainersRestarting", status="False"),))


def published(code: int) -> PodStatus:
    exited = ContainerState(terminated=ContainerStateTerminated(exit_code=code))
    return PodStatus(container_statuses=(ContainerStatus(name="c", state=exited),))


STARTING_OVER = {
    "an exit with a matching rule": (pod(RESETTER), (ran("exited", 42),), PodStatus(), True),
    "another exit": (pod(RESETTER), (ran("exited", 1),), PodStatus(), False),
    "an exit before the newest": (pod(RESETTER), (ran("running"), ran("exited", 42)), PodStatus(), False),
    "an exit of an init container": (pod(init=(RESETTER,)), (ran("exited", 42),), PodStatus(), True),
    "an exit that only the API has": (pod(RESETTER), (), published(42), False),
    "an exit that the API has, beside another one": (pod(RESETTER), (ran("exited", 1),), published(42), True),
    "another exit in both": (pod(RESETTER), (ran("exited", 1),), published(1), False),
    "a restart of all in progress": (pod(RESETTER), (), RESTARTING, True),
    "a completed restart of all": (pod(RESETTER), (), NO_LONGER, False),
    "another condition": (
        pod(RESETTER), (), PodStatus(conditions=(PodCondition(type="Ready", status="True"),)), False),
    "an exit that a rule restarts alone": (
        pod(
            ruled("Never", rule("Restart", "In", 42)),
            init=(ruled("Never", rule("RestartAllContainers", "In", 7), name="i"),),
        ),
        (ran("exited", 42),), PodStatus(), False),
    "a pod without such a rule": (pod(ruled()), (ran("exited", 42),), published(42), False),
}  # fmt: skip


@pytest.mark.parametrize("spec, records, status, expected", STARTING_OVER.values(), ids=STARTING_OVER.keys())
def test_all_containers_restart_after(
    spec: Pod, records: tuple[ContainerRecord, ...], status: PodStatus, expected: bool
) -> None:
    assert all_containers_should_restart(spec, PodRecord(uid="", containers=records), status) is expected


def test_only_a_rule_of_an_init_or_app_container_can_restart_all() -> None:
    assert could_restart_all(pod(RESETTER).spec)
    assert could_restart_all(pod(init=(RESETTER,)).spec)
    assert not could_restart_all(pod(ruled("Always", rule("Restart", "In", 1))).spec)
    assert could_restart_all(pod(ruled("Never", rule("Restart", "In", 1)), RESETTER).spec)
    assert not could_restart_all(pod(ruled()).spec)


def test_a_restart_of_all_is_complete_when_no_old_container_is_left() -> None:
    spec = pod(ruled(name="c"), init=(ruled(name="i"),))
    assert not all_containers_are_removed(spec, PodRecord(uid="", containers=(ran("exited", name="i"),)))
    assert all_containers_are_removed(spec, PodRecord(uid="", containers=(ran("running", name="debug"),)))
