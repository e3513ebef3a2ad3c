"""The keyring: which credentials to try for an image.

    docker configurations --entries--> keys (`*.example.com:5000/team`) --match--> credentials, in the order to try

Texts come in as they stand in Secrets and in the node's own config.json, of the newer form (`{"auths": {...}}`) and of
the older one (`.dockercfg`, hosts at the top). Credentials go out: those of the most telling key first (keys are
compared as texts, the greatest first, as the reference does), those of one key in the order of the configurations. For
images of the public hub without a key of their own, those of `index.docker.io` count.

Secrets never show: neither a `repr` nor an error here holds any. An entry that cannot be read is passed over and told
(`is_whole`). The Go ancestors are pkg/credentialprovider/keyring.go and config.go; they drop identity and registry
tokens, which are handed on here.
"""

import base64
import json
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from podkeeper.model.k8s.core import Secret
from podkeeper.rules.glob import matches
from podkeeper.rules.image_reference import repository_of

_HUB_HOSTS: Final = ("docker.io", "index.docker.io")
_HUB_KEY: Final = "index.docker.io"
_SECRET_KEYS: Final = {
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
    "kubernetes.io/dockercfg": ".dockercfg",
}
_FIELDS: Final = ("username", "password", "auth", "identitytoken", "registrytoken")


@dataclass(frozen=True, slots=True)
class SecretName:
    """Which Secret something comes from."""

    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class PullSecret:
    """A docker configuration, and the Secret it was found in; None: the node's own."""

    config: str = field(repr=False)
    source: SecretName | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a registry is shown. Two are equal when they show the same, wherever they come from."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    source: SecretName | None = field(default=None, compare=False)

    @property
    def fingerprint(self) -> str:
        """Tells equal credentials from others, without telling them."""
        shown = (self.username, self.password, self.identity_token, self.registry_token)
        return sha256(json.dumps(shown).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of a configuration: where it counts, and what is shown there."""

    key: str
    credentials: Credentials


def credentials_for(reference: str, configs: Sequence[str]) -> tuple[Credentials, ...]:
    """The credentials to try for an image, in order; none: pull without."""
    return keys_for(reference, [PullSecret(config) for config in configs])


def keys_for(reference: str, secrets: Sequence[PullSecret]) -> tuple[Credentials, ...]:
    """The same, each with the Secret it comes from."""
    repository = repository_of(reference)
    if repository is None:
        return ()
    ring: dict[str, list[Credentials]] = {}
    for secret in secrets:
        for entry in _entries(secret):
            ring.setdefault(entry.key, []).append(entry.credentials)
    fitting = [key for key in ring if key_matches(key, repository)]
    if not fitting and repository.partition("/")[0] in _HUB_HOSTS and _HUB_KEY in ring:
        fitting = [_HUB_KEY]
    # As the reference sorts: by bytes, so that of two hosts of one length none is preferred by a locale.
    return tuple(each for key in sorted(fitting, key=str.encode, reverse=True) for each in ring[key])


def key_matches(key: str, repository: str) -> bool:
    """Whether a key (`*.example.com:5000/team`) covers a repository: same port, host part by part, path as a prefix."""
    host, port, path = _parted(key)
    wanted_host, wanted_port, wanted_path = _parted(repository)
    parts, wanted_parts = host.split("."), wanted_host.split(".")
    return (
        port == wanted_port
        and len(parts) == len(wanted_parts)
        and wanted_path.startswith(path)
        and all(matches(part, wanted) for part, wanted in zip(parts, wanted_parts, strict=True))
    )


def is_whole(config: str) -> bool:
    """Whether all of a configuration can be read."""
    try:
        return all(_credentials(said, None) is not None for _, said in _lines(config))
    except ValueError:
        return False


def has_registries(config: str) -> bool:
    """Whether a configuration is of the newer form and names registries; what cannot be read at all might."""
    try:
        read = json.loads(config)
    except (ValueError, RecursionError):
        return True
    return not isinstance(read, dict) or any(name.lower() == "auths" for name in read)


def config_of(reference: str, credentials: Credentials) -> str:
    """A configuration that gives exactly these credentials to an image."""
    entry = {
        "username": credentials.username,
        "password": credentials.password,
        "identitytoken": credentials.identity_token,
        "registrytoken": credentials.registry_token,
    }
    key = repository_of(reference) or ""
    return json.dumps({"auths": {key: {name: said for name, said in entry.items() if said}}})


# Reading.


def pull_secret_of(secret: Secret) -> PullSecret | None:
    """The configuration in a Secret; None when it is of another type, or holds none. What is no text reads as `""`."""
    text = (secret.data or {}).get(_SECRET_KEYS.get(secret.type or "", ""))
    if not text:
        return None
    meta = secret.metadata
    try:
        config = base64.b64decode("".join(text.split()), validate=True).decode()
    except (NotBase64, ValueError):
        config = ""
    return PullSecret(config, SecretName(meta.namespace or "", meta.name or "", meta.uid or ""))


def _entries(secret: PullSecret) -> Iterator[_Entry]:
    """What a configuration says, as far as it can be read."""
    try:
        lines = _lines(secret.config)
    except ValueError:
        return
    for place, said in lines:
        credentials = _credentials(said, secret.source)
        if credentials is not None:
            yield _Entry(_key_of(place), credentials)


def _lines(config: str) -> Sequence[tuple[str, object]]:
    """Places and what is said of each. Raises ValueError, which does not say what it read."""
    try:
        read = json.loads(config)
    except (ValueError, RecursionError):
        raise ValueError("cannot read a docker configuration: it is not JSON") from None
    if isinstance(read, dict):
        auths = next((said for name, said in read.items() if name.lower() == "auths"), read)
        if auths is None:
            return ()
        if isinstance(auths, dict):
            return tuple(auths.items())
    raise ValueError("cannot read a docker configuration: it is not an object")


def _credentials(said: object, source: SecretName | None) -> Credentials | None:
    """What one entry shows a registry; None when it cannot be read."""
    found = _texts(said)
    if found is None:
        return None
    username, password = found["username"], found["password"]
    if found["auth"]:
        pair = _decoded(found["auth"])
        if pair is None:
            return None
        username, password = pair
    return Credentials(username, password, found["identitytoken"], found["registrytoken"], source)


def _texts(said: object) -> Mapping[str, str] | None:
    """The fields of an entry that count, by name, whatever case they are written in."""
    if not isinstance(said, dict):
        return None
    lowered = {name.lower(): value for name, value in said.items()}
    found = {name: "" if lowered.get(name) is None else lowered[name] for name in _FIELDS}
    return found if all(isinstance(value, str) for value in found.values()) else None


def _decoded(auth: str) -> tuple[str, str] | None:
    """User and password out of base64, padded or not."""
    text = auth.replace("\r", "").replace("\n", "")
    try:
        padded = text if text.endswith("=") else text + "=" * (-len(text) % 4)
        username, colon, password = base64.b64decode(padded, validate=True).decode().partition(":")
    except (NotBase64, ValueError):
        return None
    return (username, password) if colon else None


def _key_of(place: str) -> str:
    """How a place is compared: without scheme; `/v1/` and `/v2/` say nothing."""
    for scheme in ("https://", "http://"):
        if place.startswith(scheme):
            place = place.removeprefix(scheme)
            break
    place = place.partition("#")[0].partition("?")[0]
    host, slash, rest = place.partition("/")
    path = slash + rest
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return host.rpartition("@")[2] + ("" if path == "/" else path)


def _parted(place: str) -> tuple[str, str, str]:
    """Host, port and path."""
    host, slash, rest = place.partition("/")
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):  # an IPv6 address without a port
        name, port = host, ""
    # The brackets of an IPv6 address are no pattern.
    return name.removeprefix("[").removesuffix("]") if ":" in name else name, port, slash + rest
