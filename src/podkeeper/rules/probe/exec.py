"""Exec probes: expand the command, and convert its exit to a report.

In: the command of a probe and the container's environment, then the exit. Out: the expanded command, then a `Report`.
A non-zero exit code and a timeout are failures. A command that could not be executed is an error.

Kubelet counterpart: pkg/probe/exec and `ExpandContainerCommandOnlyStatic` in pkg/kubelet/container/helpers.go.
"""

import re

from podkeeper.model.k8s.core import Container, ExecAction
from podkeeper.model.probing import CommandEnd, CommandExited, NotRun, TimedOut
from podkeeper.rules.probe.report import ProbeOutcome, Report, output_text

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))", re.DOTALL)


def exec_report(end: CommandEnd) -> Report:
    match end:
        case CommandExited(code=0, output=output):
            return Report(ProbeOutcome.SUCCESS, output_text(output))
        case CommandExited(output=output):
            return Report(ProbeOutcome.FAILURE, output_text(output))
        case TimedOut(message=message):
            # A failure and no error: an application that hangs must be restarted.
            return Report(ProbeOutcome.FAILURE, message)
        case NotRun(message=message):
            return Report(ProbeOutcome.UNKNOWN, error=message)


def exec_command(action: ExecAction, container: Container) -> tuple[str, ...]:
    """Return the command with `$(NAME)` replaced by values of the container's spec.

    A variable with `valueFrom` is empty. An unknown name does not change. `$$` becomes `$`.
    """
    # As in the kubelet, only the static values of the spec are used.
    values = {variable.name: variable.value or "" for variable in container.env or ()}

    def replaced(found: re.Match[str]) -> str:
        return "$" if found[1] is None else values.get(found[1], found[0])

    return tuple(_REFERENCE.sub(replaced, part) for part in action.command or ())
