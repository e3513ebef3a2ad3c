"""KubeletConfiguration: decoding, errors and unsupported fields."""

import msgspec
import pytest

from podkeeper.model.errors import BadInput
from podkeeper.model.kubelet_config import (
    KUBELET_FIELDS,
    KubeletConfiguration,
    ShutdownGracePeriodByPodPriority,
    read_kubelet_configuration,
    unsupported_fields,
)
from podkeeper.model.manifest import Document, read_documents


def configuration(body: str) -> Document:
    text = f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{body}"
    (document,) = read_documents(text, "kubelet.yaml").all_valid()
    return document


def test_supported_fields_are_fields_of_the_kubelet() -> None:
    ours = {field.encode_name for field in msgspec.structs.fields(KubeletConfiguration)} - {"apiVersion", "kind"}
    assert ours < KUBELET_FIELDS


def test_a_kubelet_configuration_is_decoded() -> None:
    config = read_kubelet_configuration(
        configuration(
            "staticPodPath: /etc/kubernetes/manifests\nsyncFrequency: 90s\nport: 0\n"
            "shutdownGracePeriodByPodPriority: [{priority: 5}]\nauthentication: {webhook: {cacheTTL: 5m}}\n"
        )
    )
    assert config.static_pod_path == "/etc/kubernetes/manifests"
    assert config.sync_frequency == "90s"
    assert config.port == 0
    assert config.shutdown_grace_period_by_pod_priority == (ShutdownGracePeriodByPodPriority(priority=5),)
    assert config.authentication.webhook.cache_ttl == "5m"
    assert config.authentication.anonymous.enabled is None


BAD_CONFIGURATIONS = {
    "a number as a duration": (
        "syncFrequency: 60",
        "kubelet.yaml:3: syncFrequency: Invalid value: number 60: must be a string",
    ),
    "a duration without a unit": (
        'syncFrequency: "60"',
        'kubelet.yaml:3: syncFrequency: Invalid value: "60": must be a duration',
    ),
    "a duration deep inside": (
        "authorization:\n  webhook:\n    cacheAuthorizedTTL: x",
        'kubelet.yaml:5: authorization.webhook.cacheAuthorizedTTL: Invalid value: "x": must be a duration',
    ),
    "another kind": (
        "---\nkind: Pod",
        'kubelet.yaml:4: kind: Unsupported value: "Pod": '
        'supported values: "KubeletConfiguration" of apiVersion "kubelet.config.k8s.io/v1beta1"',
    ),
}


@pytest.mark.parametrize("body, message", BAD_CONFIGURATIONS.values(), ids=BAD_CONFIGURATIONS.keys())
def test_an_invalid_configuration_is_reported(body: str, message: str) -> None:
    text = f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{body}\n"
    with pytest.raises(BadInput) as caught:
        read_kubelet_configuration(read_documents(text, "kubelet.yaml").all_valid()[-1])
    assert str(caught.value).startswith(message)


def test_unsupported_and_unknown_fields_are_reported() -> None:
    found = unsupported_fields(
        configuration("maxPods: 5\ncpuManagerPolicy: static\nmaxPod: 3\ncrashLoopBackOff: {max: 1s}\n")
    )
    assert [str(problem) for problem in found.unsupported] == [
        "kubelet.yaml:4: cpuManagerPolicy: unsupported by podkeeper, ignored"
    ]
    assert [(problem.field, problem.line) for problem in found.unknown] == [("maxPod", 5), ("crashLoopBackOff.max", 6)]
