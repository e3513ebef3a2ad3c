"""Admission: resources, affinity, names, ports, taints, and preemption by critical pods."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s import core, meta
from podkeeper.rules.admission.admit import Preempt, Rejection
from podkeeper.rules.admission.preempt import is_critical_pod, may_preempt
from podkeeper.rules.resources import held_requests, pod_requests
from tests.rules.admission.decisions import decide

Json = dict[str, Any]


def node(allocatable: Json | None = None, taints: list[Json] | None = None) -> core.Node:
    wire = {
        "metadata": {"name": "node-1", "labels": {"zone": "a", "cores": "4"}},
        "spec": {"taints": taints or []},
        "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "10", **(allocatable or {})}},
    }
    return msgspec.convert(wire, core.Node)


def container_json(name: str = "c", requests: Json | None = None, **parts: Any) -> Json:
    return {"name": name, "resources": {"requests": requests or {}}, **parts}


def parsed(
    name: str, requests: Json | None = None, source: str = "api", containers: list[Json] | None = None, **spec: Any
) -> core.Pod:
    wire = {
        "metadata": {"name": name, "uid": name, "annotations": {"kubernetes.io/config.source": source}},
        "spec": {"containers": containers or [container_json(requests=requests)], **spec},
    }
    return msgspec.convert(wire, core.Pod)


def amounts(spec: core.PodSpec) -> Json:
    return {name: str(amount) for name, amount in pod_requests(spec).items()}


NODE = node()
SIDECAR: Json = {"restartPolicy": "Always"}
AFFINITY = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
PORTS = Rejection("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
TAINTED = Rejection(
    "TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
)


# ---- sums ----------------------------------------------------------------------------------

SUMS = {
    "containers add up": (
        {"containers": [container_json("a", {"cpu": "1"}), container_json("b", {"cpu": "500m"})]},
        {"cpu": "1500m"},
    ),
    "an init container counts only if it needs more": (
        {
            "containers": [container_json("a", {"cpu": "1"})],
            "initContainers": [container_json("i", {"cpu": "3", "memory": "1Mi"})],
        },
        {"cpu": "3", "memory": "1Mi"},
    ),
    "init containers run one after the other": (
        {
            "containers": [container_json("a", {"cpu": "1"})],
            "initContainers": [container_json("i", {"cpu": "2"}), container_json("j", {"cpu": "2"})],
        },
        {"cpu": "2"},
    ),
    "sidecars run beside the containers": (
        {
            "containers": [container_json("a", {"cpu": "1"})],
            "initContainers": [container_json("s", {"cpu": "1"}, **SIDECAR)],
        },
        {"cpu": "2"},
    ),
    "sidecars run beside later init containers": (
        {
            "containers": [container_json("a", {"cpu": "1"})],
            "initContainers": [
                container_json("i", {"cpu": "3"}),
                container_json("s", {"cpu": "1"}, **SIDECAR),
                container_json("j", {"cpu": "3"}),
            ],
        },
        {"cpu": "4"},
    ),
    "overhead is added": ({"containers": [container_json("a", {"cpu": "1"})], "overhead": {"cpu": "1"}}, {"cpu": "2"}),
    "pod-level requests replace the sum": (
        {"containers": [container_json("a", {"cpu": "1", "memory": "1Mi"})], "resources": {"requests": {"cpu": "4"}}},
        {"cpu": "4", "memory": "1Mi"},
    ),
}


@pytest.mark.parametrize("spec, expected", SUMS.values(), ids=SUMS.keys())
def test_the_resource_requests_of_a_pod(spec: Json, expected: Json) -> None:
    assert amounts(msgspec.convert(spec, core.PodSpec)) == expected


def resizing(reason: str, **status: Any) -> core.Pod:
    running = parsed("a", {"cpu": "2"})
    wire = {
        "containerStatuses": [
            {"name": "c", "resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "1"}}
        ],
        "conditions": [{"type": "PodResizePending", "reason": reason}],
    }
    return msgspec.structs.replace(running, status=msgspec.convert({**wire, **status}, core.PodStatus))


def test_a_pod_being_resized_holds_the_larger_amount() -> None:
    assert str(held_requests(resizing("Deferred"))["cpu"]) == "3"
    shrinking = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    assert str(held_requests(resizing("Deferred", containerStatuses=shrinking))["cpu"]) == "2"
    assert str(held_requests(resizing("Infeasible", containerStatuses=shrinking))["cpu"]) == "1"


# ---- resources -----------------------------------------------------------------------------


def short(resource: str, requested: int, used: int, capacity: int) -> Rejection:
    return Rejection(
        f"OutOf{resource}",
        f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}",
    )


RESOURCES = {
    "a pod without requests fits": (parsed("a"), [parsed("b", {"cpu": "2"})], None),
    "a pod fits exactly": (parsed("a", {"cpu": "1500m"}), [parsed("b", {"cpu": "500m"})], None),
    "cpu is counted in thousandths": (
        parsed("a", {"cpu": "64"}),
        [parsed("b", {"cpu": "100m"})],
        short("cpu", 64000, 100, 2000),
    ),
    "memory in bytes": (parsed("a", {"memory": "2Gi"}), [], short("memory", 2**31, 0, 2**30)),
    "storage the node does not have": (
        parsed("a", {"ephemeral-storage": "1"}),
        [],
        short("ephemeral-storage", 1, 0, 0),
    ),
    "cpu is reported before memory": (parsed("a", {"memory": "2Gi", "cpu": "3"}), [], short("cpu", 3000, 0, 2000)),
    "huge pages are reported by name": (
        parsed("a", {"hugepages-2Mi": "2Mi"}),
        [],
        short("hugepages-2Mi", 2**21, 0, 0),
    ),
    "an extended resource that the node does not have is ignored": (parsed("a", {"example.com/gpu": "1"}), [], None),
    "an eleventh pod is one too many": (parsed("a"), [parsed(f"b{n}") for n in range(10)], short("pods", 1, 10, 10)),
    "the number of pods is reported before cpu": (
        parsed("a", {"cpu": "9"}),
        [parsed(f"b{n}") for n in range(10)],
        short("pods", 1, 10, 10),
    ),
}


@pytest.mark.parametrize("wanted, others, expected", RESOURCES.values(), ids=RESOURCES.keys())
def test_resources(wanted: core.Pod, others: list[core.Pod], expected: Rejection | None) -> None:
    assert decide(wanted, NODE, others) == expected


def test_an_extended_resource_of_the_node_is_counted() -> None:
    with_gpu = node({"example.com/gpu": "1"})
    gpu = {"example.com/gpu": "1"}
    assert decide(parsed("a", gpu), with_gpu, []) is None
    assert decide(parsed("a", gpu), with_gpu, [parsed("b", gpu)]) == short("example.com/gpu", 1, 1, 1)


def test_a_node_without_allocatable_accepts_no_pods() -> None:
    assert decide(parsed("a"), core.Node(), []) == short("pods", 1, 0, 0)


# ---- everything else -----------------------------------------------------------------------


def requiring(*terms: Json) -> core.Pod:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return parsed("a", affinity={"nodeAffinity": required})


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def of_node(operator: str, *names: str) -> Json:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]}


MATCHES = {
    "a label it has": (parsed("a", nodeSelector={"zone": "a"}), True),
    "a label it has not": (parsed("a", nodeSelector={"disk": ""}), False),
    "another value": (parsed("a", nodeSelector={"zone": "b"}), False),
    "one of the values": (requiring(expression("zone", "In", "b", "a")), True),
    "none of the values": (requiring(expression("zone", "NotIn", "a")), False),
    "a label it lacks is not in": (requiring(expression("disk", "NotIn", "a")), True),
    "existing": (requiring(expression("zone", "Exists")), True),
    "not existing": (requiring(expression("zone", "DoesNotExist")), False),
    "more than": (requiring(expression("cores", "Gt", "3")), True),
    "less than": (requiring(expression("cores", "Lt", "4")), False),
    "Gt with a label that is not a number": (requiring(expression("zone", "Gt", "3")), False),
    "a bound that is not a number": (requiring(expression("cores", "Gt", "x")), False),
    "an unknown operator": (requiring(expression("zone", "Like", "a")), False),
    "any one of the terms": (requiring(expression("zone", "In", "b"), expression("zone", "In", "a")), True),
    "all of one term": (requiring({**expression("zone", "In", "a"), **of_node("In", "node-2")}), False),
    "an empty term": (requiring({}), False),
    "no term": (requiring(), False),
    "this very node": (requiring(of_node("In", "node-1")), True),
    "any node but this": (requiring(of_node("NotIn", "node-1")), False),
    "two nodes at once": (requiring(of_node("In", "node-1", "node-2")), False),
}


@pytest.mark.parametrize("wanted, fits", MATCHES.values(), ids=MATCHES.keys())
def test_node_affinity(wanted: core.Pod, fits: bool) -> None:
    assert decide(wanted, NODE, []) == (None if fits else Rejection("NodeAffinity", AFFINITY))


def test_a_pod_for_another_node() -> None:
    message = "Predicate NodeName failed: node(s) didn't match the requested node name"
    assert decide(parsed("a", nodeName="node-2"), NODE, []) == Rejection("NodeName", message)
    assert decide(parsed("a", nodeName="node-1"), NODE, []) is None


def on_port(name: str, *, sidecar: bool = False, **port: Any) -> core.Pod:
    ports = [{"containerPort": 1, "hostPort": 80, **port}]
    if sidecar:
        return parsed(name, initContainers=[container_json("s", ports=ports, **SIDECAR)])
    return parsed(name, containers=[container_json(ports=ports)])


CLASHES = {
    "the same port": (on_port("b"), True),
    "another port": (on_port("b", hostPort=81), False),
    "no port of the host": (on_port("b", hostPort=0), False),
    "another protocol": (on_port("b", protocol="UDP"), False),
    "one address of all": (on_port("b", hostIP="10.0.0.1"), True),
    "a sidecar's port": (on_port("b", sidecar=True), True),
}


@pytest.mark.parametrize("other, clash", CLASHES.values(), ids=CLASHES.keys())
def test_host_ports(other: core.Pod, clash: bool) -> None:
    assert decide(on_port("a"), NODE, [other]) == (PORTS if clash else None)
    assert decide(other, NODE, [on_port("a")]) == (PORTS if clash else None)


def test_two_addresses_share_a_port_number() -> None:
    assert decide(on_port("a", hostIP="10.0.0.1"), NODE, [on_port("b", hostIP="10.0.0.2")]) is None


TOLERATIONS = {
    "nothing is tolerated": ([], False),
    "everything is": ([{"operator": "Exists"}], True),
    "this key is": ([{"key": "gone", "operator": "Exists"}], True),
    "this value is": ([{"key": "gone", "value": "yes", "effect": "NoExecute"}], True),
    "another value": ([{"key": "gone", "value": "no"}], False),
    "another effect": ([{"key": "gone", "operator": "Exists", "effect": "NoSchedule"}], False),
    "comparison operators are unknown": ([{"key": "gone", "operator": "Gt", "value": "1"}], False),
}


@pytest.mark.parametrize("tolerations, fits", TOLERATIONS.values(), ids=TOLERATIONS.keys())
def test_taints_that_evict(tolerations: list[Json], fits: bool) -> None:
    tainted = node(taints=[{"key": "gone", "value": "yes", "effect": "NoExecute"}])
    assert decide(parsed("a", tolerations=tolerations), tainted, []) == (None if fits else TAINTED)
    assert decide(parsed("a", source="file", tolerations=tolerations), tainted, []) is None


def test_noschedule_taints_are_ignored() -> None:
    assert decide(parsed("a"), node(taints=[{"key": "k", "effect": "NoSchedule"}]), []) is None


def test_an_unsupported_os_is_rejected() -> None:
    windows = decide(parsed("a", os={"name": "windows"}), NODE, [])
    assert windows == Rejection("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    assert decide(parsed("a", os={"name": "linux"}), NODE, []) is None
    labelled = msgspec.structs.replace(parsed("a"), metadata=meta.ObjectMeta(labels={"kubernetes.io/os": "windows"}))
    answer = decide(labelled, NODE, [])
    assert isinstance(answer, Rejection)
    assert answer.reason == "PodOSSelectorNodeLabelDoesNotMatch"


def test_strict_supplemental_groups_need_runtime_support() -> None:
    strict = parsed("a", securityContext={"supplementalGroupsPolicy": "Strict"})
    answer = decide(strict, NODE, [])
    message = "SupplementalGroupsPolicy=Strict is not supported in this node"
    assert answer == Rejection("SupplementalGroupsPolicyNotSupported", message)
    features = core.NodeFeatures(supplemental_groups_policy=True)
    able = msgspec.structs.replace(NODE, status=msgspec.structs.replace(NODE.status, features=features))
    assert decide(strict, able, []) is None


# ---- critical pods -------------------------------------------------------------------------


def guaranteed(name: str, cpu: str, memory: str = "1Mi") -> core.Pod:
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}
    return parsed(name, containers=[{"name": "c", "resources": resources}])


def critical(requests: Json) -> core.Pod:
    return parsed("critical", requests, source="file")


def victims(wanted: core.Pod, *others: core.Pod, on: core.Node = NODE) -> list[str | None]:
    answer = decide(wanted, on, others)
    assert isinstance(answer, Preempt)
    return [victim.metadata.name for victim in answer.victims]


def test_critical_pods() -> None:
    assert is_critical_pod(parsed("a", source="file"))
    assert is_critical_pod(parsed("a", priority=2_000_000_000))
    assert not is_critical_pod(parsed("a", priority=1_999_999_999))
    mirror = meta.ObjectMeta(annotations={"kubernetes.io/config.mirror": "x"})
    assert is_critical_pod(core.Pod(metadata=mirror))


def test_critical_pods_preempt_the_others_and_each_other_by_priority() -> None:
    high, higher, low = (parsed("a", priority=2_000_000_000 + n) for n in (0, 1, -1))
    assert may_preempt(high, low)
    assert may_preempt(higher, high)
    assert not may_preempt(high, high)
    assert not may_preempt(high, parsed("static", source="file"))
    assert not may_preempt(low, low)
    assert not may_preempt(parsed("a", priority=1), low)
    assert not may_preempt(parsed("a"), parsed("b"))


def test_a_critical_pod_that_fits_preempts_no_pod() -> None:
    assert decide(critical({"cpu": "1"}), NODE, [parsed("b", {"cpu": "1"})]) is None


def test_best_effort_pods_are_preempted_first_for_a_pod_slot() -> None:
    others = [guaranteed("g", "1m"), parsed("burst", {"cpu": "1m"}), parsed("best")]
    assert victims(critical({}), *others, on=node({"pods": "3"})) == ["best"]


def test_burstable_pods_are_preempted_before_guaranteed_ones() -> None:
    assert victims(critical({"cpu": "1"}), guaranteed("g", "1"), parsed("burst", {"cpu": "1"})) == ["burst"]


def test_guaranteed_pods_are_preempted_if_no_others_suffice() -> None:
    assert victims(critical({"cpu": "2"}), guaranteed("g", "1500m"), parsed("b", {"cpu": "500m"})) == ["b", "g"]


def test_the_closest_fit_is_preempted_and_of_two_the_smaller() -> None:
    others = [
        parsed("large", {"cpu": "1", "memory": "2Mi"}),
        parsed("small", {"cpu": "900m"}),
        parsed("tiny", {"cpu": "100m"}),
    ]
    assert victims(critical({"cpu": "500m"}), *others) == ["small"]
    assert victims(critical({"cpu": "1"}), *others) == ["large"]


def test_of_two_pods_with_equal_memory_the_one_with_less_cpu_is_preempted() -> None:
    large, small = parsed("large", {"cpu": "1", "memory": "1Mi"}), parsed("small", {"cpu": "900m", "memory": "1Mi"})
    assert victims(critical({"cpu": "500m"}), large, small) == ["small"]
    assert victims(critical({"cpu": "500m"}), small, large) == ["small"]


def test_of_two_pods_with_equal_requests_the_later_one_is_preempted() -> None:
    same = {"cpu": "1", "memory": "1Mi"}
    assert victims(critical({"cpu": "500m"}), parsed("a", same), parsed("b", same)) == ["b"]


def test_no_pod_is_preempted_for_a_pod_that_fails_another_check() -> None:
    wanted = parsed("critical", {"cpu": "2"}, source="file", nodeSelector={"zone": "b"})
    assert decide(wanted, NODE, [parsed("b", {"cpu": "2"})]) == Rejection("NodeAffinity", AFFINITY)


def test_a_critical_pod_is_rejected_if_all_victims_are_not_enough() -> None:
    answer = decide(
        critical({"cpu": "3"}), NODE, [parsed("b", {"cpu": "500m"}), parsed("s", {"cpu": "1"}, source="file")]
    )
    assert answer == Rejection(
        "UnexpectedAdmissionError",
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods "
        "to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 2000), ]",
    )


def test_the_pod_fits_after_killing_the_victims() -> None:
    sizes = ("100m", "250m", "300m", "350m", "400m")
    others = [parsed(f"b{n}", {"cpu": cpu, "memory": f"{n}Mi"}) for n, cpu in enumerate(sizes)]
    others += [guaranteed(f"g{n}", "100m") for n in range(6)]
    for tenths in range(1, 21):
        wanted = critical({"cpu": f"{tenths * 100}m"})
        answer = decide(wanted, NODE, others)
        gone = answer.victims if isinstance(answer, Preempt) else ()
        left = [other for other in others if other not in gone]
        assert decide(wanted, NODE, left) is None
        burstable = [victim for victim in gone if (victim.metadata.name or "").startswith("b")]
        assert len(burstable) in (len(gone), len(sizes)), "a guaranteed pod died before all burstable ones"
