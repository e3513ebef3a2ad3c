"""Replay of the recorded QoS classes."""

import msgspec

from podkeeper.model.k8s import core
from podkeeper.rules.qos import qos_class
from tests.oracle.compare import Json, Replay, answers


def _qos_class(given: Json) -> Json:
    wire = {
        "containers": given["containers"],
        "initContainers": given["initContainers"],
        "resources": given["pod_level_resources"],
    }
    return qos_class(msgspec.convert(wire, core.PodSpec))


TABLES: dict[str, Replay] = {"qos_class": answers(_qos_class)}
