"""Replays of recorded kubelet behaviour. `python -m tests.oracle FILE...` runs them."""
