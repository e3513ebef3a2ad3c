"""The node's own config maps and secrets: conversion of documents, queries and subscriptions."""

import asyncio
import base64

import pytest

from podkeeper.model.errors import BadInput, NotFound
from podkeeper.model.k8s.core import ConfigMap, Pod, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.manifest import Document, read_documents
from podkeeper.sources.config_documents import config_map_from, secret_from
from podkeeper.sources.local_objects import LocalObjects, ObjectKey


def config_map(name: str, value: str = "v", namespace: str | None = None) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data={"key": value})


def document(text: str) -> Document:
    (found,) = read_documents(text, "f.yaml").all_valid()
    return found


def test_an_object_is_found_by_kind_name_and_namespace() -> None:
    async def scenario() -> None:
        objects = LocalObjects()
        objects.replace(
            "file", [config_map("c"), config_map("c", "prod", "prod"), Secret(metadata=ObjectMeta(name="c"))]
        )
        assert (await objects.get(ConfigMap, "c")).data == {"key": "v"}
        assert (await objects.get(ConfigMap, "c", "default")).data == {"key": "v"}
        assert (await objects.get(ConfigMap, "c", "prod")).data == {"key": "prod"}
        assert isinstance(await objects.get(Secret, "c"), Secret)
        for kind, name, namespace in ((ConfigMap, "d", ""), (ConfigMap, "c", "other"), (Pod, "c", "")):
            with pytest.raises(NotFound, match="not found in the manifests of this node"):
                await objects.get(kind, name, namespace)

    asyncio.run(scenario())


def test_each_source_replaces_its_own_objects_and_file_has_priority_over_http() -> None:
    objects = LocalObjects()
    objects.replace("http", [config_map("c", "http"), config_map("d")])
    objects.replace("file", [config_map("c", "file")])
    assert [(each.metadata.name, each.data) for each in objects.objects()] == [
        ("c", {"key": "file"}),
        ("d", {"key": "v"}),
    ]
    objects.replace("file", [])
    assert [each.data for each in objects.objects()] == [{"key": "http"}, {"key": "v"}]


def test_listeners_receive_created_changed_and_removed_objects() -> None:
    objects, received = LocalObjects(), list[set[str]]()

    def fail(changed: frozenset[ObjectKey]) -> None:
        raise RuntimeError("a bug")

    objects.subscribe(fail)
    unsubscribe = objects.subscribe(lambda changed: received.append({key.name for key in changed}))
    objects.replace("file", [config_map("same"), config_map("changed"), config_map("gone")])
    objects.replace("file", [config_map("same"), config_map("changed", "new"), config_map("new")])
    objects.replace("file", [config_map("same"), config_map("changed", "new"), config_map("new")])
    assert received == [{"same", "changed", "gone"}, {"changed", "gone", "new"}]
    unsubscribe()
    unsubscribe()
    objects.replace("file", [])
    assert len(received) == 2


def test_string_data_is_merged_into_data_with_priority() -> None:
    made = secret_from(
        document("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: eA==, b: eQ==}\nstringData: {b: zü}\n")
    )
    assert made.data == {"a": "eA==", "b": base64.b64encode("zü".encode()).decode()}
    assert (made.string_data, made.type, made.metadata.namespace) == (None, "Opaque", "default")


def test_a_secret_without_data_is_valid() -> None:
    assert secret_from(document("{apiVersion: v1, kind: Secret, metadata: {name: s}, type: x/y}")).data is None


REFUSED = {
    "no name": ("ConfigMap", "metadata: {}", "metadata.name", 3),
    "an invalid name": ("ConfigMap", "metadata: {name: A_b}", "metadata.name", 3),
    "an invalid namespace": ("Secret", "metadata: {name: a, namespace: a.b}", "metadata.namespace", 3),
    "an invalid key": ("ConfigMap", "metadata: {name: a}\ndata:\n  a/b: x", "data[a/b]", 5),
    "an invalid key of a secret": ("Secret", "metadata: {name: a}\ndata:\n  ..a: eA==", "data[..a]", 5),
    "a key twice": ("ConfigMap", "metadata: {name: a}\ndata: {k: x}\nbinaryData:\n  k: eA==", "binaryData[k]", 6),
    "too much": ("ConfigMap", f"metadata: {{name: a}}\ndata:\n  k: {'x' * 1048577}", "data", 4),
}


@pytest.mark.parametrize("kind, rest, field, line", REFUSED.values(), ids=REFUSED.keys())
def test_an_object_that_an_api_server_would_reject_is_rejected_with_its_line(
    kind: str, rest: str, field: str, line: int
) -> None:
    read = config_map_from if kind == "ConfigMap" else secret_from
    with pytest.raises(BadInput) as refused:
        read(document(f"apiVersion: v1\nkind: {kind}\n{rest}\n"))
    (problem,) = refused.value.problems
    assert (problem.field, problem.file, problem.line) == (field, "f.yaml", line)


@pytest.mark.parametrize("rest", ["data: {pin: hush!}", "data: {pin: 1234567}", "stringData: {pin: 1234567}"])
def test_a_problem_of_a_secret_does_not_contain_its_value(rest: str) -> None:
    with pytest.raises(BadInput) as refused:
        secret_from(document(f"apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n{rest}\n"))
    assert "hush" not in str(refused.value)
    assert "1234567" not in str(refused.value)
    assert refused.value.problems[0].line == 4
