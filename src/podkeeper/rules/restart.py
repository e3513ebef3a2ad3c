"""Whether a container that is not running is to be run again.

A container's spec, its pod's policy and what the runtime knows of it come in; yes or no goes out.
Three voices, the first that speaks decides:

    restartPolicyRules (by exit code)  ->  the container's own restartPolicy  ->  the pod's restartPolicy

Rules can speak only of an exit: while there is no exit code, or none to be trusted, the policies alone
decide (`restarts_on_failure`). A rule may also ask that all containers of the pod start over. The Go
ancestors are `ShouldContainerBeRestarted` and its neighbours in pkg/kubelet/container/helpers.go, and
the restart helpers in pkg/api/v1/pod/util.go.
"""

from enum import StrEnum

from podkeeper.model.k8s.core import Container, ContainerRestartRule, Pod, PodSpec, PodStatus
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord

ALL_CONTAINERS_RESTARTING = "AllContainersRestarting"
"""The pod condition that is True from the exit that asks for it until every old container is removed."""


class RestartPolicy(StrEnum):
    """When a container that exited runs again; an unset policy of a pod means `ALWAYS`."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class RuleAction(StrEnum):
    """What a restart rule asks for when an exit code matches it."""

    RESTART = "Restart"
    RESTART_ALL_CONTAINERS = "RestartAllContainers"


class ExitCodeOperator(StrEnum):
    """How a restart rule compares exit codes."""

    IN = "In"
    NOT_IN = "NotIn"


def is_sidecar(init_container: Container) -> bool:
    """Whether an init container stays: started in its turn, kept running beside the others."""
    return init_container.restart_policy == RestartPolicy.ALWAYS


def matching_rule(container: Container, exit_code: int) -> ContainerRestartRule | None:
    """The first restart rule that speaks about an exit code."""
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
    """Whether a container that exited with this code runs again."""
    if container.restart_policy is not None:  # rules without a policy of the container itself have no voice
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
    """Whether a container runs again after we stop it for failing, when no exit code can be known."""
    policy = spec.restart_policy if container.restart_policy is None else container.restart_policy
    return policy != RestartPolicy.NEVER


def runs_until_success(container: Container, spec: PodSpec) -> bool:
    """Whether one success of a container is enough for the life of its pod."""
    policy = spec.restart_policy if container.restart_policy is None else container.restart_policy
    return policy == RestartPolicy.ON_FAILURE


def could_restart(container: Container, spec: PodSpec) -> bool:
    """Whether any exit at all could make a container run again."""
    if container.restart_policy is None:
        return spec.restart_policy != RestartPolicy.NEVER
    return container.restart_policy != RestartPolicy.NEVER or any(
        rule.action == RuleAction.RESTART for rule in container.restart_policy_rules or ()
    )


def container_should_restart(container: Container, pod: Pod, newest: ContainerRecord | None) -> bool:
    """Whether a container is to be started now; `newest` is the latest the runtime has under its name.

    None means that it never ran, or that nothing of it is left: both start it.
    """
    if pod.metadata.deletion_timestamp is not None:
        return False
    if newest is None:
        return True
    match newest.state:
        case ContainerState.RUNNING:
            return False
        case ContainerState.CREATED | ContainerState.UNKNOWN:
            return True
        case ContainerState.EXITED:
            return restarts_after_exit(container, pod.spec, newest.exit_code)


def asks_to_restart_all(container: Container, exit_code: int) -> bool:
    """Whether an exit of this container makes all containers of its pod start over."""
    rule = matching_rule(container, exit_code)
    return rule is not None and rule.action == RuleAction.RESTART_ALL_CONTAINERS


def could_restart_all(spec: PodSpec) -> bool:
    """Whether any exit in a pod could make all its containers start over."""
    return any(
        rule.action == RuleAction.RESTART_ALL_CONTAINERS
        for container in (*(spec.init_containers or ()), *spec.containers)
        for rule in container.restart_policy_rules or ()
    )


def all_containers_should_restart(pod: Pod, record: PodRecord, published: PodStatus) -> bool:
    """Whether all containers of a pod are to start over: one asked for it, or an earlier wish is not done yet.

    The published exit counts only beside an exit in the runtime: a container that runs again has
    been dealt with.
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
        if found is None or found.state is not ContainerState.EXITED:
            continue
        if asks_to_restart_all(container, found.exit_code):
            return True
        if container.name in published_exits and asks_to_restart_all(container, published_exits[container.name]):
            return True
    return False


def all_containers_are_removed(pod: Pod, record: PodRecord) -> bool:
    """Whether nothing is left of any container of the spec, so that starting over is complete."""
    left = {found.name for found in record.containers}
    return all(container.name not in left for container in (*(pod.spec.init_containers or ()), *pod.spec.containers))
