"""Scripted behaviour of a fake container, from a test or from a pod's annotation.

    metadata:
      annotations:
        fake.podkeeper.io/web: '{"exit_code": 1, "after_seconds": 5, "crashes": 2}'

A container without a script runs forever and exits on SIGTERM.
"""

from typing import Annotated

import msgspec

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Pod

ANNOTATION_PREFIX = "fake.podkeeper.io/"

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
ExitCode = Annotated[int, msgspec.Meta(ge=0, le=255)]


class ExecStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Result of commands in a container from a given age of the container on."""

    command: str = ""  # only commands with this first word; empty: any
    from_seconds: Seconds = 0.0
    exit_code: ExitCode = 0
    output: str = ""
    takes_seconds: Seconds = 0.0


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Script of one container. Every attempt follows it."""

    after_seconds: Seconds | None = None  # exits on its own after this time; None: never
    exit_code: ExitCode = 0
    reason: str = ""  # "OOMKilled"; empty: Completed or Error, depending on the exit code
    message: str = ""
    crashes: Count | None = None  # only the first N attempts exit on their own; None: all
    failures: Count | None = None  # only the first N attempts exit with exit_code, later ones with 0; None: all
    term_seconds: Seconds | None = 0.0  # from SIGTERM to the exit; None: ignores SIGTERM
    term_exit_code: ExitCode = 0
    start_error: str = ""  # the runtime refuses to start it with this message
    start_errors: Count | None = None  # only the first N attempts fail to start; None: all
    exec: tuple[ExecStep, ...] = ()  # the last step that is due applies; without steps: exit code 0

    def lifetime_of(self, attempt: int) -> float | None:
        """Return the time after which an attempt exits on its own. None: never."""
        return self.after_seconds if self.crashes is None or attempt < self.crashes else None

    def refusal_of(self, attempt: int) -> str:
        """Return why an attempt does not start. Empty if it starts."""
        return self.start_error if self.start_errors is None or attempt < self.start_errors else ""

    def exit_of(self, attempt: int) -> tuple[int, str, str]:
        """Return exit code, reason and message of an attempt that exits on its own."""
        if self.failures is None or attempt < self.failures:
            return self.exit_code, self.reason, self.message
        return 0, "", ""

    def exec_at(self, age_seconds: float, command: str = "") -> ExecStep:
        """Return the result of a command that starts at this age of the container. `command` is its first word."""
        return self.answer_at(age_seconds, command) or _SUCCESS

    def answer_at(self, age_seconds: float, word: str) -> ExecStep | None:
        """Return the step for a command at this age of the container. None: the script has none."""
        due = [step for step in self.exec if step.from_seconds <= age_seconds and step.command in ("", word)]
        return max(due, key=lambda step: step.from_seconds, default=None)


_SUCCESS = ExecStep()
_decoder = msgspec.json.Decoder(Behaviour)


def annotated_behaviour(pod: Pod, container: str) -> Behaviour | None:
    """Return the behaviour in a pod's annotation. Raises RuntimeRefused, which the pod's status shows."""
    key = ANNOTATION_PREFIX + container
    text = (pod.metadata.annotations or {}).get(key)
    if text is None:
        return None
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise RuntimeRefused(
            f"cannot read annotation {key} of pod {pod.metadata.namespace}/{pod.metadata.name}: {error}; "
            'expected JSON such as {"exit_code": 1, "after_seconds": 5}'
        ) from error
