"""The words of validation: how a complaint reads, and what names, keys, paths and addresses look like.

Every check yields a `Problem` that names the field, says what is wrong and what would be right. A
`Rule` is a test together with the sentence that tells what would pass it. The grammars are those
of apimachinery/pkg/util/validation.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import Problem
from podkeeper.model.k8s import meta

Problems = Iterator[Problem]

ANNOTATION_BYTES: Final = 256 * 1024

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL)
_DNS_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_SEARCH_LABEL: Final = r"_?[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?"
_SEARCH_PATH: Final = re.compile(rf"{_SEARCH_LABEL}(?:\.{_SEARCH_LABEL})*")
_LABEL_NAME: Final = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DATA_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_PORT_NAME: Final = re.compile(r"[-a-z0-9]{1,15}")
_HTTP_HEADER: Final = re.compile(r"[-A-Za-z0-9]+")
_SYSCTL_PART: Final = r"[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?"
_SYSCTL: Final = re.compile(rf"(?:{_SYSCTL_PART}[./])*{_SYSCTL_PART}")


# ---- how a complaint reads -----------------------------------------------------------------


def missing(field: str, right: str) -> Problem:
    """Something required is not there."""
    return Problem(f"cannot be empty; right would be {right}", field)


def wrong(field: str, value: object, right: str) -> Problem:
    """A value that cannot stand."""
    shown = repr(value)
    return Problem(f"cannot be {shown if len(shown) <= 80 else f'{shown[:80]}…'}; right would be {right}", field)


def unwanted(field: str, why: str) -> Problem:
    """Something that must not be there at all."""
    return Problem(f"cannot be set {why}; right would be to leave it out", field)


def repeated(field: str, value: object) -> Problem:
    """A second one of what must be unique."""
    return Problem(f"cannot be {value!r} a second time; right would be a name of its own", field)


def listed(choices: Iterable[str]) -> str:
    """Choices as a phrase: `a, b or c`."""
    *front, last = choices
    return f"{', '.join(front)} or {last}" if front else last


def choice(field: str, value: str | None, choices: Collection[str]) -> Problems:
    """Ask that a value is one of a few words."""
    if not value:
        yield missing(field, listed(choices))
    elif value not in choices:
        yield wrong(field, value, listed(choices))


def optional_choice(field: str, value: str | None, choices: Collection[str]) -> Problems:
    """Ask that a value, where there is one, is one of a few words."""
    if value is not None and value not in choices:
        yield wrong(field, value, listed(choices))


def within(field: str, number: int | None, low: int, high: int) -> Problems:
    """Ask that a number, where there is one, lies in a range."""
    if number is not None and not low <= number <= high:
        yield wrong(field, number, f"a number from {low} to {high}")


def not_negative(field: str, number: int | None) -> Problems:
    """Ask that a number, where there is one, is not below zero."""
    if number is not None and number < 0:
        yield wrong(field, number, "zero or more")


# ---- names and keys ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """What a text must look like."""

    holds: Callable[[str], bool]
    right: str

    def __call__(self, field: str, value: str) -> Problems:
        """Ask this of a text."""
        if not self.holds(value):
            yield wrong(field, value, self.right) if value else missing(field, self.right)


def _is_subdomain(text: str) -> bool:
    return len(text) <= 253 and _DNS_SUBDOMAIN.fullmatch(text) is not None


def _is_label_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    if slash and not _is_subdomain(prefix):
        return False
    return len(name) <= 63 and _LABEL_NAME.fullmatch(name) is not None


def _is_label_value(text: str) -> bool:
    return not text or (len(text) <= 63 and _LABEL_NAME.fullmatch(text) is not None)


def _is_data_key(text: str) -> bool:
    return len(text) <= 253 and _DATA_KEY.fullmatch(text) is not None and text != "." and not text.startswith("..")


def _is_port_name(text: str) -> bool:
    return (
        _PORT_NAME.fullmatch(text) is not None
        and "--" not in text
        and not text.startswith("-")
        and not text.endswith("-")
        and any(letter.isalpha() for letter in text)
    )


def _is_env_name(text: str) -> bool:
    return bool(text) and all(" " <= letter <= "~" and letter != "=" for letter in text)


def _is_search_path(text: str) -> bool:
    text = text.removesuffix(".") if text != "." else "dot"
    return len(text) <= 253 and _SEARCH_PATH.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return isinstance(address, ipaddress.IPv4Address) or (address.ipv4_mapped is None and "%" not in text)


dns_label: Final = Rule(
    lambda text: len(text) <= 63 and _DNS_LABEL.fullmatch(text) is not None,
    "at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends",
)
dns_subdomain: Final = Rule(
    _is_subdomain, "at most 253 of a-z, 0-9, '-' and '.', with a letter or digit at both ends of each part"
)
search_path: Final = Rule(_is_search_path, "a DNS domain such as 'example.com' (parts may hold '_')")
label_key: Final = Rule(
    _is_label_key,
    "a name such as 'app' or 'example.com/app': at most 63 of letters, digits, '-', '_' and '.' after a DNS prefix",
)
label_value: Final = Rule(
    _is_label_value, "nothing, or at most 63 of letters, digits, '-', '_' and '.', with a letter or digit at both ends"
)
data_key: Final = Rule(_is_data_key, "at most 253 of letters, digits, '-', '_' and '.', not beginning with '..'")
port_name: Final = Rule(_is_port_name, "at most 15 of a-z, 0-9 and single '-' inside, with at least one letter")
env_name: Final = Rule(_is_env_name, "printable ASCII without '='")
http_header: Final = Rule(lambda text: _HTTP_HEADER.fullmatch(text) is not None, "letters, digits and '-'")
address: Final = Rule(_is_address, "an IP address such as '10.9.8.7' or '2001:db8::ffff'")
sysctl_name: Final = Rule(
    lambda text: len(text) <= 253 and _SYSCTL.fullmatch(text) is not None,
    "a kernel parameter such as 'net.ipv4.tcp_syncookies'",
)


def labels(field: str, given: Mapping[str, str] | None) -> Problems:
    """Ask that labels, or the labels a selector wants, have proper keys and values."""
    for key, value in (given or {}).items():
        yield from label_key(f"{field}[{key}]", key)
        yield from label_value(f"{field}[{key}]", value)


def annotations(field: str, given: Mapping[str, str] | None) -> Problems:
    """Ask that annotations have proper keys and are not too large all together."""
    size = 0
    for key, value in (given or {}).items():
        yield from label_key(f"{field}[{key}]", key.lower())
        size += len(key.encode(errors="surrogatepass")) + len(value.encode(errors="surrogatepass"))
    if size > ANNOTATION_BYTES:
        yield Problem(f"cannot hold {size} bytes in all; right would be at most {ANNOTATION_BYTES}", field)


def label_selector(field: str, selector: meta.LabelSelector | None) -> Problems:
    """Ask that a label selector can be evaluated."""
    if selector is None:
        return
    yield from labels(f"{field}.matchLabels", selector.match_labels)
    for index, requirement in enumerate(selector.match_expressions or ()):
        at = f"{field}.matchExpressions[{index}]"
        yield from operator_and_values(at, requirement.operator, requirement.values, ordered=False)
        yield from label_key(f"{at}.key", requirement.key)
        for position, value in enumerate(requirement.values or ()):
            yield from label_value(f"{at}.values[{position}]", value)


def operator_and_values(field: str, operator: str, values: tuple[str, ...] | None, *, ordered: bool) -> Problems:
    """Ask that an operator of a selector has as many values as it needs; node selectors also compare."""
    match operator:
        case "In" | "NotIn":
            if not values:
                yield missing(f"{field}.values", f"at least one value for {operator}")
        case "Exists" | "DoesNotExist":
            if values:
                yield unwanted(f"{field}.values", f"for {operator}")
        case "Gt" | "Lt" if ordered:
            if len(values or ()) != 1:
                yield wrong(f"{field}.values", list(values or ()), f"exactly one value for {operator}")
        case _:
            known = ("In", "NotIn", "Exists", "DoesNotExist", *(("Gt", "Lt") if ordered else ()))
            yield wrong(f"{field}.operator", operator, listed(known))


# ---- paths ---------------------------------------------------------------------------------


def no_backsteps(field: str, path: str) -> Problems:
    """Ask that a path does not climb."""
    if ".." in path.split("/"):
        yield wrong(field, path, "a path without '..'")


def descending_path(field: str, path: str) -> Problems:
    """Ask that a path stays below the place it starts from."""
    if path.startswith("/"):
        yield wrong(field, path, "a relative path")
    yield from no_backsteps(field, path)


def file_path(field: str, path: str) -> Problems:
    """Ask for the path of a file in a volume; names beginning with '..' are the agent's own."""
    if not path:
        yield missing(field, "a relative path")
    yield from descending_path(field, path)
    if path.startswith("..") and not path.startswith("../") and path != "..":
        yield wrong(field, path, "a path that does not begin with '..'")
