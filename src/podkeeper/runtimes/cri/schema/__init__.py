"""Messages of CRI and of containerd's event stream, from two `.proto` files.

`python -m tools.generate_cri` compiles both to `schema.bin`. No generated code is shipped, because it would require one
release of protobuf. `cri.pyi` and `containerd_events.pyi` are for type checkers.
"""
