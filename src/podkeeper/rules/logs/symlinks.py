"""Symlinks to container logs in one flat directory, for log collectors.

    /var/log/containers/<pod>_<namespace>_<container>-<id>.log
        -> /var/log/pods/<namespace>_<pod>_<uid>/<container>/<attempt>.log

A dangling link is removed unless its container runs. The log of a running container may be missing for a moment,
between two steps of a rotation.

Kubelet counterparts: legacy.go and `evictPodLogsDirectories` in pkg/kubelet/kuberuntime.
"""

import posixpath
from collections.abc import Iterable, Mapping
from typing import Final

from podkeeper.model.log_tree import LogLink
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.naming import container_log_path, log_directory_name

SUFFIX: Final = ".log"
# NAME_MAX of Linux file systems.
_LONGEST_NAME: Final = 255


def link_of(record: PodRecord, container: ContainerRecord, log_root: str) -> LogLink:
    directory = log_directory_name(record.namespace, record.name, record.uid)
    return LogLink(
        link_name(record.name, record.namespace, container.name, container.id),
        posixpath.join(log_root, directory, container_log_path(container.name, container.restart_count)),
        container.state is RecordState.RUNNING,
    )


def link_name(pod_name: str, namespace: str, container: str, container_id: str) -> str:
    """Return the name of the link to a container's log, truncated as in the kubelet."""
    return f"{pod_name}_{namespace}_{container}-{container_id}"[: _LONGEST_NAME - len(SUFFIX)] + SUFFIX


def links_of(records: Iterable[PodRecord], log_root: str) -> dict[str, LogLink]:
    """Return the links to the logs of all containers, by name."""
    links = (link_of(record, container, log_root) for record in records for container in record.containers)
    return {link.name: link for link in links}


def dangling_links(existing: Mapping[str, bool], wanted: Mapping[str, LogLink]) -> list[str]:
    """Return dangling links whose container does not run. `existing` maps each link to whether its target exists."""
    return sorted(name for name, alive in existing.items() if not alive and not (name in wanted and wanted[name].runs))
