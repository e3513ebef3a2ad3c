"""Manifests: values of scalars, splitting into documents, and errors.

The truth about text is `kubectl`: where it is installed, every trap of `TRAPS` is shown to it too.
"""

import json
import shutil
import subprocess
from typing import Any

import pytest

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s import core
from podkeeper.model.manifest import Document, decode, read_documents, type_of, unknown_fields
from podkeeper.model.manifest.typed import MAX_PROBLEMS

KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed; it is the reference here")

HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


def one(text: str | bytes) -> dict[str, Any]:
    (document,) = read_documents(text, "a.yaml").all_valid()
    return document.content


def value(text: str) -> Any:
    return one(f"value: {text}\n")["value"]


def problems(text: str | bytes) -> list[str]:
    reading = read_documents(text, "a.yaml")
    assert reading.documents == ()
    return [str(problem) for problem in reading.problems]


TRAPS: dict[str, tuple[str, Any]] = {
    "a leading zero is octal": ("0644", 420),
    "0o is octal, too": ("0o17", 15),
    "hexadecimal": ("0x1F", 31),
    "negative hexadecimal": ("-0x1F", -31),
    "binary": ("0b11", 3),
    "digits that are not octal make a decimal": ("089", 89),
    "0o with wrong digits is text": ("0o18", "0o18"),
    "underscores part digits": ("1_000", 1000),
    "an underscore first is text": ("_1", "_1"),
    "a sign": ("+12", 12),
    "minus zero is zero": ("-0", 0),
    "the largest integer": ("9223372036854775807", 2**63 - 1),
    "the smallest integer": ("-9223372036854775808", -(2**63)),
    "an unsigned integer is a float": ("18446744073709551615", 18446744073709551615.0),
    "beyond 64 bits is a float": ("123456789012345678901234567890", 1.2345678901234568e29),
    "beyond 64 bits in hexadecimal is text": ("0xFFFFFFFFFFFFFFFFF", "0xFFFFFFFFFFFFFFFFF"),
    "an exponent alone makes a whole number": ("1e3", 1000),
    "a whole float is an integer": ("5.", 5),
    "a large whole float has the shortest digits": ("4611686018427387904.0", 4611686018427388000),
    "a float stays a float": ("1.5", 1.5),
    "no digit before the point": (".5", 0.5),
    "a float too large is text": ("1e400", "1e400"),
    "a float too small is zero": ("1e-400", 0),
    "minus zero as a float": ("-0.0", 0),
    "an underscore in a float": ("685.230_15e+03", 685230.15),
    "an underscore after a leading point": (".5_0", 0.5),
    "two of them are text": (".5__0", ".5__0"),
    "hexadecimal floats are text": ("0x1p4", "0x1p4"),
    "base 60 is text": ("22:22", "22:22"),
    "base 60 with seconds too": ("190:20:30.15", "190:20:30.15"),
    "a version is text": ("1.2.3", "1.2.3"),
    "yes": ("yes", True),
    "y": ("y", True),
    "On": ("On", True),
    "OFF": ("OFF", False),
    "n": ("n", False),
    "a strange spelling of true is text": ("tRue", "tRue"),
    "a tilde is null": ("~", None),
    "nothing is null": ("", None),
    "Null is null": ("Null", None),
    "nUll is text": ("nUll", "nUll"),
    "a date is text": ("2026-11-15", "2026-11-15"),
    "an instant is text": ("2026-11-15T10:00:00Z", "2026-11-15T10:00:00Z"),
    "quotes make text": ('"0644"', "0644"),
    "an equals sign is text": ("=", "="),
    "!!str makes text": ("!!str 5", "5"),
    "!!str of nothing is the empty text": ("!!str", ""),
    "!!int reads quoted text": ('!!int "5"', 5),
    "!!float of a whole number": ("!!float 5", 5),
    "!!bool reads quoted text": ('!!bool "yes"', True),
    "!!null": ('!!null ""', None),
    "!!binary is decoded": ("!!binary aGVsbG8=", "hello"),
    "!!binary that is not text is replaced byte by byte": ("!!binary //4=", "\ufffd\ufffd"),
    "!!timestamp stays text": ("!!timestamp 2026-11-15", "2026-11-15"),
    "a local tag makes text": ("!local 5", "5"),
    "the lone exclamation mark makes text": ("! 5", "5"),
    "a tag on a mapping means nothing": ("!local {a: 1}", {"a": 1}),
    "an unknown tag means nothing": ("!!set {a, b}", {"a": None, "b": None}),
    "keys become text": ("{1: a, 1.5: b, true: c, 0o10: d}", {"1": "a", "1.5": "b", "true": "c", "8": "d"}),
    "float keys are spelt with 32 bits": ("{123456789.5: a, 1e6: b}", {"1.2345679e+08": "a", "1e+06": "b"}),
    "dates as keys": ("{2026-11-15: a}", {"2026-11-15": "a"}),
    "infinity as a key": ("{.inf: a}", {".inf": "a"}),
    "a key with a tag": ("{!!binary aGk=: a, !!str 5: b}", {"hi": "a", "5": "b"}),
    "an alias as a key": ("{a: &k x, *k : b}", {"a": "x", "x": "b"}),
    "an alias repeats": ("[&a {b: 1}, *a]", [{"b": 1}, {"b": 1}]),
    "keys after a merge win": ("[&a {b: 1, c: 1}, {<<: *a, c: 2}]", [{"b": 1, "c": 1}, {"b": 1, "c": 2}]),
    "keys before a merge lose": ("[&a {b: 1, c: 1}, {c: 2, <<: *a}]", [{"b": 1, "c": 1}, {"b": 1, "c": 1}]),
    "the first of several merges wins": ("{<<: [{a: 1}, {a: 2, b: 3}]}", {"a": 1, "b": 3}),
    "a quoted merge key is a key": ('{"<<": {a: 1}}', {"<<": {"a": 1}}),
    "a folded text": (">-\n    a\n    b", "a b"),
    "escapes": (r'"\u00e9\x00\U0001F600"', "é\x00😀"),
}  # fmt: skip

REFUSED = {
    "infinity is not in JSON": (".inf", "cannot express inf in JSON; use a finite number or put the text in quotes"),
    "NaN is not in JSON": (".NaN", "cannot express nan in JSON; use a finite number or put the text in quotes"),
    "a tag that does not fit": ("!!int foo", 'cannot parse "foo" as !!int'),
    "an integer tag on a float": ("!!int 1e3", 'cannot parse "1e3" as !!int'),
    "an invalid timestamp": ("!!timestamp 2026-13-45", 'cannot parse "2026-13-45" as !!timestamp'),
    "binary that is not base64": ('!!binary "#"', 'cannot parse "#" as !!binary'),
    "a mapping as a key": ("{{a: b}: c}", "cannot use a list or a mapping as a key"),
    "null as a key": ("{~: a}", "cannot use null as a key; put it in quotes or add the name of the field"),
    "a key beyond 64 bits": ("{18446744073709551615: a}", "cannot use 18446744073709551615 as a key"),
    "a merge of a number": ("{<<: 5}", "cannot merge (<<): expected a mapping or a list of mappings"),
    "a merge of an aliased list": ("[&a [{b: 1}], {<<: *a}]", "cannot merge (<<): expected"),
    "an alias without its anchor": ("*x", "cannot find the anchor &x; define it before *x"),
    "an anchor that contains itself": ("&x [*x]", "cannot use *x inside &x, because it would contain itself"),
    "an open bracket": ("[", "cannot parse YAML: while parsing a flow node"),
    "a tab as indentation": ("\n\ta: 1", "cannot parse YAML: while scanning for the next token"),
    "a control character": ("\x07", "cannot parse YAML: control characters are not allowed"),
    "half a surrogate pair": (r'"\ud800"', "cannot parse YAML: while parsing a quoted scalar"),
}  # fmt: skip


@pytest.mark.parametrize("text, expected", TRAPS.values(), ids=TRAPS.keys())
def test_a_scalar_has_the_value_that_kubectl_gives_it(text: str, expected: Any) -> None:
    got = value(text)
    assert (got, type(got)) == (expected, type(expected))


@needs_kubectl
def test_kubectl_gives_every_scalar_the_same_value() -> None:
    text = HEAD + "data:\n" + "".join(f"  k{number}: {text}\n" for number, (text, _) in enumerate(TRAPS.values()))
    assert kubectl(text)["data"] == one(text)["data"]


@pytest.mark.parametrize("text, message", REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_scalar_is_reported_with_file_line_and_field(text: str, message: str) -> None:
    (problem,) = read_documents(f"first: 1\nvalue: {text}\n", "a.yaml").problems
    assert problem.message.startswith(message)
    assert problem.file == "a.yaml"
    assert problem.line in (2, 3)
    assert problem.field.startswith("value") or message.startswith("cannot parse YAML")


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the names of the ConfigMaps that kubectl accepts: one for each of `REFUSED`, and a valid one."""
    directory = tmp_path_factory.mktemp("refused")
    for number, text in enumerate([*(text for text, _ in REFUSED.values()), "valid"]):
        config_map = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: k{number}}}\ndata:\n  value: {text}\n"
        (directory / f"{number}.yaml").write_text(config_map)
    # One call for all of them, because it reports each file that it cannot read and continues.
    command = [str(KUBECTL), "label", "--local", "--dry-run=client", "-f", str(directory), "-o", "name", "x=y"]
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout.split()


@needs_kubectl
@pytest.mark.parametrize("number", range(len(REFUSED)), ids=REFUSED.keys())
def test_kubectl_rejects_the_same_scalars(number: int, accepted: list[str]) -> None:
    assert f"configmap/k{len(REFUSED)}" in accepted
    assert f"configmap/k{number}" not in accepted


def kubectl(text: str) -> Any:
    command = [str(KUBECTL), "label", "--local", "--dry-run=client", "-f", "-", "-o", "json", "x=y"]
    written = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
    # Go writes a large float without a point; beyond 64 bits it cannot have been an integer.
    return json.loads(written, parse_int=lambda digits: float(digits) if abs(int(digits)) > 2**63 else int(digits))


DUPLICATES = {
    "in YAML": ("a: 1\nb: {c: 1,\n    c: 2}\n", 'a.yaml:3: b: Duplicate value: key "c" already set in map'),
    "under two spellings": ("1: a\n0x1: b\n", 'a.yaml:2: Duplicate value: key "1" already set in map'),
    "in JSON": ('{"a": 1,\n "b": {"c": 1,\n "c": 2}}', 'a.yaml:3: b: Duplicate value: key "c" already set in map'),
    "in JSON that is not YAML": (
        r'{"b": "\ud83d\ude00", "a": 1, "a": 2}',
        'a.yaml:1: Duplicate value: key "a" already set in map',
    ),
    "beside a merge": ("{a: 1, <<: {a: 2}, a: 3}", 'a.yaml:1: Duplicate value: key "a" already set in map'),
}


@pytest.mark.parametrize("text, problem", DUPLICATES.values(), ids=DUPLICATES.keys())
def test_duplicate_keys_are_rejected(text: str, problem: str) -> None:
    found = read_documents(text, "a.yaml").problems
    assert [str(each) for each in found] == [problem]


STREAMS: dict[str, tuple[str | bytes, list[Any]]] = {
    "nothing": ("", []),
    "only separators and comments": ("---\n---\n# a\n---\n\n", []),
    "null": ("null\n---\n~\n", []),
    "two documents": ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
    "a comment behind the separator": ("--- # one\na: 1\n", [{"a": 1}]),
    "line ends of Windows": ("a: 1\r\n---\r\nb: 2\r\n", [{"a": 1}, {"b": 2}]),
    "the text after the end mark is ignored": ("a: 1\n...\nb: 2\n", [{"a": 1}]),
    "a directive": ("%YAML 1.1\n---\na: 0644\n", [{"a": 420}]),
    "a byte order mark": (b"\xef\xbb\xbfa: 1\n", [{"a": 1}]),
    "UTF-16": ("a: é\n".encode("utf-16"), [{"a": "é"}]),
    "JSON": ('{"a": [1, 2.0, 1e3, null, true, "0644"]}', [{"a": [1, 2, 1000, None, True, "0644"]}]),
    "JSON integers beyond 64 bits": ('{"a": 9223372036854775808}', [{"a": 9223372036854775808.0}]),
    "JSON after JSON": (' {"a": 1}\n{"a": 2}{"a": 3}', [{"a": 1}, {"a": 2}, {"a": 3}]),
    "YAML after JSON": ('{"a": 1}\n---\nb: 2\n', [{"a": 1}, {"b": 2}]),
    "YAML that looks like JSON": ("{a: 1, b: yes,}", [{"a": 1, "b": True}]),
    "NaN is no JSON, but text in YAML": ('{"a": NaN}', [{"a": "NaN"}]),
    "surrogates in JSON": (r'{"a": "\ud83d\ude00 \ud800 \\ud800"}', [{"a": "😀 \ufffd \\ud800"}]),
}  # fmt: skip


@pytest.mark.parametrize("text, expected", STREAMS.values(), ids=STREAMS.keys())
def test_documents_of_a_stream(text: str | bytes, expected: list[Any]) -> None:
    assert [document.content for document in read_documents(text).all_valid()] == expected


def test_one_invalid_document_does_not_affect_the_others() -> None:
    reading = read_documents(
        "a: 1\n---\nb: [\n---\nc: 3\n--- d\nd: 4\n---\n- e\n---\nf: {g: 1, g: 2}\n---\nh: 8\n", "x.yaml"
    )
    assert [document.content for document in reading.documents] == [{"a": 1}, {"c": 3}, {"h": 8}]
    assert [(problem.line, problem.field) for problem in reading.problems] == [(4, ""), (6, ""), (9, ""), (11, "f")]


def test_one_invalid_json_object_does_not_affect_the_others() -> None:
    reading = read_documents('{"a": 1}\n{"b": 1, "b": 2}\n{"c": 1e400}\n{"d": 4}', "x.json")
    assert [document.content for document in reading.documents] == [{"a": 1}, {"d": 4}]
    assert [problem.line for problem in reading.problems] == [2, 3]


TOO_DEEP = "cannot parse a document that is nested deeper than 256 levels"
TOO_MANY_ALIASES = "document contains excessive aliasing; write out the aliased parts"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "flow nested a hundred thousand times": ("[" * 100_000, TOO_DEEP),
    "blocks nested a hundred thousand times": ("- " * 100_000, TOO_DEEP),
    "JSON nested a hundred thousand times": ('{"a":' * 100_000, TOO_DEEP),
    "JSON nested three hundred times": ('{"a":' * 300 + "1" + "}" * 300, TOO_DEEP),
    "depth by aliases": (
        "a0: &a0 []\n" + "".join(f"a{n}: &a{n} {'[' * 90}*a{n - 1}{']' * 90}\n" for n in range(1, 5)),
        TOO_DEEP,
    ),
    "an alias bomb": (BOMB, TOO_MANY_ALIASES),
    "a long text repeated": (
        f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 400}]",
        TOO_MANY_ALIASES,
    ),
    "bytes that are not UTF-8": (b"a: 1\nb: \xff\n", "cannot decode the file: invalid start byte at byte 8"),
    "half of a surrogate pair": ("a: \ud800\n", "cannot decode the file"),
    "a NUL": ("a: \x00\n", "cannot parse YAML: control characters are not allowed"),
    "an integer of a million digits": ('{"a": ' + "1" * 1_000_000 + "}", "cannot parse"),
}


@pytest.mark.parametrize("text, message", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_rejected_quickly(text: str | bytes, message: str) -> None:
    (problem,) = read_documents(text, "x.yaml").problems
    assert problem.message.startswith(message)
    assert problem.line > 0
    assert len(problem.field) < 200


def test_long_and_wide_manifests_are_accepted() -> None:
    long, wide = "x" * 10_000_000, "[" + "1, " * 100_000 + "]"
    assert one(f"a: {long}\nb: {wide}\n") == {"a": long, "b": [1] * 100_000}


def test_moderate_use_of_aliases_is_accepted() -> None:
    content = one("a: &a {b: [1, 2, 3]}\nc: [" + "*a, " * 300 + "]\n")
    assert content["c"] == [{"b": [1, 2, 3]}] * 300


POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    empty:
    example.com/number: 5
spec:
  restartPolcy: Never
  containers:
  - name: 5
    image: nginx
    ports:
    - containerPort: "80"
    - containerPort: 99999999999
    args: [a, null]
    resources: {limits: {cpu: true, memory: 1.5}}
  - nope
  volumes: {}
  hostNetwork: "yes"
"""


def test_every_invalid_field_is_reported_with_its_line() -> None:
    (document,) = read_documents(POD, "web.yaml").all_valid()
    with pytest.raises(BadInput) as caught:
        decode(document, core.Pod)
    assert [str(problem) for problem in caught.value.problems] == [
        "web.yaml:7: metadata.annotations[example.com/number]: Invalid value: number 5: must be a string (in quotes)",
        "web.yaml:11: spec.containers[0].name: Invalid value: number 5: must be a string (in quotes)",
        'web.yaml:14: spec.containers[0].ports[0].containerPort: Invalid value: string "80": '
        "must be an integer (without quotes)",
        "web.yaml:15: spec.containers[0].ports[1].containerPort: Invalid value: number 99999999999: "
        "must be an integer between -2147483648 and 2147483647",
        "web.yaml:17: spec.containers[0].resources.limits.cpu: Invalid value: boolean true: "
        "must be a number or a string or an integer",
        'web.yaml:18: spec.containers[1]: Invalid value: string "nope": must be a mapping',
        "web.yaml:19: spec.volumes: Invalid value: mapping: must be a list",
        'web.yaml:20: spec.hostNetwork: Invalid value: string "yes": must be true or false',
    ]


def test_unknown_fields_are_reported_and_ignored() -> None:
    text = "apiVersion: v1\nkind: Pod\nspec:\n  restartPolcy: Never\n  containers: [{name: a, imagee: b}]\n"
    (document,) = read_documents(text, "web.yaml").all_valid()
    assert [str(problem) for problem in unknown_fields(document, core.Pod)] == [
        "web.yaml:4: spec.restartPolcy: unknown field of PodSpec; did you mean restartPolicy?",
        "web.yaml:5: spec.containers[0].imagee: unknown field of Container; did you mean image?",
    ]
    assert decode(document, core.Pod).spec.containers[0].name == "a"


def test_null_in_lists_and_maps_is_a_zero() -> None:
    text = "metadata: {annotations: {a: }}\nspec: {containers: [null, {args: [null], resources: {limits: {cpu: }}}]}"
    (document,) = read_documents(text).all_valid()
    pod = decode(document, core.Pod)
    assert pod.metadata.annotations == {"a": ""}
    assert pod.spec.containers[0] == core.Container()
    assert pod.spec.containers[1].args == ("",)
    assert pod.spec.containers[1].resources.limits == {"cpu": "0"}


def test_the_number_of_problems_is_limited() -> None:
    (document,) = read_documents("spec: {containers: [" + "1, " * 10_000 + "]}").all_valid()
    with pytest.raises(BadInput) as caught:
        decode(document, core.Pod)
    assert len(caught.value.problems) == MAX_PROBLEMS


def test_the_maximum_nesting_depth() -> None:
    for text in ("[" * 255 + "]" * 255, '{"b":' * 255 + "1" + "}" * 255):
        assert value(text) is not None
        assert problems(f"value: [{text}]") == [
            f"a.yaml:1: value[0]{'[0]' * 10 if text[0] == '[' else '.b' * 10}: {TOO_DEEP}"
        ]


LINES = {
    "a field": ("spec.containers[0].name", 11),
    "a key with dots": ("metadata.annotations[example.com/number]", 7),
    "an item": ("spec.containers[1]", 18),
    "an absent field has the line of its parent": ("spec.containers[0].env[3].name", 11),
    "an absent root": ("status.phase", 1),
    "the whole document": ("", 1),
}


@pytest.mark.parametrize("field, line", LINES.values(), ids=LINES.keys())
def test_line_of(field: str, line: int) -> None:
    (document,) = read_documents(POD).all_valid()
    assert document.line_of(field) == line


def test_lines_in_later_documents_and_in_json() -> None:
    yaml, first, second = read_documents(
        '{"a": 1,\n"b": 2}\n{"a": "\\ud83d\\ude00",\n"b": 2}\n---\n\na: 1\nb: 2\n', "x"
    ).all_valid()
    assert [document.line_of("b") for document in (yaml, first, second)] == [2, 3, 8]


LIST = """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: a}
- apiVersion: v1
  kind: PodList
  items:
  - metadata: {name: b}
  - {kind: Pod,
     metadata: {name: 5}}
- 7
"""


def test_lists_are_unpacked() -> None:
    reading = read_documents(LIST, "x.yaml")
    assert [(document.kind, document.api_version) for document in reading.documents] == [
        ("ConfigMap", "v1"),
        ("Pod", "v1"),
        ("Pod", "v1"),
    ]
    assert reading.problems == (
        Problem("Invalid value: number 7: must be an object with apiVersion and kind", "items[2]", "x.yaml", 13),
    )
    with pytest.raises(BadInput, match=r"x.yaml:12: metadata.name: Invalid value: number 5"):
        decode(reading.documents[2], core.Pod)


def test_an_empty_list_holds_nothing() -> None:
    assert read_documents("kind: List\n---\nkind: PodList\nitems: null\n") == read_documents("")


def test_a_kind_that_ends_in_list_without_items_is_no_list() -> None:
    assert one("kind: AllowList\nspec: {}") == {"kind": "AllowList", "spec": {}}


def test_items_must_be_a_list() -> None:
    assert problems("kind: List\nitems: {a: 1}\n") == [
        "a.yaml:2: items: Invalid value: mapping: must be a list of objects"
    ]


def document_of(text: str) -> Document:
    (document,) = read_documents(text, "a.yaml").all_valid()
    return document


def test_type_of_a_known_kind() -> None:
    assert type_of(document_of("apiVersion: v1\nkind: Secret\n")) is core.Secret


@pytest.mark.parametrize(
    "text, fields",
    {
        "no kind": ("apiVersion: v1", ["kind"]),
        "nothing at all": ("metadata: {}", ["apiVersion", "kind"]),
        "a kind that is no text": ("apiVersion: v1\nkind: 5", ["kind"]),
        "an unknown kind": ("apiVersion: v1\nkind: Deployment", ["kind"]),
    }.values(),
)
def test_type_of_an_unknown_kind(text: str, fields: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        type_of(document_of(text))
    assert [problem.field for problem in caught.value.problems] == fields
    assert all(problem.line and problem.file for problem in caught.value.problems)


MARKED = {
    "an invalid time": ("metadata: {name: p, creationTimestamp: soon}", 3, "metadata.creationTimestamp"),
    "an invalid quantity": (
        "metadata: {name: p}\nspec:\n  containers:\n    - name: c\n      resources: {limits: {cpu: lots}}",
        7,
        "spec.containers[0].resources.limits.cpu",
    ),
}


@pytest.mark.parametrize("text, line, field", MARKED.values(), ids=MARKED.keys())
def test_texts_must_have_the_format_of_their_field(text: str, line: int, field: str) -> None:
    (document,) = read_documents(f"apiVersion: v1\nkind: Pod\n{text}\n", "pod.yaml").all_valid()
    with pytest.raises(BadInput) as caught:
        decode(document, core.Pod)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.field) == ("pod.yaml", line, field)


def test_a_secret_must_be_base64_but_may_have_line_breaks() -> None:
    def secret(data: str) -> core.Secret:
        text = f"apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\ndata:\n  key: {data}\n"
        return decode(read_documents(text, "s.yaml").all_valid()[0], core.Secret)

    assert secret("|\n    aGVs\n    bG8=").data == {"key": "aGVs\nbG8=\n"}
    with pytest.raises(BadInput, match=r"s\.yaml:5: data\.key: Invalid value: not base64"):
        secret("not/base64!")
