"""The URL of an HTTP probe or hook, formatted exactly as the kubelet does.

In: scheme, host, port and the `path` of an `httpGet`. The path may contain a query, a fragment, its own authority or
invalid escapes. Out: the URL to request. As in the kubelet, a path that is not a valid URL reference is escaped
literally. A valid one keeps its query, fragment, user and escapes. Scheme and host are those of the probe.

Kubelet counterpart: `formatURL` in pkg/probe/http/request.go and Go's net/url. `urllib.parse` is not used, because it
rejects and escapes other characters than Go.
"""

import ipaddress
import re
import string
from dataclasses import dataclass, replace

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.probing import join_host_port

_UNRESERVED = string.ascii_letters + string.digits + "-_.~"
_SAFE_IN_PATH = frozenset((_UNRESERVED + "$&+,/:;=@").encode())
_SAFE_IN_FRAGMENT = frozenset((_UNRESERVED + "$&+,/:;=?@!()*").encode())
_SAFE_IN_HOST = frozenset((_UNRESERVED + "!$&'()*+,;=:[]<>\"").encode())
_SAFE_IN_USER = frozenset((_UNRESERVED + "$&+,;=").encode())
_KEPT_IF_WRITTEN = frozenset(b"!$&'()*+,;=:@[]%")  # a path may contain these unescaped
_USERINFO = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)?:", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})?")
_OPTIONAL_PORT = re.compile(r"(?::[0-9]*)?", re.ASCII)


class _NotAUrl(ValueError):
    """The text is not a valid URL reference."""


@dataclass(frozen=True, slots=True)
class _Url:
    """The parts of a URL. All but the host are stored escaped."""

    scheme: str = ""
    opaque: str = ""
    user: str | None = None
    host: bytes = b""
    path: str = ""
    query: str | None = None
    fragment: str = ""

    def __str__(self) -> str:
        text = f"{self.scheme}:"
        if self.opaque:
            text += self.opaque
        else:
            user = "" if self.user is None else f"{self.user}@"
            slash = "/" if self.path and not self.path.startswith("/") else ""
            text += f"//{user}{_escaped(self.host, _SAFE_IN_HOST)}{slash}{self.path}"
        if self.query is not None:
            text += f"?{self.query}"
        return f"{text}#{self.fragment}" if self.fragment else text


def probe_url(scheme: str, host: str, port: int, path: str) -> str:
    """Return the URL to request. Raises BadInput if the result is not a valid URL."""
    try:
        reference = _parse(path)
    except _NotAUrl:
        reference = _Url(path=_escaped(_bytes(path), _SAFE_IN_PATH))
    url = replace(reference, scheme=scheme, host=_bytes(join_host_port(host, port)))
    try:
        return str(_parse(str(url)))  # parse again to reject an invalid host
    except _NotAUrl as error:
        raise BadInput(Problem(f"cannot request {url}: {error}", field="httpGet")) from error


def _parse(text: str) -> _Url:
    text, _, fragment = text.partition("#")
    url = _parse_without_fragment(text)
    return replace(url, fragment=_respelled(fragment, _SAFE_IN_FRAGMENT)) if fragment else url


def _parse_without_fragment(text: str) -> _Url:
    if _CONTROL.search(text):
        raise _NotAUrl("it contains a control character")
    scheme = ""
    if found := _SCHEME.match(text):
        if not found[1]:
            raise _NotAUrl("the scheme before ':' is missing")
        scheme, text = found[1].lower(), text[found.end() :]
    rest, mark, query_text = text.partition("?")
    query = query_text if mark else None
    if not rest.startswith("/"):
        if scheme:
            return _Url(scheme=scheme, opaque=rest, query=query)
        if ":" in rest.partition("/")[0]:
            raise _NotAUrl("its first path segment contains a colon")
    user, host = None, b""
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
        userinfo, at, host_text = authority.rpartition("@")
        host = _parse_host(scheme, host_text)
        user = _parse_user(userinfo) if at else None
    return _Url(scheme=scheme, user=user, host=host, path=_respelled(rest, _SAFE_IN_PATH), query=query)


def _parse_user(text: str) -> str:
    if not _USERINFO.fullmatch(text):
        raise _NotAUrl("its user information contains an invalid character")
    name, colon, password = text.partition(":")
    return colon.join(_escaped(_unescaped(part), _SAFE_IN_USER) for part in ([name, password] if colon else [name]))


def _parse_host(scheme: str, text: str) -> bytes:
    bracket = text.rfind("[")
    if bracket > 0:
        raise _NotAUrl("its host contains '[' in the middle")
    if bracket == 0:
        return _parse_bracketed(text)
    # A second colon is only allowed if the scheme is not HTTP.
    colon = text.find(":") if scheme in {"http", "https"} else text.rfind(":")
    if colon >= 0:
        _require_port(text[colon:])
    return _unescaped_host(text)


def _parse_bracketed(text: str) -> bytes:
    inside, closed, after = text[1:].rpartition("]")
    if not closed:
        raise _NotAUrl("its host has no closing ']'")
    _require_port(after)
    address_text, zone_mark, zone = inside.partition("%25")
    host = _unescaped_host(address_text)
    if zone_mark:
        host += _unescaped_zone(zone_mark + zone)
    address, percent, scope = host.partition(b"%")
    try:
        ipaddress.IPv6Address(address.decode())
    except ValueError as error:
        raise _NotAUrl(f"its host is not an IPv6 address: {error}") from error
    if percent and not scope:
        raise _NotAUrl("the zone of its host is empty")
    return b"[" + host + b"]" + after.encode()


def _require_port(text: str) -> None:
    if not _OPTIONAL_PORT.fullmatch(text):
        raise _NotAUrl(f"{text!r} after its host is not a port")


def _respelled(text: str, safe: frozenset[int]) -> str:
    """Return the text unchanged if it is valid, otherwise decode and escape it."""
    plain = _unescaped(text)
    if all(byte in safe or byte in _KEPT_IF_WRITTEN for byte in _bytes(text)):
        return text
    return _escaped(plain, safe)


def _escaped(data: bytes, safe: frozenset[int]) -> str:
    return "".join(chr(byte) if byte in safe else f"%{byte:02X}" for byte in data)


def _unescaped(text: str) -> bytes:
    def plain(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            raise _NotAUrl("a '%' is not followed by two hexadecimal digits")
        return bytes.fromhex(found[1].decode())

    return _ESCAPE.sub(plain, _bytes(text))


def _unescaped_host(text: str) -> bytes:
    """Unescape a host name. It may only escape non-ASCII bytes and '%'."""
    for found in _ESCAPE.finditer(_bytes(text)):
        if found[1] is not None and found[1][0:1] < b"8" and found[1] != b"25":
            raise _NotAUrl(f"its host escapes {found[0].decode()}")
    _require_host_bytes(text)
    return _unescaped(text)


def _unescaped_zone(text: str) -> bytes:
    """Unescape an IPv6 zone. It may escape the characters of a host name, spaces and '%'."""
    for found in _ESCAPE.finditer(_bytes(text)):
        if found[1] is not None and found[1] != b"25":
            value = int(found[1], 16)
            if value != ord(" ") and value not in _SAFE_IN_HOST:
                raise _NotAUrl(f"the zone of its host escapes {found[0].decode()}")
    _require_host_bytes(text)
    return _unescaped(text)


def _require_host_bytes(text: str) -> None:
    if any(byte < 0x80 and byte != ord("%") and byte not in _SAFE_IN_HOST for byte in _bytes(text)):
        raise _NotAUrl("its host contains an invalid character")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
