"""Results of lifecycle hooks: failure, and message for the status.

Events do not contain the message, because it may contain secrets. Any HTTP response is a success, whatever its
status code.

Kubelet counterpart: pkg/kubelet/lifecycle/handlers.go.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod
from podkeeper.model.probing import CommandEnd, CommandExited, HttpEnd, HttpRequest, NoHttpAnswer, NotRun, TimedOut
from podkeeper.rules.naming import format_pod
from podkeeper.rules.probe.net import quoted
from podkeeper.rules.probe.report import output_text

POST_START_ERROR = "PostStartHookError"

_PLAIN_ANSWER = "server gave HTTP response to HTTPS client"


def exec_failure(
    pod: Pod, container: Container | EphemeralContainer, command: Sequence[str], end: CommandEnd
) -> str | None:
    """Return the message for a failed command, None if it succeeded."""
    output = ""
    match end:
        case CommandExited(code=0):
            return None
        case CommandExited(code=code, output=printed):
            error, output = f"command '{' '.join(command)}' exited with {code}: ", output_text(printed)
        case TimedOut(message=message) | NotRun(message=message):
            error = message
    what = f"Exec lifecycle hook ([{' '.join(command)}])"
    return f"{_failed(what, pod, container)}{error}, message: {quoted(output)}"


def http_failure(pod: Pod, container: Container | EphemeralContainer, path: str, end: HttpEnd) -> str | None:
    """Return the message for a request without a response, None if there was one."""
    return http_error_message(pod, container, path, end.message) if isinstance(end, NoHttpAnswer) else None


def http_error_message(pod: Pod, container: Container | EphemeralContainer, path: str, error: str) -> str:
    """Return the message for a request that was not sent or got no response."""
    return f"{_failed(f'HTTP lifecycle hook ({path})', pod, container)}{error}"


def http_fallback_request(request: HttpRequest, end: HttpEnd) -> HttpRequest | None:
    """Return the HTTP request to try if the server does not speak HTTPS, without credentials. None: do not retry."""
    if not (isinstance(end, NoHttpAnswer) and _PLAIN_ANSWER in end.message and request.url.startswith("https:")):
        return None
    # As in the kubelet: credentials meant for HTTPS must not be sent in plain text.
    headers = {name: values for name, values in request.headers.items() if name != "Authorization"}
    return replace(request, url="http:" + request.url.removeprefix("https:"), headers=headers)


def _failed(what: str, pod: Pod, container: Container | EphemeralContainer) -> str:
    return f'{what} for Container "{container.name}" in Pod "{format_pod(pod)}" failed - error: '
