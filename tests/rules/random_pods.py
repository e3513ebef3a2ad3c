"""Random pods with any decodable content, for rules that must never raise.

The fields come from the generated structs, so new fields of the model are included. One seed gives one pod.
"""

import random
from typing import Any, cast

import msgspec
from msgspec import inspect

from podkeeper.model.k8s import core

WORDS = (
    "", "a", "web", "Web", "-", "..", "../x", "/x", "x/y", "example.com/gpu", "kubernetes.io/os", "cpu", "memory",
    "pods", "hugepages-2Mi", "hugepages-", "storage", "1", "1Gi", "-5m", "1e3", "zz", "Always", "Never", "OnFailure",
    "IfNotPresent", "File", "HTTP", "TCP", "In", "Exists", "Gt", "linux", "windows", "v1", "metadata.labels['a']",
    "metadata.name", "limits.cpu", "Localhost", "None", "Restart", "SIGTERM", "10.0.0.1", "::1", "é", "\ud800",
    "x" * 300, "iqn.2016-04.a:b", "Bidirectional", "NoExecute", "DoNotSchedule", "Infeasible", "PodResizePending",
)  # fmt: skip
_POD = inspect.type_info(core.Pod)
NUMBERS = (0, 1, -1, 2, 80, 65536, 511, 2**31 - 1, -(2**31))


def random_pod(seed: int) -> core.Pod:
    """Return a random pod. Outer fields are usually set, inner ones less often."""
    return msgspec.convert(_some(_POD, random.Random(seed), 0), core.Pod)


def _some(kind: inspect.Type, chance: random.Random, depth: int) -> Any:
    match kind:
        case inspect.UnionType(types=types):
            real = [each for each in types if not isinstance(each, inspect.NoneType)]
            absent = len(real) < len(types) and chance.random() < min(0.9, 0.25 + 0.12 * depth)
            return None if absent else _some(chance.choice(real), chance, depth)
        case inspect.Metadata(type=marked):
            return _some(marked, chance, depth)
        case inspect.StructType(fields=fields):
            return {field.encode_name: _some(field.type, chance, depth + 1) for field in fields}
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return [_some(item, chance, depth + 1) for _ in range(chance.choice((0, 1, 1, 2)))]
        case inspect.DictType(key_type=key, value_type=value):
            return {_some(key, chance, depth): _some(value, chance, depth) for _ in range(chance.choice((0, 1, 2)))}
        case inspect.StrType():
            return chance.choice(WORDS)
        case inspect.IntType():
            return chance.choice(NUMBERS)
        case inspect.FloatType():
            return chance.choice((0.5, -1.0, 1e30))
        case inspect.BoolType():
            return chance.random() < 0.5
        case _:
            return cast(object, None)
