"""Write `src/podkeeper/model/k8s` from the published OpenAPI description of a Kubernetes release.

    python -m tools.generate_model PATH/kubernetes-1.36-openapi.json.gz

In: the OpenAPI v2 document (plain or gzip). Out: one module of frozen msgspec structs per API
group, `kinds.py` (apiVersion and kind -> struct) and `patch_schema.py` (what strategic merge
patch must know about each type). The document itself stays out of the project; the next
Kubernetes release is this command with the next file.

The description does not say which optional fields Go holds by value and therefore always
writes. `BY_VALUE` adds that, and is the one part to look at again for a new release.
"""

import argparse
import gzip
import json
import keyword
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
MODULES = {
    META: "meta",
    "io.k8s.api.core.v1.": "core",
    "io.k8s.api.events.v1.": "events",
    "io.k8s.api.coordination.v1.": "coordination",
    "io.k8s.api.authentication.v1.": "authentication",
    "io.k8s.api.authorization.v1.": "authorization",
    "io.k8s.api.certificates.v1.": "certificates",
    "io.k8s.api.storage.v1.": "storage",
}
ROOM = {
    "meta": "Parts that every kind shares (meta/v1)",
    "core": "Pods and what stands around them (core/v1)",
    "events": "Events in their newer form (events.k8s.io/v1)",
    "coordination": "Leases: a node's heartbeat (coordination.k8s.io/v1)",
    "authentication": "Who is asking: token reviews and requests (authentication.k8s.io/v1)",
    "authorization": "May they: access reviews (authorization.k8s.io/v1)",
    "certificates": "Certificate signing requests (certificates.k8s.io/v1)",
    "storage": "Storage classes, attachments and CSI objects (storage.k8s.io/v1)",
}

CORE_KINDS = [
    *("Pod", "Node", "Event", "ConfigMap", "Secret", "Namespace", "ServiceAccount", "Service"),
    *("PersistentVolume", "PersistentVolumeClaim"),
]
META_ROOTS = [
    *("Status", "DeleteOptions", "LabelSelector", "WatchEvent"),
    *("APIVersions", "APIGroup", "APIGroupList", "APIResource", "APIResourceList"),
]
WIRE_NAMES = [
    *("Base64", "Filled", "Int32", "Int64", "IntOrString", "JSONObject", "MicroTime", "QuantityLike", "Time"),
    *("empty_list", "empty_map", "fill", "null", "zero_quantity"),
]

SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "QuantityLike",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "IntOrString",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "JSONObject",
    META + "Time": "Time",
    META + "MicroTime": "MicroTime",
    META + "FieldsV1": "JSONObject",
    META + "Patch": "JSONObject",
}

# Optional in the description, but Go holds them by value, so the reference always writes them.
# Every kind's `metadata`, `spec` and `status` follow a rule of their own (see `_always_written`).
BY_VALUE = {
    "PersistentVolumeClaimSpec": {"resources"},
    "PersistentVolumeClaimCondition": {"lastProbeTime", "lastTransitionTime"},
    "PersistentVolumeClaimTemplate": {"metadata"},
    "ProjectedVolumeSource": {"sources"},
    "ResourceFieldSelector": {"divisor"},
    "Container": {"resources"},
    "EphemeralContainer": {"resources"},
    "ContainerStateRunning": {"startedAt"},
    "ContainerStateTerminated": {"startedAt", "finishedAt"},
    "ContainerStatus": {"state", "lastState"},
    "PodCondition": {"lastProbeTime", "lastTransitionTime"},
    "PodTemplateSpec": {"metadata", "spec"},
    "ServiceStatus": {"loadBalancer"},
    "ServicePort": {"targetPort"},
    "NodeDaemonEndpoints": {"kubeletEndpoint"},
    "NodeRuntimeHandler": {"name"},
    "NodeStatus": {"daemonEndpoints", "nodeInfo"},
    "NodeCondition": {"lastHeartbeatTime", "lastTransitionTime"},
    "NamespaceCondition": {"lastTransitionTime"},
    "ContainerImage": {"names"},
    "Event": {"source", "firstTimestamp", "lastTimestamp", "eventTime", "reportingComponent", "reportingInstance",
              "regarding", "deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"},
    "EventSeries": {"lastObservedTime"},
    "TokenReviewStatus": {"user"},
    "TokenRequestStatus": {"token", "expirationTimestamp"},
    "SelfSubjectReviewStatus": {"userInfo"},
    "CertificateSigningRequestCondition": {"lastUpdateTime", "lastTransitionTime"},
    "VolumeError": {"time"},
}  # fmt: skip

PATCH_GROUPS = re.compile(r"io\.k8s\.(api|kube-aggregator|apiextensions-apiserver)\.")


class UnknownShape(Exception):
    """The description holds something this tool has no translation for."""


@dataclass(frozen=True)
class Field:
    """One field of a struct, ready to be written."""

    wire_name: str
    name: str
    annotation: str
    always: bool  # the reference writes it even when it is zero
    zero: str  # the factory of its zero


def python_name(wire_name: str) -> str:
    """Turn `hostIPs` into `host_ips` and `continue` into `continue_`."""
    spelled = re.sub(r"IPs\b", "Ips", re.sub(r"IDs\b", "Ids", wire_name.lstrip("$-")))
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", spelled)
    name = spelled.replace("-", "_").lower()
    return name + "_" if keyword.iskeyword(name) else name


class Description:
    """The OpenAPI document, asked the questions this tool has."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.definitions: dict[str, dict[str, Any]] = document["definitions"]

    def roots(self) -> list[str]:
        """The kinds the issue of this project asks for; the rest follows by reference."""
        core = "io.k8s.api.core.v1."
        names = [core + kind for kind in CORE_KINDS] + [core + kind + "List" for kind in CORE_KINDS]
        names += [META + name for name in META_ROOTS]
        names += [name for name in self.definitions if _module(name) not in (None, "meta", "core")]
        return names

    def closure(self, roots: Iterable[str]) -> list[str]:
        """Everything the roots refer to, each after what it needs."""
        order: dict[str, None] = {}
        on_path: set[str] = set()

        def visit(name: str) -> None:
            if name in order or name in SCALARS:
                return
            if name in on_path:
                raise UnknownShape(f"cannot order {name}: it contains itself")
            on_path.add(name)
            for target in _references(self.definitions[name]):
                visit(target)
            on_path.discard(name)
            order[name] = None

        for root in roots:
            visit(root)
        return list(order)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix("#/definitions/")
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _module(name: str) -> str | None:
    package, _, _ = name.rpartition(".")
    return MODULES.get(package + ".")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _annotation(schema: dict[str, Any], here: str) -> tuple[str, str]:
    """The Python type of a field and the factory of its zero."""
    if "$ref" in schema:
        target = schema["$ref"].removeprefix("#/definitions/")
        if target in SCALARS:
            scalar = SCALARS[target]
            zeros = {"Time": "null", "MicroTime": "null", "QuantityLike": "zero_quantity", "JSONObject": "empty_map"}
            return scalar, zeros.get(scalar, "int")
        module = _module(target)
        if module is None:
            raise UnknownShape(f"cannot translate {target}: its group is not in MODULES")
        text = _short(target) if module == here else f"{module}.{_short(target)}"
        return text, text
    match schema.get("type"), schema.get("format"):
        case "string", "byte":
            return "Base64", "str"
        case "string", "date-time":
            return "Time", "null"
        case "string", "int-or-string":
            return "IntOrString", "int"
        case "string", _:
            return "str", "str"
        case "boolean", _:
            return "bool", "bool"
        case "integer", "int32":
            return "Int32", "int"
        case "integer", _:
            return "Int64", "int"
        case "number", _:
            return "float", "float"
        case "array", _:
            return f"tuple[{_annotation(schema['items'], here)[0]}, ...]", "empty_list"
        case "object", _:
            values = schema.get("additionalProperties")
            if isinstance(values, dict):
                return f"dict[str, {_annotation(values, here)[0]}]", "empty_map"
            return "JSONObject", "empty_map"
    raise UnknownShape(f"cannot translate {schema}")


def _always_written(name: str, definition: dict[str, Any], wire_name: str) -> bool:
    is_kind = "x-kubernetes-group-version-kind" in definition and "metadata" in definition["properties"]
    if is_kind and wire_name in ("metadata", "spec", "status"):
        return True
    return wire_name in definition.get("required", ()) or wire_name in BY_VALUE.get(_short(name), ())


def fields_of(name: str, definition: dict[str, Any]) -> list[Field]:
    """The fields of one definition, in the description's order."""
    here = _module(name)
    assert here is not None, name
    fields = []
    for wire_name, schema in definition.get("properties", {}).items():
        annotation, zero = _annotation(schema, here)
        always = _always_written(name, definition, wire_name)
        fields.append(Field(wire_name, python_name(wire_name), annotation, always, zero))
    return fields


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[a-z)`'\"])\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0].rstrip(".") + "."
    return sentence.replace("\\", "\\\\").replace('"', "'")


def struct_text(name: str, definition: dict[str, Any]) -> str:
    """The source of one struct."""
    doc = textwrap.fill(_first_sentence(definition.get("description", _short(name))), 100, subsequent_indent="    ")
    # Inherited at run time; said again for type checkers, which know only what a class says of itself.
    lines = [f"class {_short(name)}(Wire, frozen=True, kw_only=True):", f'    """{doc}"""', ""]
    fields = fields_of(name, definition)
    for field in fields:
        rename = "" if field.name == field.wire_name else f'name="{field.wire_name}"'
        if not field.always:
            default = f"field(default=None, {rename})" if rename else "None"
            lines.append(f"    {field.name}: {field.annotation} | None = {default}")
        elif field.zero == "null":
            arguments = ", ".join(filter(None, ["default_factory=null", rename]))
            lines.append(f"    {field.name}: {field.annotation} | None = field({arguments})")
        else:
            arguments = ", ".join(filter(None, [f"default_factory={field.zero}", rename]))
            lines.append(f"    {field.name}: Filled[{field.annotation}] = field({arguments})")
    filled = [field.name for field in fields if field.always and field.zero != "null"]
    if filled:
        condition = " or ".join(f"self.{name} is None" for name in filled)
        lines += ["", "    def __post_init__(self) -> None:", f"        if {condition}:", "            fill(self)"]
    return "\n".join(lines) + "\n\n\n"


def module_text(module: str, names: list[str], description: Description) -> str:
    """The source of one API group."""
    body = "".join(struct_text(name, description.definitions[name]) for name in names)
    others = sorted({found for found in MODULES.values() if re.search(rf"\b{found}\.[A-Z]", body)} - {module})
    wire_names = ["Wire", *(word for word in WIRE_NAMES if re.search(rf"\b{word}\b", body))]
    head = f'"""{ROOM[module]}. Generated by `tools/generate_model.py`; do not edit."""\n\n'
    head += "from msgspec import field\n\n" if "field(" in body else ""
    head += f"from podkeeper.model.k8s import {', '.join(others)}\n" if others else ""
    head += f"from podkeeper.model.wire import {', '.join(sorted(wire_names))}\n\n\n"
    return head + body


def kinds_text(names: list[str], description: Description) -> str:
    """The source of the table from apiVersion and kind to struct."""
    rows = []
    for name in names:
        module = _module(name)
        gvks = description.definitions[name].get("x-kubernetes-group-version-kind", [])
        if len(gvks) != 1 or module == "meta":
            continue  # meta's kinds (Status, DeleteOptions) belong to every group
        group, version, kind = gvks[0]["group"], gvks[0]["version"], gvks[0]["kind"]
        api_version = f"{group}/{version}" if group else version
        rows.append(f'    ("{api_version}", "{kind}"): {module}.{_short(name)},\n')
    modules = ", ".join(sorted(set(MODULES.values()) - {"meta"}))
    return (
        '"""Which struct a kind is read into. Generated by `tools/generate_model.py`; do not edit."""\n\n'
        f"from podkeeper.model.k8s import {modules}\nfrom podkeeper.model.wire import Wire\n\n"
        "KINDS: dict[tuple[str, str], type[Wire]] = {\n" + "".join(sorted(rows)) + "}\n"
    )


def patch_schema(description: Description) -> tuple[dict[str, dict[str, tuple[str, str, str]]], dict[str, str]]:
    """For each type the fields a strategic merge patch treats in a way of its own.

    A row is (type of the value or of the list's items, strategies, merge key). Types from which
    no such field can be reached are left out, so the table stays small.
    """
    rows: dict[str, dict[str, tuple[str, str, str]]] = {}
    for name, definition in description.definitions.items():
        fields = {}
        for wire_name, schema in definition.get("properties", {}).items():
            inner = schema.get("items", schema) if schema.get("type") == "array" else schema
            inner = inner.get("additionalProperties", inner) if inner.get("type") == "object" else inner
            target = inner.get("$ref", "").removeprefix("#/definitions/") if isinstance(inner, dict) else ""
            strategy = schema.get("x-kubernetes-patch-strategy", "")
            key = schema.get("x-kubernetes-patch-merge-key", "")
            fields[wire_name] = ("" if target in SCALARS else target, strategy, key)
        rows[name] = fields
    useful = {name for name, fields in rows.items() if any(strategy for _, strategy, _ in fields.values())}
    while True:
        more = {name for name, fields in rows.items() if any(target in useful for target, _, _ in fields.values())}
        if more <= useful:
            break
        useful |= more
    table = {
        name: kept
        for name, fields in sorted(rows.items())
        if name in useful
        and (
            kept := {
                field: (target if target in useful else "", strategy, key)
                for field, (target, strategy, key) in sorted(fields.items())
                if strategy or target in useful
            }
        )
    }
    kinds = {}
    for name in sorted(table):
        for gvk in description.definitions[name].get("x-kubernetes-group-version-kind", []):
            if PATCH_GROUPS.match(name):
                kinds["/".join(filter(None, [gvk["group"], gvk["version"], gvk["kind"]]))] = name
    return table, kinds


def patch_schema_text(description: Description) -> str:
    """The source of `patch_schema.py`."""
    table, kinds = patch_schema(description)
    short = _unambiguous(table)
    lines = [
        '"""What strategic merge patch must know about each type. Generated by `tools/generate_model.py`; do not edit.',
        "",
        "`TYPES[type][field]` is (type of the value or of the list's items, strategies, merge key); a field that is",
        "not listed is merged as a map, or replaced when it is a list or a scalar.",
        '"""',
        "",
        "TYPES: dict[str, dict[str, tuple[str, str, str]]] = {",
    ]
    for name, fields in table.items():
        lines.append(f'    "{short[name]}": {{')
        for field, (target, strategy, key) in fields.items():
            lines.append(f'        "{field}": ("{short.get(target, "")}", "{strategy}", "{key}"),')
        lines.append("    },")
    lines += ["}", "", "KINDS: dict[str, str] = {"]
    lines += [f'    "{kind}": "{short[name]}",' for kind, name in sorted(kinds.items())]
    return "\n".join([*lines, "}"]) + "\n"


def _unambiguous(names: Iterable[str]) -> dict[str, str]:
    """`apps.v1.Deployment` for `io.k8s.api.apps.v1.Deployment`."""
    return {name: ".".join(name.split(".")[-3:]) for name in names}


def generate(document: dict[str, Any]) -> dict[str, str]:
    """File name -> source text."""
    description = Description(document)
    names = description.closure(description.roots())
    by_module: dict[str, list[str]] = {module: [] for module in MODULES.values()}
    for name in names:
        module = _module(name)
        if module is None:
            raise UnknownShape(f"cannot place {name}: its group is not in MODULES")
        by_module[module].append(name)
    files = {f"{module}.py": module_text(module, members, description) for module, members in by_module.items()}
    files["kinds.py"] = kinds_text(names, description)
    files["patch_schema.py"] = patch_schema_text(description)
    return files


def read_document(path: Path) -> dict[str, Any]:
    """Read the description, plain or gzip."""
    raw = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    if "definitions" not in document:
        raise UnknownShape(f"cannot use {path}: it has no `definitions`; give the OpenAPI v2 (swagger) document")
    return document


def main(arguments: list[str]) -> int:
    """Write the modules and format them."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate_model", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "description", type=Path, help="OpenAPI v2 document of a Kubernetes release (.json or .json.gz)"
    )
    parser.add_argument("--into", type=Path, default=Path("src/podkeeper/model/k8s"), help="folder to write")
    options = parser.parse_args(arguments)
    try:
        files = generate(read_document(options.description))
    except (OSError, ValueError, UnknownShape) as error:
        print(f"generate_model: {error}", file=sys.stderr)
        return 1
    for name, text in files.items():
        (options.into / name).write_text(text)
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(options.into)], check=True)
    print(f"wrote {len(files)} modules into {options.into}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
