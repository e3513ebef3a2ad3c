"""The messages of CRI and of containerd's event stream: two `.proto` files of ours, and what is made from them.

`schema.bin` is the descriptor of both, made by `python -m tools.generate_cri`; no generated code is shipped, because
that would only run with the very release of protobuf it was generated for. `cri.pyi` and `containerd_events.pyi` tell
type checkers what the classes look like.
"""
