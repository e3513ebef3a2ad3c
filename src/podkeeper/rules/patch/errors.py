"""Errors of patches, by HTTP status: 422 or 400, 409, 413 and 415.

Every error names the field or the JSON pointer, and what is expected.
"""

from podkeeper.model.errors import BadInput, Problem


class PatchError(BadInput):
    """A patch, or an object to patch, is invalid."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(Problem(message, field))
        self.field = field


class UnsupportedKind(PatchError):
    """The kind has no known types, such as a custom resource."""


class PatchConflict(PatchError):
    """Another client changed a field that this patch changes, too."""


class PreconditionFailed(PatchError):
    """A precondition of the caller does not hold for the computed patch."""


class PatchTooLarge(PatchError):
    """A patch, or its result, is larger or deeper than allowed."""


class OperationError(PatchError):
    """One operation of a JSON patch failed. `index` starts at 0."""

    def __init__(self, index: int, operation: str, pointer: str, reason: str) -> None:
        super().__init__(f"cannot {operation} {pointer or 'the whole document'!r}: {reason}", f"[{index}]")
        self.index = index
        self.operation = operation
