"""Resources and host ports that pods hold on a node."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s import core
from podkeeper.rules.admission.usage import HostPort, NodeUsage, PodUsage, host_ports, in_scheduler_units, usage_of
from podkeeper.rules.resources import amounts_of, held_requests, is_native, pod_requests

Json = dict[str, Any]


def parsed(status: Json | None = None, **spec: Any) -> core.Pod:
    return msgspec.convert({"spec": {"containers": [], **spec}, "status": status or {}}, core.Pod)


def texts(amounts: Any) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def container(name: str = "c", policy: str | None = None, **requests: str) -> Json:
    return {"name": name, "restartPolicy": policy, "resources": {"requests": requests}}


ANY, ONE, TWO = (HostPort(address, "TCP", 80) for address in ("0.0.0.0", "10.0.0.1", "10.0.0.2"))


@pytest.mark.parametrize(
    ("held", "clashes"),
    [
        (ANY, [ANY, ONE, TWO]),
        (ONE, [ANY, ONE]),
        (TWO, [ANY, TWO]),
    ],
)
def test_a_port_on_all_addresses_conflicts_with_every_address(held: HostPort, clashes: list[HostPort]) -> None:
    usage = NodeUsage()
    assert [port for port in (ANY, ONE, TWO) if usage.holds(port)] == []
    usage.add(PodUsage((), (held,)))
    others = (HostPort(held.address, "UDP", 80), HostPort(held.address, "TCP", 81))
    assert [port for port in (ANY, ONE, TWO, *others) if usage.holds(port)] == clashes
    usage.add(PodUsage((), (held,)))
    usage.remove(PodUsage((), (held,)))
    assert [port for port in (ANY, ONE, TWO) if usage.holds(port)] == clashes
    usage.remove(PodUsage((), (held,)))
    assert [port for port in (ANY, ONE, TWO) if usage.holds(port)] == []


def test_amounts_and_pods_are_summed() -> None:
    usage, big, small = NodeUsage(), PodUsage((("cpu", 5), ("memory", 7)), ()), PodUsage((("cpu", 1),), ())
    usage.add(big)
    usage.add(small)
    assert (usage.pods, usage.used("cpu"), usage.used("memory"), usage.used("gpu")) == (2, 6, 7, 0)
    usage.remove(big)
    assert (usage.pods, usage.used("cpu"), usage.used("memory")) == (1, 1, 0)


def test_amounts_are_in_the_units_of_the_scheduler() -> None:
    given = {
        "cpu": "1500m",
        "memory": "1Ki",
        "ephemeral-storage": "1k",
        "pods": "3",
        "example.com/gpu": "2",
        "hugepages-2Mi": "4Mi",
        "attachable-volumes-x": "5",
        "other": "6",
    }
    assert in_scheduler_units(amounts_of(given)) == {
        "cpu": 1500,
        "memory": 1024,
        "ephemeral-storage": 1000,
        "pods": 3,
        "example.com/gpu": 2,
        "hugepages-2Mi": 4194304,
        "attachable-volumes-x": 5,
    }


def test_ports_of_regular_containers_and_sidecars_are_held() -> None:
    ports = [{"containerPort": 1, "hostPort": 2}, {"containerPort": 3}, {"containerPort": 4, "hostPort": 0}]
    special = [{"containerPort": 1, "hostPort": 9, "hostIP": "10.0.0.1", "protocol": "UDP"}]
    spec = parsed(
        containers=[{"name": "a", "ports": ports}, {"name": "b"}],
        initContainers=[
            {"name": "i", "ports": [{"containerPort": 1, "hostPort": 7}]},
            {"name": "s", "restartPolicy": "Always", "ports": special},
        ],
    ).spec
    assert list(host_ports(spec)) == [HostPort("10.0.0.1", "UDP", 9), HostPort("0.0.0.0", "TCP", 2)]


def test_usage_of_a_pod() -> None:
    given = parsed(containers=[{**container(cpu="1"), "ports": [{"containerPort": 1, "hostPort": 2}]}])
    assert usage_of(given) == PodUsage((("cpu", 1000),), (HostPort("0.0.0.0", "TCP", 2),))


@pytest.mark.parametrize(
    ("name", "native"),
    [("cpu", True), ("example.com/gpu", False), ("kubernetes.io/x", True), ("a.kubernetes.io/x", True), ("a/b", False)],
)
def test_which_resources_belong_to_kubernetes(name: str, native: bool) -> None:
    assert is_native(name) is native


def test_init_containers_raise_the_sum_only_where_they_need_more() -> None:
    inits = [
        container("i", cpu="5"),
        container("s", "Always", cpu="1", memory="1"),
        container("j", cpu="3", memory="9"),
    ]
    given = parsed(containers=[container("a", cpu="1", memory="4"), container("b", cpu="1")], initContainers=inits)
    assert texts(pod_requests(given.spec)) == {"cpu": "5", "memory": "10"}


def test_resources_of_the_pod_replace_those_of_its_containers_and_the_overhead_is_added() -> None:
    whole = {"requests": {"cpu": "3", "example.com/gpu": "1"}}
    given = parsed(containers=[container(cpu="1", memory="4")], resources=whole, overhead={"cpu": "1", "memory": "1"})
    assert texts(pod_requests(given.spec)) == {"cpu": "4", "memory": "5"}


def resized(*, desired: str, actual: str | None, allocated: str | None, reason: str | None = None, **more: Any) -> str:
    """How much cpu a pod holds while its container is resized."""
    status: Json = {
        "name": "c",
        "resources": None if actual is None else {"requests": {"cpu": actual}},
        "allocatedResources": None if allocated is None else {"cpu": allocated},
    }
    conditions = [{"type": "Ready", "status": "True", "reason": "Infeasible"}]
    if reason is not None:
        conditions.append({"type": "PodResizePending", "status": "True", "reason": reason})
    place = "initContainer" if "policy" in more else "container"
    spec = {f"{place}s": [container(cpu=desired, **more)]}
    return texts(held_requests(parsed({f"{place}Statuses": [status], "conditions": conditions}, **spec)))["cpu"]


def test_a_pod_holds_the_largest_amount_while_it_is_resized() -> None:
    assert resized(desired="1", actual="2", allocated="3") == "3"
    assert resized(desired="1", actual="3", allocated="2") == "3"
    assert resized(desired="3", actual="2", allocated="1") == "3"
    assert resized(desired="3", actual="2", allocated="1", reason="Deferred") == "3"
    assert resized(desired="3", actual="2", allocated="1", reason="Infeasible") == "2"
    assert resized(desired="1", actual=None, allocated="3") == "1"
    assert resized(desired="1", actual="2", allocated=None) == "2"


def test_init_containers_are_not_resized_but_sidecars_are() -> None:
    assert resized(desired="1", actual="2", allocated="3", policy=None) == "1"
    assert resized(desired="1", actual="2", allocated="3", policy="Always") == "3"


def test_pod_level_requests_are_resized_in_the_same_way() -> None:
    status = {"resources": {"requests": {"cpu": "5"}}, "allocatedResources": {"cpu": "4"}}
    whole = {"requests": {"cpu": "1", "memory": "2"}}
    assert texts(held_requests(parsed(status, resources=whole))) == {"cpu": "5", "memory": "2"}
    assert texts(held_requests(parsed({}, resources=whole))) == {"cpu": "1", "memory": "2"}
    assert texts(held_requests(parsed(status))) == {}
