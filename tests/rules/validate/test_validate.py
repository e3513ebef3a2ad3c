"""Validation of pods: it accepts and rejects the same pods as the API server."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.errors import Problem
from podkeeper.model.k8s import core
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.rules.validate.pod import RequestKind, validate_pod
from tests.rules.random_pods import random_pod

Json = dict[str, Any]
LONG = "x" * 300


def parsed(metadata: Json | None = None, **spec: Any) -> core.Pod:
    containers = spec.pop("containers", [{"name": "c", "image": "app:v1"}])
    wire = {
        "metadata": {"name": "web", "namespace": "default", **(metadata or {})},
        "spec": {**spec, "containers": containers},
    }
    return msgspec.convert(wire, core.Pod)


def with_container(**parts: Any) -> core.Pod:
    volumes = [{"name": "scratch"}, {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
    return parsed(containers=[{"name": "c", "image": "app:v1", **parts}], volumes=volumes)


def with_init(**parts: Any) -> core.Pod:
    return parsed(initContainers=[{"name": "i", "image": "app:v1", **parts}])


def with_volume(**source: Any) -> core.Pod:
    return parsed(volumes=[{"name": "v", **source}], serviceAccountName="robot")


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
    "the smallest pod": parsed(),
    "a name with dots": parsed({"name": "web.0"}),
    "labels and annotations": parsed(
        {"labels": {"app": "web", "example.com/x": ""}, "annotations": {"Example.com/A": LONG}}
    ),
    "a standard finalizer and a custom one": parsed({"finalizers": ["orphan", "example.com/x"]}),
    "an invalid image name, which the runtime reports": with_container(image="No Such::Image"),
    "any grace period": parsed(terminationGracePeriodSeconds=-5),
    "unusual variables": with_container(env=[{"name": "a b.c-1"}, {"name": "1"}]),
    "one label as a variable": with_env(fieldRef={"fieldPath": "metadata.labels['example.com/app']"}),
    "the deprecated field spec.host": with_env(fieldRef={"fieldPath": "spec.host"}),
    "huge pages with a divisor": with_env(resourceFieldRef={"resource": "limits.hugepages-2Mi", "divisor": "1Mi"}),
    "fileKeyRef": with_env(fileKeyRef={"key": "K", "path": "a/b", "volumeName": "scratch"}),
    "a sidecar with probes and hooks": with_init(
        restartPolicy="Always", startupProbe=EXEC, lifecycle={"preStop": EXEC}
    ),
    "restart rules": with_rules(
        {"action": "Restart", "exitCodes": CODES}, {"action": "RestartAllContainers", "exitCodes": CODES}
    ),
    "restart rules of a sidecar": with_init(
        restartPolicy="Always", restartPolicyRules=[{"action": "RestartAllContainers", "exitCodes": CODES}]
    ),
    "a sleep as long as the grace period": with_container(lifecycle={"preStop": {"sleep": {"seconds": 30}}}),
    "no sleep": with_container(lifecycle={"preStop": {"sleep": {"seconds": 0}}}),
    "a probe of a named port": with_container(livenessProbe={"tcpSocket": {"port": "web-1"}}),
    "readiness after several successes": with_container(readinessProbe={**EXEC, "successThreshold": 3}),
    "a stop signal with a known OS": parsed(
        os={"name": "linux"}, containers=[{"name": "c", "image": "a", "lifecycle": {"stopSignal": "SIGRTMIN+3"}}]
    ),
    "the same port for two protocols": with_container(
        ports=[{"containerPort": 53, "hostPort": 53}, {"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]
    ),
    "extended resources": with_container(resources={"limits": {"example.com/gpu": 1}}),
    "huge pages beside memory": with_container(resources={"limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}}),
    "a block device of a claim": with_container(volumeDevices=[{"name": "disk", "devicePath": "/dev/x"}]),
    "a mount with a sub-path": with_container(volumeMounts=[{"name": "scratch", "mountPath": "/x", "subPath": "a/b"}]),
    "a mount propagated both ways": with_container(
        securityContext={"privileged": True},
        volumeMounts=[{"name": "scratch", "mountPath": "/x", "mountPropagation": "Bidirectional"}],
    ),
    "the projected sources of a service account": with_projection(
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ),
    "a volume without a source": with_volume(),
    "a host path of some type": with_volume(hostPath={"path": "/x", "type": "DirectoryOrCreate"}),
    "an ephemeral claim": with_volume(ephemeral={"volumeClaimTemplate": CLAIM}),
    "a CSI volume": with_volume(csi={"driver": "csi.Example.com"}),
    "an image volume": with_volume(image={"reference": "app:v1"}),
    "a toleration of everything": parsed(tolerations=[{"operator": "Exists"}]),
    "a toleration with tolerationSeconds": parsed(
        tolerations=[{"key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": -1}]
    ),
    "all affinities": parsed(
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
    "a topology spread constraint": parsed(
        topologySpreadConstraints=[
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2},
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        ]
    ),
    "its own DNS configuration": parsed(
        dnsPolicy="None",
        dnsConfig={"nameservers": ["::1"], "searches": [".", "_a.example."], "options": [{"name": "ndots"}]},
    ),
    "host aliases": parsed(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a.b"]}]),
    "sysctls with dots and slashes": parsed(
        securityContext={"sysctls": [{"name": "net/ipv4/tcp_syncookies"}, {"name": "kernel.shm_rmid_forced"}]}
    ),
    "the host network": parsed(
        hostNetwork=True, containers=[{"name": "c", "image": "a", "ports": [{"containerPort": 80}]}]
    ),
    "pod-level resources that cover the containers": parsed(
        resources={"limits": {"cpu": "2"}},
        containers=[{"name": "c", "image": "a", "resources": {"requests": {"cpu": "1"}}}],
    ),
    "a resource claim": parsed(
        resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}],
        containers=[{"name": "c", "image": "a", "resources": {"claims": [{"name": "gpu"}]}}],
    ),
    "an Unmasked proc in its own user namespace": parsed(
        hostUsers=False, containers=[{"name": "c", "image": "a", "securityContext": {"procMount": "Unmasked"}}]
    ),
    "readiness and scheduling gates": parsed(
        readinessGates=[{"conditionType": "example.com/ready"}], schedulingGates=[{"name": "example.com/wait"}]
    ),
    "runs as root in a strict group": parsed(
        securityContext={"runAsUser": 0, "supplementalGroupsPolicy": "Strict", "seLinuxChangePolicy": "Recursive"}
    ),
}


@pytest.mark.parametrize("given", TAKEN.values(), ids=TAKEN.keys())
def test_valid_pods_are_accepted(given: core.Pod) -> None:
    assert validate_pod(given) == ()


METADATA = {
    "no name": (parsed({"name": ""}), "metadata.name"),
    "a name with capitals": (parsed({"name": "Web"}), "metadata.name"),
    "a name too long": (parsed({"name": "x" * 254}), "metadata.name"),
    "no namespace": (parsed({"namespace": ""}), "metadata.namespace"),
    "a namespace with dots": (parsed({"namespace": "a.b"}), "metadata.namespace"),
    "a UID that is a path": (parsed({"uid": "a/b"}), "metadata.uid"),
    "a UID that is a parent directory": (parsed({"uid": ".."}), "metadata.uid"),
    "a UID that is this directory": (parsed({"uid": "."}), "metadata.uid"),
    "a UID with a line break": (parsed({"uid": "a\nb"}), "metadata.uid"),
    "a UID too long for a file name": (parsed({"uid": "x" * 129}), "metadata.uid"),
    "a bad prefix": (parsed({"generateName": "Web-"}), "metadata.generateName"),
    "a label key of two slashes": (parsed({"labels": {"a/b/c": ""}}), "metadata.labels[a/b/c]"),
    "a label value with blanks": (parsed({"labels": {"a": "b c"}}), "metadata.labels[a]"),
    "a label value too long": (parsed({"labels": {"a": "b" * 64}}), "metadata.labels[a]"),
    "an annotation key with blanks": (parsed({"annotations": {"a b": ""}}), "metadata.annotations[a b]"),
    "annotations too large": (parsed({"annotations": {"a": "é" * 131072}}), "metadata.annotations"),
    "a finalizer without a domain": (parsed({"finalizers": ["mine"]}), "metadata.finalizers[0]"),
    "two controllers": (
        parsed(
            {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": n, "uid": n, "controller": True} for n in "ab"
                ]
            }
        ),
        "metadata.ownerReferences",
    ),
    "an owner without uid": (
        parsed({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a"}]}),
        "metadata.ownerReferences[0].uid",
    ),
    "a mirror pod without a node": (parsed({"annotations": {"kubernetes.io/config.mirror": "x"}}), "spec.nodeName"),
    "a deletion cost with a plus": (
        parsed({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "+1"}}),
        "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
    ),
}

SPECS = {
    "no containers": (parsed(containers=[]), "spec.containers"),
    "an unknown restart policy": (parsed(restartPolicy="Sometimes"), "spec.restartPolicy"),
    "an unknown DNS policy": (parsed(dnsPolicy="Mine"), "spec.dnsPolicy"),
    "DNS policy None without nameservers": (parsed(dnsPolicy="None"), "spec.dnsConfig.nameservers"),
    "four nameservers": (parsed(dnsConfig={"nameservers": ["10.0.0.1"] * 4}), "spec.dnsConfig.nameservers"),
    "a nameserver that is not an address": (
        parsed(dnsConfig={"nameservers": ["dns"]}),
        "spec.dnsConfig.nameservers[0]",
    ),
    "an address with leading zeros": (
        parsed(dnsConfig={"nameservers": ["010.0.0.1"]}),
        "spec.dnsConfig.nameservers[0]",
    ),
    "an IPv4-mapped IPv6 address": (
        parsed(dnsConfig={"nameservers": ["::ffff:10.0.0.1"]}),
        "spec.dnsConfig.nameservers[0]",
    ),
    "an address with a zone": (parsed(dnsConfig={"nameservers": ["fe80::1%eth0"]}), "spec.dnsConfig.nameservers[0]"),
    "a bad search path": (parsed(dnsConfig={"searches": ["a..b"]}), "spec.dnsConfig.searches[0]"),
    "too many search paths": (parsed(dnsConfig={"searches": ["a"] * 33}), "spec.dnsConfig.searches"),
    "an option without name": (parsed(dnsConfig={"options": [{}]}), "spec.dnsConfig.options[0].name"),
    "a deadline of zero": (parsed(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds"),
    "a deadline that is too large": (parsed(activeDeadlineSeconds=2**31), "spec.activeDeadlineSeconds"),
    "a hostname with dots": (parsed(hostname="a.b"), "spec.hostname"),
    "a subdomain with dots": (parsed(subdomain="a.b"), "spec.subdomain"),
    "hostnameOverride in the host network": (
        parsed(hostnameOverride="a", hostNetwork=True),
        "spec.hostnameOverride",
    ),
    "a host alias without address": (parsed(hostAliases=[{"hostnames": ["a"]}]), "spec.hostAliases[0].ip"),
    "a host alias with a bad name": (
        parsed(hostAliases=[{"ip": "::1", "hostnames": ["A"]}]),
        "spec.hostAliases[0].hostnames[0]",
    ),
    "a bad node name": (parsed(nodeName="Node_1"), "spec.nodeName"),
    "a bad service account": (parsed(serviceAccountName="Robot"), "spec.serviceAccountName"),
    "a bad priority class": (parsed(priorityClassName="High!"), "spec.priorityClassName"),
    "an empty runtime class": (parsed(runtimeClassName=""), "spec.runtimeClassName"),
    "an unknown preemption policy": (parsed(preemptionPolicy="Maybe"), "spec.preemptionPolicy"),
    "a bad readiness gate": (parsed(readinessGates=[{"conditionType": "a b"}]), "spec.readinessGates[0].conditionType"),
    "a duplicate scheduling gate": (parsed(schedulingGates=[{"name": "a"}] * 2), "spec.schedulingGates[1].name"),
    "a node name with a scheduling gate": (parsed(schedulingGates=[{"name": "a"}], nodeName="n"), "spec.nodeName"),
    "ephemeral containers at creation": (
        parsed(ephemeralContainers=[{"name": "e", "image": "a"}]),
        "spec.ephemeralContainers",
    ),
    "negative overhead": (parsed(overhead={"cpu": "-1"}), "spec.overhead[cpu]"),
    "an unknown OS": (parsed(os={"name": "plan9"}), "spec.os.name"),
    "Windows options on Linux": (
        parsed(os={"name": "linux"}, securityContext={"windowsOptions": {}}),
        "spec.securityContext.windowsOptions",
    ),
    "a negative user": (parsed(securityContext={"runAsUser": -1}), "spec.securityContext.runAsUser"),
    "a group too large": (
        parsed(securityContext={"supplementalGroups": [2**31]}),
        "spec.securityContext.supplementalGroups[0]",
    ),
    "shareProcessNamespace with hostPID": (
        parsed(hostPID=True, shareProcessNamespace=True),
        "spec.shareProcessNamespace",
    ),
    "a bad sysctl": (
        parsed(securityContext={"sysctls": [{"name": "Kernel.x"}]}),
        "spec.securityContext.sysctls[0].name",
    ),
    "a duplicate sysctl": (
        parsed(securityContext={"sysctls": [{"name": "a"}] * 2}),
        "spec.securityContext.sysctls[1].name",
    ),
    "a network sysctl in the host network": (
        parsed(hostNetwork=True, securityContext={"sysctls": [{"name": "net.a"}]}),
        "spec.securityContext.sysctls[0].name",
    ),
    "an IPC sysctl with host IPC": (
        parsed(hostIPC=True, securityContext={"sysctls": [{"name": "kernel/sem"}]}),
        "spec.securityContext.sysctls[0].name",
    ),
    "a local seccomp profile without a path": (
        parsed(securityContext={"seccompProfile": {"type": "Localhost"}}),
        "spec.securityContext.seccompProfile.localhostProfile",
    ),
    "a seccomp profile with ..": (
        parsed(securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}),
        "spec.securityContext.seccompProfile.localhostProfile",
    ),
    "an AppArmor profile without a type": (
        parsed(securityContext={"appArmorProfile": {}}),
        "spec.securityContext.appArmorProfile.type",
    ),
    "an unknown policy for supplemental groups": (
        parsed(securityContext={"fsGroupChangePolicy": "x"}),
        "spec.securityContext.fsGroupChangePolicy",
    ),
    "the host network with its own user namespace": (parsed(hostUsers=False, hostNetwork=True), "spec.hostNetwork"),
    "pod-level extended resources": (
        parsed(resources={"limits": {"example.com/gpu": 1}}),
        "spec.resources.limits[example.com/gpu]",
    ),
    "pod-level claims": (parsed(resources={"claims": []}), "spec.resources.claims"),
    "pod-level requests below those of containers": (
        parsed(
            resources={"requests": {"cpu": "1"}},
            containers=[{"name": "c", "image": "a", "resources": {"requests": {"cpu": "2"}}}],
        ),
        "spec.resources.requests[cpu]",
    ),
    "a container's limit above the pod's": (
        parsed(
            resources={"limits": {"cpu": "1"}},
            containers=[{"name": "c", "image": "a", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}],
        ),
        "spec.containers[0].resources.limits[cpu]",
    ),
    "a resource claim without a source": (parsed(resourceClaims=[{"name": "a"}]), "spec.resourceClaims[0]"),
}

CONTAINERS: dict[str, tuple[Json, str]] = {
    "no name": ({"name": ""}, "name"),
    "a name with dots": ({"name": "a.b"}, "name"),
    "no image": ({"image": ""}, "image"),
    "an image with leading and trailing spaces": ({"image": " app"}, "image"),
    "an unknown pull policy": ({"imagePullPolicy": "Sometimes"}, "imagePullPolicy"),
    "an unknown message policy": ({"terminationMessagePolicy": "Log"}, "terminationMessagePolicy"),
    "a port of zero": ({"ports": [{}]}, "ports[0].containerPort"),
    "a port too large": ({"ports": [{"containerPort": 65536}]}, "ports[0].containerPort"),
    "a negative host port": ({"ports": [{"containerPort": 1, "hostPort": -1}]}, "ports[0].hostPort"),
    "an unknown protocol": ({"ports": [{"containerPort": 1, "protocol": "ICMP"}]}, "ports[0].protocol"),
    "a port name too long": ({"ports": [{"containerPort": 1, "name": "a" * 16}]}, "ports[0].name"),
    "a port name without letters": ({"ports": [{"containerPort": 1, "name": "80"}]}, "ports[0].name"),
    "a duplicate port name": ({"ports": [{"containerPort": n, "name": "a"} for n in (1, 2)]}, "ports[1].name"),
    "a duplicate host port": ({"ports": [{"containerPort": n, "hostPort": 9} for n in (1, 2)]}, "ports[1].hostPort"),
    "a variable without a name": ({"env": [{}]}, "env[0].name"),
    "a variable with an equals sign": ({"env": [{"name": "a=b"}]}, "env[0].name"),
    "a variable that is not ASCII": ({"env": [{"name": "é"}]}, "env[0].name"),
    "a valueFrom without a source": ({"env": [{"name": "A", "valueFrom": {}}]}, "env[0].valueFrom"),
    "a value and a source": (
        {"env": [{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        "env[0].valueFrom",
    ),
    "an envFrom without a source": ({"envFrom": [{}]}, "envFrom[0]"),
    "an envFrom of a secret without a name": ({"envFrom": [{"secretRef": {}}]}, "envFrom[0].secretRef.name"),
    "a bad prefix": ({"envFrom": [{"prefix": "=", "secretRef": {"name": "s"}}]}, "envFrom[0].prefix"),
    "a mount of an unknown volume": ({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}, "volumeMounts[0].name"),
    "a mount without a path": ({"volumeMounts": [{"name": "scratch"}]}, "volumeMounts[0].mountPath"),
    "two mounts on one path": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x"}] * 2},
        "volumeMounts[1].mountPath",
    ),
    "a sub-path with ..": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x", "subPath": "a/../b"}]},
        "volumeMounts[0].subPath",
    ),
    "an absolute sub-path": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x", "subPath": "/b"}]},
        "volumeMounts[0].subPath",
    ),
    "bidirectional propagation without privilege": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x", "mountPropagation": "Bidirectional"}]},
        "volumeMounts[0].mountPropagation",
    ),
    "recursively read-only but writable": (
        {"volumeMounts": [{"name": "scratch", "mountPath": "/x", "recursiveReadOnly": "Enabled"}]},
        "volumeMounts[0].recursiveReadOnly",
    ),
    "a block device of a volume that is not a claim": (
        {"volumeDevices": [{"name": "scratch", "devicePath": "/d"}]},
        "volumeDevices[0].name",
    ),
    "a device path with ..": (
        {"volumeDevices": [{"name": "disk", "devicePath": "/../d"}]},
        "volumeDevices[0].devicePath",
    ),
    "an invalid quantity": ({"resources": {"limits": {"cpu": "lots"}}}, "resources.limits[cpu]"),
    "a negative quantity": ({"resources": {"requests": {"cpu": "-1"}}}, "resources.requests[cpu]"),
    "more requested than allowed": (
        {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}},
        "resources.requests[cpu]",
    ),
    "an unknown resource": ({"resources": {"limits": {"gpu": "1"}}}, "resources.limits[gpu]"),
    "a fraction of an extended resource": (
        {"resources": {"limits": {"example.com/gpu": "0.5"}}},
        "resources.limits[example.com/gpu]",
    ),
    "an extended resource without a limit": (
        {"resources": {"requests": {"example.com/gpu": "1"}}},
        "resources.requests[example.com/gpu]",
    ),
    "a request of extended resources below the limit": (
        {"resources": {"limits": {"example.com/gpu": 2}, "requests": {"example.com/gpu": 1}}},
        "resources.requests[example.com/gpu]",
    ),
    "huge pages alone": ({"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}, "resources"),
    "a fraction of a huge page": (
        {"resources": {"limits": {"memory": "1", "hugepages-2Mi": "3Mi"}}},
        "resources.limits[hugepages-2Mi]",
    ),
    "huge pages without a size": (
        {"resources": {"limits": {"memory": "1", "hugepages-": "3Mi"}}},
        "resources.limits[hugepages-]",
    ),
    "an undeclared resource claim": ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims[0]"),
    "a resize policy for storage": (
        {"resizePolicy": [{"resourceName": "storage", "restartPolicy": "NotRequired"}]},
        "resizePolicy[0].resourceName",
    ),
    "an unknown restart policy": ({"restartPolicy": "Sometimes"}, "restartPolicy"),
    "allowPrivilegeEscalation false with privileged": (
        {"securityContext": {"allowPrivilegeEscalation": False, "privileged": True}},
        "securityContext.allowPrivilegeEscalation",
    ),
    "allowPrivilegeEscalation false with CAP_SYS_ADMIN": (
        {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}},
        "securityContext.allowPrivilegeEscalation",
    ),
    "an Unmasked proc in the host user namespace": (
        {"securityContext": {"procMount": "Unmasked"}},
        "securityContext.procMount",
    ),
    "a probe without an action": ({"livenessProbe": {}}, "livenessProbe"),
    "a probe with two actions": ({"livenessProbe": {**EXEC, "tcpSocket": {"port": 1}}}, "livenessProbe.tcpSocket"),
    "a probe without a command": ({"livenessProbe": {"exec": {}}}, "livenessProbe.exec.command"),
    "a probe of port zero": ({"livenessProbe": {"grpc": {}}}, "livenessProbe.grpc.port"),
    "a probe of an invalid port name": (
        {"livenessProbe": {"tcpSocket": {"port": "a_b"}}},
        "livenessProbe.tcpSocket.port",
    ),
    "a probe over ftp": ({"livenessProbe": {"httpGet": {"port": 1, "scheme": "FTP"}}}, "livenessProbe.httpGet.scheme"),
    "a bad header": (
        {"livenessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}},
        "livenessProbe.httpGet.httpHeaders[0].name",
    ),
    "a liveness probe with two successes": (
        {"livenessProbe": {**EXEC, "successThreshold": 2}},
        "livenessProbe.successThreshold",
    ),
    "a negative period": ({"startupProbe": {**EXEC, "periodSeconds": -1}}, "startupProbe.periodSeconds"),
    "a probe's grace period of zero": (
        {"livenessProbe": {**EXEC, "terminationGracePeriodSeconds": 0}},
        "livenessProbe.terminationGracePeriodSeconds",
    ),
    "a grace period of a readiness probe": (
        {"readinessProbe": {**EXEC, "terminationGracePeriodSeconds": 5}},
        "readinessProbe.terminationGracePeriodSeconds",
    ),
    "a hook without an action": ({"lifecycle": {"preStop": {}}}, "lifecycle.preStop"),
    "a sleep longer than the grace period": (
        {"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}},
        "lifecycle.preStop.sleep.seconds",
    ),
    "a stop signal without an OS": ({"lifecycle": {"stopSignal": "SIGTERM"}}, "lifecycle.stopSignal"),
}

ELSEWHERE = {
    "two containers of one name": (parsed(containers=[{"name": "c", "image": "a"}] * 2), "spec.containers[1].name"),
    "an init container of a container's name": (with_init(name="c"), "spec.initContainers[0].name"),
    "a probe of an init container": (with_init(livenessProbe=EXEC), "spec.initContainers[0].livenessProbe"),
    "a hook of an init container": (with_init(lifecycle={"preStop": EXEC}), "spec.initContainers[0].lifecycle"),
    "a resize that restarts an init container": (
        with_init(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]),
        "spec.initContainers[0].resizePolicy[0].restartPolicy",
    ),
    "a resize that restarts a container with policy Never": (
        parsed(
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
    "a host port that differs in the host network": (
        parsed(
            hostNetwork=True, containers=[{"name": "c", "image": "a", "ports": [{"containerPort": 1, "hostPort": 2}]}]
        ),
        "spec.containers[0].ports[0].hostPort",
    ),
    "two containers with one host port": (
        parsed(containers=[{"name": n, "image": "a", "ports": [{"containerPort": 1, "hostPort": 2}]} for n in "ab"]),
        "spec.containers[1].ports[0].hostPort",
    ),
    "rules without a policy": (
        with_rules({"action": "Restart", "exitCodes": CODES}, policy=None),
        "spec.containers[0].restartPolicy",
    ),
    "a rule with an unknown action": (
        with_rules({"action": "Explode", "exitCodes": CODES}),
        "spec.containers[0].restartPolicyRules[0].action",
    ),
    "a rule without exit codes": (
        with_rules({"action": "Restart"}),
        "spec.containers[0].restartPolicyRules[0].exitCodes",
    ),
    "a rule with an unknown operator": (
        with_rules({"action": "Restart", "exitCodes": {"operator": "Gt"}}),
        "spec.containers[0].restartPolicyRules[0].exitCodes.operator",
    ),
    "too many rules": (
        with_rules(*[{"action": "Restart", "exitCodes": CODES}] * 21),
        "spec.containers[0].restartPolicyRules",
    ),
    "an unknown field": (
        with_env(fieldRef={"fieldPath": "spec.containers"}),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    "all labels as a variable": (
        with_env(fieldRef={"fieldPath": "metadata.labels"}),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    "a subscript of a name": (
        with_env(fieldRef={"fieldPath": "metadata.name['a']"}),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    "a field of another API version": (
        with_env(fieldRef={"apiVersion": "v2", "fieldPath": "metadata.name"}),
        "spec.containers[0].env[0].valueFrom.fieldRef.apiVersion",
    ),
    "an unknown container resource": (
        with_env(resourceFieldRef={"resource": "limits.gpu"}),
        "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource",
    ),
    "an invalid divisor of cpu": (
        with_env(resourceFieldRef={"resource": "limits.cpu", "divisor": "1Mi"}),
        "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor",
    ),
    "a key of a secret without a name": (
        with_env(secretKeyRef={"key": "k"}),
        "spec.containers[0].env[0].valueFrom.secretKeyRef.name",
    ),
    "a key with ..": (
        with_env(configMapKeyRef={"name": "a", "key": "..k"}),
        "spec.containers[0].env[0].valueFrom.configMapKeyRef.key",
    ),
    "a file key in a volume that is not an emptyDir": (
        with_env(fileKeyRef={"key": "K", "path": "p", "volumeName": "disk"}),
        "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName",
    ),
}

VOLUMES = {
    "two sources": (with_volume(emptyDir={}, hostPath={"path": "/"}), ".hostPath"),
    "a negative size": (with_volume(emptyDir={"sizeLimit": "-1"}), ".emptyDir.sizeLimit"),
    "an invalid size": (with_volume(emptyDir={"sizeLimit": "big"}), ".emptyDir.sizeLimit"),
    "a host path with ..": (with_volume(hostPath={"path": "/a/../b"}), ".hostPath.path"),
    "an empty host path": (with_volume(hostPath={}), ".hostPath.path"),
    "an unknown host path type": (with_volume(hostPath={"path": "/", "type": "Pipe"}), ".hostPath.type"),
    "a secret without a name": (with_volume(secret={}), ".secret.secretName"),
    "a config map without a name": (with_volume(configMap={}), ".configMap.name"),
    "a mode too large": (with_volume(configMap={"name": "a", "defaultMode": 0o1000}), ".configMap.defaultMode"),
    "an item without key": (with_volume(secret={"secretName": "a", "items": [{"path": "p"}]}), ".secret.items[0].key"),
    "an item without path": (with_volume(secret={"secretName": "a", "items": [{"key": "k"}]}), ".secret.items[0].path"),
    "an item with ..": (
        with_volume(secret={"secretName": "a", "items": [{"key": "k", "path": "../p"}]}),
        ".secret.items[0].path",
    ),
    "an item that starts with two dots": (
        with_volume(secret={"secretName": "a", "items": [{"key": "k", "path": "..data"}]}),
        ".secret.items[0].path",
    ),
    "an item with an absolute path": (
        with_volume(configMap={"name": "a", "items": [{"key": "k", "path": "/p"}]}),
        ".configMap.items[0].path",
    ),
    "a field that volumes do not support": (
        with_volume(downwardAPI={"items": [{"path": "p", "fieldRef": {"fieldPath": "status.podIP"}}]}),
        ".downwardAPI.items[0].fieldRef.fieldPath",
    ),
    "a downward API file without a source": (
        with_volume(downwardAPI={"items": [{"path": "p"}]}),
        ".downwardAPI.items[0]",
    ),
    "a resource without a container": (
        with_volume(downwardAPI={"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]}),
        ".downwardAPI.items[0].resourceFieldRef.containerName",
    ),
    "a token that expires too soon": (
        with_projection({"serviceAccountToken": {"path": "t", "expirationSeconds": 60}}),
        ".projected.sources[0].serviceAccountToken.expirationSeconds",
    ),
    "a projection with two sources": (
        with_projection({"secret": {"name": "s"}, "configMap": {"name": "c"}}),
        ".projected.sources[0].secret",
    ),
    "two sources on one path": (
        with_projection(*[{"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}}] * 2),
        ".projected.sources[1].secret.items[0].path",
    ),
    "a trust bundle without a signer": (
        with_projection({"clusterTrustBundle": {"path": "p"}}),
        ".projected.sources[0].clusterTrustBundle",
    ),
    "a certificate without a key type": (
        with_projection({"podCertificate": {"signerName": "a.b/c", "credentialBundlePath": "p"}}),
        ".projected.sources[0].podCertificate.keyType",
    ),
    "a claim without a name": (with_volume(persistentVolumeClaim={}), ".persistentVolumeClaim.claimName"),
    "an ephemeral claim without a template": (with_volume(ephemeral={}), ".ephemeral.volumeClaimTemplate"),
    "an ephemeral claim without size": (
        with_volume(ephemeral={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}),
        ".ephemeral.volumeClaimTemplate.spec.resources.requests[storage]",
    ),
    "an image volume without a reference": (with_volume(image={}), ".image.reference"),
    "a CSI volume without driver": (with_volume(csi={}), ".csi.driver"),
    "an NFS volume without server": (with_volume(nfs={"path": "/x"}), ".nfs.server"),
    "an NFS volume with a relative path": (with_volume(nfs={"server": "s", "path": "x"}), ".nfs.path"),
    "an iSCSI disk of a bad name": (with_volume(iscsi={"targetPortal": "t", "iqn": "iqn.x"}), ".iscsi.iqn"),
    "a git directory with ..": (with_volume(gitRepo={"repository": "r", "directory": "../x"}), ".gitRepo.directory"),
    "a fibre channel volume without a target": (with_volume(fc={}), ".fc"),
    "a reserved flex option": (
        with_volume(flexVolume={"driver": "d", "options": {"a.k8s.io/b": ""}}),
        ".flexVolume.options[a.k8s.io/b]",
    ),
}

PLACES = {
    "a bad node selector": (parsed(nodeSelector={"a": "b c"}), "spec.nodeSelector[a]"),
    "a toleration without a key": (parsed(tolerations=[{"value": "v"}]), "spec.tolerations[0].operator"),
    "a toleration with an unknown operator": (
        parsed(tolerations=[{"key": "k", "operator": "Gt", "value": "1"}]),
        "spec.tolerations[0].operator",
    ),
    "a toleration Exists with a value": (
        parsed(tolerations=[{"key": "k", "operator": "Exists", "value": "v"}]),
        "spec.tolerations[0].value",
    ),
    "a toleration of an unknown effect": (
        parsed(tolerations=[{"key": "k", "effect": "Never"}]),
        "spec.tolerations[0].effect",
    ),
    "tolerationSeconds without NoExecute": (
        parsed(tolerations=[{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 1}]),
        "spec.tolerations[0].effect",
    ),
    "an affinity without terms": (
        parsed(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}),
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
    ),
    "a weight too large": (
        parsed(
            affinity={
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "podAffinityTerm": TERM}]
                }
            }
        ),
        "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
    ),
    "an affinity without a topology key": (
        parsed(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
    ),
    "a spread without maxSkew": (
        parsed(topologySpreadConstraints=[{"topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]),
        "spec.topologySpreadConstraints[0].maxSkew",
    ),
    "a duplicate spread": (
        parsed(
            topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}] * 2
        ),
        "spec.topologySpreadConstraints[1].topologyKey",
    ),
    "minDomains with ScheduleAnyway": (
        parsed(
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
    given = parsed({"name": "Web"}, restartPolicy="x", containers=[{"name": "C", "ports": [{"containerPort": 0}]}])
    assert fields(given) == {
        "metadata.name",
        "spec.restartPolicy",
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.containers[0].ports[0].containerPort",
    }


def test_fields_that_ephemeral_containers_may_not_have() -> None:
    plain = {"name": "e", "image": "a", "targetContainerName": "c"}
    assert validate_pod(parsed(ephemeralContainers=[plain]), RequestKind.UPDATE) == ()
    greedy = {
        **plain,
        "name": "c",
        "targetContainerName": "absent",
        "ports": [{"containerPort": 1}],
        "resources": {"requests": {"cpu": "1"}},
        "readinessProbe": EXEC,
        "volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "y"}],
    }
    given = parsed(ephemeralContainers=[greedy], volumes=[{"name": "v"}])
    at = "spec.ephemeralContainers[0]"
    assert {problem.field for problem in validate_pod(given, RequestKind.UPDATE)} == {
        f"{at}.name",
        f"{at}.targetContainerName",
        f"{at}.ports",
        f"{at}.resources",
        f"{at}.readinessProbe",
        f"{at}.volumeMounts[0].subPath",
    }


def test_a_token_needs_a_service_account() -> None:
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
    given = parsed(volumes=[{"name": "v", **token}])
    assert fields(given) == {"spec.volumes[0].projected.sources[0].serviceAccountToken"}


@pytest.mark.parametrize("seed", range(60))
def test_every_decodable_pod_can_be_validated(seed: int) -> None:
    given = random_pod(seed)
    problems = validate_pod(given)
    assert problems == validate_pod(default_pod(given))
    assert all(problem.field and is_field_error(problem) for problem in problems)
