"""Whether a container that is not running must be started again.

The first of these that applies decides:

    restartPolicyRules (by exit code)  ->  the container's own restartPolicy  ->  the pod's restartPolicy

Rules apply only to an exit code. If there is none, or it is not reliable, the policies alone decide
(`restarts_on_failure`). A rule may also restart all containers of the pod.

Kubelet counterparts: `ShouldContainerBeRestarted` in pkg/kubelet/container/helpers.go and the restart helpers in
pkg/api/v1/pod/util.go.
"""

from enum import StrEnum

from podkeeper.model.k8s.core import Container, ContainerRestartRule, Pod, PodSpec, PodStatus
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState

ALL_CONTAINERS_RESTARTING = "AllContainersRestarting"
"""The pod condition that is True from the exit that triggers the restart until every old container is removed."""


class RestartPolicy(StrEnum):
    """When an exited container starts again. An unset pod policy means `ALWAYS`."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class RuleAction(StrEnum):
    """The action of a restart rule that matches an exit code."""

    RESTART = "Restart"
    RESTART_ALL_CONTAINERS = "RestartAllContainers"


class ExitCodeOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"


def is_sidecar(init_container: Container) -> bool:
    """Return whether an init container is a sidecar: started in order, then kept running beside the others."""
    return init_container.restart_policy == RestartPolicy.ALWAYS


def matching_rule(container: Container, exit_code: int) -> ContainerRestartRule | None:
    """Return the first restart rule that matches an exit code."""
    for rule in container.restart_policy_rules or ():
        codes = rule.exit_codes
        if codes is None:
            continue
        listed = exit_code in (codes.values or ())
        if (codes.operator == ExitCodeOperator.IN and listed) or (
            codes.operator == ExitCodeOperator.NOT_IN and not listed
        ):
            return rule
    return None


def restarts_after_exit(container: Container, spec: PodSpec, exit_code: int) -> bool:
    """Return whether a container that exited with this code starts again."""
    if container.restart_policy is not None:  # rules apply only with a container-level policy
        rule = matching_rule(container, exit_code)
        if rule is not None and rule.action in (RuleAction.RESTART, RuleAction.RESTART_ALL_CONTAINERS):
            return True
    for policy in (container.restart_policy, spec.restart_policy):
        match policy:
            case RestartPolicy.ALWAYS:
                return True
            case RestartPolicy.ON_FAILURE:
                return exit_code != 0
            case RestartPolicy.NEVER:
                return False
    return True


def restarts_on_failure(container: Container, spec: PodSpec) -> bool:
    """Return whether a container starts again after the agent stops it for failing, when no exit code is known."""
    policy = spec.restart_policy if container.restart_policy is None else container.restart_policy
    return policy != RestartPolicy.NEVER


def runs_until_success(container: Container, spec: PodSpec) -> bool:
    """Return whether the container needs only one successful exit in the life of its pod."""
    policy = spec.restart_policy if container.restart_policy is None else container.restart_policy
    return policy == RestartPolicy.ON_FAILURE


def container_should_restart(container: Container, pod: Pod, newest: ContainerRecord | None) -> bool:
    """Return whether to start a container now. `newest` is the runtime's latest record with its name.

    None means that it never ran, or that its record was removed. In both cases it starts.
    """
    if pod.metadata.deletion_timestamp is not None:
        return False
    if newest is None:
        return True
    match newest.state:
        case RecordState.RUNNING:
            return False
        case RecordState.CREATED | RecordState.UNKNOWN:
            # Neither has an exit code that a restart policy could judge.
            return True
        case RecordState.EXITED:
            return restarts_after_exit(container, pod.spec, newest.exit_code)


def exit_restarts_all(container: Container, exit_code: int) -> bool:
    """Return whether an exit of this container restarts all containers of its pod."""
    rule = matching_rule(container, exit_code)
    return rule is not None and rule.action == RuleAction.RESTART_ALL_CONTAINERS


def could_restart_all(spec: PodSpec) -> bool:
    """Return whether any exit in a pod could restart all its containers."""
    return any(
        rule.action == RuleAction.RESTART_ALL_CONTAINERS
        for container in (*(spec.init_containers or ()), *spec.containers)
        for rule in container.restart_policy_rules or ()
    )


def all_containers_should_restart(pod: Pod, record: PodRecord, published: PodStatus) -> bool:
    """Return whether all containers of a pod must restart: an exit requires it, or an earlier restart is not complete.

    A published exit counts only if the runtime also reports an exit. A container that runs again is already handled.
    """
    if any(found.type == ALL_CONTAINERS_RESTARTING and found.status == "True" for found in published.conditions or ()):
        return True
    if not could_restart_all(pod.spec):
        return False
    published_exits = {
        status.name: status.state.terminated.exit_code
        for status in (*(published.init_container_statuses or ()), *(published.container_statuses or ()))
        if status.state.terminated is not None
    }
    for container in (*(pod.spec.init_containers or ()), *pod.spec.containers):
        found = record.container(container.name)
        if found is None or found.state is not RecordState.EXITED:
            continue
        if exit_restarts_all(container, found.exit_code):
            return True
        if container.name in published_exits and exit_restarts_all(container, published_exits[container.name]):
            return True
    return False


def all_containers_are_removed(pod: Pod, record: PodRecord) -> bool:
    """Return whether no container of the spec has a record left, so that the restart of all is complete."""
    left = {found.name for found in record.containers}
    return all(container.name not in left for container in (*(pod.spec.init_containers or ()), *pod.spec.containers))
