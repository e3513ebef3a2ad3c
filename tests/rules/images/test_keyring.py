"""The keyring: which credentials are tried for an image, and that no text contains them."""

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.model.k8s.core import Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.rules.images.keyring import (
    Credentials,
    PullSecret,
    SecretName,
    config_of,
    credentials_for,
    has_registries,
    is_readable,
    key_matches,
    pull_credentials,
    pull_secret_of,
)

PASSWORD = "hush-hush"


def entry(user: str = "u", password: str = PASSWORD) -> dict[str, str]:
    return {"username": user, "password": password}


def newer(**auths: object) -> str:
    return json.dumps({"auths": auths})


def config(*keys: str) -> str:
    """Each key with a user of its own name."""
    return json.dumps({"auths": {key: entry(key) for key in keys}})


def users(image: str, *configs: str) -> list[str]:
    return [each.username for each in credentials_for(image, configs)]


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


KEYS = {
    # key, repository -> whether the key covers it
    "a host covers all below it":            ("hello.example.io", "hello.example.io/foo/bar", True),
    "another host is not covered":           ("hello.example.io", "world.example.org/foo", False),
    "a star is one part of a name":          ("*.example.io", "prefix.example.io/app", True),
    "a star in the middle":                  ("prefix.*.io", "prefix.example.io/app", True),
    "a star at the end":                     ("prefix.example.*", "prefix.example.io/app", True),
    "a star within a part":                  ("*-good.example.io", "prefix-good.example.io/app", True),
    "a star is not none":                    ("*.example.io", "example.io/app", False),
    "a star is not two":                     ("*.example.io", "a.b.example.io/app", False),
    "two stars are two":                     ("*.*.example.io", "a.b.example.io/app", True),
    "a part must match whole":               ("k*.test", "reg.test/app", False),
    "a class of characters":                 ("reg[0-9].example.io", "reg7.example.io/app", True),
    "a class at the beginning of a host":    ("[q-s]eg.example.io", "reg.example.io/app", True),
    "a class at the end of a host":          ("reg.example.i[n-p]", "reg.example.io/app", True),
    "a path covers what is below it":        ("prefix.*.io/foo", "prefix.example.io/foo/bar", True),
    "a path covers what begins like it":     ("example.io/fo", "example.io/foo", True),
    "another path is not covered":           ("example.io/foo", "example.io/bar", False),
    "the same port":                         ("*.example.io:5000/a", "x.example.io:5000/a", True),
    "another port":                          ("*.example.io:5000/a", "x.example.io:5001/a", False),
    "no port is not any port":               ("example.io", "example.io:5000/app", False),
    "a port is not no port":                 ("example.io:5000", "example.io/app", False),
    "an address of version 6":               ("[2001:db8::1]:5000", "[2001:db8::1]:5000/app", True),
    "an address of version 6 and no port":   ("[2001:db8::1]", "[2001:db8::1]/app", True),
    "another address of version 6":          ("[2001:db8::1]:5000", "[2001:db8::2]:5000/app", False),
}  # fmt: skip


@pytest.mark.parametrize("key, repository, expected", KEYS.values(), ids=KEYS.keys())
def test_a_key_covers_repositories(key: str, repository: str, expected: bool) -> None:
    assert key_matches(key, repository) is expected


LOOKUPS: dict[str, tuple[str, tuple[str, ...], list[str]]] = {
    # image, configurations -> users, in the order to try
    "no configuration":                ("reg.test/app", (), []),
    "the longer path is tried first":  (
        "reg.test/core/app:v1", (config("reg.test", "reg.test/core"),), ["reg.test/core", "reg.test"],
    ),
    "a plain name before a star":      (
        "a.reg.test/app", (config("*.reg.test", "a.reg.test"),), ["a.reg.test", "*.reg.test"],
    ),
    "the tag does not count":          ("reg.test/app:v1", (config("reg.test/app"),), ["reg.test/app"]),
    "the digest does not count":       ("reg.test/app@sha256:" + "a" * 64, (config("reg.test/app"),), ["reg.test/app"]),
    "a port is no tag":                ("reg.test:5000/app", (config("reg.test:5000"),), ["reg.test:5000"]),
    "the scheme does not count":       ("reg.test/app", (config("https://reg.test"),), ["https://reg.test"]),
    "nor the scheme http":         ("reg.test/app", (config("http://reg.test/"),), ["http://reg.test/"]),
    "nor the suffix v1":     ("reg.test/app", (config("https://reg.test/v1/"),), ["https://reg.test/v1/"]),
    "nor the suffix v2":          ("reg.test/app", (config("reg.test/v2/"),), ["reg.test/v2/"]),
    "a path after the suffix counts":    ("reg.test/app", (config("reg.test/v2/other"),), []),
    "a name without a host is on the hub":  ("busybox", (config("https://index.docker.io/v1/"),), ["https://index.docker.io/v1/"]),
    "a name with a user is on the hub":    ("team/app:v1", (config("index.docker.io"),), ["index.docker.io"]),
    "index.docker.io is the hub":    ("docker.io/team/app", (config("docker.io"),), ["docker.io"]),
    "docker.io has priority":               ("team/app", (config("docker.io", "index.docker.io"),), ["docker.io"]),
    "a path on the hub":                    ("busybox", (config("docker.io/library"),), ["docker.io/library"]),
    "hub credentials are only for the hub":       ("reg.test/app", (config("index.docker.io"),), []),
    "not for localhost":            ("localhost/app", (config("index.docker.io"),), []),
    "an invalid image":                ("UPPER//bad", (config("docker.io", "index.docker.io"),), []),
    "an unreadable configuration is skipped":   ("reg.test/app", ("{", "[]", "", config("reg.test")), ["reg.test"]),
}  # fmt: skip


@pytest.mark.parametrize("image, configs, expected", LOOKUPS.values(), ids=LOOKUPS.keys())
def test_lookup(image: str, configs: tuple[str, ...], expected: list[str]) -> None:
    assert users(image, *configs) == expected


def test_of_one_key_the_configurations_are_tried_in_their_order() -> None:
    first, second = (json.dumps({"auths": {"reg.test": entry(user)}}) for user in ("first", "second"))
    assert users("reg.test/app", first, second) == ["first", "second"]
    longer = json.dumps({"auths": {"reg.test/app": entry("longer")}})
    assert users("reg.test/app", first, longer, second) == ["longer", "first", "second"]


ENTRIES: dict[str, tuple[object, Credentials | None]] = {
    "user and password":             (entry("me", "x"), Credentials("me", "x")),
    "auth":                   ({"auth": encoded("me:x")}, Credentials("me", "x")),
    "auth has priority":       ({"auth": encoded("me:x"), **entry("you", "y")}, Credentials("me", "x")),
    "without padding":               ({"auth": encoded("me:xy").rstrip("=")}, Credentials("me", "xy")),
    "with line breaks":             ({"auth": "bWU6\r\neHl6"}, Credentials("me", "xyz")),
    "a password with a colon":       ({"auth": encoded("me:x:y")}, Credentials("me", "x:y")),
    "an empty password":             ({"auth": encoded("me:")}, Credentials("me", "")),
    "an identity token":             ({"identitytoken": "t"}, Credentials(identity_token="t")),
    "a registry token":              ({"registrytoken": "t"}, Credentials(registry_token="t")),
    "names in capitals":             ({"Username": "me", "PASSWORD": "x"}, Credentials("me", "x")),
    "nothing at all":                ({}, Credentials()),
    "null is nothing":               ({"username": None, "password": "x"}, Credentials(password="x")),
    "not base64":                     ({"auth": "%%%"}, None),
    "padded by hand":                ({"auth": "bWU6eA=="}, Credentials("me", "x")),
    "too little padding":            ({"auth": "bWU6eA="}, None),
    "padding in the middle":         ({"auth": "bWU6=eA"}, None),
    "no colon":                      ({"auth": encoded("me")}, None),
    "not UTF-8":                       ({"auth": b64encode(b"\xff:\xff").decode()}, None),
    "a number for a name":           ({"username": 5}, None),
    "a text for an entry":           ("me:x", None),
}  # fmt: skip


@pytest.mark.parametrize("said, expected", ENTRIES.values(), ids=ENTRIES.keys())
def test_an_entry_is_read(said: object, expected: Credentials | None) -> None:
    for text in (newer(**{"reg.test": said}), json.dumps({"reg.test": said})):
        assert credentials_for("reg.test/app", [text]) == (() if expected is None else (expected,))
        assert is_readable(text) is (expected is not None)


def test_one_invalid_entry_does_not_affect_the_others() -> None:
    text = newer(**{"reg.test": {"auth": "%"}, "reg.test/app": entry("me")})
    assert (users("reg.test/app", text), is_readable(text)) == (["me"], False)


def test_a_configuration_in_the_newer_format_may_have_no_registries() -> None:
    assert has_registries(config("reg.test"))
    assert not has_registries('{"credsStore": "pass", "psFormat": "table"}')
    assert credentials_for("reg.test/app", ['{"auths": null}']) == ()
    assert is_readable('{"auths": null}')


def held_in(kind: str, key: str, text: str) -> Secret:
    meta = ObjectMeta(name="regcred", namespace="team", uid="uid-1")
    return Secret(metadata=meta, type=kind, data={key: encoded(text)})


def test_a_secret_is_read_by_its_type() -> None:
    source = SecretName("team", "regcred", "uid-1")
    newer_one = held_in("kubernetes.io/dockerconfigjson", ".dockerconfigjson", config("reg.test"))
    older_one = held_in("kubernetes.io/dockercfg", ".dockercfg", json.dumps({"reg.test": entry("older")}))
    for secret, user in ((newer_one, "reg.test"), (older_one, "older")):
        read = pull_secret_of(secret)
        assert read is not None
        assert [(each.username, each.source) for each in pull_credentials("reg.test/app", [read])] == [(user, source)]


@pytest.mark.parametrize(
    "kind, key", [("Opaque", ".dockerconfigjson"), ("kubernetes.io/dockercfg", ".dockerconfigjson")]
)
def test_a_secret_of_another_type_is_ignored(kind: str, key: str) -> None:
    assert pull_secret_of(held_in(kind, key, config("reg.test"))) is None


@pytest.mark.parametrize("text", ["e30=", "e3\n0=\n", " e 3 0 = "])
def test_the_data_of_a_secret_may_have_line_breaks(text: str) -> None:
    secret = Secret(metadata=ObjectMeta(), type="kubernetes.io/dockercfg", data={".dockercfg": text})
    assert pull_secret_of(secret) == PullSecret("{}", SecretName("", "", ""))


@pytest.mark.parametrize("text", ["e3%0=", "e30", "/w=="])
def test_data_that_is_not_base64_is_an_empty_configuration(text: str) -> None:
    secret = Secret(metadata=ObjectMeta(), type="kubernetes.io/dockercfg", data={".dockercfg": text})
    assert pull_secret_of(secret) == PullSecret("", SecretName("", "", ""))


@pytest.mark.parametrize("data", [None, {}, {".dockercfg": ""}, {"": "e30="}])
def test_a_secret_without_a_configuration_is_ignored(data: dict[str, str] | None) -> None:
    assert pull_secret_of(Secret(metadata=ObjectMeta(), type="kubernetes.io/dockercfg", data=data)) is None
    assert pull_secret_of(Secret(metadata=ObjectMeta(), data={".dockercfg": "e30="})) is None


PLACES = {
    "https://reg.test": True,
    "https://http://reg.test": False,
    "reg.test/v1": False,
    "reg.test/v1/app": True,
    "reg.test/v2/app": True,
    "reg.test/v3/app": False,
    "reg.test#x/y": True,
    "reg.test?x/y": True,
    "me@reg.test/app": True,
    "me@you@reg.test": True,
    "reg.test/": True,
    "reg.test/app/": False,
    "reg.test/ap": True,
    "reg.test:": True,
}


@pytest.mark.parametrize(("place", "covers"), PLACES.items())
def test_whether_a_key_of_a_configuration_covers_an_image(place: str, covers: bool) -> None:
    assert users("reg.test/app", config(place)) == ([place] if covers else [])


def test_a_configuration_in_either_format_is_readable() -> None:
    whole = {"auths": {"reg.test": entry()}, "HttpHeaders": {"a": "b"}}
    assert is_readable(json.dumps(whole))
    assert is_readable(json.dumps({"AUTHS": {"reg.test": entry()}, "x": 1}))
    assert not is_readable(json.dumps({"reg.test": entry(), "x": 1}))
    assert not is_readable(json.dumps({"auths": []}))
    assert [has_registries(text) for text in ("{", "[]", "{}", '{"Auths": {}}', '{"auth": {}}')] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_a_secret_that_is_not_utf_8_differs_from_one_of_another_type() -> None:
    meta = ObjectMeta(name="s", namespace="team")
    broken = Secret(metadata=meta, type="kubernetes.io/dockercfg", data={".dockercfg": "%%"})
    read = pull_secret_of(broken)
    assert read is not None
    assert not is_readable(read.config)


def test_no_repr_or_error_contains_a_secret() -> None:
    secret = PullSecret(config("reg.test"), SecretName("team", "regcred"))
    (found,) = pull_credentials("reg.test/app", [secret])
    everything = Credentials("USER", "PASS", "IDENTITY", "REGISTRY")
    for shown in map(repr, (secret, found, everything)):
        for hidden in (PASSWORD, "reg.test", "USER", "PASS", "IDENTITY", "REGISTRY"):
            assert hidden not in shown
    assert PASSWORD not in found.fingerprint


# Laws.

WORDS = st.text("abc", min_size=1, max_size=3)
HOSTS = st.lists(WORDS, min_size=2, max_size=3).map(".".join)
IMAGES = st.builds("{}/{}".format, HOSTS, st.lists(WORDS, min_size=1, max_size=3).map("/".join))
ANY_KEY = st.one_of(IMAGES, HOSTS, st.builds("*.{}".format, HOSTS), st.builds("https://{}/v1/".format, HOSTS))
SHOWN = st.builds(Credentials, *[st.text(max_size=5)] * 4)


@given(IMAGES, SHOWN)
def test_config_of_gives_an_image_exactly_these_credentials(image: str, shown: Credentials) -> None:
    assert credentials_for(image, [config_of(image, shown)]) == (shown,)


@given(IMAGES, st.lists(ANY_KEY, max_size=6, unique=True))
def test_exactly_the_matching_credentials_are_tried(image: str, keys: list[str]) -> None:
    found = users(image, config(*keys))
    plain = {key: key.removeprefix("https://").removesuffix("/v1/") for key in keys}
    assert sorted(found) == sorted(key for key in keys if key_matches(plain[key], image))
    assert [plain[key] for key in found] == sorted((plain[key] for key in found), reverse=True)


@given(IMAGES, st.lists(st.lists(ANY_KEY, max_size=3, unique=True), max_size=4))
def test_how_keys_are_spread_over_configurations_matters_only_within_a_key(image: str, split: list[list[str]]) -> None:
    apart = credentials_for(image, [config(*keys) for keys in split])
    assert {each.username for each in apart} == {user for keys in split for user in users(image, config(*keys))}


@given(st.text(max_size=40), st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists, max_leaves=5))
def test_no_configuration_raises(text: str, other: object) -> None:
    for each in (text, json.dumps(other), json.dumps({"auths": other}), json.dumps({"auths": {text: other}})):
        assert is_readable(each) in (True, False)
        assert credentials_for("reg.test/app", [each]) in ((), (Credentials(),))


@given(SHOWN, SHOWN)
def test_fingerprints_of_different_credentials_differ(one: Credentials, other: Credentials) -> None:
    assert (one.fingerprint == other.fingerprint) is (one == other)
