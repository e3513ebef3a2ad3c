"""Who may use an image that is there: policies, what earlier pulls have shown, and what is learned from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.rules.image_access import (
    MANY_SECRETS,
    USUAL_VERIFICATION,
    Access,
    Decision,
    Policy,
    Proof,
    PulledImage,
    Verification,
    access_by,
    must_pull,
    pattern_trouble,
    proof_of,
    with_access,
)
from podkeeper.rules.keyring import Credentials, SecretName

IMAGE, NAME = "reg.test/app:v1", "reg.test/app"


def shown(password: str, secret: str = "s", *, uid: str = "u") -> Credentials:
    return Credentials("me", password, source=SecretName("team", secret, uid))


def proof(password: str, secret: str = "s", *, uid: str = "u") -> Proof:
    found = proof_of(shown(password, secret, uid=uid))
    assert found is not None
    return found


def pulled(*proofs: Proof, everybody: bool = False, name: str = NAME) -> PulledImage:
    return PulledImage("id", {name: Access(everybody, proofs)})


def decided(known: PulledImage | None, *offered: Credentials, begun: bool = False, image: str = IMAGE) -> Decision:
    return must_pull(image, known, begun=begun, offered=offered, verification=USUAL_VERIFICATION)


USE, PULL = Decision(pull=False), Decision(pull=True)
OURS, OTHERS, DIGEST = pulled(proof("x")), pulled(proof("x"), name="reg.test/other"), f"sha256:{'a' * 64}"
NODES_OWN = Credentials("node", "x")

DECISIONS: dict[str, tuple[Decision, Decision]] = {
    "what was there before us is everybody's":         (decided(None), USE),
    "a pull that was begun makes it ours":             (decided(None, begun=True), PULL),
    "what was pulled without a secret is everybody's": (decided(pulled(everybody=True)), USE),
    "a pod without secrets must ask":                  (decided(OURS), PULL),
    "the secret that opened it opens it again":        (decided(OURS, shown("x")), USE),
    "another secret must ask":                         (decided(OURS, shown("y", "t")), PULL),
    "the node's own credentials show nothing":         (decided(OURS, NODES_OWN), PULL),
    "another name of the image must ask":              (decided(OTHERS, shown("x")), PULL),
    "another tag of the name need not":                (decided(OURS, shown("x"), image=f"{NAME}:v2"), USE),
    "nor a digest":                                    (decided(OURS, shown("x"), image=f"{NAME}@{DIGEST}"), USE),
    "nobody is known to have been let in":             (decided(PulledImage("id"), shown("x")), PULL),
    "the same in another secret is learned":         (decided(OURS, shown("x", "t")), Decision(False, proof("x", "t"))),
    "a secret with new content is learned":            (decided(OURS, shown("y")), Decision(False, proof("y"))),
    "a secret made anew is another":                   (decided(OURS, shown("y", uid="new")), PULL),
    "any of several will do":                          (decided(OURS, shown("y", "t"), shown("x")), USE),
}  # fmt: skip


@pytest.mark.parametrize("found, expected", DECISIONS.values(), ids=DECISIONS.keys())
def test_must_pull(found: Decision, expected: Decision) -> None:
    assert found == expected


def test_from_very_many_secrets_on_nothing_is_learned_by_looking() -> None:
    many = pulled(*(proof(f"x{number}", f"s{number}") for number in range(MANY_SECRETS)))
    assert decided(many, shown("x1", "other")) == USE
    assert decided(many, shown("new", "s1")) == PULL


POLICIES = {
    # policy -> whether it concerns images from before us, and ours
    Policy.NEVER:           (False, False),
    Policy.NOT_PRELOADED:   (False, True),
    Policy.NOT_ALLOWLISTED: (True, True),
    Policy.ALWAYS:          (True, True),
}  # fmt: skip


@pytest.mark.parametrize("policy", Policy)
def test_the_policy_says_whom_it_concerns(policy: Policy) -> None:
    verification = Verification(policy)
    assert (verification.concerns(IMAGE, False), verification.concerns(IMAGE, True)) == POLICIES[policy]


ALLOWED = {
    "reg.test/app": True, "reg.test/app:v1": True, "reg.test/apps": False, "reg.test/team/x:v1": True,
    "reg.test/team": False, "reg.test/teams/x": False, f"{NAME}@{DIGEST}": True, "reg.test:5000/app": False,
}  # fmt: skip


@pytest.mark.parametrize("image", ALLOWED)
def test_the_allowlist_spares_names_and_what_begins_like_them(image: str) -> None:
    verification = Verification(Policy.NOT_ALLOWLISTED, ("reg.test/app", "reg.test/team/*"))
    assert verification.concerns(image, True) is not ALLOWED[image]


PATTERNS = {
    "reg.test/app": True, "reg.test/*": True, "app": True, "reg.test:5000/app": True,
    "": False, "*": False, "/*": False, " reg.test/app": False, "reg.*/app": False, "reg.test/a*": False,
    "reg.test/app:v1": False, f"reg.test/app@sha256:{'a' * 64}": False, "UPPER//bad": False,
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_entry_of_the_allowlist_is_checked(pattern: str) -> None:
    assert (pattern_trouble(pattern) == "") is PATTERNS[pattern]


def test_a_pull_with_a_secret_lets_its_owner_in_and_any_other_pull_everybody() -> None:
    assert access_by(shown("x")) == Access(proofs=(proof("x"),))
    assert access_by(None) == access_by(NODES_OWN) == Access(everybody=True)


def test_records_grow_and_never_shrink() -> None:
    first = with_access(PulledImage("id"), IMAGE, access_by(shown("x")))
    assert first == pulled(proof("x"))
    both = with_access(first, f"{NAME}:v2", access_by(shown("y", "a")))
    assert both == pulled(proof("y", "a"), proof("x"))
    renewed = with_access(both, IMAGE, access_by(shown("z")))
    assert renewed == pulled(proof("y", "a"), proof("z"))
    opened = with_access(renewed, IMAGE, Access(everybody=True))
    assert opened == pulled(everybody=True)
    assert with_access(opened, IMAGE, access_by(shown("x"))) is opened
    assert with_access(first, IMAGE, access_by(shown("x"))) is first
    assert with_access(first, IMAGE, Access()) is first
    assert with_access(first, "UPPER//bad", Access(everybody=True)) is first


CREDENTIALS = st.builds(shown, st.sampled_from("xyz"), st.sampled_from("st"), uid=st.sampled_from("uv"))
PULLS = st.lists(
    st.tuples(st.sampled_from([IMAGE, f"{NAME}:v2", "reg.test/other"]), st.none() | CREDENTIALS), max_size=6
)


@given(PULLS, CREDENTIALS)
def test_whoever_pulled_an_image_may_use_it_and_whoever_showed_nothing_like_it_may_not(
    pulls: list[tuple[str, Credentials | None]], mine: Credentials
) -> None:
    known = PulledImage("id")
    for image, used in pulls:
        known = with_access(known, image, access_by(used))
    others = [used for image, used in pulls if image != "reg.test/other"]
    decision = decided(known, mine)
    if None in others or mine in others:
        assert not decision.pull
    if not decision.pull:
        assert any(each is None or each == mine or each.source == mine.source for each in others)
    if decision.learned is not None:
        after = with_access(known, IMAGE, Access(proofs=(decision.learned,)))
        assert decided(after, mine) == USE


TROUBLES = {
    " a": "cannot be ' a'; right would be no space around it",
    "": "cannot be ''; right would be an image, or a registry and /*",
    "/*": "cannot be '/*'; right would be an image, or a registry and /*",
    "a*": "cannot be 'a*'; right would be an image, or a beginning of names that ends in /*",
    "a/*/*": "cannot be 'a/*/*'; right would be an image, or a beginning of names that ends in /*",
    "a:v1": "cannot be 'a:v1'; right would be an image without tag and digest",
    "A//b": "cannot be 'A//b'; right would be an image without tag and digest",
}


@pytest.mark.parametrize(("pattern", "trouble"), TROUBLES.items())
def test_what_is_wrong_with_an_entry_of_the_allowlist(pattern: str, trouble: str) -> None:
    assert pattern_trouble(pattern) == trouble


def test_under_a_policy_that_concerns_all_images_one_from_before_us_is_pulled() -> None:
    strict = Verification(Policy.ALWAYS)
    assert must_pull(IMAGE, None, begun=False, offered=(), verification=strict) == PULL
    assert must_pull(IMAGE, pulled(everybody=True), begun=False, offered=(), verification=strict) == USE
    never = Verification(Policy.NEVER)
    assert must_pull(IMAGE, OURS, begun=True, offered=(), verification=never) == USE


def test_one_secret_less_than_very_many_is_still_learned() -> None:
    known = pulled(*(proof(f"x{number}", f"s{number}") for number in range(MANY_SECRETS - 1)))
    assert decided(known, shown("x1", "other")) == Decision(pull=False, learned=proof("x1", "other"))
    assert decided(known, shown("new", "s1")) == Decision(pull=False, learned=proof("new", "s1"))
