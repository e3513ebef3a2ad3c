"""The tool that writes `model/k8s`, on a small description of its own."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tools.generate_model import (
    Description,
    UnknownShape,
    fields_of,
    generate,
    patch_schema,
    python_name,
    read_document,
)

NAMES = {
    "hostIPs": "host_ips",
    "podIP": "pod_ip",
    "containerID": "container_id",
    "terminationGracePeriodSeconds": "termination_grace_period_seconds",
    "continue": "continue_",
    "from": "from_",
    "apiVersion": "api_version",
    "clusterIPs": "cluster_ips",
    "fsGroup": "fs_group",
    "iscsi": "iscsi",
    "hostPID": "host_pid",
    "HTTPHeaders": "http_headers",
}


@pytest.mark.parametrize("wire, python", NAMES.items())
def test_names(wire: str, python: str) -> None:
    assert python_name(wire) == python


CORE = "io.k8s.api.core.v1."


def definition(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "description": "A thing. And more.", "properties": properties}


def test_required_and_by_value_fields_are_always_written() -> None:
    described = definition(name={"type": "string"}, lastState={"type": "object"}, started={"type": "boolean"})
    described["required"] = ["name"]
    always = {field.wire_name: field.always for field in fields_of(CORE + "ContainerStatus", described)}
    assert always == {"name": True, "lastState": True, "started": False}


def test_types_follow_the_description() -> None:
    described = definition(
        count={"type": "integer", "format": "int32"},
        size={"type": "integer", "format": "int64"},
        data={"type": "object", "additionalProperties": {"type": "string", "format": "byte"}},
        names={"type": "array", "items": {"type": "string"}},
        when={"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Time"},
        port={"$ref": "#/definitions/io.k8s.apimachinery.pkg.util.intstr.IntOrString"},
        selector={"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"},
    )
    annotations = {field.wire_name: field.annotation for field in fields_of(CORE + "Thing", described)}
    assert annotations == {
        "count": "Int32",
        "size": "Int64",
        "data": "dict[str, Base64]",
        "names": "tuple[str, ...]",
        "when": "Time",
        "port": "IntOrString",
        "selector": "meta.LabelSelector",
    }


def test_an_unsupported_type_is_an_error_that_names_it() -> None:
    with pytest.raises(UnknownShape, match="tensor"):
        fields_of(CORE + "Thing", definition(odd={"type": "tensor"}))
    with pytest.raises(UnknownShape, match=r"io\.k8s\.api\.new\.v9\.Kind"):
        fields_of(CORE + "Thing", definition(odd={"$ref": "#/definitions/io.k8s.api.new.v9.Kind"}))


def test_a_type_that_contains_itself_is_rejected() -> None:
    node = definition(child={"$ref": f"#/definitions/{CORE}Node"})
    with pytest.raises(UnknownShape, match="contains itself"):
        Description({"definitions": {CORE + "Node": node}}).closure([CORE + "Node"])


def test_the_patch_schema_holds_only_what_leads_to_a_strategy() -> None:
    spec = definition(
        containers={
            "type": "array",
            "items": {"$ref": f"#/definitions/{CORE}Container"},
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "name",
        },
        nodeName={"type": "string"},
    )
    pod = definition(spec={"$ref": f"#/definitions/{CORE}PodSpec"})
    pod["x-kubernetes-group-version-kind"] = [{"group": "", "version": "v1", "kind": "Pod"}]
    document = {CORE + "Pod": pod, CORE + "PodSpec": spec, CORE + "Container": definition(name={"type": "string"})}
    table, kinds = patch_schema(Description({"definitions": document}))
    assert table == {
        CORE + "Pod": {"spec": (CORE + "PodSpec", "", "")},
        CORE + "PodSpec": {"containers": ("", "merge", "name")},
    }
    assert kinds == {"v1/Pod": CORE + "Pod"}


def test_plain_and_gzip_descriptions_are_accepted_and_others_rejected(tmp_path: Path) -> None:
    plain, packed, wrong = tmp_path / "a.json", tmp_path / "b.json.gz", tmp_path / "c.json"
    plain.write_text(json.dumps({"definitions": {}}))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    wrong.write_text("{}")
    assert read_document(plain) == read_document(packed) == {"definitions": {}}
    with pytest.raises(UnknownShape, match="OpenAPI v2"):
        read_document(wrong)


def test_a_missing_root_is_an_error() -> None:
    with pytest.raises(KeyError):
        generate({"definitions": {}})
