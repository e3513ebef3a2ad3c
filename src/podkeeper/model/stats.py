"""What pods and containers use: values as a runtime counts them.

Times are aware UTC datetimes. None means that it was not told, which is not the same as nothing.
"""

from datetime import datetime

import msgspec


class CpuStats(msgspec.Struct, frozen=True, kw_only=True):
    """Time on processors."""

    at: datetime
    total_nanoseconds: int | None = None  # since it began, over all processors
    nanocores: int | None = None  # lately, as the runtime reckons it: some reckon since anybody last asked


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Memory."""

    at: datetime
    working_set_bytes: int | None = None  # what cannot be taken back
    usage_bytes: int | None = None
    rss_bytes: int | None = None
    available_bytes: int | None = None  # up to its limit; None where there is none
    page_faults: int | None = None
    major_page_faults: int | None = None


class FileSystemStats(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody's files take on a file system."""

    mountpoint: str
    used_bytes: int | None = None
    inodes_used: int | None = None


class InterfaceStats(msgspec.Struct, frozen=True, kw_only=True):
    """What went over one network interface of a pod."""

    name: str
    received_bytes: int | None = None
    received_errors: int | None = None
    sent_bytes: int | None = None
    sent_errors: int | None = None


class ContainerStats(msgspec.Struct, frozen=True, kw_only=True):
    """One container's share."""

    id: str
    name: str
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    writable_layer: FileSystemStats | None = None  # what it wrote outside its volumes


class PodStats(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's share: all of it, and by container."""

    uid: str
    name: str
    namespace: str
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    processes: int | None = None
    interfaces: tuple[InterfaceStats, ...] = ()  # the one that others reach it by first; none in the node's network
    containers: tuple[ContainerStats, ...] = ()
