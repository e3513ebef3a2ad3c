"""Validation of pods: it accepts and rejects the same pods as the API server."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.errors import Problem
from podkeeper.model.k8s import core
from podkeeper.rules.defaults import default_pod
from podkeeper.rules.validate.pod import Occasion, validate_pod
from tests.rules.wild import wild_pod

Json = dict[str, Any]
LONG = "x" * 300


def pod(metadata: Json | None = None, **spec: Any) -> core.Pod:
    containers = spec.pop("containers", [{"name": "c", "image": "app:v1"}])
    wire = {
        "metadata": {"name": "web", "namespace": "default", **(metadata or {})},
        "spec": {**spec, "containers": containers},
    }
    return msgspec.convert(wire, core.Pod)


def with_container(**parts: Any) -> core.Pod:
    volumes = [{"name": "scratch"}, {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
    return pod(containers=[{"name": "c", "image": "app:v1", **parts}], volumes=volumes)


def with_init(**parts: Any) -> core.Pod:
    return pod(initContainers=[{"name": "i", "image": "app:v1", **parts}])


def with_volume(**source: Any) -> core.Pod:
    return pod(volumes=[{"name": "v", **source}], serviceAccountName="robot")


def with_projection(*sources: Json) -> core.Pod:
    return with_volume(projected={"sources": list(sources)})


def with_env(**source: Any) -> core.Pod:
    return with_container(env=[{"name": "V", "valueFrom": source}])


def with_rules(*rules: Json, policy: str | None = "Never") -> core.Pod:
    return with_container(restartPolicy=policy, restartPolicyRules=list(rules))


FIELD_ERRORS = (
    "Required value",
    "Invalid value: ",
    "Unsupported value: ",
    "Forbidden: ",
    "Duplicate value: ",
    "Not found: ",
    "Too long: ",
    "Too many: ",
)


def is_field_error(problem: Problem) -> bool:
    return problem.message.startswith(FIELD_ERRORS)


def fields(given: core.Pod) -> set[str]:
    return {problem.field for problem in validate_pod(given)}


EXEC = {"exec": {"command": ["true"]}}
CODES = {"operator": "In", "values": [1]}
TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
CLAIM = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}

TAKEN = {
    "the smallest pod": pod(),
    "a name with dots": pod({"name": "web.0"}),
    "labels and annotations": pod(
        {"labels": {"app": "web", "example.com/x": ""}, "annotations": {"Example.com/A": LONG}}
    ),
    "a standard finalizer and one of its own": pod({"finalizers": ["orphan", "example.com/x"]}),
    "an image nobody can pull: the runtime will say so": with_container(image="No Such::Image"),
    "any grace": pod(terminationGracePeriodSeconds=-5),
    "unusual variables": with_container(env=[{"name": "a b.c-1"}, {"name": "1"}]),
    "one label as a variable": with_env(fieldRef={"fieldPath": "metadata.labels['example.com/app']"}),
    "the node's old name": with_env(fieldRef={"fieldPath": "spec.host"}),
    "huge pages in megabytes": with_env(resourceFieldRef={"resource": "limits.hugepages-2Mi", "divisor": "1Mi"}),
    "a key of a file": with_env(fileKeyRef={"key": "K", "path": "a/b", "volumeName": "scratch"}),
    "a sidecar with probes and hooks": with_init(
        restartPolicy="Always", startupProbe=EXEC, lifecycle={"preStop": EXEC}
    ),
    "restart rules": with_rules(
        {"action": "Restart", "exitCodes": CODES}, {"action": "RestartAllContainers", "exitCodes": CODES}
    ),
    "restart rules of a sidecar": with_init(
        restartPolicy="Always", restartPolicyRules=[{"action": "RestartAllContainers", "exitCodes": CODES}]
    ),
    "a sleep as long as the grace": with_container(lifecycle={"preStop": {"sleep": {"seconds": 30}}}),
    "no sleep": with_container(lifecycle={"preStop": {"sleep": {"seconds": 0}}}),
    "a probe of a named port": with_container(livenessProbe={"tcpSocket": {"port": "web-1"}}),
    "readiness after several successes": with_container(readinessProbe={**EXEC, "successThreshold": 3}),
    "a signal, the system being known": pod(
        os={"name": "linux"}, containers=[{"name": "c", "image": "a", "lifecycle": {"stopSignal": "SIGRTMIN+3"}}]
    ),
    "the same port for two protocols": with_container(
        ports=[{"containerPort": 53, "hostPort": 53}, {"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]
    ),
    "devices": with_container(resources={"limits": {"example.com/gpu": 1}}),
    "huge pages beside memory": with_container(resources={"limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}}),
    "a claim's device": with_container(volumeDevices=[{"name": "disk", "devicePath": "/dev/x"}]),
    "a mount of a part": with_container(volumeMounts=[{"name": "scratch", "mountPath": "/x", "subPath": "a/b"}]),
    "a mount propagated both ways": with_container(
        securityContext={"privileged": True},
        volumeMounts=[{"name": "scratch", "mountPath": "/x", "mountPropagation": "Bidirectional"}],
    ),
    "all that a service account projects": with_projection(
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ),
    "a volume of no kind is an empty directory": with_volume(),
    "a host path of some type": with_volume(hostPath={"path": "/x", "type": "DirectoryOrCreate"}),
    "an ephemeral claim": with_volume(ephemeral={"volumeClaimTemplate": CLAIM}),
    "a CSI volume": with_volume(csi={"driver": "csi.Example.com"}),
    "an image volume": with_volume(image={"reference": "app:v1"}),
    "tolerating everything": pod(tolerations=[{"operator": "Exists"}]),
    "tolerating for a while": pod(
        tolerations=[{"key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": -1}]
    ),
    "all affinities": pod(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}]},
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]},
                        {},
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "preference": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["not a label"]}]},
                    }
                ],
            },
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]},
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": TERM}]
            },
        }
    ),
    "spread": pod(
        topologySpreadConstraints=[
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2},
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        ]
    ),
    "a resolver of its own": pod(
        dnsPolicy="None",
        dnsConfig={"nameservers": ["::1"], "searches": [".", "_a.example."], "options": [{"name": "ndots"}]},
    ),
    "host aliases": pod(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a.b"]}]),
    "sysctls in either spelling": pod(
        securityContext={"sysctls": [{"name": "net/ipv4/tcp_syncookies"}, {"name": "kernel.shm_rmid_forced"}]}
    ),
    "the host's network": pod(
        hostNetwork=True, containers=[{"name": "c", "image": "a", "ports": [{"containerPort": 80}]}]
    ),
    "pod-level resources that cover the containers": pod(
        resources={"limits": {"cpu": "2"}},
        containers=[{"name": "c", "image": "a", "resources": {"requests": {"cpu": "1"}}}],
    ),
    "a resource claim": pod(
        resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}],
        containers=[{"name": "c", "image": "a", "resources": {"claims": [{"name": "gpu"}]}}],
    ),
    "an Unmasked proc in its own user namespace": pod(
        hostUsers=False, containers=[{"name": "c", "image": "a", "securityContext": {"procMount": "Unmasked"}}]
    ),
    "gates": pod(
        readinessGates=[{"conditionType": "example.com/ready"}], schedulingGates=[{"name": "example.com/wait"}]
    ),
    "runs as root in a strict group": pod(
        securityContext={"runAsUser": 0, "supplementalGroupsPolicy": "Strict", "seLinuxChangePolicy": "Recursive"}
    ),
}


@pytest.mark.parametrize("given", TAKEN.values(), ids=TAKEN.keys())
def test_taken(given: core.Pod) -> None:
    assert validate_pod(given) == ()


METADATA = {
    "no name": (pod({"name": ""}), "metadata.name"),
    "a name with capitals": (pod({"name": "Web"}), "metadata.name"),
    "a name too long": (pod({"name": "x" * 254}), "metadata.name"),
    "no namespace": (pod({"namespace": ""}), "metadata.namespace"),
    "a namespace with dots": (pod({"namespace": "a.b"}), "metadata.namespace"),
    "a bad prefix": (pod({"generateName": "Web-"}), "metadata.generateName"),
    "a label key of two slashes": (pod({"labels": {"a/b/c": ""}}), "metadata.labels[a/b/c]"),
    "a label value with blanks": (pod({"labels": {"a": "b c"}}), "metadata.labels[a]"),
    "a label value too long": (pod({"labels": {"a": "b" * 64}}), "metadata.labels[a]"),
    "an annotation key with blanks": (pod({"annotations": {"a b": ""}}), "metadata.annotations[a b]"),
    "annotations too large": (pod({"annotations": {"a": "é" * 131072}}), "metadata.annotations"),
    "a finalizer without a domain": (pod({"finalizers": ["mine"]}), "metadata.finalizers[0]"),
    "two controllers": (
        pod(
            {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": n, "uid": n, "controller": True} for n in "ab"
                ]
            }
        ),
        "metadata.ownerReferences",
    ),
    "an owner without uid": (
        pod({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a"}]}),
        "metadata.ownerReferences[0].uid",
    ),
    "a mirror of no node": (pod({"annotations": {"kubernetes.io/config.mirror": "x"}}), "spec.nodeName"),
    "a deletion cost with a plus": (
        pod({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "+1"}}),
        "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
    ),
}

SPECS = {
    "no containers": (pod(containers=[]), "spec.containers"),
    "an unknown restart policy": (pod(restartPolicy="Sometimes"), "spec.restartPolicy"),
    "an unknown DNS policy": (pod(dnsPolicy="Mine"), "spec.dnsPolicy"),
    "DNS policy None without nameservers": (pod(dnsPolicy="None"), "spec.dnsConfig.nameservers"),
    "four nameservers": (pod(dnsConfig={"nameservers": ["10.0.0.1"] * 4}), "spec.dnsConfig.nameservers"),
    "a nameserver that is no address": (pod(dnsConfig={"nameservers": ["dns"]}), "spec.dnsConfig.nameservers[0]"),
    "an address with leading zeros": (pod(dnsConfig={"nameservers": ["010.0.0.1"]}), "spec.dnsConfig.nameservers[0]"),
    "an address of both families": (
        pod(dnsConfig={"nameservers": ["::ffff:10.0.0.1"]}),
        "spec.dnsConfig.nameservers[0]",
    ),
    "an address with a zone": (pod(dnsConfig={"nameservers": ["fe80::1%eth0"]}), "spec.dnsConfig.nameservers[0]"),
    "a bad search path": (pod(dnsConfig={"searches": ["a..b"]}), "spec.dnsConfig.searches[0]"),
    "too many search paths": (pod(dnsConfig={"searches": ["a"] * 33}), "spec.dnsConfig.searches"),
    "an option without name": (pod(dnsConfig={"options": [{}]}), "spec.dnsConfig.options[0].name"),
    "a deadline of nothing": (pod(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds"),
    "a deadline of ages": (pod(activeDeadlineSeconds=2**31), "spec.activeDeadlineSeconds"),
    "a hostname with dots": (pod(hostname="a.b"), "spec.hostname"),
    "a subdomain with dots": (pod(subdomain="a.b"), "spec.subdomain"),
    "a hostname of its own on the host's network": (
        pod(hostnameOverride="a", hostNetwork=True),
        "spec.hostnameOverride",
    ),
    "a host alias without address": (pod(hostAliases=[{"hostnames": ["a"]}]), "spec.hostAliases[0].ip"),
    "a host alias with a bad name": (
        pod(hostAliases=[{"ip": "::1", "hostnames": ["A"]}]),
        "spec.hostAliases[0].hostnames[0]",
    ),
    "a bad node name": (pod(nodeName="Node_1"), "spec.nodeName"),
    "a bad service account": (pod(serviceAccountName="Robot"), "spec.serviceAccountName"),
    "a bad priority class": (pod(priorityClassName="High!"), "spec.priorityClassName"),
    "an empty runtime class": (pod(runtimeClassName=""), "spec.runtimeClassName"),
    "an unknown preemption policy": (pod(preemptionPolicy="Maybe"), "spec.preemptionPolicy"),
    "a bad readiness gate": (pod(readinessGates=[{"conditionType": "a b"}]), "spec.readinessGates[0].conditionType"),
    "a scheduling gate twice": (pod(schedulingGates=[{"name": "a"}] * 2), "spec.schedulingGates[1].name"),
    "a node despite a gate": (pod(schedulingGates=[{"name": "a"}], nodeName="n"), "spec.nodeName"),
    "ephemeral containers from birth": (
        pod(ephemeralContainers=[{"name": "e", "image": "a"}]),
        "spec.ephemeralContainers",
    ),
    "negative overhead": (pod(overhead={"cpu": "-1"}), "spec.overhead[cpu]"),
    "an unknown system": (pod(os={"name": "plan9"}), "spec.os.name"),
    "options of Windows on linux": (
        pod(os={"name": "linux"}, securityContext={"windowsOptions": {}}),
        "spec.securityContext.windowsOptions",
    ),
    "a negative user": (pod(securityContext={"runAsUser": -1}), "spec.securityContext.runAsUser"),
    "a group too large": (
        pod(securityContext={"supplementalGroups": [2**31]}),
        "spec.securityContext.supplementalGroups[0]",
    ),
    "one process space with the host's": (pod(hostPID=True, shareProcessNamespace=True), "spec.shareProcessNamespace"),
    "a bad sysctl": (pod(securityContext={"sysctls": [{"name": "Kernel.x"}]}), "spec.securityContext.sysctls[0].name"),
    "a sysctl twice": (pod(securityContext={"sysctls": [{"name": "a"}] * 2}), "spec.securityContext.sysctls[1].name"),
    "a network sysctl on the host's network": (
        pod(hostNetwork=True, securityContext={"sysctls": [{"name": "net.a"}]}),
        "spec.securityContext.sysctls[0].name",
    ),
    "an IPC sysctl in the host's IPC": (
        pod(hostIPC=True, securityContext={"sysctls": [{"name": "kernel/sem"}]}),
        "spec.securityContext.sysctls[0].name",
    ),
    "a local seccomp profile without path": (
        pod(securityContext={"seccompProfile": {"type": "Localhost"}}),
        "spec.securityContext.seccompProfile.localhostProfile",
    ),
    "a seccomp profile that climbs": (
        pod(securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}),
        "spec.securityContext.seccompProfile.localhostProfile",
    ),
    "an AppArmor profile of no type": (
        pod(securityContext={"appArmorProfile": {}}),
        "spec.securityContext.appArmorProfile.type",
    ),
    "an unknown policy for groups": (
        pod(securityContext={"fsGroupChangePolicy": "x"}),
        "spec.securityContext.fsGroupChangePolicy",
    ),
    "the host's network without its users": (pod(hostUsers=False, hostNetwork=True), "spec.hostNetwork"),
    "pod-level devices": (pod(resources={"limits": {"example.com/gpu": 1}}), "spec.resources.limits[example.com/gpu]"),
    "pod-level claims": (pod(resources={"claims": []}), "spec.resources.claims"),
    "pod-level requests below those of containers": (
        pod(
            resources={"requests": {"cpu": "1"}},
            containers=[{"name": "c", "image": "a", "resources": {"requests": {"cpu": "2"}}}],
        ),
        "spec.resources.requests[cpu]",
    ),
    "a container's limit above the pod's": (
        pod(
            resources={"limits": {"cpu": "1"}},
            containers=[{"name": "c", "image": "a", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}],
        ),
        "spec.containers[0].resources.limits[cpu]",
    ),
    "a claim of nothing": (pod(resourceClaims=[{"name": "a"}]), "spec.resourceClaims[0]"),
}

CONTAINERS: dict[str, tuple[Json, str]] = {
    "no name": ({"name": ""}, "name"),
    "a name with dots": ({"name": "a.b"}, "name"),
    "no image": ({"image": ""}, "image"),
    "an image with blanks around": ({"image": " app"}, "image"),
    "an unknown pull policy": ({"imagePullPolicy": "Sometimes"}, "imagePullPolicy"),
    "an unknown message policy": ({"terminationMessagePolicy": "Log"}, "terminationMessagePolicy"),
    "a port of zero": ({"ports": [{}]}, "ports[0].containerPort"),
    "a port too large": ({"ports": [{"containerPort": 65536}]}, "ports[0].containerPort"),
    "a negative host port": ({"ports": [{"containerPort": 1, "hostPort": -1}]}, "ports[0].hostPort"),
    "an unknown protocol": ({"ports": [{"containerPort": 1, "protocol": "ICMP"}]}, "ports[0].protocol"),
    "a port name too long": ({"ports": [{"containerPort": 1, "name": "a" * 16}]}, "ports[0].name"),
    "a port name without letters": ({"ports": [{"containerPort": 1, "name": "80"}]}, "ports[0].name"),
    "a port name twice": ({"ports": [{"containerPort": n, "name": "a"} for n in (1, 2)]}, "ports[1].name"),
    "a host port twice": ({"ports": [{"containerPort": n, "hostPort": 9} for n in (1, 2)]}, "ports[1].hostPort"),
    "a variable without name": ({"env": [{}]}, "env[0].name"),
    "a variable with an equals sign": ({"env": [{"name": "a=b"}]}, "env[0].name"),
    "a variable that is not ASCII": ({"env": [{"name": "é"}]}, "env[0].name"),
    "a value from nowhere": ({"env": [{"name": "A", "valueFrom": {}}]}, "env[0].valueFrom"),
    "a value and a source": (
        {"env": [{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        "env[0].valueFrom",
    ),
    "variables from nowhere": ({"envFrom": [{}]}, "envFrom[0]"),
    "variables from a nameless secret": ({"envFrom": [{"secretRef": {}}]}, "envFrom[0].secretRef.name"),
    "a bad prefix": ({"envFrom": [{"prefix": "=", "secretRef": {"name": "s"}}]}, "envFrom[0].prefix"),
    "a mount of no volume": ({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}, "volumeMounts[0].name"),
    "a mount on nothing": ({"volumeMounts": [{"name": "scratch"}]}, "volumeMounts[0].mountPath"),
    "two mounts on one path": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x"}] * 2},
        "volumeMounts[1].mountPath",
    ),
    "a part that climbs": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x", "subPath": "a/../b"}]},
        "volumeMounts[0].subPath",
    ),
    "a part from the root": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x", "subPath": "/b"}]},
        "volumeMounts[0].subPath",
    ),
    "propagation without privilege": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x", "mountPropagation": "Bidirectional"}]},
        "volumeMounts[0].mountPropagation",
    ),
    "recursively read-only but writable": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x", "recursiveReadOnly": "Enabled"}]},
        "volumeMounts[0].recursiveReadOnly",
    ),
    "a directory as a device": ({"volumeDevices": [{"name": "scratch", "devicePath": "/d"}]}, "volumeDevices[0].name"),
    "a device that climbs": (
        {"volumeDevices": [{"name": "disk", "devicePath": "/../d"}]},
        "volumeDevices[0].devicePath",
    ),
    "a quantity that is none": ({"resources": {"limits": {"cpu": "lots"}}}, "resources.limits[cpu]"),
    "a negative quantity": ({"resources": {"requests": {"cpu": "-1"}}}, "resources.requests[cpu]"),
    "more requested than allowed": (
        {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}},
        "resources.requests[cpu]",
    ),
    "an unknown resource": ({"resources": {"limits": {"gpu": "1"}}}, "resources.limits[gpu]"),
    "half a device": ({"resources": {"limits": {"example.com/gpu": "0.5"}}}, "resources.limits[example.com/gpu]"),
    "a device without limit": (
        {"resources": {"requests": {"example.com/gpu": "1"}}},
        "resources.requests[example.com/gpu]",
    ),
    "fewer devices requested than allowed": (
        {"resources": {"limits": {"example.com/gpu": 2}, "requests": {"example.com/gpu": 1}}},
        "resources.requests[example.com/gpu]",
    ),
    "huge pages alone": ({"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}, "resources"),
    "half a huge page": (
        {"resources": {"limits": {"memory": "1", "hugepages-2Mi": "3Mi"}}},
        "resources.limits[hugepages-2Mi]",
    ),
    "huge pages of no size": (
        {"resources": {"limits": {"memory": "1", "hugepages-": "3Mi"}}},
        "resources.limits[hugepages-]",
    ),
    "a claim nobody declared": ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims[0]"),
    "a resize of storage": (
        {"resizePolicy": [{"resourceName": "storage", "restartPolicy": "NotRequired"}]},
        "resizePolicy[0].resourceName",
    ),
    "an unknown restart policy": ({"restartPolicy": "Sometimes"}, "restartPolicy"),
    "no escalation but privilege": (
        {"securityContext": {"allowPrivilegeEscalation": False, "privileged": True}},
        "securityContext.allowPrivilegeEscalation",
    ),
    "no escalation but a capability": (
        {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}},
        "securityContext.allowPrivilegeEscalation",
    ),
    "an Unmasked proc of the host's users": (
        {"securityContext": {"procMount": "Unmasked"}},
        "securityContext.procMount",
    ),
    "a probe that does nothing": ({"livenessProbe": {}}, "livenessProbe"),
    "a probe that does two things": ({"livenessProbe": {**EXEC, "tcpSocket": {"port": 1}}}, "livenessProbe.tcpSocket"),
    "a probe without command": ({"livenessProbe": {"exec": {}}}, "livenessProbe.exec.command"),
    "a probe of port zero": ({"livenessProbe": {"grpc": {}}}, "livenessProbe.grpc.port"),
    "a probe of a badly named port": (
        {"livenessProbe": {"tcpSocket": {"port": "a_b"}}},
        "livenessProbe.tcpSocket.port",
    ),
    "a probe over ftp": ({"livenessProbe": {"httpGet": {"port": 1, "scheme": "FTP"}}}, "livenessProbe.httpGet.scheme"),
    "a bad header": (
        {"livenessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}},
        "livenessProbe.httpGet.httpHeaders[0].name",
    ),
    "alive after two successes": ({"livenessProbe": {**EXEC, "successThreshold": 2}}, "livenessProbe.successThreshold"),
    "a negative period": ({"startupProbe": {**EXEC, "periodSeconds": -1}}, "startupProbe.periodSeconds"),
    "a probe's grace of nothing": (
        {"livenessProbe": {**EXEC, "terminationGracePeriodSeconds": 0}},
        "livenessProbe.terminationGracePeriodSeconds",
    ),
    "a grace for not being ready": (
        {"readinessProbe": {**EXEC, "terminationGracePeriodSeconds": 5}},
        "readinessProbe.terminationGracePeriodSeconds",
    ),
    "a hook that does nothing": ({"lifecycle": {"preStop": {}}}, "lifecycle.preStop"),
    "a sleep beyond the grace": (
        {"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}},
        "lifecycle.preStop.sleep.seconds",
    ),
    "a signal on an unknown system": ({"lifecycle": {"stopSignal": "SIGTERM"}}, "lifecycle.stopSignal"),
}

ELSEWHERE = {
    "two containers of one name": (pod(containers=[{"name": "c", "image": "a"}] * 2), "spec.containers[1].name"),
    "an init container of a container's name": (with_init(name="c"), "spec.initContainers[0].name"),
    "a probe of an init container": (with_init(livenessProbe=EXEC), "spec.initContainers[0].livenessProbe"),
    "a hook of an init container": (with_init(lifecycle={"preStop": EXEC}), "spec.initContainers[0].lifecycle"),
    "a resize that restarts an init container": (
        with_init(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]),
        "spec.initContainers[0].resizePolicy[0].restartPolicy",
    ),
    "a resize that restarts what never restarts": (
        pod(
            restartPolicy="Never",
            containers=[
                {
                    "name": "c",
                    "image": "a",
                    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
                }
            ],
        ),
        "spec.containers[0].resizePolicy[0].restartPolicy",
    ),
    "another port of the host's": (
        pod(hostNetwork=True, containers=[{"name": "c", "image": "a", "ports": [{"containerPort": 1, "hostPort": 2}]}]),
        "spec.containers[0].ports[0].hostPort",
    ),
    "two containers on one port of the host": (
        pod(containers=[{"name": n, "image": "a", "ports": [{"containerPort": 1, "hostPort": 2}]} for n in "ab"]),
        "spec.containers[1].ports[0].hostPort",
    ),
    "rules without a policy": (
        with_rules({"action": "Restart", "exitCodes": CODES}, policy=None),
        "spec.containers[0].restartPolicy",
    ),
    "a rule that does something else": (
        with_rules({"action": "Explode", "exitCodes": CODES}),
        "spec.containers[0].restartPolicyRules[0].action",
    ),
    "a rule about nothing": (with_rules({"action": "Restart"}), "spec.containers[0].restartPolicyRules[0].exitCodes"),
    "a rule that compares": (
        with_rules({"action": "Restart", "exitCodes": {"operator": "Gt"}}),
        "spec.containers[0].restartPolicyRules[0].exitCodes.operator",
    ),
    "too many rules": (
        with_rules(*[{"action": "Restart", "exitCodes": CODES}] * 21),
        "spec.containers[0].restartPolicyRules",
    ),
    "a field nobody shows": (
        with_env(fieldRef={"fieldPath": "spec.containers"}),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    "all labels as a variable": (
        with_env(fieldRef={"fieldPath": "metadata.labels"}),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    "a part of a name": (
        with_env(fieldRef={"fieldPath": "metadata.name['a']"}),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    "a field of another version": (
        with_env(fieldRef={"apiVersion": "v2", "fieldPath": "metadata.name"}),
        "spec.containers[0].env[0].valueFrom.fieldRef.apiVersion",
    ),
    "a resource nobody shows": (
        with_env(resourceFieldRef={"resource": "limits.gpu"}),
        "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource",
    ),
    "cpu in megabytes": (
        with_env(resourceFieldRef={"resource": "limits.cpu", "divisor": "1Mi"}),
        "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor",
    ),
    "a key of a nameless secret": (
        with_env(secretKeyRef={"key": "k"}),
        "spec.containers[0].env[0].valueFrom.secretKeyRef.name",
    ),
    "a key that climbs": (
        with_env(configMapKeyRef={"name": "a", "key": "..k"}),
        "spec.containers[0].env[0].valueFrom.configMapKeyRef.key",
    ),
    "a key of a file on a disk": (
        with_env(fileKeyRef={"key": "K", "path": "p", "volumeName": "disk"}),
        "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName",
    ),
}

VOLUMES = {
    "of two kinds": (with_volume(emptyDir={}, hostPath={"path": "/"}), ".hostPath"),
    "of negative size": (with_volume(emptyDir={"sizeLimit": "-1"}), ".emptyDir.sizeLimit"),
    "of unreadable size": (with_volume(emptyDir={"sizeLimit": "big"}), ".emptyDir.sizeLimit"),
    "a host path that climbs": (with_volume(hostPath={"path": "/a/../b"}), ".hostPath.path"),
    "a host path of nothing": (with_volume(hostPath={}), ".hostPath.path"),
    "a host path of unknown type": (with_volume(hostPath={"path": "/", "type": "Pipe"}), ".hostPath.type"),
    "a nameless secret": (with_volume(secret={}), ".secret.secretName"),
    "a nameless config map": (with_volume(configMap={}), ".configMap.name"),
    "a mode too large": (with_volume(configMap={"name": "a", "defaultMode": 0o1000}), ".configMap.defaultMode"),
    "an item without key": (with_volume(secret={"secretName": "a", "items": [{"path": "p"}]}), ".secret.items[0].key"),
    "an item without path": (with_volume(secret={"secretName": "a", "items": [{"key": "k"}]}), ".secret.items[0].path"),
    "an item that climbs": (
        with_volume(secret={"secretName": "a", "items": [{"key": "k", "path": "../p"}]}),
        ".secret.items[0].path",
    ),
    "an item named as the agent's own": (
        with_volume(secret={"secretName": "a", "items": [{"key": "k", "path": "..data"}]}),
        ".secret.items[0].path",
    ),
    "an item from the root": (
        with_volume(configMap={"name": "a", "items": [{"key": "k", "path": "/p"}]}),
        ".configMap.items[0].path",
    ),
    "a field no file shows": (
        with_volume(downwardAPI={"items": [{"path": "p", "fieldRef": {"fieldPath": "status.podIP"}}]}),
        ".downwardAPI.items[0].fieldRef.fieldPath",
    ),
    "a file of nothing": (with_volume(downwardAPI={"items": [{"path": "p"}]}), ".downwardAPI.items[0]"),
    "a resource of no container": (
        with_volume(downwardAPI={"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]}),
        ".downwardAPI.items[0].resourceFieldRef.containerName",
    ),
    "a token for a minute": (
        with_projection({"serviceAccountToken": {"path": "t", "expirationSeconds": 60}}),
        ".projected.sources[0].serviceAccountToken.expirationSeconds",
    ),
    "a source of two kinds": (
        with_projection({"secret": {"name": "s"}, "configMap": {"name": "c"}}),
        ".projected.sources[0].secret",
    ),
    "two sources on one path": (
        with_projection(*[{"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}}] * 2),
        ".projected.sources[1].secret.items[0].path",
    ),
    "a trust bundle of nobody": (
        with_projection({"clusterTrustBundle": {"path": "p"}}),
        ".projected.sources[0].clusterTrustBundle",
    ),
    "a certificate of no key": (
        with_projection({"podCertificate": {"signerName": "a.b/c", "credentialBundlePath": "p"}}),
        ".projected.sources[0].podCertificate.keyType",
    ),
    "a nameless claim": (with_volume(persistentVolumeClaim={}), ".persistentVolumeClaim.claimName"),
    "an ephemeral claim of nothing": (with_volume(ephemeral={}), ".ephemeral.volumeClaimTemplate"),
    "an ephemeral claim without size": (
        with_volume(ephemeral={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}),
        ".ephemeral.volumeClaimTemplate.spec.resources.requests[storage]",
    ),
    "an image volume of nothing": (with_volume(image={}), ".image.reference"),
    "a CSI volume without driver": (with_volume(csi={}), ".csi.driver"),
    "an NFS volume without server": (with_volume(nfs={"path": "/x"}), ".nfs.server"),
    "an NFS volume with a relative path": (with_volume(nfs={"server": "s", "path": "x"}), ".nfs.path"),
    "an iSCSI disk of a bad name": (with_volume(iscsi={"targetPortal": "t", "iqn": "iqn.x"}), ".iscsi.iqn"),
    "a repository that climbs": (with_volume(gitRepo={"repository": "r", "directory": "../x"}), ".gitRepo.directory"),
    "a fibre channel without target": (with_volume(fc={}), ".fc"),
    "a reserved flex option": (
        with_volume(flexVolume={"driver": "d", "options": {"a.k8s.io/b": ""}}),
        ".flexVolume.options[a.k8s.io/b]",
    ),
}

PLACES = {
    "a bad node selector": (pod(nodeSelector={"a": "b c"}), "spec.nodeSelector[a]"),
    "a toleration of no key": (pod(tolerations=[{"value": "v"}]), "spec.tolerations[0].operator"),
    "a toleration that compares": (
        pod(tolerations=[{"key": "k", "operator": "Gt", "value": "1"}]),
        "spec.tolerations[0].operator",
    ),
    "a toleration of a value that only exists": (
        pod(tolerations=[{"key": "k", "operator": "Exists", "value": "v"}]),
        "spec.tolerations[0].value",
    ),
    "a toleration of an unknown effect": (
        pod(tolerations=[{"key": "k", "effect": "Never"}]),
        "spec.tolerations[0].effect",
    ),
    "a toleration for a while of what does not evict": (
        pod(tolerations=[{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 1}]),
        "spec.tolerations[0].effect",
    ),
    "an affinity of no term": (
        pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}),
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
    ),
    "a weight too large": (
        pod(
            affinity={
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "podAffinityTerm": TERM}]
                }
            }
        ),
        "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
    ),
    "an affinity of no topology": (
        pod(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
    ),
    "a spread without skew": (
        pod(topologySpreadConstraints=[{"topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]),
        "spec.topologySpreadConstraints[0].maxSkew",
    ),
    "a spread twice": (
        pod(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}] * 2),
        "spec.topologySpreadConstraints[1].topologyKey",
    ),
    "domains of a wish": (
        pod(
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 1}
            ]
        ),
        "spec.topologySpreadConstraints[0].minDomains",
    ),
}

REFUSED = {
    **{f"metadata: {name}": case for name, case in METADATA.items()},
    **{f"spec: {name}": case for name, case in SPECS.items()},
    **{
        f"container: {name}": (with_container(**parts), f"spec.containers[0].{field}")
        for name, (parts, field) in CONTAINERS.items()
    },
    **{f"containers: {name}": case for name, case in ELSEWHERE.items()},
    **{f"volume: {name}": (given, f"spec.volumes[0]{field}") for name, (given, field) in VOLUMES.items()},
    **{f"placement: {name}": case for name, case in PLACES.items()},
}


@pytest.mark.parametrize("given, field", REFUSED.values(), ids=REFUSED.keys())
def test_a_pod_is_rejected_for_exactly_this_field(given: core.Pod, field: str) -> None:
    assert fields(given) == {field}


@pytest.mark.parametrize("given", [case[0] for case in REFUSED.values()], ids=REFUSED.keys())
def test_problems_are_worded_like_kubernetes_field_errors(given: core.Pod) -> None:
    for problem in validate_pod(given):
        assert is_field_error(problem), problem


def test_all_problems_are_reported_at_once() -> None:
    given = pod({"name": "Web"}, restartPolicy="x", containers=[{"name": "C", "ports": [{"containerPort": 0}]}])
    assert fields(given) == {
        "metadata.name",
        "spec.restartPolicy",
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.containers[0].ports[0].containerPort",
    }


def test_ephemeral_containers_may_be_added_but_may_not_do_everything() -> None:
    plain = {"name": "e", "image": "a", "targetContainerName": "c"}
    assert validate_pod(pod(ephemeralContainers=[plain]), Occasion.UPDATE) == ()
    greedy = {
        **plain,
        "name": "c",
        "targetContainerName": "nobody",
        "ports": [{"containerPort": 1}],
        "resources": {"requests": {"cpu": "1"}},
        "readinessProbe": EXEC,
        "volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "y"}],
    }
    given = pod(ephemeralContainers=[greedy], volumes=[{"name": "v"}])
    at = "spec.ephemeralContainers[0]"
    assert {problem.field for problem in validate_pod(given, Occasion.UPDATE)} == {
        f"{at}.name",
        f"{at}.targetContainerName",
        f"{at}.ports",
        f"{at}.resources",
        f"{at}.readinessProbe",
        f"{at}.volumeMounts[0].subPath",
    }


def test_a_token_needs_a_service_account() -> None:
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
    given = pod(volumes=[{"name": "v", **token}])
    assert fields(given) == {"spec.volumes[0].projected.sources[0].serviceAccountToken"}


@pytest.mark.parametrize("seed", range(60))
def test_every_decodable_pod_can_be_validated(seed: int) -> None:
    given = wild_pod(seed)
    problems = validate_pod(given)
    assert problems == validate_pod(default_pod(given))
    assert all(problem.field and is_field_error(problem) for problem in problems)
