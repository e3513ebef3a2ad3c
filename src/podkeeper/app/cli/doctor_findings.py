"""Result types of the checks of `podkeeper doctor`."""

from dataclasses import dataclass
from enum import Enum, auto


class Mark(Enum):
    GOOD = auto()
    WEAK = auto()  # pods run, but with fewer features
    MISSING = auto()  # not needed to run pods
    FATAL = auto()  # no pod can run


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    what: str
    mark: Mark
    found: str
    hints: tuple[str, ...] = ()
