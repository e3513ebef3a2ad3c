"""Links to logs in one flat directory, for collectors that look nowhere else.

    /var/log/containers/<pod>_<namespace>_<container>-<id>.log
        -> /var/log/pods/<namespace>_<pod>_<uid>/<container>/<attempt>.log

What the runtime has, and the links that there are, come in; which to make and which to remove goes out. A link whose
log is gone goes too, unless its container runs: between two steps of a rotation a log is missing for a moment. The Go
ancestors are legacy.go and `evictPodLogsDirectories` in pkg/kubelet/kuberuntime.
"""

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.rules.naming import container_log_path, log_directory_name

SUFFIX: Final = ".log"
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class LogLink:
    """One link: its name in the flat directory, and the log it leads to."""

    name: str
    log: str
    runs: bool = True  # its container


def link_of(record: PodRecord, container: ContainerRecord, log_root: str) -> LogLink:
    """The link to a container's log."""
    directory = log_directory_name(record.namespace, record.name, record.uid)
    return LogLink(
        link_name(record.name, record.namespace, container.name, container.id),
        posixpath.join(log_root, directory, container_log_path(container.name, container.restart_count)),
        container.state is ContainerState.RUNNING,
    )


def link_name(pod_name: str, namespace: str, container: str, container_id: str) -> str:
    """What the link to a container's log is called; one that is too long is cut, as the reference does it."""
    return f"{pod_name}_{namespace}_{container}-{container_id}"[: _LONGEST_NAME - len(SUFFIX)] + SUFFIX


def links_of(records: Iterable[PodRecord], log_root: str) -> dict[str, LogLink]:
    """The links to the logs of all containers, by name."""
    links = (link_of(record, container, log_root) for record in records for container in record.containers)
    return {link.name: link for link in links}


def dead_links(there: Mapping[str, bool], wanted: Mapping[str, LogLink]) -> list[str]:
    """The links that lead nowhere, and belong to nobody who runs. `there` says of each whether its log is there."""
    return sorted(name for name, alive in there.items() if not alive and not (name in wanted and wanted[name].runs))
