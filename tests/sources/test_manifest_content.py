"""The content of one manifest: every kind of document, exact problems, completeness."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.manifest import read_documents
from podkeeper.rules.static.pod import FromFile, FromURL
from podkeeper.sources.config_documents import config_map_from, secret_from
from podkeeper.sources.manifest_content import MAX_BYTES, ManifestContent, ManifestReader
from podkeeper.sources.manifest_paths import PathListing, WatchPoint, is_ignored, list_files, printable, watch_points
from podkeeper.sources.manifest_scan import read_bytes
from tests.sources.static_listener import config_map_text, pod_text

HERE = FromFile("/m.yaml")


def read(text: str | bytes, *, has_store: bool = True, node: str = "n1") -> ManifestContent:
    data = text.encode() if isinstance(text, str) else text
    return ManifestReader(node, has_store).read(data, HERE, "m.yaml")


def summary(content: ManifestContent) -> tuple[list[str], list[tuple[str, str, int]], bool]:
    """Return the keys, the problems with field and line, and whether the content is complete."""
    problems = [(problem.message, problem.field, problem.line) for problem in content.problems]
    return [str(item.key) for item in content.items], problems, content.is_complete


def document(kind: str, version: str = "v1") -> str:
    return f"apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: x\n"


MANIFESTS: dict[str, tuple[str, bool, tuple[list[str], list[tuple[str, str, int]], bool]]] = {
    "one of each": (
        f"{pod_text('web')}---\n{config_map_text('conf', 'v')}---\n{document('Secret')}", True,
        (["Pod default/web", "ConfigMap default/conf", "Secret default/x"], [], True)),
    "only comments": ("# nothing\n", True, ([], [], True)),
    "empty lists": (
        "---\n".join(f"apiVersion: v1\nkind: {kind}List\n" for kind in ("Pod", "ConfigMap", "Secret")), True,
        ([], [], True)),
    "an empty text": (
        " \n", True,
        ([], [("the manifest is empty; to remove its pods, remove the file", "", 0)], False)),
    "an unsupported kind": (
        document("Service"), True,
        ([], [('Unsupported value: "Service": ignored; supported values: "Pod", "ConfigMap", "Secret"', "kind", 2)],
         True)),
    "an unsupported kind without a store": (
        document("ConfigMap"), False,
        ([], [('Unsupported value: "ConfigMap": ignored; supported values: "Pod"', "kind", 2)],
         True)),
    "a secret without a store": (
        document("Secret"), False,
        ([], [('Unsupported value: "Secret": ignored; supported values: "Pod"', "kind", 2)], True)),
    "a misspelt kind": (
        document("Pods"), True, ([], [('Unsupported value: "Pods": did you mean Pod?', "kind", 2)], False)),
    "a kind in lower case": (
        document("configMap"), True,
        ([], [('Unsupported value: "configMap": did you mean ConfigMap?', "kind", 2)], False)),
    "another version": (
        document("Pod", "v2"), True,
        ([], [('Unsupported value: "v2": supported values: "v1"', "apiVersion", 1)], False)),
    "another version of an unsupported kind": (
        document("Deployment", "apps/v1"), True,
        ([], [('Unsupported value: "Deployment": ignored; supported values: "Pod", "ConfigMap", "Secret"', "kind", 2)],
         True)),
    "a duplicate pod": (
        f"{pod_text('web')}---\n{pod_text('web')}---\n{pod_text('db')}", True,
        (["Pod default/web", "Pod default/db"],
         [("Duplicate value: Pod default/web is defined twice in this manifest", "metadata.name", 13)], False)),
}  # fmt: skip


@pytest.mark.parametrize("text, has_store, expected", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_the_content_of_a_manifest(
    text: str, has_store: bool, expected: tuple[list[str], list[tuple[str, str, int]], bool]
) -> None:
    content = read(text, has_store=has_store)
    assert summary(content) == expected
    assert content.keys() == {item.key for item in content.items}
    assert {problem.file for problem in content.problems} <= {"m.yaml"}


def test_invalid_documents_make_the_content_incomplete_and_the_others_are_used() -> None:
    content = read(f"{pod_text('web')}---\n{{")
    assert ([str(item.key) for item in content.items], content.is_complete) == (["Pod default/web"], False)
    assert len(content.problems) == 1
    missing = read("metadata:\n  name: x\n")
    assert (missing.items, missing.is_complete, len(missing.problems)) == ((), False, 2)


def test_an_empty_body_of_a_url_is_incomplete() -> None:
    content = ManifestReader("n1", has_store=True).read(b"", FromURL("http://h/"), "h")
    why = "the manifest is empty; to remove its pods, serve an empty PodList"
    assert content == ManifestContent(problems=(Problem(why, file="h"),), is_complete=False)


def test_objects_are_as_an_api_server_would_store_them() -> None:
    text = (
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  namespace: prod\n"
        "data:\n  a: eA==\n  b: eQ==\nstringData:\n  b: plain\n---\n"
        f"{document('Secret')}type: own\n---\n{config_map_text('conf', 'v')}---\n{pod_text('web')}"
    )
    secret, typed, conf, pod = (item.value for item in read(text).items)
    encoded = base64.b64encode(b"plain").decode()
    assert secret == Secret(
        api_version="v1",
        kind="Secret",
        metadata=ObjectMeta(name="s", namespace="prod"),
        data={"a": "eA==", "b": encoded},
        type="Opaque",
    )
    assert isinstance(typed, Secret)
    assert (typed.type, typed.data) == ("own", None)
    assert isinstance(conf, ConfigMap)
    assert (conf.data, conf.metadata.namespace) == ({"key": "v"}, "default")
    assert isinstance(pod, Pod)
    assert (pod.metadata.name, pod.spec.node_name) == ("web-n1", "n1")


def values(kind: str, *lines: str) -> str:
    return f"apiVersion: v1\nkind: {kind}\nmetadata:\n  name: x\n" + "".join(f"{line}\n" for line in lines)


MIB = 1024 * 1024
HALF = base64.b64encode(b"x" * (MIB // 2)).decode()
SIZES: dict[str, tuple[str, dict[str, dict[str, str]], int | None]] = {
    "a text of 1 MiB": ("ConfigMap", {"data": {"a": "x" * MIB}}, None),
    "a byte more": ("ConfigMap", {"data": {"a": "x" * (MIB + 1)}}, MIB + 1),
    "characters of two bytes": ("ConfigMap", {"data": {"a": "é" * (MIB // 2 + 1)}}, MIB + 2),
    "text and bytes": ("ConfigMap", {"data": {"a": "x" * (MIB // 2)}, "binaryData": {"b": HALF}}, None),
    "text and bytes and one byte more": (
        "ConfigMap", {"data": {"a": "x" * (MIB // 2 + 1)}, "binaryData": {"b": HALF}}, MIB + 1),
    "a secret of 1 MiB": ("Secret", {"data": {"a": HALF, "b": HALF}}, None),
    "a secret with a byte more": ("Secret", {"data": {"a": HALF, "b": HALF, "c": "eA=="}}, MIB + 1),
    "a secret with two bytes more": ("Secret", {"data": {"a": HALF, "b": HALF}, "stringData": {"c": "xy"}}, MIB + 2),
}  # fmt: skip


@pytest.mark.parametrize("kind, fields, size", SIZES.values(), ids=SIZES.keys())
def test_an_object_may_have_1_mib(kind: str, fields: dict[str, dict[str, str]], size: int | None) -> None:
    (small,) = read_documents(document(kind).encode(), "m.yaml").documents
    large = replace(small, content={**small.content, **fields})
    make = config_map_from if kind == "ConfigMap" else secret_from
    if size is None:
        assert make(large).metadata.name == "x"
    else:
        with pytest.raises(BadInput, match=f"Too long: may not be more than {MIB} bytes"):
            make(large)


FIELDS: dict[str, tuple[str, list[str]]] = {
    "an invalid key": (values("ConfigMap", "data:", "  a/b: x"), ["data[a/b]"]),
    "an invalid binary key": (values("ConfigMap", "binaryData:", "  a/b: eA=="), ["binaryData[a/b]"]),
    "a key twice": (values("ConfigMap", "data:", "  a: x", "binaryData:", "  a: eA=="), ["binaryData[a]"]),
    "an invalid key of a secret": (values("Secret", "stringData:", "  a/b: x"), ["data[a/b]"]),
    "an invalid name": (values("Secret").replace("name: x", "name: X"), ["metadata.name"]),
    "no name": (values("ConfigMap").replace("name: x", "labels: {}"), ["metadata.name"]),
    "an invalid namespace": (values("ConfigMap").replace("name: x", "name: x\n  namespace: a.b"),
        ["metadata.namespace"]),
}  # fmt: skip


@pytest.mark.parametrize("text, fields", FIELDS.values(), ids=FIELDS.keys())
def test_an_object_that_an_api_server_would_reject_is_rejected(text: str, fields: list[str]) -> None:
    content = read(text)
    assert ([problem.field for problem in content.problems], content.items) == (fields, ())


HIDDEN: dict[str, tuple[str, str, int]] = {
    "data that is not base64": (
        values("Secret", "data:", "  a: sesame!"),
        "Invalid value: (hidden): must be base64 (use stringData for plain text)", 6),
    "text that is a number": (
        values("Secret", "stringData:", "  a: 12345"),
        "Invalid value: (hidden): must be a string (in quotes)", 6),
}  # fmt: skip


@pytest.mark.parametrize("text, message, line", HIDDEN.values(), ids=HIDDEN.keys())
def test_a_value_of_a_secret_is_not_shown(text: str, message: str, line: int) -> None:
    (problem,) = read(text).problems
    assert (problem.message, problem.line, problem.file) == (message, line, "m.yaml")


# Paths of manifests.


@pytest.mark.parametrize(
    "name",
    [".a", "a~", "a.swp", "a.swx", "a.bak", "a.orig", "a.rej", "a.tmp", "a.dpkg-old", "a.dpkg-new", "a.dpkg-dist",
     "a.dpkg-tmp", "a.rpmsave", "a.rpmnew", "a.rpmorig", "#a#"],
)  # fmt: skip
def test_ignored_names(name: str) -> None:
    assert is_ignored(name)
    assert not is_ignored(f"{name}x".lstrip("."))


@pytest.mark.parametrize("name", ["a.yaml", "#a", "a#", "bak", "tmp", "a.b.json"])
def test_used_names(name: str) -> None:
    assert not is_ignored(name)


def test_files_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", ".hidden", "a.yaml~"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    paths = tuple(str(tmp_path / name) for name in ("a.yaml", "b.yaml", "folder"))
    assert list_files(str(tmp_path)) == PathListing(paths)
    assert list_files(paths[0]) == PathListing((paths[0],))
    missing = "no such file or directory; podkeeper watches the path, so create a manifest or a directory there"
    for name in ("missing", "a.yaml/x"):
        path = str(tmp_path / name)
        assert list_files(path) == PathListing(problem=Problem(missing, file=path))
    about = "cannot read the path: neither a file nor a directory"
    assert list_files("/dev/null") == PathListing(problem=Problem(about, file="/dev/null"))
    (tmp_path / "loop").symlink_to("loop")
    loop = str(tmp_path / "loop")
    why = "cannot read the path: Too many levels of symbolic links"
    assert list_files(loop) == PathListing(problem=Problem(why, file=loop), certain=False)
    assert (printable("a\udcff"), printable("é")) == ("a\\udcff", "é")


def test_every_link_of_a_path_is_watched(tmp_path: Path) -> None:
    here = str(tmp_path)
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "file").write_text("")
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("./absolute/deep/../deep")
    path = f"{here}/relative"
    assert list(watch_points(path)) == [
        WatchPoint(here, "relative", path, writes=False),
        WatchPoint(here, "absolute", path, writes=False),
        WatchPoint(f"{here}/real", "deep", path, writes=False),
        WatchPoint(path, None, path, writes=True),
    ]
    path = f"{here}/real/file"
    assert list(watch_points(path)) == [WatchPoint(f"{here}/real", "file", path, writes=True)]
    path = f"{here}/real/no/way"
    assert list(watch_points(path)) == [WatchPoint(f"{here}/real", "no", path, writes=True)]
    for number in range(60):
        (tmp_path / f"l{number}").symlink_to(f"l{number + 1}")
    assert len(list(watch_points(f"{here}/l0"))) == 41


def test_the_size_of_a_file_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES)
    assert len(read_bytes(str(path))) == MAX_BYTES == 10 * 1024 * 1024
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(OSError, match=f"larger than {MAX_BYTES} bytes"):
        read_bytes(str(path))
    with pytest.raises(OSError, match="not a regular file"):
        read_bytes("/dev/null")
