"""Validation of pods: every problem of a pod, in order, with its field and its message.

`data/validate_problems.yaml` holds the pods. A case names what is checked, the parts of a pod that differ from the
smallest one, and all problems. One pod holds many faults, and also the values that are just accepted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeeper.model.k8s import core
from podkeeper.rules.validate import names
from podkeeper.rules.validate.pod import RequestKind, validate_pod

Json = dict[str, Any]

CASES: dict[str, Json] = yaml.load(
    (Path(__file__).parent / "data/validate_problems.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
VOLUMES = [{"name": "scratch"}, {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]


def pod_of(case: Json) -> core.Pod:
    """`container` holds fields of the only container, `sources` the sources of volumes."""
    container = {"name": "c", "image": "app:v1", **case.get("container", {})}
    volumes = [{"name": f"v{index}", **source} for index, source in enumerate(case.get("sources", ()))]
    wire = {
        "metadata": {"name": "web", "namespace": "default", **case.get("metadata", {})},
        "spec": {"containers": [container], "volumes": volumes or VOLUMES, **case.get("spec", {})},
    }
    return msgspec.convert(wire, core.Pod)


def problems_of(pod: core.Pod, kind: RequestKind = RequestKind.CREATE) -> list[str]:
    return [f"{problem.field}: {problem.message}" for problem in validate_pod(pod, kind)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_pod_has_exactly_these_problems(case: Json) -> None:
    kind = RequestKind.UPDATE if case.get("request") == "update" else RequestKind.CREATE
    assert problems_of(pod_of(case), kind) == case["problems"]


def container_json(**parts: Any) -> Json:
    return {"container": parts}


def volume(**source: Any) -> Json:
    return {"sources": [source]}


def dns(**config: Any) -> Json:
    return {"spec": {"dnsConfig": config}}


def app_armor(profile: str) -> Json:
    return container_json(securityContext={"appArmorProfile": {"type": "Localhost", "localhostProfile": profile}})


def deletion_cost(value: str) -> Json:
    return {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": value}}}


def rules(count: int, codes: int = 1) -> Json:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": list(range(codes))}}
    return container_json(restartPolicy="Never", restartPolicyRules=[rule] * count)


def annotations(size: int) -> Json:
    return {"metadata": {"annotations": {"a": "x" * (size - 1 - 2 * 3), "b": "é", "ccc": ""}}}


CLAIM = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
LONG_NAME = "x" * 64
SHOWN = f'"{"x" * 79}…"'
POLICIES = 'supported values: "Always", "OnFailure", "Never"'

BOUNDARIES: dict[str, tuple[Json, Json, str]] = {
    "annotations of 256 KiB": (
        annotations(262144),
        annotations(262145),
        "metadata.annotations: Too long: may not be more than 262144 bytes",
    ),
    "a deletion cost of 32 bits": (
        deletion_cost("2147483647"),
        deletion_cost("2147483648"),
        'metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "2147483648": '
        "must be a 32bit integer",
    ),
    "a negative deletion cost of 32 bits": (
        deletion_cost("-2147483648"),
        deletion_cost("-2147483649"),
        'metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "-2147483649": '
        "must be a 32bit integer",
    ),
    "a deletion cost without zeros in front": (
        deletion_cost("0"),
        deletion_cost("01"),
        "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: "
        'Invalid value: "01": must be a 32bit integer',
    ),
    "a deadline of one second": (
        {"spec": {"activeDeadlineSeconds": 1}},
        {"spec": {"activeDeadlineSeconds": 0}},
        "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
    ),
    "a deadline of 31 bits": (
        {"spec": {"activeDeadlineSeconds": 2147483647}},
        {"spec": {"activeDeadlineSeconds": 2147483648}},
        "spec.activeDeadlineSeconds: Invalid value: 2147483648: must be between 1 and 2147483647, inclusive",
    ),
    "a hostname of 64 characters": (
        {"spec": {"hostnameOverride": LONG_NAME}},
        {"spec": {"hostnameOverride": LONG_NAME + "x"}},
        f'spec.hostnameOverride: Invalid value: "{LONG_NAME}x": must be no more than 64 characters',
    ),
    "32 search domains": (
        dns(searches=["a"] * 32),
        dns(searches=["a"] * 33),
        "spec.dnsConfig.searches: Too many: 33: must have at most 32 items",
    ),
    "search domains of 2048 characters": (
        dns(searches=[f"{'x' * 204}"] * 9 + ["x" * 203]),
        dns(searches=[f"{'x' * 204}"] * 10),
        "spec.dnsConfig.searches: Too long: may not be more than 2048 characters, including spaces",
    ),
    "a profile of 4095 bytes": (
        app_armor("é" * 2047 + "x"),
        app_armor("é" * 2048),
        "spec.containers[0].securityContext.appArmorProfile.localhostProfile: "
        "Too long: may not be more than 4095 bytes",
    ),
    "20 restart rules": (
        rules(20),
        rules(21),
        "spec.containers[0].restartPolicyRules: Too many: 21: must have at most 20 items",
    ),
    "255 exit codes": (
        rules(1, codes=255),
        rules(1, codes=256),
        "spec.containers[0].restartPolicyRules[0].exitCodes.values: Too many: 256: must have at most 255 items",
    ),
    "a CSI driver of 63 characters": (
        volume(csi={"driver": LONG_NAME[1:]}),
        volume(csi={"driver": LONG_NAME}),
        "spec.volumes[0].csi.driver: Too long: may not be more than 63 characters",
    ),
    "a tenant of 64 characters": (
        volume(quobyte={"registry": "a:1", "volume": "v", "tenant": LONG_NAME}),
        volume(quobyte={"registry": "a:1", "volume": "v", "tenant": LONG_NAME + "x"}),
        "spec.volumes[0].quobyte.tenant: Too long: may not be more than 64 characters",
    ),
    "a pod whose name fits into that of a claim": (
        {"metadata": {"name": "x" * 250}, **volume(ephemeral={"volumeClaimTemplate": CLAIM})},
        {"metadata": {"name": "x" * 251}, **volume(ephemeral={"volumeClaimTemplate": CLAIM})},
        f'spec.volumes[0].name: Invalid value: "v0": PVC name {SHOWN}: {names.dns_subdomain.detail}',
    ),
    "a name of 253 characters": (
        {"metadata": {"name": "x" * 253}},
        {"metadata": {"name": "x" * 254}},
        f"metadata.name: Invalid value: {SHOWN}: {names.dns_subdomain.detail}",
    ),
    "a value of which 78 characters are shown": (
        {"spec": {"restartPolicy": "Never"}},
        {"spec": {"restartPolicy": "x" * 78}},
        f'spec.restartPolicy: Unsupported value: "{"x" * 78}": {POLICIES}',
    ),
    "a longer value of which 79 characters are shown": (
        {"spec": {"restartPolicy": "OnFailure"}},
        {"spec": {"restartPolicy": "x" * 79}},
        f"spec.restartPolicy: Unsupported value: {SHOWN}: {POLICIES}",
    ),
}


@pytest.mark.parametrize(("accepted", "refused", "problem"), BOUNDARIES.values(), ids=BOUNDARIES.keys())
def test_the_last_accepted_value_and_the_first_rejected_one(accepted: Json, refused: Json, problem: str) -> None:
    assert problems_of(pod_of(accepted)) == []
    assert problems_of(pod_of(refused)) == [problem]


SIGNALS = (
    "ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP SYS TERM TRAP "
    "TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX"
)


def test_every_signal_of_linux_is_a_stop_signal() -> None:
    plain = SIGNALS.split()
    realtime = [*(f"RTMIN+{n}" for n in range(1, 16)), *(f"RTMAX-{n}" for n in range(1, 15))]

    def accepted(signal: str) -> bool:
        lifecycle = {"lifecycle": {"stopSignal": signal}}
        return not problems_of(pod_of({"spec": {"os": {"name": "linux"}}, "container": lifecycle}))

    assert [name for name in [*plain, *realtime] if not accepted(f"SIG{name}")] == []
    assert [name for name in ("SIGRTMIN+0", "SIGRTMIN+16", "SIGRTMAX-0", "SIGRTMAX-15", "") if accepted(name)] == []


NAMES: dict[str, tuple[names.Rule, Sequence[str], Sequence[str]]] = {
    "DNS label": (
        names.dns_label,
        ["a", "0", "a-b", "a--b", "x" * 63],
        ["", "-a", "a-", "A", "a.b", "a_b", "a\n", "x" * 64],
    ),
    "DNS subdomain": (
        names.dns_subdomain,
        ["a", "a.b", "0.1-2", "x" * 253],
        ["", ".a", "a.", "a..b", "a.-b", "a-.b", "A", "a_b", "x" * 254],
    ),
    "search path": (
        names.search_path,
        [".", "a.", "_a._b", "a_b", "x" * 253, "x" * 253 + "."],
        ["", "..", "a..b", ".a", "a_", "_", "A", "x" * 254, "x" * 254 + "."],
    ),
    "label key": (
        names.label_key,
        ["a", "A", "A.b_c-1", "x" * 63, "a.b/C", f"{'x' * 253}/{'y' * 63}"],
        ["", "/a", "a/", "a/b/c", "A/b", "-a", "a-", "_a", "a b", "x" * 64, f"{'x' * 254}/y", f"x/{'y' * 64}"],
    ),
    "label value": (names.label_value, ["", "a", "A.b_c-1", "x" * 63], ["-a", "a-", "a/b", "a b", "x" * 64]),
    "data key": (
        names.data_key,
        ["a", "A.b_c-1", ".a", "a..b", "x" * 253],
        ["", ".", "..", "..a", "a/b", "a b", "x" * 254],
    ),
    "port name": (
        names.port_name,
        ["a", "a-1", "1-a", "x" * 15],
        ["", "1", "1-2", "a--b", "-a", "a-", "A", "a_b", "x" * 16],
    ),
    "variable name": (names.env_name, ["a", " ", "~", "!", "<", ">", "a b"], ["", "=", "a=b", "\x1f", "\x7f", "é"]),
    "HTTP header": (names.http_header, ["a", "A-1", "-", "x" * 300], ["", "a b", "a_b", "a:"]),
    "address": (
        names.address,
        ["10.0.0.1", "::1", "2001:db8::ffff"],
        ["", "a", "10.0.0", "010.0.0.1", "10.0.0.1/8", "::ffff:10.0.0.1", "fe80::1%eth0"],
    ),
    "kernel parameter": (
        names.sysctl_name,
        ["a", "a.b", "a/b", "a-b_c.d/e", "x" * 253],
        ["", "A", ".a", "a.", "a..b", "a./b", "_a", "a_", "x" * 254],
    ),
}


@pytest.mark.parametrize(("rule", "proper", "improper"), NAMES.values(), ids=NAMES.keys())
def test_forms_of_names(rule: names.Rule, proper: Sequence[str], improper: Sequence[str]) -> None:
    assert [text for text in proper if list(rule("f", text))] == []
    assert [text for text in improper if not list(rule("f", text))] == []
