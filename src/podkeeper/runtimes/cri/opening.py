"""Who answers on the socket, and if nobody fit does: what a person should do about it.

    Version answered                   -> the runtime's name and version
    nobody there, or nobody answers    -> RuntimeUnavailable: it may come
    not allowed, too old, CRI disabled -> BadInput: somebody has to change something

The Go ancestor is `validateServiceConnection` in cri-client/pkg/remote_runtime.go.
"""

from typing import Final

from podkeeper.model.errors import BadInput, CallTimedOut, Problem, RuntimeRefused, RuntimeUnavailable
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import Unimplemented

OPEN_SECONDS: Final = 10.0
_OLD_VERSION: Final = "/runtime.v1alpha2.RuntimeService/Version"
_NEEDED: Final = "containerd 1.6 or later, or CRI-O 1.23 or later"


async def who_answers(calls: Calls, where: str) -> cri.VersionResponse:
    """Ask for the runtime's version; `where` is what its socket is called in errors."""
    try:
        version = await calls.version(OPEN_SECONDS)
    except Unimplemented:
        raise await _no_cri(calls, where) from None
    except CallTimedOut:
        raise RuntimeUnavailable(
            f"cannot use the container runtime at {where}: it is there, but did not answer within {OPEN_SECONDS:g} s; "
            "look into its log, or restart it"
        ) from None
    except RuntimeUnavailable as error:
        raise _unreachable(str(error), where) from None
    except RuntimeRefused as error:
        raise RuntimeUnavailable(f"cannot use the container runtime at {where}: {error}") from None
    if version.runtime_api_version not in ("v1", ""):
        raise _bad(f"it speaks CRI {version.runtime_api_version}, and v1 is needed: install {_NEEDED}", where)
    return version


def _unreachable(words: str, where: str) -> RuntimeUnavailable | BadInput:
    lowered = words.lower()
    if "permission denied" in lowered:
        return _bad("permission denied; run as root, or as a user who may write to that socket", where)
    if "no such file" in lowered:
        hint = "there is no such socket; is containerd (or CRI-O) installed and running, and is this its socket?"
    elif "connection refused" in lowered:
        hint = "nobody listens on that socket; start the runtime (systemctl start containerd, or crio)"
    else:
        hint = words
    return RuntimeUnavailable(f"cannot use the container runtime at {where}: {hint}")


async def _no_cri(calls: Calls, where: str) -> BadInput:
    """Somebody answers, but not to CRI v1: too old, or told not to."""
    try:
        old = await calls.transport.unary(_OLD_VERSION, cri.VersionRequest(), cri.VersionResponse, OPEN_SECONDS)
    except (RuntimeRefused, RuntimeUnavailable, CallTimedOut):
        return _bad(
            "its CRI is disabled, or it is no container runtime; for containerd, take `cri` out of `disabled_plugins` "
            f"in its config.toml and restart it (what is needed is {_NEEDED})",
            where,
        )
    who = f"{old.runtime_name} {old.runtime_version}"
    return _bad(f"{who} is too old, it has only CRI v1alpha2: install {_NEEDED}", where)


def _bad(trouble: str, where: str) -> BadInput:
    return BadInput(Problem(f"cannot use the container runtime at {where}: {trouble}"))
