"""Format a pod like `kubectl describe pod`: same sections, words and columns.

Input: a pod with its status, and its events. Output: text. Data that kubectl gets from other objects of a cluster is
omitted. Counterpart: `describePod` in k8s.io/kubectl/pkg/describe.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import ParamSpec

from podkeeper.app.cli.pod_description_volumes import volume_lines
from podkeeper.app.cli.tab_stops import tabbed
from podkeeper.app.local.pod_table import human_duration
from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import (
    ContainerPort,
    ContainerState,
    ContainerStatus,
    EnvVar,
    Event,
    Pod,
    Probe,
    Toleration,
)
from podkeeper.model.pods import AnyContainer
from podkeeper.model.times import instant, parse_time
from podkeeper.model.wire import QuantityLike
from podkeeper.rules.container.downward import PodContext, field_value, resource_value
from podkeeper.rules.qos import qos_of

NONE = "<none>"
_LONGEST_ANNOTATION = 140
# Without a limit, their value is the node's capacity, which is not available here.
_THE_NODES = ("limits.cpu", "limits.memory")
P = ParamSpec("P")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def describe_pod(pod: Pod, events: Sequence[Event], now: datetime) -> str:
    lines = [
        *_head(pod, now),
        *_containers("Init Containers", pod.spec.init_containers or (), pod.status.init_container_statuses, pod),
        *_containers("Containers", pod.spec.containers, pod.status.container_statuses, pod),
        *_containers(
            "Ephemeral Containers",
            pod.spec.ephemeral_containers or (),
            pod.status.ephemeral_container_statuses,
            pod,
        ),
        *_conditions(pod),
        *(volume_lines(pod.spec.volumes) if pod.spec.volumes else (f"Volumes:\t{NONE}",)),
        f"QoS Class:\t{pod.status.qos_class or qos_of(pod)}",
        *_labels("Node-Selectors", pod.spec.node_selector),
        *_tolerations(pod.spec.tolerations or ()),
    ]
    return tabbed(lines) + tabbed(_events(events, now))


# ---- the pod ----


def _head(pod: Pod, now: datetime) -> Iterator[str]:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    yield f"Name:\t{meta.name}"
    yield f"Namespace:\t{meta.namespace}"
    if spec.priority is not None:
        yield f"Priority:\t{spec.priority}"
    if spec.priority_class_name:
        yield f"Priority Class Name:\t{spec.priority_class_name}"
    if spec.runtime_class_name:
        yield f"Runtime Class Name:\t{spec.runtime_class_name}"
    if spec.service_account_name:
        yield f"Service Account:\t{spec.service_account_name}"
    yield f"Node:\t{spec.node_name}/{status.host_ip or ''}" if spec.node_name else f"Node:\t{NONE}"
    if status.start_time:
        yield f"Start Time:\t{_date(status.start_time)}"
    yield from _labels("Labels", meta.labels)
    yield from _annotations(meta.annotations or {})
    if meta.deletion_timestamp and status.phase not in ("Failed", "Succeeded"):
        yield f"Status:\tTerminating ({_remaining_grace(parse_time(meta.deletion_timestamp) - now)})"
        yield f"Termination Grace Period:\t{meta.deletion_grace_period_seconds or 0}s"
    else:
        yield f"Status:\t{status.phase or ''}"
    if status.reason:
        yield f"Reason:\t{status.reason}"
    if status.message:
        yield f"Message:\t{status.message}"
    yield f"IP:\t{status.pod_ip or ''}"
    if status.pod_ips:
        yield "IPs:"
        yield from (f"  IP:\t{each.ip or ''}" for each in status.pod_ips)
    else:
        yield f"IPs:\t{NONE}"
    for owner in meta.owner_references or ():
        if owner.controller:
            yield f"Controlled By:\t{owner.kind}/{owner.name}"


def _remaining_grace(left: timedelta) -> str:
    # kubectl prints the time since the end of the grace period. Before that end it prints "<invalid>".
    return f"killed in {human_duration(left)}" if left > timedelta(0) else f"lasts {human_duration(-left)}"


def _labels(title: str, labels: Mapping[str, str] | None) -> Iterator[str]:
    pairs = [f"{key}={value}" for key, value in sorted((labels or {}).items())]
    yield f"{title}:\t{pairs[0] if pairs else NONE}"
    yield from (f"\t{pair}" for pair in pairs[1:])


def _annotations(annotations: Mapping[str, str]) -> Iterator[str]:
    lead = "Annotations:\t"
    for key, value in sorted(annotations.items()):
        if key == _APPLIED:
            continue
        value = value.removesuffix("\n")
        if len(value) + len(key) + 2 > _LONGEST_ANNOTATION or "\n" in value:
            yield f"{lead}{key}:"
            yield from (f"\t  {_short(line)}" for line in value.split("\n"))
        else:
            yield f"{lead}{key}: {value}"
        lead = "\t"
    if lead != "\t":
        yield f"{lead}{NONE}"


def _short(line: str) -> str:
    longest = _LONGEST_ANNOTATION - 2
    return line if len(line) <= longest else line[:longest] + "..."


def _conditions(pod: Pod) -> Iterator[str]:
    conditions = pod.status.conditions or ()
    if gates := pod.spec.readiness_gates:
        met = {each.type: each.status for each in conditions}
        yield from ("Readiness Gates:", "  Type\tStatus")
        yield from (f"  {gate.condition_type} \t{met.get(gate.condition_type, NONE)} " for gate in gates)
    if conditions:
        yield from ("Conditions:", "  Type\tStatus")
        yield from (f"  {each.type} \t{each.status} " for each in conditions)


def _tolerations(tolerations: Iterable[Toleration]) -> Iterator[str]:
    texts = [_toleration(each) for each in sorted(tolerations, key=lambda each: each.key or "")]
    yield f"Tolerations:\t{texts[0] if texts else NONE}"
    yield from (f"\t{each}" for each in texts[1:])


def _toleration(each: Toleration) -> str:
    text = each.key or ""
    text += f"={each.value}" if each.value else ""
    text += f":{each.effect}" if each.effect else ""
    if each.operator == "Exists" and not each.value:
        text += " op=Exists" if text else "op=Exists"
    return text + (f" for {each.toleration_seconds}s" if each.toleration_seconds is not None else "")


# ---- containers ----


def _containers(
    title: str, containers: Sequence[AnyContainer], statuses: Sequence[ContainerStatus] | None, pod: Pod
) -> Iterator[str]:
    if not containers:
        return
    by_name = {each.name: each for each in statuses or ()}
    yield f"{title}:"
    for each in containers:
        yield from _container(each, by_name.get(each.name), pod)


def _container(container: AnyContainer, status: ContainerStatus | None, pod: Pod) -> Iterator[str]:
    yield f"  {container.name}:"
    if status is not None:
        yield f"    Container ID:\t{status.container_id or ''}"
    yield f"    Image:\t{container.image or ''}"
    if status is not None:
        yield f"    Image ID:\t{status.image_id or ''}"
    yield from _ports("Port", container.ports or (), lambda port: port.container_port)
    yield from _ports("Host Port", container.ports or (), lambda port: port.host_port or 0)
    for title, parts in (("Command", container.command), ("Args", container.args)):
        if parts:
            yield f"    {title}:"
            yield from (f"      {line}" for part in parts for line in part.split("\n"))
    if status is not None:
        yield from _state("State", status.state)
        if status.last_state.terminated is not None:
            yield from _state("Last State", status.last_state)
        yield f"    Ready:\t{status.ready}"
        yield f"    Restart Count:\t{status.restart_count}"
    for title, amounts in (("Limits", container.resources.limits), ("Requests", container.resources.requests)):
        yield from _amounts(title, amounts or {})
    for title, probe in (
        ("Liveness", container.liveness_probe),
        ("Readiness", container.readiness_probe),
        ("Startup", container.startup_probe),
    ):
        if probe is not None:
            yield f"    {title}:\t{_probe(probe)}"
    yield from _environment(container, pod)
    yield from _mounts(container)


def _ports(title: str, ports: Sequence[ContainerPort], number: Callable[[ContainerPort], int]) -> Iterator[str]:
    text = ", ".join(
        f"{number(port)}/{port.protocol or 'TCP'}" + (f" ({port.name})" if port.name else "") for port in ports
    )
    yield f"    {title}{'s' if len(ports) > 1 else ''}:\t{text or NONE}"


def _state(title: str, state: ContainerState) -> Iterator[str]:
    if state.running is not None:
        yield f"    {title}:\tRunning"
        yield f"      Started:\t{_date(state.running.started_at)}"
    elif (ended := state.terminated) is not None:
        yield f"    {title}:\tTerminated"
        if ended.reason:
            yield f"      Reason:\t{ended.reason}"
        if ended.message:
            yield f"      Message:\t{ended.message}"
        yield f"      Exit Code:\t{ended.exit_code}"
        if ended.signal:
            yield f"      Signal:\t{ended.signal}"
        yield f"      Started:\t{_date(ended.started_at)}"
        yield f"      Finished:\t{_date(ended.finished_at)}"
    else:
        yield f"    {title}:\tWaiting"
        if state.waiting is not None and state.waiting.reason:
            yield f"      Reason:\t{state.waiting.reason}"


def _amounts(title: str, amounts: Mapping[str, QuantityLike]) -> Iterator[str]:
    if amounts:
        yield f"    {title}:"
        yield from (f"      {name}:\t{amount}" for name, amount in sorted(amounts.items()))


def _probe(probe: Probe) -> str:
    attributes = (
        f"delay={probe.initial_delay_seconds or 0}s timeout={probe.timeout_seconds or 0}s "
        f"period={probe.period_seconds or 0}s #success={probe.success_threshold or 0} "
        f"#failure={probe.failure_threshold or 0}"
    )
    if probe.exec is not None:
        return f"exec [{' '.join(probe.exec.command or ())}] {attributes}"
    if (get := probe.http_get) is not None:
        return f"http-get {(get.scheme or 'http').lower()}://{get.host or ''}:{get.port}{get.path or ''} {attributes}"
    if (tcp := probe.tcp_socket) is not None:
        return f"tcp-socket {tcp.host or ''}:{tcp.port} {attributes}"
    if (grpc := probe.grpc) is not None:
        return f"grpc <pod>:{grpc.port} {grpc.service or ''} {attributes}"
    return f"unknown {attributes}"


def _environment(container: AnyContainer, pod: Pod) -> Iterator[str]:
    if container.env_from:
        yield "    Environment Variables from:"
        for each in container.env_from:
            kind, source = ("ConfigMap", each.config_map_ref) if each.config_map_ref else ("Secret", each.secret_ref)
            name, optional = ("", False) if source is None else (source.name, bool(source.optional))
            prefix = f" with prefix '{each.prefix}'" if each.prefix else ""
            yield f"      {name}\t{kind}{prefix}\tOptional: {_bool(optional)}"
    if not container.env:
        yield f"    Environment:\t{NONE}"
        return
    yield "    Environment:"
    for variable in container.env:
        yield from _variable(variable, container, pod)


def _variable(variable: EnvVar, container: AnyContainer, pod: Pod) -> Iterator[str]:
    source = variable.value_from
    if source is None:
        first, *rest = (variable.value or "").split("\n")
        yield f"      {variable.name}:\t{first}"
        yield from (f"      \t{line}" for line in rest)
    elif (field := source.field_ref) is not None:
        text = _or_empty(field_value, field, _surroundings(pod))
        yield f"      {variable.name}:\t{text} ({field.api_version or 'v1'}:{field.field_path})"
    elif (resource := source.resource_field_ref) is not None:
        text = _or_empty(resource_value, resource, container, _surroundings(pod))
        text = "node allocatable" if text == "0" and resource.resource in _THE_NODES else text
        yield f"      {variable.name}:\t{text} ({resource.resource})"
    elif (secret := source.secret_key_ref) is not None:
        text = f"<set to the key '{secret.key}' in secret '{secret.name or ''}'>"
        yield f"      {variable.name}:\t{text}\tOptional: {_bool(secret.optional)}"
    elif (config := source.config_map_key_ref) is not None:
        text = f"<set to the key '{config.key}' of config map '{config.name or ''}'>"
        yield f"      {variable.name}:\t{text}\tOptional: {_bool(config.optional)}"


def _surroundings(pod: Pod) -> PodContext:
    status = pod.status
    hosts = tuple(each.ip for each in status.host_ips or ()) or tuple(filter(None, (status.host_ip,)))
    return PodContext(pod=pod, pod_ips=tuple(each.ip or "" for each in status.pod_ips or ()), host_ips=hosts)


def _or_empty(value: Callable[P, str], *args: P.args, **kwargs: P.kwargs) -> str:
    """Call the function. Return "" if the value is not available."""
    try:
        return value(*args, **kwargs)
    except NotConfigurable:
        return ""


def _mounts(container: AnyContainer) -> Iterator[str]:
    mounts = sorted(container.volume_mounts or (), key=lambda mount: mount.mount_path)
    yield "    Mounts:" if mounts else f"    Mounts:\t{NONE}"
    for mount in mounts:
        path = f',path="{mount.sub_path}"' if mount.sub_path else ""
        yield f"      {mount.mount_path} from {mount.name} ({'ro' if mount.read_only else 'rw'}{path})"


# ---- events ----


def _events(events: Sequence[Event], now: datetime) -> Iterator[str]:
    if not events:
        yield f"Events:\t{NONE}"
        return
    yield from ("Events:", "  Type\tReason\tAge\tFrom\tMessage", "  ----\t------\t----\t----\t-------")
    for event in sorted(events, key=lambda each: each.last_timestamp or ""):
        message = (event.message or "").strip()
        if path := event.involved_object.field_path:
            message = f"{path}: {message}"
        source = event.source.component or event.reporting_component
        yield f"  {event.type}\t{event.reason}\t{_interval(event, now)}\t{source}\t{message}"


def _interval(event: Event, now: datetime) -> str:
    first, last = instant(event.first_timestamp), instant(event.last_timestamp)
    over = "<unknown>" if first is None else human_duration(now - first)
    if (event.count or 1) <= 1 or last is None:
        return over
    return f"{human_duration(now - last)} (x{event.count} over {over})"


def _date(text: str | None) -> str:
    moment = instant(text)
    return "Mon, 01 Jan 0001 00:00:00 +0000" if moment is None else f"{moment.astimezone(UTC):%a, %d %b %Y %H:%M:%S %z}"


def _bool(value: bool | None) -> str:
    return "true" if value else "false"
