"""What the engine needs from outside, as Protocols. The docstrings are the contracts.

Idempotence, what "unknown" means and when a call returns are said here once; `tests/contracts` holds every
implementation, the fakes included, to them. Adapters translate: no gRPC, HTTP or SQLite exception crosses a
port, only errors of `model.errors`. Every call has its own deadline, kept by the adapter; a cancelled
caller never leaves a call half-way: the engine shields calls that change something.
"""
