"""HTTP probes: the request, and the report of a response."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s.core import Container, ContainerPort, HTTPGetAction, HTTPHeader
from podkeeper.model.probing import BrokenBody, HttpAnswer, HttpRequest, NoHttpAnswer
from podkeeper.rules.probe.http import (
    Redirect,
    RequestPurpose,
    canonical_header,
    http_report,
    http_request,
    redirect_after,
)
from podkeeper.rules.probe.report import MAX_OUTPUT_BYTES, ProbeOutcome, Report
from podkeeper.rules.probe.url import probe_url

WEB = Container(name="web", ports=(ContainerPort(name="http", container_port=80),))


def request(
    path: str = "/", *, host: str = "", scheme: str | None = None, headers: tuple[tuple[str, str], ...] = ()
) -> HttpRequest:
    wanted = tuple(HTTPHeader(name=name, value=value) for name, value in headers)
    action = HTTPGetAction(path=path, port="http", host=host, scheme=scheme, http_headers=wanted)
    return http_request(action, WEB, "10.1.0.5", "1.36")


URLS = {
    "no path":                                             ("10.1.0.5", "", "http://10.1.0.5:80"),
    "a plain path":                                        ("10.1.0.5", "/healthz", "http://10.1.0.5:80/healthz"),
    "a path without a slash gets one":                     ("10.1.0.5", "healthz", "http://10.1.0.5:80/healthz"),
    "a query is kept":                                     ("10.1.0.5", "/a?b=c&d", "http://10.1.0.5:80/a?b=c&d"),
    "an empty query is kept":                              ("10.1.0.5", "/a?", "http://10.1.0.5:80/a?"),
    "a fragment is kept":                                  ("10.1.0.5", "/x#y z", "http://10.1.0.5:80/x#y%20z"),
    "an empty fragment is removed":                        ("10.1.0.5", "/x#", "http://10.1.0.5:80/x"),
    "a space is escaped":                                  ("10.1.0.5", "/a b", "http://10.1.0.5:80/a%20b"),
    "an escape is kept":                                   ("10.1.0.5", "/a%2fb%41", "http://10.1.0.5:80/a%2fb%41"),
    "with an invalid escape, the whole path is literal":   ("10.1.0.5", "/%zz?x=1", "http://10.1.0.5:80/%25zz%3Fx=1"),
    "with a control character, the whole path is literal": ("10.1.0.5", "/\n?", "http://10.1.0.5:80/%0A%3F"),
    "non-ASCII letters are escaped":                       ("10.1.0.5", "/é", "http://10.1.0.5:80/%C3%A9"),
    "the host of the path is replaced":                    ("10.1.0.5", "//d/e", "http://10.1.0.5:80/e"),
    "the user of the path is kept":                        ("10.1.0.5", "//me:x@d/e", "http://me:x@10.1.0.5:80/e"),
    "the scheme of the path is replaced":                  ("10.1.0.5", "ftp://d/e", "http://10.1.0.5:80/e"),
    "an opaque path":                                      ("10.1.0.5", "a:b", "http:b"),
    "three slashes are not a host":                        ("10.1.0.5", "///d", "http://10.1.0.5:80///d"),
    "a colon in the first segment is literal":             ("10.1.0.5", "1:2/3", "http://10.1.0.5:80/1:2/3"),
    "a single star is kept":                               ("10.1.0.5", "*", "http://10.1.0.5:80/*"),
    "an IPv6 address gets brackets":                       ("::1", "/", "http://[::1]:80/"),
    "the zone of an address is escaped":                   ("fe80::1%eth0", "/", "http://[fe80::1%25eth0]:80/"),
    "a non-ASCII name is escaped":                         ("é", "/", "http://%C3%A9:80/"),
}  # fmt: skip


@pytest.mark.parametrize("host, path, expected", URLS.values(), ids=URLS.keys())
def test_url(host: str, path: str, expected: str) -> None:
    assert probe_url("http", host, 80, path) == expected


# A path and its URL. A reference that Go's net/url accepts is kept, all others are escaped.
SPELLINGS = [
    (
        "/!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~",
        "http://h:80/%21%22%23$%25&%27%28%29%2A+,-./0123456789:;%3C=%3E%3F@ABCDEFGHIJKLMNOPQRSTUVWXYZ%5B%5C%5D%5E_%60abcdefghijklmnopqrstuvwxyz%7B%7C%7D~",
    ),
    ("/-_.~$&+,/:;=@", "http://h:80/-_.~$&+,/:;=@"),
    ("/!'()*[]", "http://h:80/!'()*[]"),
    ("/!'()*[] ", "http://h:80/%21%27%28%29%2A%5B%5D%20"),
    ('/a"b', "http://h:80/a%22b"),
    ("/<>^`{|}\\", "http://h:80/%3C%3E%5E%60%7B%7C%7D%5C"),
    ("/x#-_.~$&+,/:;=?@!()*", "http://h:80/x#-_.~$&+,/:;=?@!()*"),
    ("/x#'[]", "http://h:80/x#'[]"),
    ("/x#'[]<", "http://h:80/x#%27%5B%5D%3C"),
    ("/x#%41", "http://h:80/x#%41"),
    ("/x#%41 ", "http://h:80/x#A%20"),
    ("/x#%zz", "http://h:80/x%23%25zz"),
    ("#f", "http://h:80#f"),
    ("#a#b", "http://h:80#a%23b"),
    ("/%41 ", "http://h:80/A%20"),
    ("/%", "http://h:80/%25"),
    ("/%4", "http://h:80/%254"),
    ("/%4g", "http://h:80/%254g"),
    ("/a%2f b", "http://h:80/a/%20b"),
    ("//u@d", "http://u@h:80"),
    ("//u:@d", "http://u:@h:80"),
    ("//:p@d", "http://:p@h:80"),
    ("//@d/e", "http://@h:80/e"),
    ("//u:p:q@d/e", "http://u:p%3Aq@h:80/e"),
    ("//a@b@d/e", "http://a%40b@h:80/e"),
    ("//u%20v:p%2fq@d/e", "http://u%20v:p%2Fq@h:80/e"),
    ("//u v@d/e", "http://h:80//u%20v@d/e"),
    ("//u!'()*@d/e", "http://u%21%27%28%29%2A@h:80/e"),
    ("//u%zz@d/e", "http://h:80//u%25zz@d/e"),
    ("//u$&+,;=@d", "http://u$&+,;=@h:80"),
    ("//d:80/e", "http://h:80/e"),
    ("//d:x/e", "http://h:80//d:x/e"),
    ("//a:1:2/e", "http://h:80/e"),
    ("http://a:1:2/e", "http://h:80/http://a:1:2/e"),
    ("https://a:1:2/e", "http://h:80/https://a:1:2/e"),
    ("ftp://a:1:2/e", "http://h:80/e"),
    ("ftp://a:1:x/e", "http://h:80/ftp://a:1:x/e"),
    ("//a[b/e", "http://h:80//a%5Bb/e"),
    ("//[::1]/e", "http://h:80/e"),
    ("//[::1]:9/e", "http://h:80/e"),
    ("//[::1]:x/e", "http://h:80//%5B::1%5D:x/e"),
    ("//[::1/e", "http://h:80//%5B::1/e"),
    ("//[::zz]/e", "http://h:80//%5B::zz%5D/e"),
    ("//[fe80::1%25a b]/e", "http://h:80//%5Bfe80::1%2525a%20b%5D/e"),
    ("//[fe80::1%25a%20b]/e", "http://h:80/e"),
    ("//[fe80::1%25]/e", "http://h:80//%5Bfe80::1%2525%5D/e"),
    ("//[fe80::1%25a%01]/e", "http://h:80//%5Bfe80::1%2525a%2501%5D/e"),
    ("//[fe80::1%25a%41]/e", "http://h:80/e"),
    ("//[fe80::1%25a%2525]/e", "http://h:80/e"),
    ("//[fe80::1%25a%2f]/e", "http://h:80//%5Bfe80::1%2525a%252f%5D/e"),
    ("//[fe80::1%25a%80]/e", "http://h:80//%5Bfe80::1%2525a%2580%5D/e"),
    ("//d%41/e", "http://h:80//d%2541/e"),
    ("//d%25/e", "http://h:80/e"),
    ("//d%80/e", "http://h:80/e"),
    ("//d%7f/e", "http://h:80//d%257f/e"),
    ("//d%c3%a9/e", "http://h:80/e"),
    ("//d%/e", "http://h:80//d%25/e"),
    ("//d|/e", "http://h:80//d%7C/e"),
    ('//d<>"/e', "http://h:80/e"),
    ("//é/e", "http://h:80/e"),
    (":a", "http://h:80/:a"),
    ("1a:b", "http://h:80/1a:b"),
    ("a+.-1:b?c#d", "http:b?c#d"),
    ("A:b", "http:b"),
    ("a:?q", "http://h:80?q"),
    ("a:/b", "http://h:80/b"),
    ("a:///b/c", "http://h:80/b/c"),
    ("a://", "http://h:80"),
    ("a/b:c", "http://h:80/a/b:c"),
    ("a_b:c", "http://h:80/a_b:c"),
    ("?q", "http://h:80?q"),
    ("?a b", "http://h:80?a b"),
    ("/a?b?c", "http://h:80/a?b?c"),
    ("/a?b#c?d", "http://h:80/a?b#c?d"),
    ("\x7f", "http://h:80/%7F"),
    ("/\x1f", "http://h:80/%1F"),
    ("/ ", "http://h:80/%20"),
    ("/\x80", "http://h:80/%C2%80"),
    ("/a#\x01", "http://h:80/a#%01"),
    ("1:2?q", "http://h:80/1:2%3Fq"),
    ("1:2/3?q", "http://h:80/1:2/3%3Fq"),
    ("a/1:2?q", "http://h:80/a/1:2?q"),
    ("//:x/e", "http://h:80//:x/e"),
    ("//:/e", "http://h:80/e"),
    ("//À/e", "http://h:80/e"),
    ("//[fe80::1%25a%]/e", "http://h:80//%5Bfe80::1%2525a%25%5D/e"),
    ("//[fe80::1%25a%4]/e", "http://h:80//%5Bfe80::1%2525a%254%5D/e"),
]


@pytest.mark.parametrize(("path", "expected"), SPELLINGS, ids=range(len(SPELLINGS)))
def test_formatted_path(path: str, expected: str) -> None:
    assert probe_url("http", "h", 80, path) == expected


REFUSED_HOSTS = {
    "a b": "http://a%20b:80/: its host escapes %20",
    "a/b": "http://a%2Fb:80/: its host escapes %2F",
    "\x01": "http://%01:80/: its host escapes %01",
    "a|b": "http://a%7Cb:80/: its host escapes %7C",
    "fe80::1%": "http://[fe80::1%25]:80/: the zone of its host is empty",
    "[::1]": "http://[[::1]]:80/: its host contains '[' in the middle",
}


@pytest.mark.parametrize(("host", "problem"), REFUSED_HOSTS.items(), ids=REFUSED_HOSTS.values())
def test_why_a_host_is_rejected(host: str, problem: str) -> None:
    with pytest.raises(BadInput) as raised:
        probe_url("http", host, 80, "/")
    assert [(each.field, each.message) for each in raised.value.problems] == [("httpGet", f"cannot request {problem}")]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ('a<b>"c', 'https://a<b>"c:80/x'),
        ("a%41", "https://a%2541:80/x"),
        ("fe80::1%a b", "https://[fe80::1%25a%20b]:80/x"),
        ("", "https://:80/x"),
    ],
)
def test_formatted_host(host: str, expected: str) -> None:
    assert probe_url("https", host, 80, "/x") == expected


@pytest.mark.parametrize("host", ["a b", "a/b", "a:b", "::zz", "fe80::1%", "[::1]", "\x01"])
def test_an_invalid_host_is_rejected(host: str) -> None:
    with pytest.raises(BadInput, match="httpGet"):
        probe_url("http", host, 80, "/")


@given(st.text(st.characters(codec="utf-8", exclude_characters="?:@"), max_size=30))
def test_every_path_gives_an_ascii_url(path: str) -> None:
    """Only a query, a user and the part after a scheme are passed on unchanged."""
    url = probe_url("http", "10.1.0.5", 80, path)
    assert url.startswith("http://10.1.0.5:80")
    assert url.isascii()
    assert url.isprintable()


@given(st.text(st.characters(codec="utf-8", exclude_characters="#?%:@"), max_size=30))
def test_formatting_a_url_twice_changes_nothing(path: str) -> None:
    url = probe_url("http", "10.1.0.5", 80, path)
    assert probe_url("http", "10.1.0.5", 80, url) == url


def test_a_request_has_a_user_agent_and_accepts_anything() -> None:
    assert request("/healthz", scheme="HTTPS") == HttpRequest(
        url="https://10.1.0.5:80/healthz", headers={"User-Agent": ("kube-probe/1.36",), "Accept": ("*/*",)}
    )


def test_a_hook_has_its_own_user_agent() -> None:
    made = http_request(HTTPGetAction(port=80), WEB, "10.1.0.5", "1.36", RequestPurpose.LIFECYCLE)
    assert made.headers["User-Agent"] == ("kube-lifecycle/1.36",)


def test_own_headers_replace_the_default_ones_and_repeated_ones_are_all_sent() -> None:
    made = request(headers=(("user-agent", "me"), ("x-a", "1"), ("X-A", "2"), ("ACCEPT", "text/plain")))
    assert made.headers == {"User-Agent": ("me",), "X-A": ("1", "2"), "Accept": ("text/plain",)}


def test_an_empty_accept_header_is_not_sent() -> None:
    assert request(headers=(("Accept", ""), ("Accept", "text/plain"))).headers == {"User-Agent": ("kube-probe/1.36",)}


def test_the_first_host_header_is_the_host_of_the_request() -> None:
    made = request(host="example.com", headers=(("host", "a.example"), ("Host", "b.example")))
    assert (made.url, made.host) == ("http://example.com:80/", "a.example")


@pytest.mark.parametrize(
    "written, canonical",
    [
        ("x-request-id", "X-Request-Id"),
        ("X-REQUEST-ID", "X-Request-Id"),
        ("content_type", "Content_type"),
        ("-a--b", "-A--B"),
        ("x a", "x a"),
        ("é-x", "é-x"),
        ("", ""),
    ],
)
def test_canonical_header(written: str, canonical: str) -> None:
    assert canonical_header(written) == canonical


RESPONSES = {
    "below 200 is a failure": (199, Report(ProbeOutcome.FAILURE, "HTTP probe failed with statuscode: 199")),
    "200 is a success":       (200, Report(ProbeOutcome.SUCCESS, "ok")),
    "299 is a success":       (299, Report(ProbeOutcome.SUCCESS, "ok")),
    "a redirect to another host is a warning":
        (300, Report(ProbeOutcome.WARNING, "Probe terminated redirects, Response body: ok")),
    "any status below 400 is a warning":
        (399, Report(ProbeOutcome.WARNING, "Probe terminated redirects, Response body: ok")),
    "400 is a failure without the body":
        (400, Report(ProbeOutcome.FAILURE, "HTTP probe failed with statuscode: 400")),
}  # fmt: skip


@pytest.mark.parametrize("status, expected", RESPONSES.values(), ids=RESPONSES.keys())
def test_http_report(status: int, expected: Report) -> None:
    assert http_report(HttpAnswer(status, b"ok")) == expected


def test_a_long_body_is_truncated() -> None:
    assert http_report(HttpAnswer(200, b"x" * (MAX_OUTPUT_BYTES + 1))).output == "x" * MAX_OUTPUT_BYTES


def test_no_response_is_a_failure_and_an_incomplete_one_an_error() -> None:
    assert http_report(NoHttpAnswer("timeout")) == Report(ProbeOutcome.FAILURE, "timeout")
    assert http_report(BrokenBody("reset")) == Report(ProbeOutcome.FAILURE, "", "reset")


@pytest.mark.parametrize(
    "next_host, requests_made, expected",
    [
        ("a", 1, Redirect.FOLLOW),
        ("a", 9, Redirect.FOLLOW),
        ("a", 10, Redirect.GIVE_UP),
        ("b", 1, Redirect.STOP),
        ("b", 10, Redirect.STOP),
    ],
)
def test_redirects_are_followed_within_the_host_only(next_host: str, requests_made: int, expected: Redirect) -> None:
    assert redirect_after("a", next_host, requests_made) is expected
