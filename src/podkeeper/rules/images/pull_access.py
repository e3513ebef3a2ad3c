"""Access to images already on the node: when a pod needs credentials.

    the pod's credentials --.
    records of earlier pulls --`--must_pull--> use the image, or pull it with the pod's credentials

On a shared node, an image that one tenant pulled with a secret must not be available to all others. A record per image
lists which pods may use it: any pod (it was pulled without credentials, or with the node's own), or pods with one of
certain secrets. Images that were on the node before the agent are available to all, unless the policy forbids it. So a
pull is recorded before it starts. Otherwise, after a crash, a private image would count as preloaded.

Kubelet counterpart: pkg/kubelet/images/pullmanager.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from podkeeper.model.errors import quoted
from podkeeper.rules.images.keyring import Credentials
from podkeeper.rules.images.reference import parse_image, untagged

MANY_SECRETS: Final = 100
"""If a record has this many secrets, a secret that matches only by content or only by name is not added."""


class VerificationPolicy(StrEnum):
    """Which images on the node need a check of credentials (`imagePullCredentialsVerificationPolicy`)."""

    NEVER = "NeverVerify"
    NOT_PRELOADED = "NeverVerifyPreloadedImages"  # check only images that the agent has pulled
    NOT_ALLOWLISTED = "NeverVerifyAllowlistedImages"
    ALWAYS = "AlwaysVerify"


@dataclass(frozen=True, slots=True)
class Verification:
    """A policy, and the images exempt from the check under `NOT_ALLOWLISTED`: names, or prefixes that end in `/*`."""

    policy: VerificationPolicy = VerificationPolicy.NOT_PRELOADED
    allowlist: tuple[str, ...] = ()

    def concerns(self, image: str, pulled_by_us: bool) -> bool:
        """Return whether an image on the node needs a check of credentials."""
        match self.policy:
            case VerificationPolicy.NEVER:
                return False
            case VerificationPolicy.NOT_PRELOADED:
                return pulled_by_us
            case VerificationPolicy.NOT_ALLOWLISTED:
                name = untagged(image)
                return not any(
                    name.startswith(each[:-1]) if each.endswith("/*") else name == each for each in self.allowlist
                )
            case VerificationPolicy.ALWAYS:
                return True


DEFAULT_VERIFICATION: Final = Verification()


class Proof(msgspec.Struct, frozen=True):
    """A secret with which an image was pulled. `fingerprint` is the hash of its credentials."""

    namespace: str
    name: str
    uid: str
    fingerprint: str

    @property
    def secret(self) -> tuple[str, str, str]:
        """The identity of the secret, without its content."""
        return self.namespace, self.name, self.uid


class Access(msgspec.Struct, frozen=True):
    """Which pods may use an image under one of its names."""

    any_pod: bool = msgspec.field(default=False, name="everybody")  # `name`: the key in existing journals
    proofs: tuple[Proof, ...] = ()


class PulledImage(msgspec.Struct, frozen=True):
    """The agent's pulls of one image, by the names (without tag and digest) it was pulled under."""

    id: str
    access: dict[str, Access] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to pull an image that is already present, and the proof to add to its record."""

    pull: bool
    learned: Proof | None = None


def allowlist_error(pattern: str) -> str:
    """Return a field error for an entry of the allowlist, "" if it is valid."""
    name = pattern[:-1] if pattern.endswith("/*") else pattern
    if pattern != pattern.strip():
        detail = "must not have leading or trailing spaces"
    elif name in ("", "/"):
        detail = "must be an image, or a registry followed by /*"
    elif "*" in name:
        detail = "must be an image, or a prefix followed by /*"
    elif name == pattern and (parse_image(name) is None or untagged(name) != name):
        detail = "must be an image without tag and digest"
    else:
        return ""
    return f"Invalid value: {quoted(pattern)}: {detail}"


def proof_of(credentials: Credentials) -> Proof | None:
    """Return the proof that credentials give, None for the node's own."""
    source = credentials.source
    if source is None:
        return None
    return Proof(source.namespace, source.name, source.uid, credentials.fingerprint)


def access_by(credentials: Credentials | None) -> Access:
    """Return the access to an image that was pulled with these credentials, or without any."""
    proof = None if credentials is None else proof_of(credentials)
    return Access(any_pod=True) if proof is None else Access(proofs=(proof,))


def must_pull(
    image: str,
    pulled: PulledImage | None,
    *,
    begun: bool,
    offered: Sequence[Credentials],
    verification: Verification,
) -> Decision:
    """Decide whether a pod must pull an image that is present.

    `begun`: the agent has recorded a pull intent for this name.
    """
    # A recorded intent counts like a pull: after a crash, the image must not count as preloaded.
    if not verification.concerns(image, pulled is not None or begun):
        return Decision(pull=False)
    access = None if pulled is None else pulled.access.get(untagged(image))
    if access is None:
        return Decision(pull=True)
    proofs = tuple(filter(None, map(proof_of, offered)))
    if access.any_pod or not set(proofs).isdisjoint(access.proofs):
        return Decision(pull=False)
    room = len(access.proofs) < MANY_SECRETS
    for proof in proofs:
        for known in access.proofs:
            # Equal content in another Secret proves the same access.
            if proof.fingerprint == known.fingerprint:
                return Decision(pull=False, learned=proof if room else None)
            if proof.secret == known.secret and room:
                return Decision(pull=False, learned=proof)  # the secret has new content
    return Decision(pull=True)


def with_access(pulled: PulledImage, image: str, access: Access) -> PulledImage:
    """Return a record with this access added, the same object if nothing changes."""
    if parse_image(image) is None or not (access.any_pod or access.proofs):
        return pulled
    name = untagged(image)
    before = pulled.access.get(name, Access())
    # Any pod may use the image already. Further secrets prove nothing more.
    if before.any_pod:
        return pulled
    if access.any_pod:
        after = Access(any_pod=True)
    else:
        proofs = {each.secret: each for each in (*before.proofs, *access.proofs)}
        after = Access(proofs=tuple(proofs[secret] for secret in sorted(proofs)))
    return pulled if after == before else replace(pulled, access={**pulled.access, name: after})
