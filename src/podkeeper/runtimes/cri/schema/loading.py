"""Create message classes from the shipped descriptor.

The classes have their own descriptor pool, so they cannot conflict with another copy of cri.proto in this process.

Importing this module imports protobuf (2 MiB). Only the CRI runtime does.
"""

from functools import cache
from importlib.resources import files

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

DESCRIPTOR = "schema.bin"


def names_of(file: str) -> dict[str, object]:
    """Return the content of a module for a `.proto` file: message classes, enums and enum values."""
    described = _pool().FindFileByName(file)
    names: dict[str, object] = {"DESCRIPTOR": described}
    for name, message in described.message_types_by_name.items():
        names[name] = GetMessageClass(message)
    for name, enum in described.enum_types_by_name.items():
        names[name] = EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    return names


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString((files(__package__) / DESCRIPTOR).read_bytes()).file:
        pool.Add(file)
    return pool


def file_of(file: str) -> FileDescriptor:
    """Return the descriptor of a `.proto` file, with its services."""
    return _pool().FindFileByName(file)
