"""Who may use an image that is on the node already.

    the pod's credentials --.
    what we know of earlier pulls --`--must_pull--> use it, or show the registry the pod's own credentials first

On a node that several tenants share, an image that one of them pulled with a secret is not everybody's. A record per
image says who has shown that he may have it: anybody (it was pulled without credentials, or with the node's own), or
whoever brings one of some secrets. An image that was on the node before us counts as everybody's, unless the policy
says otherwise; so whoever is about to pull notes it first, or a crash would make a private image look as if it had
always been there. The Go ancestor is pkg/kubelet/images/pullmanager.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from podkeeper.rules.image_reference import parse_image, untagged
from podkeeper.rules.keyring import Credentials

MANY_SECRETS: Final = 100
"""From so many on, what a mere look learns is not written down any more."""


class Policy(StrEnum):
    """Which images that are there need to be shown credentials for."""

    NEVER = "NeverVerify"
    NOT_PRELOADED = "NeverVerifyPreloadedImages"  # only those that we have pulled
    NOT_ALLOWLISTED = "NeverVerifyAllowlistedImages"
    ALWAYS = "AlwaysVerify"


@dataclass(frozen=True, slots=True)
class Verification:
    """A policy, and the images that need no check under `NOT_ALLOWLISTED`: names, or beginnings that end in `/*`."""

    policy: Policy = Policy.NOT_PRELOADED
    allowlist: tuple[str, ...] = ()

    def concerns(self, image: str, pulled_by_us: bool) -> bool:
        """Whether credentials must be shown for an image that is there."""
        match self.policy:
            case Policy.NEVER:
                return False
            case Policy.NOT_PRELOADED:
                return pulled_by_us
            case Policy.NOT_ALLOWLISTED:
                name = untagged(image)
                return not any(
                    name.startswith(each[:-1]) if each.endswith("/*") else name == each for each in self.allowlist
                )
            case Policy.ALWAYS:
                return True


USUAL_VERIFICATION: Final = Verification()


class Proof(msgspec.Struct, frozen=True):
    """A secret that opened an image once; `fingerprint` is of the credentials in it."""

    namespace: str
    name: str
    uid: str
    fingerprint: str

    @property
    def secret(self) -> tuple[str, str, str]:
        """Which secret it was, whatever is in it."""
        return self.namespace, self.name, self.uid


class Access(msgspec.Struct, frozen=True):
    """Who may use an image by one of its names."""

    everybody: bool = False
    proofs: tuple[Proof, ...] = ()


class PulledImage(msgspec.Struct, frozen=True):
    """What is known of our pulls of one image; by the names, without tag and digest, it was pulled under."""

    id: str
    access: dict[str, Access] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to pull an image that is there, and what was learned by the way."""

    pull: bool
    learned: Proof | None = None


def pattern_trouble(pattern: str) -> str:
    """What is wrong with an entry of an allowlist; empty: nothing."""
    name = pattern[:-1] if pattern.endswith("/*") else pattern
    if pattern != pattern.strip():
        return f"cannot be {pattern!r}; right would be no space around it"
    if name in ("", "/"):
        return f"cannot be {pattern!r}; right would be an image, or a registry and /*"
    if "*" in name:
        return f"cannot be {pattern!r}; right would be an image, or a beginning of names that ends in /*"
    if name == pattern and (parse_image(name) is None or untagged(name) != name):
        return f"cannot be {pattern!r}; right would be an image without tag and digest"
    return ""


def proof_of(credentials: Credentials) -> Proof | None:
    """What a pod could show; None for the node's own credentials."""
    source = credentials.source
    if source is None:
        return None
    return Proof(source.namespace, source.name, source.uid, credentials.fingerprint)


def access_by(credentials: Credentials | None) -> Access:
    """Who may use an image that was pulled with these credentials, or without any."""
    proof = None if credentials is None else proof_of(credentials)
    return Access(everybody=True) if proof is None else Access(proofs=(proof,))


def must_pull(
    image: str,
    pulled: PulledImage | None,
    *,
    begun: bool,
    offered: Sequence[Credentials],
    verification: Verification,
) -> Decision:
    """Whether a pod must show the registry its credentials; `begun`: we once began to pull an image of that name."""
    if not verification.concerns(image, pulled is not None or begun):
        return Decision(pull=False)
    access = None if pulled is None else pulled.access.get(untagged(image))
    if access is None:
        return Decision(pull=True)
    proofs = tuple(filter(None, map(proof_of, offered)))
    if access.everybody or not set(proofs).isdisjoint(access.proofs):
        return Decision(pull=False)
    room = len(access.proofs) < MANY_SECRETS
    for proof in proofs:
        for known in access.proofs:
            if proof.fingerprint == known.fingerprint:
                return Decision(pull=False, learned=proof if room else None)
            if proof.secret == known.secret and room:
                return Decision(pull=False, learned=proof)  # what is in the secret was renewed
    return Decision(pull=True)


def with_access(pulled: PulledImage, image: str, access: Access) -> PulledImage:
    """A record that also knows of this; the very same one when there is nothing new in it."""
    if parse_image(image) is None or not (access.everybody or access.proofs):
        return pulled
    name = untagged(image)
    before = pulled.access.get(name, Access())
    if before.everybody:
        return pulled
    if access.everybody:
        after = Access(everybody=True)
    else:
        proofs = {each.secret: each for each in (*before.proofs, *access.proofs)}
        after = Access(proofs=tuple(proofs[secret] for secret in sorted(proofs)))
    return pulled if after == before else replace(pulled, access={**pulled.access, name: after})
