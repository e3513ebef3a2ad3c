"""What a fake container does with its life, as a value: from a test, or from a pod's annotation.

    metadata:
      annotations:
        fake.podkeeper.io/web: '{"exit_code": 1, "after_seconds": 5, "crashes": 2}'

A container nobody described runs for ever and ends politely when asked.
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
    """How commands in a container end from some age of the container on."""

    command: str = ""  # only commands with this first word; empty: any
    from_seconds: Seconds = 0.0
    exit_code: ExitCode = 0
    output: str = ""
    takes_seconds: Seconds = 0.0


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One container's script; every attempt follows it."""

    after_seconds: Seconds | None = None  # ends by itself after this long; None: never
    exit_code: ExitCode = 0
    reason: str = ""  # "OOMKilled"; empty: Completed or Error, as the exit code says
    message: str = ""
    crashes: Count | None = None  # only so many first attempts end by themselves; None: all
    failures: Count | None = None  # only so many first attempts end with the exit code, later ones with 0; None: all
    term_seconds: Seconds | None = 0.0  # from being asked to having ended; None: ignores the request
    term_exit_code: ExitCode = 0
    start_error: str = ""  # what the runtime says instead of starting it
    start_errors: Count | None = None  # only so many first attempts fail to start; None: all
    exec: tuple[ExecStep, ...] = ()  # the last whose time has come answers; none: exit code 0

    def lifetime_of(self, attempt: int) -> float | None:
        """How long an attempt lives if nobody stops it; None: for ever."""
        return self.after_seconds if self.crashes is None or attempt < self.crashes else None

    def refusal_of(self, attempt: int) -> str:
        """Why an attempt does not start; empty when it does."""
        return self.start_error if self.start_errors is None or attempt < self.start_errors else ""

    def exit_of(self, attempt: int) -> tuple[int, str, str]:
        """Exit code, reason and message of an attempt that ends by itself."""
        if self.failures is None or attempt < self.failures:
            return self.exit_code, self.reason, self.message
        return 0, "", ""

    def exec_at(self, age_seconds: float, command: str = "") -> ExecStep:
        """How a command with this first word ends that begins at this age of the container."""
        return self.answer_at(age_seconds, command) or _SUCCESS

    def answer_at(self, age_seconds: float, word: str) -> ExecStep | None:
        """What the script says to a word at this age of the container; None: nothing."""
        due = [step for step in self.exec if step.from_seconds <= age_seconds and step.command in ("", word)]
        return max(due, key=lambda step: step.from_seconds, default=None)


_SUCCESS = ExecStep()
_decoder = msgspec.json.Decoder(Behaviour)


def annotated_behaviour(pod: Pod, container: str) -> Behaviour | None:
    """The behaviour a pod's annotation asks for. One that cannot be read is refused: it shows in the pod's status."""
    key = ANNOTATION_PREFIX + container
    text = (pod.metadata.annotations or {}).get(key)
    if text is None:
        return None
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise RuntimeRefused(
            f"cannot read annotation {key} of pod {pod.metadata.namespace}/{pod.metadata.name}: {error}; "
            'right would be {"exit_code": 1, "after_seconds": 5}'
        ) from error
