"""Connect to a runtime and check its version.

Each error message names the next step for the user.

    Version succeeds                            -> the runtime's name and version
    socket missing or no response               -> RuntimeUnavailable: a retry may succeed
    permission denied, too old, CRI disabled    -> BadInput: the user must change something

Kubelet counterpart: `validateServiceConnection` in cri-client/pkg/remote_runtime.go.
"""

from typing import Final

from podkeeper.model.errors import BadInput, CallTimedOut, Problem, RuntimeRefused, RuntimeUnavailable
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import Unimplemented

OPEN_SECONDS: Final = 10.0
_OLD_VERSION: Final = "/runtime.v1alpha2.RuntimeService/Version"
_NEEDED: Final = "containerd 1.6 or later, or CRI-O 1.23 or later"


async def runtime_version(calls: CriCalls, where: str) -> cri.VersionResponse:
    """Return the runtime's version. `where` names its socket in errors. Raises RuntimeUnavailable, BadInput."""
    try:
        version = await calls.version(OPEN_SECONDS)
    except Unimplemented:
        raise await _no_cri(calls, where) from None
    except CallTimedOut:
        raise RuntimeUnavailable(
            f"cannot use the container runtime at {where}: the socket exists, but there was no response within "
            f"{OPEN_SECONDS:g} s; check the log of the runtime, or restart it"
        ) from None
    except RuntimeUnavailable as error:
        raise _unreachable(str(error), where) from None
    except RuntimeRefused as error:
        raise RuntimeUnavailable(f"cannot use the container runtime at {where}: {error}") from None
    if version.runtime_api_version not in ("v1", ""):
        raise _bad(f"it supports CRI {version.runtime_api_version}, expected v1; install {_NEEDED}", where)
    return version


def _unreachable(text: str, where: str) -> RuntimeUnavailable | BadInput:
    lowered = text.lower()
    if "permission denied" in lowered:
        return _bad("permission denied; run as root, or as a user with write permission for the socket", where)
    if "no such file" in lowered:
        hint = "the socket does not exist; check that containerd or CRI-O is running, and the path of its socket"
    elif "connection refused" in lowered:
        hint = "connection refused; start the runtime (systemctl start containerd, or crio)"
    else:
        hint = text
    return RuntimeUnavailable(f"cannot use the container runtime at {where}: {hint}")


async def _no_cri(calls: CriCalls, where: str) -> BadInput:
    """Return why a server does not support CRI v1: it is too old, or CRI is disabled."""
    try:
        old = await calls.transport.unary(_OLD_VERSION, cri.VersionRequest(), cri.VersionResponse, OPEN_SECONDS)
    except (RuntimeRefused, RuntimeUnavailable, CallTimedOut):
        return _bad(
            "its CRI is disabled, or it is not a container runtime; for containerd, remove `cri` from "
            f"`disabled_plugins` in config.toml and restart it (required: {_NEEDED})",
            where,
        )
    name = f"{old.runtime_name} {old.runtime_version}"
    return _bad(f"{name} supports only CRI v1alpha2, expected v1; install {_NEEDED}", where)


def _bad(problem: str, where: str) -> BadInput:
    return BadInput(Problem(f"cannot use the container runtime at {where}: {problem}"))
