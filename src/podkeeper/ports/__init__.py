"""Protocols for everything that the engine needs from outside.

The docstrings are the contracts.

They define idempotence, the meaning of "unknown" and when a call returns. `testing/contracts` has a test suite for each
port, and every implementation runs it, including the fakes. Adapters translate errors: only errors of `model.errors`
cross a port, no gRPC, HTTP or SQLite exceptions. The runtime adapter and `BoundedRuntime` set deadlines. Journal calls
have none, so `Checkpoints` sets one. The engine shields mutating calls, so a cancelled caller never interrupts one.
"""
