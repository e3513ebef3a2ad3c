"""The URL of an HTTP probe or hook, spelled exactly as the reference spells it.

Comes in: scheme, host, port and the `path` of an `httpGet`, which people fill with whatever they
like: with a query, a fragment, an authority of its own, or broken escapes. Goes out: the text of
the URL that is requested. The promises are the reference's: a path that cannot be read as a URL
reference is taken literally and escaped; one that can keeps its query, fragment, user and its own
way of escaping, and loses its scheme and host to the probe's.

The Go ancestors are `formatURL` in pkg/probe/http/request.go and the standard library's net/url.
`urllib.parse` is not used: it neither refuses nor escapes what Go does.
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
_KEPT_IF_WRITTEN = frozenset(b"!$&'()*+,;=:@[]%")  # a path may leave these as they are, although we would escape some
_USERINFO = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)?:", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})?")
_OPTIONAL_PORT = re.compile(r"(?::[0-9]*)?", re.ASCII)


class _NotAUrl(ValueError):
    """The text cannot be read as a URL reference."""


@dataclass(frozen=True, slots=True)
class _Url:
    """The parts of a URL; all but the host are held as they will be written."""

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
    """The text of the URL to request; raises BadInput when no URL can be made of it."""
    try:
        reference = _parse(path)
    except _NotAUrl:
        reference = _Url(path=_escaped(_bytes(path), _SAFE_IN_PATH))
    url = replace(reference, scheme=scheme, host=_bytes(join_host_port(host, port)))
    try:
        return str(_parse(str(url)))  # read once more, because that is what refuses a bad host
    except _NotAUrl as error:
        raise BadInput(Problem(f"cannot request {url}: {error}", field="httpGet")) from error


def _parse(text: str) -> _Url:
    text, _, fragment = text.partition("#")
    url = _parse_but_fragment(text)
    return replace(url, fragment=_respelled(fragment, _SAFE_IN_FRAGMENT)) if fragment else url


def _parse_but_fragment(text: str) -> _Url:
    if _CONTROL.search(text):
        raise _NotAUrl("it holds a control character")
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
            raise _NotAUrl("its first path segment holds a colon")
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
        raise _NotAUrl("its user information holds a wrong character")
    name, colon, password = text.partition(":")
    return colon.join(_escaped(_unescaped(part), _SAFE_IN_USER) for part in ([name, password] if colon else [name]))


def _parse_host(scheme: str, text: str) -> bytes:
    bracket = text.rfind("[")
    if bracket > 0:
        raise _NotAUrl("its host holds '[' in the middle")
    if bracket == 0:
        return _parse_bracketed(text)
    # A second colon is forgiven only where the scheme is not HTTP.
    colon = text.find(":") if scheme in {"http", "https"} else text.rfind(":")
    if colon >= 0:
        _require_port(text[colon:])
    return _unescaped_host(text)


def _parse_bracketed(text: str) -> bytes:
    inside, closed, after = text[1:].rpartition("]")
    if not closed:
        raise _NotAUrl("its host lacks ']'")
    _require_port(after)
    address_text, zone_mark, zone = inside.partition("%25")
    host = _unescaped_host(address_text)
    if zone_mark:
        host += _unescaped_zone(zone_mark + zone)
    address, percent, scope = host.partition(b"%")
    try:
        ipaddress.IPv6Address(address.decode())
    except ValueError as error:
        raise _NotAUrl(f"its host is no IPv6 address: {error}") from error
    if percent and not scope:
        raise _NotAUrl("the zone of its host is empty")
    return b"[" + host + b"]" + after.encode()


def _require_port(text: str) -> None:
    if not _OPTIONAL_PORT.fullmatch(text):
        raise _NotAUrl(f"{text!r} after its host is no port")


def _respelled(text: str, safe: frozenset[int]) -> str:
    """The text as it was written if that is correct, else decoded and escaped anew."""
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
    """A host name may escape only bytes beyond ASCII, and '%' itself."""
    for found in _ESCAPE.finditer(_bytes(text)):
        if found[1] is not None and found[1][0:1] < b"8" and found[1] != b"25":
            raise _NotAUrl(f"its host escapes {found[0].decode()}")
    _require_host_bytes(text)
    return _unescaped(text)


def _unescaped_zone(text: str) -> bytes:
    """The zone of an IPv6 address may escape what a host name may hold, blanks, and '%' itself."""
    for found in _ESCAPE.finditer(_bytes(text)):
        if found[1] is not None and found[1] != b"25":
            value = int(found[1], 16)
            if value != ord(" ") and value not in _SAFE_IN_HOST:
                raise _NotAUrl(f"the zone of its host escapes {found[0].decode()}")
    _require_host_bytes(text)
    return _unescaped(text)


def _require_host_bytes(text: str) -> None:
    if any(byte < 0x80 and byte != ord("%") and byte not in _SAFE_IN_HOST for byte in _bytes(text)):
        raise _NotAUrl("its host holds a wrong character")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
