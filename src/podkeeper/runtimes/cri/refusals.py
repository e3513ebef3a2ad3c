"""What a runtime's refusals mean: its words in, what to do about it out.

Runtimes tell much only in words. These are containerd's and CRI-O's, and the reference's for the few that they
themselves copied from it. Pure. The Go ancestors are `evalCRIPullErr` in pkg/kubelet/images/image_manager.go and the
error handling in cri-client.
"""

import re
from collections.abc import Sequence
from typing import Final

from podkeeper.model.errors import CallTimedOut, ImagePullFailed, RuntimeRefused, TryLater
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import NotThere

_NAMED_REASONS: Final = ("RegistryUnavailable", "SignatureValidationFailed")  # runtimes begin their words with them

_CODED: Final = re.compile(r"rpc error: code = (\w+) desc = (.*)", re.DOTALL)
_RESERVED_FOR: Final = re.compile(r'is reserved for "([^"]+)"')
_TIMED_OUT: Final = re.compile(r"timed out|timeout \S+ exceeded|context deadline exceeded")


def words_of(error: Exception) -> str:
    """What the runtime said, without the code it came with."""
    coded = _CODED.fullmatch(str(error))
    return str(error) if coded is None else coded[2]


def without_code(error: RuntimeRefused) -> RuntimeRefused:
    """The same refusal, as it is shown in a container's status."""
    return RuntimeRefused(words_of(error))


def is_name_taken(error: RuntimeRefused) -> bool:
    """Whether something of the same name, from an earlier try, is in the way."""
    words = words_of(error)
    return "is reserved" in words or "already in use" in words


def holder_of_name(error: RuntimeRefused) -> str:
    """The id of what has the name, where the runtime tells; else "" (the id that CRI-O tells is the new one)."""
    found = _RESERVED_FOR.search(words_of(error))
    return "" if found is None else found[1]


def is_command_timeout(error: TryLater) -> bool:
    """Whether a command was cut off for taking too long."""
    return isinstance(error, CallTimedOut) or _TIMED_OUT.search(str(error)) is not None


def says_timed_out(answer: cri.ExecSyncResponse) -> bool:
    """Whether an answer is no answer, but CRI-O's way to say that a command was cut off."""
    return answer.exit_code == -1 and answer.stderr == b"command timed out"


def pull_failure(errors: Sequence[RuntimeRefused]) -> ImagePullFailed:
    """Why an image could not be fetched, whatever was tried, in the runtime's own words."""
    texts = list(dict.fromkeys(map(_pull_words, errors)))
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return ImagePullFailed(text, next((each for each in _NAMED_REASONS if text.startswith(each)), "ErrImagePull"))


def _pull_words(error: RuntimeRefused) -> str:
    """The reference leaves out a code that tells nothing, and keeps the others."""
    if isinstance(error, NotThere):
        return f"rpc error: code = NotFound desc = {error}"
    coded = _CODED.fullmatch(str(error))
    return coded[2] if coded is not None and coded[1] == "Unknown" else str(error)
