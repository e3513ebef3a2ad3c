"""What a look at the machine brings: one finding per part, with how good it is and what would help."""

from dataclasses import dataclass
from enum import Enum, auto


class Mark(Enum):
    """How good a finding is."""

    GOOD = auto()
    WEAK = auto()  # pods run, with less than they could have
    MISSING = auto()  # not needed to run pods
    FATAL = auto()


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of the machine."""

    what: str
    mark: Mark
    found: str
    hints: tuple[str, ...] = ()
