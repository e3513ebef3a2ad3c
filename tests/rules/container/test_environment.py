"""Environments: sources of values, their priority, and expansion of `$(NAME)`."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapEnvSource,
    ConfigMapKeySelector,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    Pod,
    PodSpec,
    ResourceFieldSelector,
    ResourceRequirements,
    Secret,
    SecretEnvSource,
    SecretKeySelector,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.container.downward import PodContext, field_value, resource_value
from podkeeper.rules.container.environment import (
    EnvReference,
    ObjectKind,
    Objects,
    env_references_of,
    environment_of,
    invocation_of,
)
from podkeeper.rules.container.expansion import expand, expand_fully
from podkeeper.rules.resources import amounts_of

# Expansion.

VALUES = {"A": "a", "B": "b", "EMPTY": "", "REF": "$(A)"}

EXPANSIONS = {
    "a text without variables stays":           ("plain", "plain"),
    "a variable is replaced":                   ("$(A)", "a"),
    "every occurrence is replaced":              ("$(A)-$(B)-$(A)", "a-b-a"),
    "an empty value too":                         ("[$(EMPTY)]", "[]"),
    "an unknown one stays":                     ("$(C)", "$(C)"),
    "one without a name stays":                 ("$()", "$()"),
    "an expanded value is not expanded again":   ("$(REF)", "$(A)"),
    "two dollars stand for one":                  ("$$", "$"),
    "an escaped variable is not replaced":       ("$$(A)", "$(A)"),
    "three dollars are one and a variable":             ("$$$(A)", "$a"),
    "four dollars are two":                             ("$$$$(A)", "$$(A)"),
    "a dollar before anything else stays":        ("$A ${A} $-", "$A ${A} $-"),
    "a dollar at the end stays":                  ("price: 5$", "price: 5$"),
    "a variable that is not closed stays":      ("$(A", "$(A"),
    "the text after it is still expanded":   ("$(A $$", "$(A $"),
    "a name ends at the first bracket":         ("$($(A))", "$($(A))"),
    "a name may hold anything else":            ("$(A B)$(A\n)", "$(A B)$(A\n)"),
}  # fmt: skip


@pytest.mark.parametrize("text, expected", EXPANSIONS.values(), ids=EXPANSIONS.keys())
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, VALUES) == expected


def scanned(text: str, values: dict[str, str]) -> str:
    """Expansion as a scanner, sign by sign: slower, and plainly right."""
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
        elif text[at + 1] == "$":
            out, at = out + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            out, at = out + values.get(name, f"$({name})"), end + 1
        else:
            out, at = out + text[at : at + 2], at + 2
    return out


@given(st.text(alphabet="$()AB \n", max_size=30))
def test_expansion_equals_that_of_a_simple_scanner(text: str) -> None:
    assert expand(text, VALUES) == scanned(text, VALUES)


def test_expand_fully_names_all_variables_without_a_value() -> None:
    assert expand_fully("$(A)/$$(C)", VALUES) == "a/$(C)"
    with pytest.raises(NotConfigurable, match=r"^missing value for C, EMPTY$"):
        expand_fully("$(EMPTY)/$(C)/$(A)/$(C)", VALUES)


# Where values come from.


def literal(name: str, value: str) -> EnvVar:
    return EnvVar(name=name, value=value)


def from_config(name: str, key: str, *, of: str = "paint", optional: bool | None = None) -> EnvVar:
    selector = ConfigMapKeySelector(name=of, key=key, optional=optional)
    return EnvVar(name=name, value_from=EnvVarSource(config_map_key_ref=selector))


def from_secret(name: str, key: str, *, of: str = "door", optional: bool | None = None) -> EnvVar:
    selector = SecretKeySelector(name=of, key=key, optional=optional)
    return EnvVar(name=name, value_from=EnvVarSource(secret_key_ref=selector))


def from_field(name: str, path: str) -> EnvVar:
    return EnvVar(name=name, value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path=path)))


def all_of_config(of: str = "paint", prefix: str | None = None, optional: bool | None = None) -> EnvFromSource:
    return EnvFromSource(config_map_ref=ConfigMapEnvSource(name=of, optional=optional), prefix=prefix)


def all_of_secret(of: str = "door", prefix: str | None = None, optional: bool | None = None) -> EnvFromSource:
    return EnvFromSource(secret_ref=SecretEnvSource(name=of, optional=optional), prefix=prefix)


def config_map(**data: str) -> ConfigMap:
    return ConfigMap(data=data)


def secret(**data: str) -> Secret:
    return Secret(metadata=ObjectMeta(name="door"), data={k: b64encode(v.encode()).decode() for k, v in data.items()})


PAINT, DOOR = EnvReference(ObjectKind.CONFIG_MAP, "paint"), EnvReference(ObjectKind.SECRET, "door")
OBJECTS: Objects = {PAINT: config_map(colour="blue", A="config"), DOOR: secret(key="1234", A="secret")}
POD = Pod(
    metadata=ObjectMeta(
        name="web",
        namespace="shop",
        uid="uid-1",
        labels={"app": "web", "a/b": "c"},
        annotations={"note": 'say "hi"', "Odd'] Key": "x"},
    ),
    spec=PodSpec(containers=(), node_name="node-7", service_account_name="robot"),
)
SEEN = PodContext(
    pod=POD,
    pod_ips=("10.0.0.5", "fd00::5"),
    host_ips=("192.0.2.1", "2001:db8::1"),
    allocatable=amounts_of({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi"}),
)


def env_of(*env: EnvVar, env_from: tuple[EnvFromSource, ...] = (), objects: Objects = OBJECTS) -> dict[str, str]:
    return environment_of(Container(name="web", env=env, env_from=env_from), SEEN, objects)


ENVIRONMENTS = {
    "an empty spec": ((), (), {}),
    "a value is taken as it is": ((literal("A", "1"),), (), {"A": "1"}),
    "a variable without value or source is empty": ((EnvVar(name="A"),), (), {"A": ""}),
    "a value can use earlier variables": (
        (literal("A", "1"), literal("B", "$(A)2")), (), {"A": "1", "B": "12"}),
    "but not later ones": (
        (literal("B", "$(A)2"), literal("A", "1")), (), {"B": "$(A)2", "A": "1"}),
    "the last of a name counts": (
        (literal("A", "1"), literal("A", "$(A)2")), (), {"A": "12"}),
    "a key of a config map": ((from_config("C", "colour"),), (), {"C": "blue"}),
    "a key of a secret is decoded": ((from_secret("K", "key"),), (), {"K": "1234"}),
    "values from objects are not expanded": (
        (from_config("C", "ref"),), (), {"C": "$(A)"}),
    "a missing optional key gives no variable": (
        (from_config("C", "nosuch", optional=True), from_secret("K", "nosuch", optional=True)), (), {}),
    "a missing optional object gives no variable": (
        (from_config("C", "k", of="gone", optional=True), from_secret("K", "k", of="gone", optional=True)), (), {}),
    "a missing optional keeps an earlier value": (
        (literal("C", "1"), from_config("C", "k", of="gone", optional=True)), (), {"C": "1"}),
    "every key of an object": (
        (), (all_of_config(),), {"colour": "blue", "A": "config", "ref": "$(A)"}),
    "with a prefix": ((), (all_of_secret(prefix="DOOR_"),), {"DOOR_key": "1234", "DOOR_A": "secret"}),
    "a missing optional object gives no variables": (
        (), (all_of_config("gone", optional=True), all_of_secret("gone", optional=True)), {}),
    "a later object replaces an earlier one": (
        (), (all_of_config(), all_of_secret()), {"colour": "blue", "A": "secret", "ref": "$(A)", "key": "1234"}),
    "env replaces envFrom and can use it": (
        (literal("A", "$(A)!"),), (all_of_secret(),), {"key": "1234", "A": "secret!"}),
    "a value has priority over a source": (
        (replace(from_config("C", "colour"), value="red"),), (), {"C": "red"}),
}  # fmt: skip

WITH_REF: Objects = {**OBJECTS, PAINT: config_map(colour="blue", A="config", ref="$(A)")}


@pytest.mark.parametrize("env, env_from, expected", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_environment(env: tuple[EnvVar, ...], env_from: tuple[EnvFromSource, ...], expected: dict[str, str]) -> None:
    assert env_of(*env, env_from=env_from, objects=WITH_REF) == expected


def test_variables_come_in_the_order_they_are_declared() -> None:
    env = env_of(literal("Z", "1"), literal("B", "2"), env_from=(all_of_secret(),))
    assert list(env) == ["key", "A", "Z", "B"]


MISSING = {
    "a config map": ((from_config("C", "k", of="gone"),), (), 'configmap "gone" not found'),
    "a secret": ((from_secret("C", "k", of="gone"),), (), 'secret "gone" not found'),
    "envFrom a config map": ((), (all_of_config("gone"),), 'configmap "gone" not found'),
    "envFrom a secret": ((), (all_of_secret("gone"),), 'secret "gone" not found'),
    "a key of a config map": ((from_config("C", "k"),), (), "couldn't find key k in ConfigMap shop/paint"),
    "a key of a secret": ((from_secret("C", "k"),), (), "couldn't find key k in Secret shop/door"),
    "a field": ((from_field("F", "spec.magic"),), (), "field label not supported: spec.magic"),
    "a field with a subscript": (
        (from_field("F", "spec.nodeName['x']"),), (), "field label does not support subscript: spec.nodeName['x']"),
    "a field only for volumes": ((from_field("F", "status.phase"),), (), "unsupported fieldPath: status.phase"),
    "a file": (
        (EnvVar(name="F", value_from=EnvVarSource(file_key_ref=FileKeySelector(key="K"))),), (),
        "cannot set variable F: fileKeyRef is not supported"),
}  # fmt: skip


@pytest.mark.parametrize("env, env_from, message", MISSING.values(), ids=MISSING.keys())
def test_a_missing_required_reference_is_named(
    env: tuple[EnvVar, ...], env_from: tuple[EnvFromSource, ...], message: str
) -> None:
    with pytest.raises(NotConfigurable) as caught:
        env_of(*env, env_from=env_from)
    assert str(caught.value) == message


def test_a_secret_may_have_line_breaks_but_must_be_base64() -> None:
    folded = Secret(metadata=ObjectMeta(name="door"), data={"key": "MTIz\n  NA=="})
    assert env_of(from_secret("K", "key"), objects={DOOR: folded}) == {"K": "1234"}
    with pytest.raises(NotConfigurable, match="not base64"):
        env_of(from_secret("K", "key"), objects={DOOR: replace(folded, data={"key": "!"})})


def test_bytes_that_are_not_utf_8_are_kept() -> None:
    raw = Secret(data={"key": b64encode(b"\xff\x00x").decode()})
    value = env_of(from_secret("K", "key"), objects={DOOR: raw})["K"]
    assert value.encode(errors="surrogateescape") == b"\xff\x00x"


def test_env_references_are_unique_and_only_for_used_objects() -> None:
    container = Container(
        name="web",
        env_from=(all_of_config(), EnvFromSource()),
        env=(
            from_secret("K", "key"),
            from_config("C", "colour"),
            literal("A", "1"),
            replace(from_config("D", "k", of="other"), value="red"),
            from_field("N", "metadata.name"),
        ),
    )
    assert env_references_of(container) == (PAINT, DOOR)


def test_command_and_arguments_are_expanded_with_the_whole_environment() -> None:
    container = Container(name="web", env=(literal("A", "1"),), command=("run", "$(A)"), args=("$$(A)", "$(B)"))
    made = invocation_of(container, SEEN, {})
    assert (made.command, made.args) == (("run", "1"), ("$(A)", "$(B)"))


# Limits: a small manifest must not need gigabytes.


def doubling(count: int) -> tuple[EnvVar, ...]:
    """Return variables, each of which contains the one before twice."""
    return (literal("A0", "x" * 32), *(literal(f"A{n}", f"$(A{n - 1})$(A{n - 1})") for n in range(1, count)))


def test_an_expansion_that_doubles_stops_at_the_limit_of_the_kernel() -> None:
    fits = Container(name="web", env=doubling(12))
    assert len(invocation_of(fits, SEEN, {}).env["A11"]) == 32 * 2**11
    with pytest.raises(NotConfigurable, match=r"^cannot expand variable A12: the result is longer than 131071 bytes$"):
        invocation_of(Container(name="web", env=doubling(30)), SEEN, {})


LONG = {"A": "x" * 1000}
LIMITS = {
    "the longest result": ("$(A)" * 131 + "y" * 71, True),
    "one byte more": ("$(A)" * 131 + "y" * 72, False),
    "a reference without a value stays as it is": ("$(B)" * 32767, True),
    "a long text without references is left to the kernel": ("y" * 200_000, True),
}


@pytest.mark.parametrize("text, fits", LIMITS.values(), ids=LIMITS.keys())
def test_the_limit_of_one_string(text: str, fits: bool) -> None:
    if fits:
        assert len(expand(text, LONG)) == len(text.replace("$(A)", LONG["A"]))
        return
    with pytest.raises(NotConfigurable, match="longer than 131071 bytes"):
        expand(text, LONG)


TEXTS = ("$(A)" * 100,) * 63
SHORT = (literal("A", "x" * 1000),)
TOTALS = {
    "command": Container(name="web", env=SHORT, command=TEXTS),
    "args": Container(name="web", env=SHORT, args=TEXTS),
    "env": Container(name="web", env=(*SHORT, *(literal(f"V{n}", text) for n, text in enumerate(TEXTS)))),
}


@pytest.mark.parametrize("field, container", TOTALS.items())
def test_the_limit_of_all_strings(field: str, container: Container) -> None:
    with pytest.raises(NotConfigurable, match=rf"^cannot expand {field}: the results have more than 6291456 bytes"):
        invocation_of(container, SEEN, {})


# The downward API.

FIELDS = {
    "metadata.name": "web",
    "metadata.namespace": "shop",
    "metadata.uid": "uid-1",
    "metadata.labels": 'a/b="c"\napp="web"',
    "metadata.annotations": 'Odd\'] Key="x"\nnote="say \\"hi\\""',
    "metadata.labels['app']": "web",
    "metadata.labels['a/b']": "c",
    "metadata.labels['nosuch']": "",
    "metadata.annotations['note']": 'say "hi"',
    "metadata.annotations['Odd'] Key']": "x",
    "spec.nodeName": "node-7",
    "spec.host": "node-7",
    "spec.serviceAccountName": "robot",
    "status.hostIP": "192.0.2.1",
    "status.hostIPs": "192.0.2.1,2001:db8::1",
    "status.podIP": "10.0.0.5",
    "status.podIPs": "10.0.0.5,fd00::5",
}


@pytest.mark.parametrize("path, expected", FIELDS.items(), ids=FIELDS.keys())
def test_field(path: str, expected: str) -> None:
    assert field_value(ObjectFieldSelector(api_version="v1", field_path=path), SEEN) == expected


def test_pod_ip_may_be_empty_but_host_ip_must_be_known() -> None:
    alone = PodContext(pod=POD)
    assert field_value(ObjectFieldSelector(field_path="status.podIP"), alone) == ""
    with pytest.raises(NotConfigurable, match="the node has no address"):
        field_value(ObjectFieldSelector(field_path="status.hostIP"), alone)


def test_another_api_version_is_rejected() -> None:
    with pytest.raises(NotConfigurable, match="unsupported pod version: v2"):
        field_value(ObjectFieldSelector(api_version="v2", field_path="metadata.name"), SEEN)


def limited(name: str = "web", /, **limits: QuantityLike) -> Container:
    amounts = {key.replace("_", "-"): amount for key, amount in limits.items()}
    requests: dict[str, QuantityLike] = {"cpu": "250m", "memory": "64Mi"}
    return Container(name=name, resources=ResourceRequirements(limits=amounts or None, requests=requests))


RESOURCES = {
    # resource, divisor, limits -> text
    "a limit in whole units": ("limits.cpu", "0", {"cpu": "2"}, "2"),
    "is rounded up": ("limits.cpu", "1", {"cpu": "1200m"}, "2"),
    "in thousandths": ("limits.cpu", "1m", {"cpu": "1200m"}, "1200"),
    "memory in bytes": ("limits.memory", "0", {"memory": "1Ki"}, "1024"),
    "memory in mebibytes, rounded up": ("limits.memory", "1Mi", {"memory": "1500Ki"}, "2"),
    "memory in megabytes": ("limits.memory", "1M", {"memory": "3M"}, "3"),
    "storage": ("limits.ephemeral-storage", "1Gi", {"ephemeral_storage": "5Gi"}, "5"),
    "a request": ("requests.cpu", "1m", {}, "250"),
    "a request of memory": ("requests.memory", "1Mi", {}, "64"),
    "a missing request is zero": ("requests.ephemeral-storage", "1", {}, "0"),
    "a missing limit is allocatable": ("limits.cpu", "1", {}, "4"),
    "a limit of zero too": ("limits.cpu", "1", {"cpu": "0"}, "4"),
    "no memory limit": ("limits.memory", "1Gi", {}, "8"),
    "no storage limit": ("limits.ephemeral-storage", "1Gi", {}, "100"),
    "huge pages have no default": ("limits.hugepages-2Mi", "1", {}, "0"),
    "huge pages": ("limits.hugepages-2Mi", "1Mi", {"hugepages_2Mi": "4Mi"}, "4"),
}


@pytest.mark.parametrize("resource, divisor, limits, expected", RESOURCES.values(), ids=RESOURCES.keys())
def test_resource_value(resource: str, divisor: str, limits: dict[str, QuantityLike], expected: str) -> None:
    selector = ResourceFieldSelector(resource=resource, divisor=divisor)
    assert resource_value(selector, limited(**limits), SEEN) == expected


def pod_with(pod_limits: dict[str, QuantityLike] | None = None, **containers: tuple[Container, ...]) -> PodContext:
    resources = None if pod_limits is None else ResourceRequirements(limits=pod_limits)
    spec = PodSpec(
        containers=containers.get("containers", ()),
        init_containers=containers.get("init") or None,
        resources=resources,
    )
    return PodContext(pod=replace(POD, spec=spec), allocatable=SEEN.allocatable)


def test_the_pod_level_limit_has_priority_over_allocatable() -> None:
    seen = pod_with({"cpu": "3", "ephemeral-storage": "1Gi"})
    cpu = ResourceFieldSelector(resource="limits.cpu")
    memory = ResourceFieldSelector(resource="limits.memory", divisor="1Gi")
    storage = ResourceFieldSelector(resource="limits.ephemeral-storage", divisor="1Gi")
    values = [resource_value(selector, limited(), seen) for selector in (cpu, memory, storage)]
    assert values == ["3", "8", "100"], "of a pod as a whole only cpu and memory can be limited"


def test_another_container_of_the_pod_can_be_selected() -> None:
    seen = pod_with(containers=(limited("other", cpu="7"), limited("free")), init=(limited("setup"),))

    def cpu_of(name: str) -> str:
        return resource_value(ResourceFieldSelector(resource="limits.cpu", container_name=name), limited(), seen)

    assert (cpu_of("other"), cpu_of("free"), cpu_of("setup")) == ("7", "4", "0")
    with pytest.raises(NotConfigurable, match="container nosuch not found"):
        cpu_of("nosuch")


def test_other_resources_are_rejected() -> None:
    with pytest.raises(NotConfigurable, match=r"unsupported container resource : limits\.gpu"):
        resource_value(ResourceFieldSelector(resource="limits.gpu"), limited(), SEEN)


REFUSED_FIELDS = {
    "spec.restartPolicy": "unsupported fieldPath: spec.restartPolicy",
    "spec.schedulerName": "unsupported fieldPath: spec.schedulerName",
    "status.phase": "unsupported fieldPath: status.phase",
    "spec.containers": "field label not supported: spec.containers",
    "": "field label not supported: ",
    "['a']": "field label not supported: ['a']",
    "metadata.labels']": "field label not supported: metadata.labels']",
    "metadata.labels['a'": "field label not supported: metadata.labels['a'",
    "metadata.name['a']": "field label does not support subscript: metadata.name['a']",
}


@pytest.mark.parametrize(("path", "message"), REFUSED_FIELDS.items())
def test_messages_of_rejected_fields(path: str, message: str) -> None:
    with pytest.raises(NotConfigurable) as raised:
        field_value(ObjectFieldSelector(field_path=path), SEEN)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("resource", "name", "message"),
    [
        ("limits.gpu", "", "unsupported container resource : limits.gpu"),
        ("cpu", "", "unsupported container resource : cpu"),
        ("wishes.cpu", "", "unsupported container resource : wishes.cpu"),
        ("limits.cpu.more", "", "unsupported container resource : limits.cpu.more"),
        ("limits.cpu", "none", "container none not found"),
    ],
)
def test_messages_of_rejected_resources(resource: str, name: str, message: str) -> None:
    with pytest.raises(NotConfigurable) as raised:
        resource_value(ResourceFieldSelector(resource=resource, container_name=name), limited(), SEEN)
    assert str(raised.value) == message


def test_host_ip_of_a_node_without_an_address_is_an_error() -> None:
    for path in ("status.hostIP", "status.hostIPs"):
        with pytest.raises(NotConfigurable) as raised:
            field_value(ObjectFieldSelector(field_path=path), PodContext(pod=SEEN.pod))
        assert str(raised.value) == "cannot get host IPs: the node has no address yet"


def test_every_field_of_an_empty_pod_is_empty() -> None:
    empty = PodContext(pod=Pod())
    paths = ["metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations"]
    paths += ["metadata.labels['a']", "metadata.annotations['a']", "spec.nodeName", "spec.host"]
    paths += ["spec.serviceAccountName", "status.podIP", "status.podIPs"]
    assert [field_value(ObjectFieldSelector(field_path=path), empty) for path in paths] == [""] * len(paths)
