"""A network namespace for tests, with only a loopback interface."""

import ctypes
import fcntl
import gc
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_OWN = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkNamespace:
    """Exists until it is closed and no thread or process is in it."""

    def __init__(self) -> None:
        self._file = in_thread(_made)

    def close(self) -> None:
        os.close(self._file)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter it with this thread. Threads and processes started meanwhile stay in it."""
        back = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _end_grpc_threads()
            _checked(_libc.setns(self._file, _CLONE_NEWNET))
            try:
                yield
            finally:
                _end_grpc_threads()
                _checked(_libc.setns(back, _CLONE_NEWNET))
        finally:
            os.close(back)


def _end_grpc_threads() -> None:
    """Collect the channels and servers of former event loops, because gRPC's threads end with the last one.

    These threads connect and accept in the network namespace in which they were started.
    """
    gc.collect()


def in_thread(work: Callable[[], T]) -> T:
    """Run a function in a new thread and return its result."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _made() -> int:
    _checked(_libc.unshare(_CLONE_NEWNET))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def _checked(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
