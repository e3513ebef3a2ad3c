"""Access to images on the node: policies, records of earlier pulls, and learned proofs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.rules.images.keyring import Credentials, SecretName
from podkeeper.rules.images.pull_access import (
    DEFAULT_VERIFICATION,
    MANY_SECRETS,
    Access,
    Decision,
    Proof,
    PulledImage,
    Verification,
    VerificationPolicy,
    access_by,
    allowlist_error,
    must_pull,
    proof_of,
    with_access,
)

IMAGE, NAME = "reg.test/app:v1", "reg.test/app"


def shown(password: str, secret: str = "s", *, uid: str = "u") -> Credentials:
    return Credentials("me", password, source=SecretName("team", secret, uid))


def proof(password: str, secret: str = "s", *, uid: str = "u") -> Proof:
    found = proof_of(shown(password, secret, uid=uid))
    assert found is not None
    return found


def pulled(*proofs: Proof, any_pod: bool = False, name: str = NAME) -> PulledImage:
    return PulledImage("id", {name: Access(any_pod, proofs)})


def decided(known: PulledImage | None, *offered: Credentials, begun: bool = False, image: str = IMAGE) -> Decision:
    return must_pull(image, known, begun=begun, offered=offered, verification=DEFAULT_VERIFICATION)


USE, PULL = Decision(pull=False), Decision(pull=True)
OURS, OTHERS, DIGEST = pulled(proof("x")), pulled(proof("x"), name="reg.test/other"), f"sha256:{'a' * 64}"
NODES_OWN = Credentials("node", "x")

DECISIONS: dict[str, tuple[Decision, Decision]] = {
    "a preloaded image is available to all":         (decided(None), USE),
    "a pull that was begun is not preloaded":        (decided(None, begun=True), PULL),
    "an image without a secret is available to all": (decided(pulled(any_pod=True)), USE),
    "a pod without secrets must pull":               (decided(OURS), PULL),
    "the recorded secret is accepted":               (decided(OURS, shown("x")), USE),
    "another secret must pull":                      (decided(OURS, shown("y", "t")), PULL),
    "the node's credentials are no proof":           (decided(OURS, NODES_OWN), PULL),
    "another name of the image must pull":           (decided(OTHERS, shown("x")), PULL),
    "another tag need not pull":                     (decided(OURS, shown("x"), image=f"{NAME}:v2"), USE),
    "a digest need not pull":                        (decided(OURS, shown("x"), image=f"{NAME}@{DIGEST}"), USE),
    "a record without access":                       (decided(PulledImage("id"), shown("x")), PULL),
    "equal credentials are learned":                 (decided(OURS, shown("x", "t")), Decision(False, proof("x", "t"))),
    "a secret with new content is learned":          (decided(OURS, shown("y")), Decision(False, proof("y"))),
    "a recreated secret is another one":             (decided(OURS, shown("y", uid="new")), PULL),
    "one of several secrets is enough":              (decided(OURS, shown("y", "t"), shown("x")), USE),
}  # fmt: skip


@pytest.mark.parametrize("found, expected", DECISIONS.values(), ids=DECISIONS.keys())
def test_must_pull(found: Decision, expected: Decision) -> None:
    assert found == expected


def test_with_many_secrets_nothing_is_recorded() -> None:
    many = pulled(*(proof(f"x{number}", f"s{number}") for number in range(MANY_SECRETS)))
    assert decided(many, shown("x1", "other")) == USE
    assert decided(many, shown("new", "s1")) == PULL


POLICIES = {
    # policy -> whether it concerns images from before us, and ours
    VerificationPolicy.NEVER:           (False, False),
    VerificationPolicy.NOT_PRELOADED:   (False, True),
    VerificationPolicy.NOT_ALLOWLISTED: (True, True),
    VerificationPolicy.ALWAYS:          (True, True),
}  # fmt: skip


@pytest.mark.parametrize("policy", VerificationPolicy)
def test_which_images_a_policy_checks(policy: VerificationPolicy) -> None:
    verification = Verification(policy)
    assert (verification.concerns(IMAGE, False), verification.concerns(IMAGE, True)) == POLICIES[policy]


ALLOWED = {
    "reg.test/app": True, "reg.test/app:v1": True, "reg.test/apps": False, "reg.test/team/x:v1": True,
    "reg.test/team": False, "reg.test/teams/x": False, f"{NAME}@{DIGEST}": True, "reg.test:5000/app": False,
}  # fmt: skip


@pytest.mark.parametrize("image", ALLOWED)
def test_the_allowlist_exempts_names_and_prefixes(image: str) -> None:
    verification = Verification(VerificationPolicy.NOT_ALLOWLISTED, ("reg.test/app", "reg.test/team/*"))
    assert verification.concerns(image, True) is not ALLOWED[image]


PATTERNS = {
    "reg.test/app": True, "reg.test/*": True, "app": True, "reg.test:5000/app": True,
    "": False, "*": False, "/*": False, " reg.test/app": False, "reg.*/app": False, "reg.test/a*": False,
    "reg.test/app:v1": False, f"reg.test/app@sha256:{'a' * 64}": False, "UPPER//bad": False,
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_entry_of_the_allowlist_is_checked(pattern: str) -> None:
    assert (allowlist_error(pattern) == "") is PATTERNS[pattern]


def test_a_pull_with_a_secret_gives_access_to_its_users_any_other_pull_to_all() -> None:
    assert access_by(shown("x")) == Access(proofs=(proof("x"),))
    assert access_by(None) == access_by(NODES_OWN) == Access(any_pod=True)


def test_records_grow_and_never_shrink() -> None:
    first = with_access(PulledImage("id"), IMAGE, access_by(shown("x")))
    assert first == pulled(proof("x"))
    both = with_access(first, f"{NAME}:v2", access_by(shown("y", "a")))
    assert both == pulled(proof("y", "a"), proof("x"))
    renewed = with_access(both, IMAGE, access_by(shown("z")))
    assert renewed == pulled(proof("y", "a"), proof("z"))
    opened = with_access(renewed, IMAGE, Access(any_pod=True))
    assert opened == pulled(any_pod=True)
    assert with_access(opened, IMAGE, access_by(shown("x"))) is opened
    assert with_access(first, IMAGE, access_by(shown("x"))) is first
    assert with_access(first, IMAGE, Access()) is first
    assert with_access(first, "UPPER//bad", Access(any_pod=True)) is first


CREDENTIALS = st.builds(shown, st.sampled_from("xyz"), st.sampled_from("st"), uid=st.sampled_from("uv"))
PULLS = st.lists(
    st.tuples(st.sampled_from([IMAGE, f"{NAME}:v2", "reg.test/other"]), st.none() | CREDENTIALS), max_size=6
)


@given(PULLS, CREDENTIALS)
def test_only_recorded_credentials_and_secrets_may_use_a_pulled_image(
    pulls: list[tuple[str, Credentials | None]], mine: Credentials
) -> None:
    known = PulledImage("id")
    for image, used in pulls:
        known = with_access(known, image, access_by(used))
    # A secret that changed counts only with its last credentials.
    recorded = {used and used.source: used for image, used in pulls if image != "reg.test/other"}
    decision = decided(known, mine)
    if None in recorded or mine in recorded.values():
        assert not decision.pull
    if not decision.pull:
        assert any(each is None or each == mine or each.source == mine.source for each in recorded.values())
    if decision.learned is not None:
        after = with_access(known, IMAGE, Access(proofs=(decision.learned,)))
        assert decided(after, mine) == USE


ALLOWLIST_ERRORS = {
    " a": 'Invalid value: " a": must not have leading or trailing spaces',
    "": 'Invalid value: "": must be an image, or a registry followed by /*',
    "/*": 'Invalid value: "/*": must be an image, or a registry followed by /*',
    "a*": 'Invalid value: "a*": must be an image, or a prefix followed by /*',
    "a/*/*": 'Invalid value: "a/*/*": must be an image, or a prefix followed by /*',
    "a:v1": 'Invalid value: "a:v1": must be an image without tag and digest',
    "A//b": 'Invalid value: "A//b": must be an image without tag and digest',
}


@pytest.mark.parametrize(("pattern", "error"), ALLOWLIST_ERRORS.items())
def test_invalid_allowlist_entries(pattern: str, error: str) -> None:
    assert allowlist_error(pattern) == error


def test_with_always_verify_a_preloaded_image_is_pulled() -> None:
    strict = Verification(VerificationPolicy.ALWAYS)
    assert must_pull(IMAGE, None, begun=False, offered=(), verification=strict) == PULL
    assert must_pull(IMAGE, pulled(any_pod=True), begun=False, offered=(), verification=strict) == USE
    never = Verification(VerificationPolicy.NEVER)
    assert must_pull(IMAGE, OURS, begun=True, offered=(), verification=never) == USE


def test_one_secret_below_the_limit_is_still_recorded() -> None:
    known = pulled(*(proof(f"x{number}", f"s{number}") for number in range(MANY_SECRETS - 1)))
    assert decided(known, shown("x1", "other")) == Decision(pull=False, learned=proof("x1", "other"))
    assert decided(known, shown("new", "s1")) == Decision(pull=False, learned=proof("new", "s1"))
