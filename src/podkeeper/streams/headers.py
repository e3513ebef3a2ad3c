"""Header blocks of SPDY/3: compressed names and values.

Each direction of a connection has one zlib stream that starts with a known dictionary. Every block must pass through
the compressor or decompressor in order, even if its headers are not used. Names are in lower case. Several values of a
name are joined by a zero byte.
"""

import struct
import zlib
from collections.abc import Mapping
from typing import Final

MAX_BLOCK_BYTES: Final = 64 * 1024
"""Limit of a decompressed block. A real block has about 100 bytes. A malicious one could expand to gigabytes."""

_NAMES: Final = (
    *("options", "head", "post", "put", "delete", "trace", "accept", "accept-charset", "accept-encoding"),
    *("accept-language", "accept-ranges", "age", "allow", "authorization", "cache-control", "connection"),
    *("content-base", "content-encoding", "content-language", "content-length", "content-location", "content-md5"),
    *("content-range", "content-type", "date", "etag", "expect", "expires", "from", "host", "if-match"),
    *("if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified", "location"),
    *("max-forwards", "pragma", "proxy-authenticate", "proxy-authorization", "range", "referer", "retry-after"),
    *("server", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning"),
    *("www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie"),
    *("keep-alive", "origin"),
)
# Copied byte by byte from the specification, including its mistakes: both sides must use the same dictionary.
_PHRASES: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
_LENGTH: Final = struct.Struct("!I")


class BadHeaders(ValueError):
    """A header block cannot be decoded."""


def _with_length(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text


DICTIONARY: Final = b"".join(_with_length(name.encode()) for name in _NAMES) + _PHRASES.encode()
"""The zlib dictionary of the SPDY/3 specification."""


class HeaderCompressor:
    def __init__(self) -> None:
        self._zlib = zlib.compressobj(zdict=DICTIONARY)

    def compress(self, headers: Mapping[str, str]) -> bytes:
        parts = [_LENGTH.pack(len(headers))]
        for name, value in headers.items():
            # The specification requires lower case.
            parts += (_with_length(name.lower().encode()), _with_length(value.encode()))
        # A sync flush, because the peer must be able to decode each block on its own, while the stream continues.
        return self._zlib.compress(b"".join(parts)) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class HeaderDecompressor:
    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)

    def decompress(self, block: bytes) -> dict[str, str]:
        """Return the headers of the next block. Raises BadHeaders."""
        try:
            plain = self._zlib.decompress(block, MAX_BLOCK_BYTES)
        except zlib.error as error:
            raise BadHeaders(f"headers that cannot be decompressed: {error}") from None
        if self._zlib.unconsumed_tail:
            raise BadHeaders(f"headers of more than {MAX_BLOCK_BYTES} bytes")
        return _parsed(plain)


def _parsed(plain: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    try:
        (count,), position = _LENGTH.unpack_from(plain), _LENGTH.size
        for _ in range(count):
            name, position = _text(plain, position)
            headers[name], position = _text(plain, position)
    except (struct.error, UnicodeDecodeError):
        raise BadHeaders("headers that are truncated or not UTF-8") from None
    return headers


def _text(plain: bytes, position: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(plain, position)
    start = position + _LENGTH.size
    if start + length > len(plain):
        raise BadHeaders("headers that are truncated or not UTF-8")
    return plain[start : start + length].decode(), start + length
