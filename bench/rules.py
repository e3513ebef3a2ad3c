"""CPU cost of the rules: `python -m bench.rules [--json]`.

The figures are CPU times of this process, the best of several rounds, because machines are shared. The same work on
plain dicts with msgspec is measured in the same run, so that a slow machine affects both. The bars are in
`docs/performance.md`.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from operator import eq
from typing import Any

import msgspec

from podkeeper.engine.storage import PodStorage
from podkeeper.model.k8s.core import Pod, PodList
from podkeeper.model.messages import Op, PodUpdate
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.plan import compute_pod_actions

ROUNDS = 15
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod_document(index: int, containers: int = 3) -> dict[str, Any]:
    """Return a pod as an API server sends it, with three containers and about 4.5 KB."""
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1,
             "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}  # fmt: skip
    names = [f"c{number}" for number in range(containers)]
    container = {
        "image": "registry.example/team/service:v1.2.3",
        "args": ["--listen=:8080", "--log-level=info", "--config=/etc/service/config.yaml"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                {"name": "MODE", "value": "production"}],
        "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/service", "readOnly": True}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }  # fmt: skip
    when = "2026-01-01T00:00:00Z"
    return {
        "metadata": {
            "name": f"service-{index}", "namespace": "default", "uid": f"00000000-0000-4000-8000-{index:012}",
            "resourceVersion": str(index), "creationTimestamp": when,
            "labels": {"app": "service", "tier": "backend", "pod-template-hash": "5d8f7c9b6"},
            "annotations": {"example.org/owner": "team", "example.org/revision": "17"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "service-5d8f7c9b6",
                                 "uid": "11111111-0000-4000-8000-000000000000", "controller": True}],
        },
        "spec": {
            "containers": [{"name": name, **container} for name in names],
            "volumes": [{"name": "config", "configMap": {"name": "service", "defaultMode": 420}}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "nodeName": "node-1", "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {
            "phase": "Running", "hostIP": "192.0.2.1", "podIP": "10.0.0.1", "startTime": when, "qosClass": "Burstable",
            "conditions": [{"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": when}
                           for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")],
            "containerStatuses": [{"name": name, "ready": True, "started": True, "restartCount": 0,
                                   "image": "registry.example/team/service:v1.2.3", "imageID": "sha256:0123456789",
                                   "containerID": f"containerd://{name}", "lastState": {},
                                   "state": {"running": {"startedAt": when}}} for name in names],
        },
    }  # fmt: skip


def milliseconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the CPU milliseconds of the best round."""
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        started = time.process_time_ns()
        work()
        best = min(best, (time.process_time_ns() - started) / 1e6)
    return best


def decode_figures() -> dict[str, float]:
    """Decode a list of 500 pods: typed, against plain dicts in the same run."""
    documents = [pod_document(index) for index in range(500)]
    raw = msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": documents})
    typed, plain = msgspec.json.Decoder(PodList), msgspec.json.Decoder()
    ours, reference = milliseconds(lambda: typed.decode(raw)), milliseconds(lambda: plain.decode(raw))
    return {
        "decode_list_500_ms": ours,
        "decode_list_500_ratio_to_dicts": ours / reference,
        "decode_bytes_per_pod": len(raw) / 500,
    }


def merge_figures() -> dict[str, float]:
    """Merge a SET of 1,000 unchanged pods: equal objects, decoded again."""
    raw = msgspec.json.encode([pod_document(index) for index in range(1000)])
    decoder = msgspec.json.Decoder(tuple[Pod, ...])
    emitted: list[PodUpdate] = []
    storage = PodStorage(emit=emitted.append, record_event=lambda event: None, now=lambda: NOW)
    storage.merge(PodUpdate(Op.SET, decoder.decode(raw), "api"))
    best, reference = float("inf"), float("inf")
    for _ in range(ROUNDS):
        fresh, known = PodUpdate(Op.SET, decoder.decode(raw), "api"), msgspec.json.decode(raw)
        emitted.clear()
        best = min(best, milliseconds(partial(storage.merge, fresh), rounds=1))
        other = msgspec.json.decode(raw)
        reference = min(reference, milliseconds(partial(eq, known, other), rounds=1))
        assert not emitted, "an unchanged SET causes an update"
    return {"merge_set_1000_unchanged_ms": best, "merge_set_1000_ratio_to_comparing_dicts": best / reference}


def plan_figures() -> dict[str, float]:
    """Compute a plan for a running pod with five containers, and for one that must be started."""
    pod = msgspec.convert(pod_document(1, containers=5), Pod)
    running = PodRecord(
        uid="u",
        sandboxes=(SandboxRecord(id="s", ready=True, ip="10.0.0.1"),),
        containers=tuple(
            ContainerRecord(
                id=container.name, name=container.name, state=RecordState.RUNNING,
                spec_hash=container_hash(container), created_at=NOW, started_at=NOW,
            )
            for container in pod.spec.containers
        ),
    )  # fmt: skip
    empty = PodRecord(uid="u")
    count = 500

    def plan(record: PodRecord) -> Callable[[], None]:
        def work() -> None:
            for _ in range(count):
                compute_pod_actions(pod, record, {}, {})

        return work

    return {
        "plan_5_containers_running_us": milliseconds(plan(running)) / count * 1000,
        "plan_5_containers_first_us": milliseconds(plan(empty)) / count * 1000,
    }


BARS = {
    "decode_list_500_ms": 25.0,
    "merge_set_1000_unchanged_ms": 15.0,
    "plan_5_containers_running_us": 100.0,
    "plan_5_containers_first_us": 100.0,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description="Measure the cost of the decisions.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    figures = {**decode_figures(), **merge_figures(), **plan_figures()}
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
    else:
        for name, value in figures.items():
            bar = f"   bar {BARS[name]:g}" if name in BARS else ""
            print(f"{name:42} {value:10.3f}{bar}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
