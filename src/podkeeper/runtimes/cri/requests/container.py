"""A container, as the runtime is asked to make it.

    ContainerConfig + NodeFacts + ContainerFiles -> cri.ContainerConfig

The Go ancestor is `generateContainerConfig` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
"""

from collections.abc import Iterable

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.runtimes.cri.requests.labels import container_annotations, container_labels
from podkeeper.runtimes.cri.requests.mounts import ContainerFiles, mounts_message
from podkeeper.runtimes.cri.requests.node import IdRange, NodeFacts
from podkeeper.runtimes.cri.requests.resources import container_resources
from podkeeper.runtimes.cri.requests.security import container_security
from podkeeper.runtimes.cri.schema import cri

__all__ = ["ContainerFiles", "container_message", "stop_signal_of"]


def container_message(
    config: ContainerConfig, node: NodeFacts, files: ContainerFiles, users: IdRange | None = None
) -> cri.ContainerConfig:
    """What to ask for; `users` is the range set aside for a pod with users of its own. Raises NotConfigurable."""
    pod, container = config.pod, config.container
    security = container_security(config, node, users)
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=container.name, attempt=config.attempt),
        image=cri.ImageSpec(image=config.image, user_specified_image=container.image or ""),
        command=_texts(config.command, "command"),
        args=_texts(config.args, "args"),
        working_dir=container.working_dir or "",
        envs=[cri.KeyValue(key=name, value=_bytes(value)) for name, value in config.env.items()],
        mounts=mounts_message(config, node, files, security.namespace_options.userns_options.uids),
        labels=container_labels(pod, container.name),
        annotations=container_annotations(config),
        log_path=config.log_path,
        stdin=bool(container.stdin),
        stdin_once=bool(container.stdin_once),
        tty=bool(container.tty),
        linux=cri.LinuxContainerConfig(
            resources=container_resources(pod, container, node),
            security_context=security,
        ),
        stop_signal=stop_signal_of(config),
    )


def stop_signal_of(config: ContainerConfig) -> str:
    """CRI's name of how a container is asked to end; one that nobody knows, or none, is the image's own."""
    wanted = (config.container.lifecycle and config.container.lifecycle.stop_signal) or ""
    name = wanted.replace("SIGRTMIN+", "SIGRTMINPLUS").replace("SIGRTMAX-", "SIGRTMAXMINUS")
    return name if name in cri.Signal.DESCRIPTOR.values_by_name else "RUNTIME_DEFAULT"


def _texts(words: Iterable[str], what: str) -> list[str]:
    """Words that are text: what a secret puts in may not be, and CRI carries nothing else here."""
    words = list(words)
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise NotConfigurable(
                f"cannot pass {what} to the container: a variable in it holds bytes that are no UTF-8"
            ) from None
    return words


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
