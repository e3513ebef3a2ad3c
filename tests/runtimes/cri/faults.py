"""Faults of CRI calls, for the fake server and the proxy."""

from dataclasses import dataclass

import grpc

CODES = grpc.StatusCode


@dataclass(frozen=True)
class Refuse:
    """The call has no effect and fails."""

    code: grpc.StatusCode = CODES.UNKNOWN
    message: str = "refused by the test"


@dataclass(frozen=True)
class Hang:
    """The call has no effect and does not return."""


@dataclass(frozen=True)
class LoseResponse:
    """The call takes effect and fails. Without a code, it does not return."""

    code: grpc.StatusCode | None = CODES.UNAVAILABLE


@dataclass(frozen=True)
class Late:
    """The call takes effect after a delay, even if the caller has left, and then returns."""

    seconds: float


@dataclass(frozen=True)
class LateResponse:
    """The call takes effect at once and returns after a delay."""

    seconds: float


Fault = Refuse | Hang | LoseResponse | Late | LateResponse
