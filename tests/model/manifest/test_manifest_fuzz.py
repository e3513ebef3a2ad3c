"""For any input, only `BadInput` is raised, and every problem has file and line."""

import re
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s import core
from podkeeper.model.k8s.kinds import KINDS
from podkeeper.model.manifest import Document, ParsedManifest, decode, read_documents, type_of, unknown_fields

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {"example.com/a": "b"}},
    "spec": {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": {"a": "b"},
        "containers": [
            {
                "name": "c",
                "image": "busybox",
                "args": ["a", "b"],
                "env": [{"name": "A", "value": "B"}],
                "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1", "memory": 5}},
                "livenessProbe": {"httpGet": {"port": "http", "httpHeaders": [{"name": "a", "value": "b"}]}},
                "securityContext": {"runAsUser": 0, "privileged": False},
            }
        ],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"defaultMode": 420}}],
        "tolerations": [{"operator": "Exists"}],
    },
}
AS_YAML = yaml.safe_dump(POD)
AS_JSON = msgspec.json.encode(POD).decode()

TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E) | st.sampled_from("é😀"), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)


def check_problems(reading: ParsedManifest) -> None:
    for problem in reading.problems:
        assert problem.file == "x.yaml"
        assert problem.line > 0
        assert problem.message.startswith(
            ("cannot ", "Invalid value: ", "Required value: ", "Unsupported value: ", "Duplicate value: ")
        )


def use(data: bytes | str) -> None:
    """Decode every valid document into its type."""
    reading = read_documents(data, "x.yaml")
    check_problems(reading)
    for document in reading.documents:
        try:
            decode(document, type_of(document))
        except BadInput as error:
            check_problems(ParsedManifest((), error.problems))
        unknown_fields(document, core.Pod)


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    use(data)


@given(st.text(alphabet="abk01: -[]{}&*!|>'\"#%@,?\n\t\\<.~\x00é\ud800\ufeff", max_size=80))
def test_random_text_of_yaml_characters(text: str) -> None:
    use(text)


@given(st.text(alphabet='{}[]:,"\\u0d8 \n1.e-tnl', max_size=60))
def test_random_text_of_json_characters(text: str) -> None:
    use("{" + text)


@given(st.sampled_from([AS_YAML, AS_JSON]), st.data())
def test_a_manifest_with_random_damage(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 10)))
    use(text[:start] + data.draw(st.text(alphabet="a1 :-{}[]\"'\n&*<!", max_size=5)) + text[end:])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inside for place in places(part, (*path, key)))]


def planted(value: Any, path: tuple[Any, ...], seed: Any) -> Any:
    """Return a copy of the value with another value at one path."""
    if not path:
        return seed
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, first: planted(value[first], rest, seed)}
    return [*value[:first], planted(value[first], rest, seed), *value[first + 1 :]]


@settings(max_examples=150)
@given(st.sampled_from(places(POD)), VALUES)
def test_a_wrong_value_in_any_field(path: tuple[Any, ...], seed: Any) -> None:
    use(msgspec.json.encode(planted(POD, path, seed)))


@given(st.sampled_from(places(POD)), VALUES)
def test_the_slow_walk_finds_an_error_exactly_if_msgspec_does(path: tuple[Any, ...], seed: Any) -> None:
    content = planted(POD, path, seed)
    for document in read_documents(msgspec.json.encode(content)).documents:
        try:
            msgspec.convert(document.content, core.Pod)
        except msgspec.ValidationError as error:
            if "got `null`" not in str(error):  # which Go reads as a zero
                with pytest.raises(BadInput):
                    decode(document, core.Pod)
        else:
            assert not type_faults_in(document)


def type_faults_in(document: Document) -> list[Problem]:
    """Return the problems that decoding finds, except malformed times and quantities."""
    try:
        assert decode(document, core.Pod) == msgspec.convert(document.content, core.Pod)
    except BadInput as error:
        return [each for each in error.problems if not re.search("must be a time|quantities must match", each.message)]
    return []


@given(VALUES)
def test_json_has_the_same_value_as_json_and_as_yaml(value: Any) -> None:
    as_json = msgspec.json.encode({"value": value})
    (from_json,) = read_documents(as_json).all_valid()
    (from_flow,) = read_documents(b"# not JSON at first sight\n" + as_json).all_valid()
    assert from_json.content == from_flow.content


def test_the_example_is_valid() -> None:
    for text in (AS_YAML, AS_JSON):
        (document,) = read_documents(text).all_valid()
        assert decode(document, KINDS["v1", "Pod"]) == msgspec.convert(POD, core.Pod)
        assert unknown_fields(document, core.Pod) == ()
