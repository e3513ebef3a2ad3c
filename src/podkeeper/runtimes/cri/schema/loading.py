"""Makes message classes from the shipped descriptor, in a pool of its own.

Importing this imports protobuf (2 MiB on top of the agent): only the CRI runtime does.
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
    """What a module for one of our `.proto` files holds: message classes, enums, and the enums' values."""
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
    """The descriptor of one of our `.proto` files, with its services."""
    return _pool().FindFileByName(file)
