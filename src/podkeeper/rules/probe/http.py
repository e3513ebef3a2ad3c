"""HTTP probes and hooks: build the request, and convert the response to a report.

In: the `httpGet` of a probe or lifecycle hook, the container and the pod IP, then the response. Out: an `HttpRequest`
with canonical header names, then a `Report`. Status 200 to 299 is a success, 300 to 399 a success with a warning.
Redirects to the same host are followed, others are not. Any other status is a failure, and its text does not contain
the body.

Kubelet counterpart: pkg/probe/http, and net/textproto of Go's standard library for canonical header names.
"""

import re
from collections.abc import Iterable
from enum import Enum

from podkeeper.model.k8s.core import Container, HTTPGetAction, HTTPHeader
from podkeeper.model.probing import BrokenBody, HttpAnswer, HttpEnd, HttpRequest, NoHttpAnswer
from podkeeper.rules.probe.net import resolve_port
from podkeeper.rules.probe.report import ProbeOutcome, Report, output_text
from podkeeper.rules.probe.url import probe_url

# Go's HTTP client, and therefore the kubelet, follows at most ten redirects.
MAX_REQUESTS = 10
"""After this many requests, another redirect to the same host is an error."""

_TOKEN = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+", re.ASCII)


class RequestPurpose(Enum):
    """Why a request is sent. The User-Agent header contains it."""

    PROBE = "probe"
    LIFECYCLE = "lifecycle"


class Redirect(Enum):
    """What to do with a redirect."""

    FOLLOW = "follow"
    STOP = "stop"  # it leads to another host, so this response counts
    GIVE_UP = "stopped after 10 redirects"


def http_request(
    action: HTTPGetAction,
    container: Container,
    pod_ip: str,
    version: str,
    purpose: RequestPurpose = RequestPurpose.PROBE,
) -> HttpRequest:
    """Return the request of an `httpGet`. `version` is the agent's Kubernetes version (`1.36`)."""
    scheme = (action.scheme or "http").lower()
    url = probe_url(scheme, action.host or pod_ip, resolve_port(action.port, container), action.path or "")
    headers = _collected(action.http_headers or ())
    headers.setdefault("User-Agent", [f"kube-{purpose.value}/{version}"])
    if headers.setdefault("Accept", ["*/*"])[0] == "":
        del headers["Accept"]  # an empty value means no header
    return HttpRequest(
        url=url,
        headers={name: tuple(values) for name, values in headers.items()},
        host=headers.get("Host", [""])[0],
    )


def redirect_after(first_host: str, next_host: str, requests_made: int) -> Redirect:
    """Return whether to follow a redirect. Hosts have no ports."""
    if next_host != first_host:
        return Redirect.STOP
    return Redirect.GIVE_UP if requests_made >= MAX_REQUESTS else Redirect.FOLLOW


def http_report(end: HttpEnd) -> Report:
    """Return the report of an HTTP request.

    No response, for example because of a timeout, is a failure of the container. If the body is incomplete, the probe
    is executed again.
    """
    match end:
        case HttpAnswer(status=status, body=body) if 200 <= status < 300:
            return Report(ProbeOutcome.SUCCESS, output_text(body))
        case HttpAnswer(status=status, body=body) if 300 <= status < 400:
            return Report(ProbeOutcome.WARNING, f"Probe terminated redirects, Response body: {output_text(body)}")
        case HttpAnswer(status=status):
            return Report(ProbeOutcome.FAILURE, f"HTTP probe failed with statuscode: {status}")
        case NoHttpAnswer(message=message):
            return Report(ProbeOutcome.FAILURE, message)
        case BrokenBody(message=message):
            return Report(ProbeOutcome.FAILURE, error=message)


def canonical_header(name: str) -> str:
    """Return a header name with a capital letter after each hyphen. An invalid name does not change."""
    if not _TOKEN.fullmatch(name):
        return name
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def _collected(headers: Iterable[HTTPHeader]) -> dict[str, list[str]]:
    collected: dict[str, list[str]] = {}
    for header in headers:
        collected.setdefault(canonical_header(header.name), []).append(header.value)
    return collected
