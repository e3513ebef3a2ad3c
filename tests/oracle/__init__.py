"""Replays of what the reference kubelet was recorded doing; `python -m tests.oracle FILE...` runs them."""
