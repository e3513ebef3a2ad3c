"""Lifecycle hooks: whether one has failed, and what is said about it.

A container, its hook and how the hook ended come in; None goes out when it went well, else the text that the
container's status shows. Events never carry that text: it may hold secrets. Any HTTP answer is a success, whatever
its status. The Go ancestor is pkg/kubelet/lifecycle/handlers.go.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.probing import CommandEnd, Exited, HttpEnd, HttpRequest, NoAnswer, NotRun, TimedOut
from podkeeper.rules.naming import described
from podkeeper.rules.probe.net import quoted
from podkeeper.rules.probe.report import shown

POST_START_ERROR = "PostStartHookError"

_PLAIN_ANSWER = "server gave HTTP response to HTTPS client"


def exec_failure(
    pod: Pod, container: Container | EphemeralContainer, command: Sequence[str], end: CommandEnd
) -> str | None:
    """What a command that ended so has to say."""
    output = ""
    match end:
        case Exited(code=0):
            return None
        case Exited(code=code, output=printed):
            error, output = f"command '{' '.join(command)}' exited with {code}: ", shown(printed)
        case TimedOut(message=message) | NotRun(message=message):
            error = message
    what = f"Exec lifecycle hook ([{' '.join(command)}])"
    return f"{_failed(what, pod, container)}{error}, message: {quoted(output)}"


def http_failure(pod: Pod, container: Container | EphemeralContainer, path: str, end: HttpEnd) -> str | None:
    """What a request that ended so has to say."""
    return no_request(pod, container, path, end.message) if isinstance(end, NoAnswer) else None


def no_request(pod: Pod, container: Container | EphemeralContainer, path: str, error: str) -> str:
    """What is said when a request could not be made, or got no answer."""
    return f"{_failed(f'HTTP lifecycle hook ({path})', pod, container)}{error}"


def plain_request(request: HttpRequest, end: HttpEnd) -> HttpRequest | None:
    """The request to try instead when the other side speaks plain HTTP; credentials do not go with it."""
    if not (isinstance(end, NoAnswer) and _PLAIN_ANSWER in end.message and request.url.startswith("https:")):
        return None
    headers = {name: values for name, values in request.headers.items() if name != "Authorization"}
    return replace(request, url="http:" + request.url.removeprefix("https:"), headers=headers)


def _failed(what: str, pod: Pod, container: Container | EphemeralContainer) -> str:
    return f'{what} for Container "{container.name}" in Pod "{described(pod)}" failed - error: '
