"""HTTP probes and hooks: the request to send, and what the answer means.

Comes in: the `httpGet` of a probe (or of a lifecycle hook), the container and the pod's address; then
the answer. Goes out: an `HttpRequest` with headers in canonical spelling; then a `Report`. 200 to 299
is a success, 300 to 399 a success with a warning (redirects within the host were followed, one to another
host is not), all else a failure, whose text never shows the body.

The Go ancestors are pkg/probe/http and, for canonical spelling, the standard library's net/textproto.
"""

import re
from collections.abc import Iterable
from enum import Enum

from podkeeper.model.k8s.core import Container, HTTPGetAction, HTTPHeader
from podkeeper.model.probing import BrokenBody, HttpAnswer, HttpEnd, HttpRequest, NoAnswer
from podkeeper.rules.probe.net import resolve_port
from podkeeper.rules.probe.report import Outcome, Report, shown
from podkeeper.rules.probe.url import probe_url

MAX_REQUESTS = 10
"""With this many requests made, one more redirect within the host is an error."""

_TOKEN = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+", re.ASCII)


class Purpose(Enum):
    """Who asks; it names the user agent."""

    PROBE = "probe"
    LIFECYCLE = "lifecycle"


class Redirect(Enum):
    """What to do with an answer that points elsewhere."""

    FOLLOW = "follow"
    JUDGE = "judge"  # it leads to another host: this answer is the one to judge
    GIVE_UP = "stopped after 10 redirects"


def http_request(
    action: HTTPGetAction, container: Container, pod_ip: str, version: str, purpose: Purpose = Purpose.PROBE
) -> HttpRequest:
    """The request an `httpGet` asks for; `version` is the agent's Kubernetes version (`1.36`)."""
    scheme = (action.scheme or "http").lower()
    url = probe_url(scheme, action.host or pod_ip, resolve_port(action.port, container), action.path or "")
    headers = _collected(action.http_headers or ())
    headers.setdefault("User-Agent", [f"kube-{purpose.value}/{version}"])
    if headers.setdefault("Accept", ["*/*"])[0] == "":
        del headers["Accept"]  # whoever sets it to nothing wants none
    return HttpRequest(
        url=url,
        headers={name: tuple(values) for name, values in headers.items()},
        host=headers.get("Host", [""])[0],
    )


def redirect_after(first_host: str, next_host: str, requests_made: int) -> Redirect:
    """Whether to follow a redirect; hosts are given without their ports."""
    if next_host != first_host:
        return Redirect.JUDGE
    return Redirect.GIVE_UP if requests_made >= MAX_REQUESTS else Redirect.FOLLOW


def judge_http(end: HttpEnd) -> Report:
    """What the end of a request says about its container.

    No answer, for instance in time, is a failure of the container. An answer whose body broke off is no verdict: the
    probe is executed again.
    """
    match end:
        case HttpAnswer(status=status, body=body) if 200 <= status < 300:
            return Report(Outcome.SUCCESS, shown(body))
        case HttpAnswer(status=status, body=body) if 300 <= status < 400:
            return Report(Outcome.WARNING, f"Probe terminated redirects, Response body: {shown(body)}")
        case HttpAnswer(status=status):
            return Report(Outcome.FAILURE, f"HTTP probe failed with statuscode: {status}")
        case NoAnswer(message=message):
            return Report(Outcome.FAILURE, message)
        case BrokenBody(message=message):
            return Report(Outcome.FAILURE, error=message)


def canonical_header(name: str) -> str:
    """A header's name with a capital after each hyphen; one that is no valid name stays as it is."""
    if not _TOKEN.fullmatch(name):
        return name
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def _collected(headers: Iterable[HTTPHeader]) -> dict[str, list[str]]:
    collected: dict[str, list[str]] = {}
    for header in headers:
        collected.setdefault(canonical_header(header.name), []).append(header.value)
    return collected
