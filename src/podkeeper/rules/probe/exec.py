"""Exec probes: the command to run in a container, and what its end means.

Comes in: the probe's command with the container's environment, then how the command ended. Goes out:
the expanded command, then a `Report`. An exit code other than 0 and a command that ran out of time are
failures; one that could not be run at all is no verdict on the container.

The Go ancestors are pkg/probe/exec and `ExpandContainerCommandOnlyStatic` in
pkg/kubelet/container/helpers.go.
"""

import re

from podkeeper.model.k8s.core import Container, ExecAction
from podkeeper.model.probing import CommandEnd, Exited, NotRun, TimedOut
from podkeeper.rules.probe.report import Outcome, Report, shown

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))", re.DOTALL)


def judge_exec(end: CommandEnd) -> Report:
    """What the end of a command says about its container."""
    match end:
        case Exited(code=0, output=output):
            return Report(Outcome.SUCCESS, shown(output))
        case Exited(output=output):
            return Report(Outcome.FAILURE, shown(output))
        case TimedOut(message=message):
            return Report(Outcome.FAILURE, message)
        case NotRun(message=message):
            return Report(Outcome.UNKNOWN, error=message)


def exec_command(action: ExecAction, container: Container) -> tuple[str, ...]:
    """The command with `$(NAME)` replaced by the values the container's spec itself gives.

    A variable whose value comes from elsewhere (`valueFrom`) counts as empty; an unknown name stays as it is;
    `$$` stands for `$`.
    """
    values = {variable.name: variable.value or "" for variable in container.env or ()}

    def replaced(found: re.Match[str]) -> str:
        return "$" if found[1] is None else values.get(found[1], found[0])

    return tuple(_REFERENCE.sub(replaced, part) for part in action.command or ())
