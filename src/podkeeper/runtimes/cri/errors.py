"""Interpret error messages of runtimes.

Runtimes report many conditions only as text. This module contains the texts of containerd and CRI-O. It does no I/O.
Kubelet counterpart: `evalCRIPullErr` in pkg/kubelet/images/image_manager.go and the error handling in cri-client.
"""

import re
from collections.abc import Sequence
from typing import Final

from podkeeper.model.errors import CallTimedOut, ImagePullFailed, RuntimeRefused, TryLater
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import ObjectNotFound

_NAMED_REASONS: Final = ("RegistryUnavailable", "SignatureValidationFailed")  # runtimes start their messages with these

_CODED: Final = re.compile(r"rpc error: code = (\w+) desc = (.*)", re.DOTALL)
_RESERVED_FOR: Final = re.compile(r'is reserved for "([^"]+)"')
# The texts of containerd and CRI-O for a command that exceeded its timeout.
_TIMED_OUT: Final = re.compile(r"timed out|timeout \S+ exceeded|context deadline exceeded")


def message_of(error: Exception) -> str:
    """Return the runtime's message without the gRPC code."""
    coded = _CODED.fullmatch(str(error))
    return str(error) if coded is None else coded[2]


def without_code(error: RuntimeRefused) -> RuntimeRefused:
    """Return the error as a container's status shows it."""
    return RuntimeRefused(message_of(error))


def is_name_taken(error: RuntimeRefused) -> bool:
    """Return whether an object of an earlier call has the name."""
    message = message_of(error)
    return "is reserved" in message or "already in use" in message


def holder_of_name(error: RuntimeRefused) -> str:
    """Return the ID of the object that has the name. "" if unknown (CRI-O reports the ID of the new object)."""
    found = _RESERVED_FOR.search(message_of(error))
    return "" if found is None else found[1]


def is_command_timeout(error: TryLater) -> bool:
    """Return whether a command exceeded its timeout."""
    return isinstance(error, CallTimedOut) or _TIMED_OUT.search(str(error)) is not None


def is_timeout_response(answer: cri.ExecSyncResponse) -> bool:
    """Return whether a response is CRI-O's report of a timeout."""
    return answer.exit_code == -1 and answer.stderr == b"command timed out"


def pull_failure(errors: Sequence[RuntimeRefused]) -> ImagePullFailed:
    """Return the error of a failed pull, with the runtime's messages for all credentials."""
    texts = list(dict.fromkeys(map(_pull_message, errors)))
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return ImagePullFailed(text, next((each for each in _NAMED_REASONS if text.startswith(each)), "ErrImagePull"))


def _pull_message(error: RuntimeRefused) -> str:
    """Return the message as in the kubelet, which drops the code Unknown and keeps all others."""
    if isinstance(error, ObjectNotFound):
        return f"rpc error: code = NotFound desc = {error}"
    coded = _CODED.fullmatch(str(error))
    return coded[2] if coded is not None and coded[1] == "Unknown" else str(error)
