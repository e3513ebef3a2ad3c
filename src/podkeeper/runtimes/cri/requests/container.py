"""The CRI message of a container.

    ContainerConfig + NodeFacts + ContainerFiles -> cri.ContainerConfig

Kubelet counterpart: `generateContainerConfig` in pkg/kubelet/kuberuntime/kuberuntime_container.go.
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
    """Return the message. `users` is the ID range of a pod with its own user namespace. Raises NotConfigurable."""
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
    """Return CRI's name of the stop signal. Unknown signals and none mean the signal of the image."""
    wanted = (config.container.lifecycle and config.container.lifecycle.stop_signal) or ""
    name = wanted.replace("SIGRTMIN+", "SIGRTMINPLUS").replace("SIGRTMAX-", "SIGRTMAXMINUS")
    return name if name in cri.Signal.DESCRIPTOR.values_by_name else "RUNTIME_DEFAULT"


def _texts(words: Iterable[str], what: str) -> list[str]:
    """Check that texts are UTF-8, which CRI requires here. Values from secrets may be other bytes."""
    words = list(words)
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise NotConfigurable(
                f"cannot pass {what} to the container: a variable in it has bytes that are not UTF-8"
            ) from None
    return words


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
