"""Field errors of Kubernetes, and the checks of names, keys, paths and addresses.

Every check yields a `Problem` with the field and the wording of a Kubernetes field error ("Invalid value: ...").
A `Rule` is a test and the detail that the error shows. Kubelet counterparts: apimachinery/pkg/util/validation and its
package `field`.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import Problem, quoted
from podkeeper.model.k8s import meta

Problems = Iterator[Problem]

# TotalAnnotationSizeLimitB of the API server.
ANNOTATION_BYTES: Final = 256 * 1024
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
POSITIVE: Final = "must be greater than 0"

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


# ---- field errors --------------------------------------------------------------------------
# The wording of k8s.io/apimachinery/pkg/util/validation/field/errors.go.


def missing(field: str, detail: str = "") -> Problem:
    return Problem(f"Required value: {detail}" if detail else "Required value", field)


def wrong(field: str, value: object, detail: str) -> Problem:
    return Problem(f"Invalid value: {quoted(value)}: {detail}", field)


def unsupported(field: str, value: object, choices: Iterable[str]) -> Problem:
    return Problem(f"Unsupported value: {quoted(value)}: {supported(choices)}", field)


def unwanted(field: str, detail: str) -> Problem:
    return Problem(f"Forbidden: {detail}", field)


def repeated(field: str, value: object) -> Problem:
    return Problem(f"Duplicate value: {quoted(value)}", field)


def not_found(field: str, value: object) -> Problem:
    return Problem(f"Not found: {quoted(value)}", field)


def too_long(field: str, most: int, unit: str = "bytes") -> Problem:
    return Problem(f"Too long: may not be more than {most} {unit}", field)


def too_many(field: str, count: int, most: int) -> Problem:
    return Problem(f"Too many: {count}: must have at most {most} items", field)


def supported(choices: Iterable[str]) -> str:
    return f"supported values: {', '.join(map(quoted, choices))}"


def choice(field: str, value: str | None, choices: Collection[str]) -> Problems:
    """Check a required value. An empty value counts as missing."""
    if not value:
        yield missing(field, supported(choices))
    elif value not in choices:
        yield unsupported(field, value, choices)


def optional_choice(field: str, value: str | None, choices: Collection[str]) -> Problems:
    """Check a value that may be missing. An empty value is not missing."""
    if value is not None and value not in choices:
        yield unsupported(field, value, choices)


def within(field: str, number: int | None, low: int, high: int) -> Problems:
    if number is not None and not low <= number <= high:
        yield wrong(field, number, f"must be between {low} and {high}, inclusive")


def not_negative(field: str, number: int | None) -> Problems:
    if number is not None and number < 0:
        yield wrong(field, number, NOT_NEGATIVE)


# ---- names and keys ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """The syntax of a text."""

    holds: Callable[[str], bool]
    detail: str

    def __call__(self, field: str, value: str) -> Problems:
        if not self.holds(value):
            yield wrong(field, value, self.detail) if value else missing(field)


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
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character (e.g. 'my-name', at most 63 characters)",
)
dns_subdomain: Final = Rule(
    _is_subdomain,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com', at most 253 characters)",
)
search_path: Final = Rule(
    _is_search_path,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com', at most 253 characters)",
)
label_key: Final = Rule(
    _is_label_key,
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName', at most 63 characters) with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')",
)
label_value: Final = Rule(
    _is_label_value,
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue', at most 63 characters)",
)
data_key: Final = Rule(
    _is_data_key,
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.', "
    "and must not be '.' or start with '..' (e.g. 'key.name', at most 253 characters)",
)
port_name: Final = Rule(
    _is_port_name,
    "must be no more than 15 characters, must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-), "
    "must contain at least one letter (a-z), must not contain consecutive hyphens, "
    "must not begin or end with a hyphen",
)
env_name: Final = Rule(
    _is_env_name,
    "a valid environment variable name must consist only of printable ASCII characters other than '='",
)
http_header: Final = Rule(
    lambda text: _HTTP_HEADER.fullmatch(text) is not None,
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name')",
)
address: Final = Rule(_is_address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
sysctl_name: Final = Rule(
    lambda text: len(text) <= 253 and _SYSCTL.fullmatch(text) is not None,
    "must have at most 253 characters and be a kernel parameter (e.g. 'net.ipv4.tcp_syncookies')",
)


def labels(field: str, given: Mapping[str, str] | None) -> Problems:
    """Check labels, or the labels of a selector."""
    for key, value in (given or {}).items():
        yield from label_key(f"{field}[{key}]", key)
        yield from label_value(f"{field}[{key}]", value)


def annotations(field: str, given: Mapping[str, str] | None) -> Problems:
    size = 0
    for key, value in (given or {}).items():
        yield from label_key(f"{field}[{key}]", key.lower())
        size += len(key.encode(errors="surrogatepass")) + len(value.encode(errors="surrogatepass"))
    if size > ANNOTATION_BYTES:
        yield too_long(field, ANNOTATION_BYTES)


def label_selector(field: str, selector: meta.LabelSelector | None) -> Problems:
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
    """Check that the operator of a selector has as many values as it needs.

    `ordered` allows `Gt` and `Lt`, which only node selectors have.
    """
    match operator:
        case "In" | "NotIn":
            if not values:
                yield missing(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if values:
                yield unwanted(f"{field}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        case "Gt" | "Lt" if ordered:
            if len(values or ()) != 1:
                detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                yield missing(f"{field}.values", detail)
        case _:
            known = ("In", "NotIn", "Exists", "DoesNotExist", *(("Gt", "Lt") if ordered else ()))
            yield unsupported(f"{field}.operator", operator, known)


# ---- paths ---------------------------------------------------------------------------------


def no_backsteps(field: str, path: str) -> Problems:
    if ".." in path.split("/"):
        yield wrong(field, path, "must not contain '..'")


def descending_path(field: str, path: str) -> Problems:
    """Check that a path is relative and does not leave the directory it starts from."""
    if path.startswith("/"):
        yield wrong(field, path, "must be a relative path")
    yield from no_backsteps(field, path)


def file_path(field: str, path: str) -> Problems:
    """Check the path of a file in a volume."""
    if not path:
        yield missing(field)
    yield from descending_path(field, path)
    # The agent's own files in such a volume start with '..' (..data, ..2026_11_15), as the kubelet's do.
    if path.startswith("..") and not path.startswith("../") and path != "..":
        yield wrong(field, path, "must not start with '..'")
