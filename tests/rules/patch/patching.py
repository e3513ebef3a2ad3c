"""Small objects to patch, and Hypothesis strategies for larger ones."""

from typing import Any

from hypothesis import strategies as st

from podkeeper.rules.patch.value import Json

POD = "v1/Pod"
DEPLOYMENT = "apps/v1/Deployment"
SERVICE = "v1/Service"


def named(*names: str) -> list[Json]:
    return [{"name": name} for name in names]


def wire(*containers: Json, **spec: Json) -> dict[str, Json]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": list(containers), **spec},
    }


def with_finalizers(*finalizers: Json) -> dict[str, Json]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "finalizers": list(finalizers)}}


def deployment(**strategy: Json) -> dict[str, Json]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 1, "strategy": strategy},
    }


def service(*ports: Json) -> dict[str, Json]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": list(ports)}}


# Any JSON. Letters are few, so that two documents often meet in the same member.

SCALARS = st.sampled_from(["a", "b", "", 0, 1, 2, True, False, 1.5])
MEMBERS = st.sampled_from(["a", "b", "c", "~/", "$x"])


def json_values(nulls: bool = True) -> st.SearchStrategy[Any]:
    leaves = SCALARS | st.none() if nulls else SCALARS
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MEMBERS, inner, max_size=4), max_leaves=12
    )


def json_objects(nulls: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(MEMBERS, json_values(nulls), max_size=4)


# Pods and deployments: lists of every strategy, without doubles and without nulls.

WORDS = st.sampled_from(["a", "b", "c"])


def _optional(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(required, optional=optional)


def _keyed(key: str, values: list[Any], **optional: Any) -> st.SearchStrategy[Any]:
    item = _optional({key: st.sampled_from(values)}, **optional)
    return st.lists(item, unique_by=lambda found: found[key], max_size=4)


ENV = _keyed("name", ["A", "B", "C"], value=WORDS, valueFrom=st.just({"fieldRef": {"fieldPath": "x"}}))
PORTS = _keyed("containerPort", [80, 443, 8080], name=WORDS, protocol=st.sampled_from(["TCP", "UDP"]))
CONTAINERS = _keyed(
    "name",
    ["a", "b", "c", "d"],
    image=WORDS,
    args=st.lists(WORDS, max_size=3),
    env=ENV,
    ports=PORTS,
    resources=_optional({}, limits=st.dictionaries(st.sampled_from(["cpu", "memory"]), WORDS)),
)
VOLUMES = _keyed("name", ["v", "w"], emptyDir=st.sampled_from([{}, {"medium": "m"}]), hostPath=st.just({"path": "p"}))
METADATA = _optional(
    {"name": st.just("web")},
    labels=st.dictionaries(WORDS, WORDS),
    finalizers=st.lists(st.sampled_from(["f", "g", "h", "i"]), unique=True),
    ownerReferences=_keyed("uid", ["u", "v"], name=WORDS),
)
POD_SPEC = _optional(
    {},
    containers=CONTAINERS,
    volumes=VOLUMES,
    tolerations=st.lists(st.fixed_dictionaries({"key": WORDS}), max_size=2),
    imagePullSecrets=_keyed("name", ["x", "y", "z"]),
    terminationGracePeriodSeconds=st.sampled_from([0, 30]),
    hostNetwork=st.booleans(),
)
STATUS = _optional(
    {},
    phase=WORDS,
    conditions=_keyed("type", ["Ready", "Initialized", "PodScheduled"], status=WORDS),
    podIPs=_keyed("ip", ["1", "2"]),
    containerStatuses=_keyed("name", ["a", "b"], ready=st.booleans()),
)
PODS = _optional(
    {"apiVersion": st.just("v1"), "kind": st.just("Pod"), "metadata": METADATA}, spec=POD_SPEC, status=STATUS
)
DEPLOYMENTS = st.fixed_dictionaries(
    {
        "apiVersion": st.just("apps/v1"),
        "kind": st.just("Deployment"),
        "metadata": METADATA,
        "spec": _optional(
            {},
            strategy=_optional({"type": WORDS}, rollingUpdate=_optional({}, maxSurge=st.sampled_from([1, 2]))),
            template=_optional({}, metadata=METADATA, spec=POD_SPEC),
        ),
    }
)
