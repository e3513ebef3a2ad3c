"""What can be wrong with a patch, sorted by what the API answers: 422 or 400, 409, 413 and 415.

Every error names the field (or the JSON pointer) and says what would be right.
"""

from podkeeper.model.errors import BadInput, Problem


class PatchError(BadInput):
    """A patch, or an object to be patched, that cannot be used."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(Problem(message, field))
        self.field = field


class UnsupportedKind(PatchError):
    """A kind whose types are not known here, such as a custom resource."""


class PatchConflict(PatchError):
    """Somebody else changed, in another way, what this patch would change."""


class PreconditionFailed(PatchError):
    """A patch was made, and the caller's own condition does not hold for it."""


class PatchTooLarge(PatchError):
    """A patch, or what it would make, is larger or deeper than allowed."""


class OperationError(PatchError):
    """One operation of a JSON patch that cannot be done. `index` counts from 0."""

    def __init__(self, index: int, operation: str, pointer: str, reason: str) -> None:
        super().__init__(f"cannot {operation} {pointer or 'the whole document'!r}: {reason}", f"[{index}]")
        self.index = index
        self.operation = operation
        self.pointer = pointer
