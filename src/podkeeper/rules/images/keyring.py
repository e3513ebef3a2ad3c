"""The keyring: which credentials to try for an image.

    docker configurations --entries--> keys (`*.example.com:5000/team`) --match--> credentials, in the order to try

Inputs are texts from Secrets and the node's own config.json, in the newer format (`{"auths": {...}}`) and the older
one (`.dockercfg`, hosts at the top level). Credentials of the most specific key come first: keys are compared as texts,
the greatest first, as in the kubelet. Credentials of one key keep the order of the configurations. Docker Hub images
without a matching key use the credentials of `index.docker.io`.

No `repr` and no error contains a secret. An unreadable entry is skipped, and `is_readable` reports it.

Kubelet counterparts: pkg/credentialprovider/keyring.go and config.go. Unlike the kubelet, identity and registry tokens
are passed on.
"""

import base64
import json
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from podkeeper.model.k8s.core import Secret
from podkeeper.rules.images.glob import matches
from podkeeper.rules.images.reference import repository_of

_HUB_HOSTS: Final = ("docker.io", "index.docker.io")
_HUB_KEY: Final = "index.docker.io"
_SECRET_KEYS: Final = {
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
    "kubernetes.io/dockercfg": ".dockercfg",
}
_FIELDS: Final = ("username", "password", "auth", "identitytoken", "registrytoken")


@dataclass(frozen=True, slots=True)
class SecretName:
    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class PullSecret:
    """A docker configuration, and the Secret that contains it. None: the node's own configuration."""

    config: str = field(repr=False)
    source: SecretName | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials for a registry. Two are equal if their values are equal, whatever their source."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    source: SecretName | None = field(default=None, compare=False)

    @property
    def fingerprint(self) -> str:
        """A hash of the credentials, equal for equal credentials."""
        shown = (self.username, self.password, self.identity_token, self.registry_token)
        return sha256(json.dumps(shown).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _ConfigEntry:
    """One entry of a docker configuration."""

    key: str
    credentials: Credentials


def credentials_for(reference: str, configs: Sequence[str]) -> tuple[Credentials, ...]:
    """Return the credentials to try for an image, in order. Empty: pull without credentials."""
    return pull_credentials(reference, [PullSecret(config) for config in configs])


def pull_credentials(reference: str, secrets: Sequence[PullSecret]) -> tuple[Credentials, ...]:
    """Return the credentials to try for an image, in order, each with the Secret it comes from."""
    repository = repository_of(reference)
    if repository is None:
        return ()
    ring: dict[str, list[Credentials]] = {}
    for secret in secrets:
        for entry in _entries(secret):
            ring.setdefault(entry.key, []).append(entry.credentials)
    matching = [key for key in ring if key_matches(key, repository)]
    # Only for Docker Hub. The kubelet also sends these credentials to `localhost`.
    if not matching and repository.partition("/")[0] in _HUB_HOSTS and _HUB_KEY in ring:
        matching = [_HUB_KEY]
    # Sort by bytes, as the kubelet does.
    return tuple(each for key in sorted(matching, key=str.encode, reverse=True) for each in ring[key])


def key_matches(key: str, repository: str) -> bool:
    """Return whether a key (`*.example.com:5000/team`) covers a repository: port, host by parts, path by prefix."""
    host, port, path = _split_key(key)
    wanted_host, wanted_port, wanted_path = _split_key(repository)
    parts, wanted_parts = host.split("."), wanted_host.split(".")
    return (
        port == wanted_port
        and len(parts) == len(wanted_parts)
        and wanted_path.startswith(path)
        and all(matches(part, wanted) for part, wanted in zip(parts, wanted_parts, strict=True))
    )


def is_readable(config: str) -> bool:
    """Return whether every entry of a configuration can be read."""
    try:
        return all(_credentials(value, None) is not None for _, value in _raw_entries(config))
    except ValueError:
        return False


def has_registries(config: str) -> bool:
    """Return whether a configuration is in the newer format with registries, or cannot be parsed at all."""
    try:
        read = json.loads(config)
    except (ValueError, RecursionError):
        return True
    return not isinstance(read, dict) or any(name.lower() == "auths" for name in read)


def config_of(reference: str, credentials: Credentials) -> str:
    """Return a configuration with exactly these credentials for an image."""
    entry = {
        "username": credentials.username,
        "password": credentials.password,
        "identitytoken": credentials.identity_token,
        "registrytoken": credentials.registry_token,
    }
    key = repository_of(reference) or ""
    return json.dumps({"auths": {key: {name: value for name, value in entry.items() if value}}})


# Parsing.


def pull_secret_of(secret: Secret) -> PullSecret | None:
    """Return the configuration in a Secret, None if it has none. Undecodable data becomes an empty configuration."""
    text = (secret.data or {}).get(_SECRET_KEYS.get(secret.type or "", ""))
    if not text:
        return None
    meta = secret.metadata
    try:
        config = base64.b64decode("".join(text.split()), validate=True).decode()
    except (NotBase64, ValueError):
        config = ""
    return PullSecret(config, SecretName(meta.namespace or "", meta.name or "", meta.uid or ""))


def _entries(secret: PullSecret) -> Iterator[_ConfigEntry]:
    """Yield the readable entries of a configuration."""
    try:
        raw_entries = _raw_entries(secret.config)
    except ValueError:
        return
    for key, value in raw_entries:
        credentials = _credentials(value, secret.source)
        if credentials is not None:
            yield _ConfigEntry(_key_of(key), credentials)


def _raw_entries(config: str) -> Sequence[tuple[str, object]]:
    """Return keys and values of a configuration. Raises ValueError, without the text in its message."""
    try:
        read = json.loads(config)
    except (ValueError, RecursionError):
        # `from None`, because the error of the decoder contains the text with its secrets.
        raise ValueError("cannot parse docker configuration: it is not JSON") from None
    if isinstance(read, dict):
        auths = next((value for name, value in read.items() if name.lower() == "auths"), read)
        if auths is None:
            return ()
        if isinstance(auths, dict):
            return tuple(auths.items())
    raise ValueError("cannot parse docker configuration: it is not an object")


def _credentials(value: object, source: SecretName | None) -> Credentials | None:
    """Return the credentials of one entry, None if it cannot be read."""
    found = _texts(value)
    if found is None:
        return None
    username, password = found["username"], found["password"]
    if found["auth"]:
        pair = _decoded(found["auth"])
        if pair is None:
            return None
        username, password = pair
    return Credentials(username, password, found["identitytoken"], found["registrytoken"], source)


def _texts(entry: object) -> Mapping[str, str] | None:
    """Return the known fields of an entry by name, case-insensitively."""
    if not isinstance(entry, dict):
        return None
    lowered = {name.lower(): value for name, value in entry.items()}
    found = {name: "" if lowered.get(name) is None else lowered[name] for name in _FIELDS}
    return found if all(isinstance(value, str) for value in found.values()) else None


def _decoded(auth: str) -> tuple[str, str] | None:
    """Decode user and password from base64, with or without padding."""
    text = auth.replace("\r", "").replace("\n", "")
    try:
        padded = text if text.endswith("=") else text + "=" * (-len(text) % 4)
        username, colon, password = base64.b64decode(padded, validate=True).decode().partition(":")
    except (NotBase64, ValueError):
        return None
    return (username, password) if colon else None


def _key_of(key: str) -> str:
    """Normalise a key: without scheme, query, fragment and an API version in the path."""
    for scheme in ("https://", "http://"):
        if key.startswith(scheme):
            key = key.removeprefix(scheme)
            break
    key = key.partition("#")[0].partition("?")[0]
    host, slash, rest = key.partition("/")
    path = slash + rest
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return host.rpartition("@")[2] + ("" if path == "/" else path)


def _split_key(key: str) -> tuple[str, str, str]:
    """Split into host, port and path."""
    host, slash, rest = key.partition("/")
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):  # an IPv6 address without a port
        name, port = host, ""
    # The brackets of an IPv6 address are not a pattern.
    return name.removeprefix("[").removesuffix("]") if ":" in name else name, port, slash + rest
