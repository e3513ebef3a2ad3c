"""Resource usage of pods and containers, as a runtime reports it.

Times are aware UTC datetimes. None means that the runtime did not report the value, which differs from zero.
"""

from datetime import datetime

import msgspec


class CpuStats(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    total_nanoseconds: int | None = None  # since the start, over all processors
    nanocores: int | None = None  # recent usage; some runtimes compute it since the last query by any client


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    working_set_bytes: int | None = None  # memory that cannot be reclaimed
    usage_bytes: int | None = None
    rss_bytes: int | None = None
    available_bytes: int | None = None  # up to the limit; None without a limit
    page_faults: int | None = None
    major_page_faults: int | None = None


class FileSystemStats(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a file system by one owner."""

    mountpoint: str
    used_bytes: int | None = None
    inodes_used: int | None = None


class InterfaceStats(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic of one network interface of a pod."""

    name: str
    received_bytes: int | None = None
    received_errors: int | None = None
    sent_bytes: int | None = None
    sent_errors: int | None = None


class ContainerStats(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    writable_layer: FileSystemStats | None = None  # data written outside its volumes


class PodStats(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one pod, in total and by container."""

    uid: str
    name: str
    namespace: str
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    processes: int | None = None
    interfaces: tuple[InterfaceStats, ...] = ()  # the primary one first; none in the host network
    containers: tuple[ContainerStats, ...] = ()
