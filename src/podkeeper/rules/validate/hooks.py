"""Validation of probes, lifecycle hooks and restart rules.

Kubelet counterparts: `validateProbe`, `validateHandler`, `validateLifecycle` and `validateContainerRestartPolicy` in
pkg/apis/core/validation.
"""

from typing import Final

from podkeeper.model.k8s import core
from podkeeper.model.wire import IntOrString
from podkeeper.rules.validate.names import (
    POSITIVE,
    Problems,
    choice,
    http_header,
    missing,
    not_negative,
    port_name,
    supported,
    too_many,
    unsupported,
    unwanted,
    within,
    wrong,
)

MAX_RESTART_RULES: Final = 20
MAX_EXIT_CODES: Final = 255

_ACTIONS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_RESTART_POLICIES: Final = ("Always", "Never", "OnFailure")
_RESTART_ACTIONS: Final = ("Restart", "RestartAllContainers")
# fmt: off
_SIGNALS: Final = frozenset(
    f"SIG{name}" for name in (
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE", "POLL",
        "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1",
        "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ", "RTMIN", "RTMAX",
        *(f"RTMIN+{n}" for n in range(1, 16)), *(f"RTMAX-{n}" for n in range(1, 15)),
    )
)
# fmt: on


def probes(field: str, container: core.Container) -> Problems:
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is None:
            continue
        at = f"{field}.{name}"
        yield from _probe(at, probe)
        if name == "readinessProbe":
            if probe.termination_grace_period_seconds is not None:
                grace = probe.termination_grace_period_seconds
                yield wrong(f"{at}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
        elif (probe.success_threshold or 0) != 1:
            yield wrong(f"{at}.successThreshold", probe.success_threshold or 0, "must be 1")


def lifecycle(field: str, given: core.Lifecycle, spec: core.PodSpec) -> Problems:
    for name, hook in (("postStart", given.post_start), ("preStop", given.pre_stop)):
        if hook is not None:
            yield from _handler(f"{field}.{name}", hook)
            yield from _sleep(f"{field}.{name}.sleep", hook.sleep, spec.termination_grace_period_seconds)
    if given.stop_signal is not None:
        if spec.os is None:
            yield unwanted(f"{field}.stopSignal", "may not be set for containers with empty `spec.os.name`")
        elif spec.os.name == "linux" and given.stop_signal not in _SIGNALS:
            yield wrong(f"{field}.stopSignal", given.stop_signal, "must be a signal of Linux (e.g. SIGTERM)")
        elif spec.os.name == "windows" and given.stop_signal not in ("SIGKILL", "SIGTERM"):
            yield unsupported(f"{field}.stopSignal", given.stop_signal, ("SIGKILL", "SIGTERM"))


def restart_policy(field: str, container: core.Container) -> Problems:
    """Check a container's own restart policy and its rules."""
    rules = container.restart_policy_rules or ()
    if container.restart_policy is None:
        if not rules:
            return
        detail = f"must specify restartPolicy when restart rules are used: {supported(_RESTART_POLICIES)}"
        yield missing(f"{field}.restartPolicy", detail)
    elif container.restart_policy not in _RESTART_POLICIES:
        yield unsupported(f"{field}.restartPolicy", container.restart_policy, _RESTART_POLICIES)
    if len(rules) > MAX_RESTART_RULES:
        yield too_many(f"{field}.restartPolicyRules", len(rules), MAX_RESTART_RULES)
    for index, rule in enumerate(rules):
        at = f"{field}.restartPolicyRules[{index}]"
        yield from choice(f"{at}.action", rule.action, _RESTART_ACTIONS)
        if rule.exit_codes is None:
            yield missing(f"{at}.exitCodes", "must be specified")
            continue
        yield from choice(f"{at}.exitCodes.operator", rule.exit_codes.operator, ("In", "NotIn"))
        if len(values := rule.exit_codes.values or ()) > MAX_EXIT_CODES:
            yield too_many(f"{at}.exitCodes.values", len(values), MAX_EXIT_CODES)


def _probe(field: str, probe: core.Probe) -> Problems:
    yield from _handler(field, probe)
    yield from not_negative(f"{field}.initialDelaySeconds", probe.initial_delay_seconds)
    yield from not_negative(f"{field}.timeoutSeconds", probe.timeout_seconds)
    yield from not_negative(f"{field}.periodSeconds", probe.period_seconds)
    yield from not_negative(f"{field}.successThreshold", probe.success_threshold)
    yield from not_negative(f"{field}.failureThreshold", probe.failure_threshold)
    grace = probe.termination_grace_period_seconds
    if grace is not None and grace <= 0:
        yield wrong(f"{field}.terminationGracePeriodSeconds", grace, POSITIVE)


def _handler(field: str, handler: core.Probe | core.LifecycleHandler) -> Problems:
    """Check that there is exactly one action and that it is complete."""
    grpc = handler.grpc if isinstance(handler, core.Probe) else None
    sleep = handler.sleep if isinstance(handler, core.LifecycleHandler) else None
    actions = zip(_ACTIONS, (handler.exec, handler.http_get, handler.tcp_socket, grpc, sleep), strict=True)
    given = [(name, action) for name, action in actions if action is not None]
    if not given:
        known = _ACTIONS[:4] if isinstance(handler, core.Probe) else (*_ACTIONS[:3], "sleep")
        yield missing(field, f"must specify a handler type: {', '.join(known)}")
        return
    for name, _ in given[1:]:
        yield unwanted(f"{field}.{name}", "may not specify more than 1 handler type")
    name, action = given[0]
    match action:
        case core.ExecAction():
            if not action.command:
                yield missing(f"{field}.{name}.command")
        case core.HTTPGetAction():
            yield from _http_get(f"{field}.{name}", action)
        case core.TCPSocketAction() | core.GRPCAction():
            yield from _port(f"{field}.{name}.port", action.port)


def _http_get(field: str, action: core.HTTPGetAction) -> Problems:
    if not action.path:
        yield missing(f"{field}.path")
    yield from _port(f"{field}.port", action.port)
    yield from choice(f"{field}.scheme", action.scheme, ("HTTP", "HTTPS"))
    for index, header in enumerate(action.http_headers or ()):
        yield from http_header(f"{field}.httpHeaders[{index}].name", header.name)


def _port(field: str, port: IntOrString) -> Problems:
    if isinstance(port, int):
        yield from within(field, port, 1, 65535)
    else:
        yield from port_name(field, port)


def _sleep(field: str, sleep: core.SleepAction | None, grace_seconds: int | None) -> Problems:
    if sleep is not None and grace_seconds is not None and not 0 <= sleep.seconds <= grace_seconds:
        detail = f"must be non-negative and less than or equal to terminationGracePeriodSeconds ({grace_seconds})"
        yield wrong(f"{field}.seconds", sleep.seconds, detail)
