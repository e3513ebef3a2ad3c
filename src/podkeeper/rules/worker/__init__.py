"""One pod's life under its worker, as states, events and orders; and the workers of a whole node.

`updates` says what the workers are told, `states` where a pod stands, `events` what happens and what is
ordered; `step` decides, with `passes` for the passes and `pauses` for the time between them. `questions`
are what others may conclude. `static_order` and `workers` hold what spans pods. `docs/worker-states.md`
shows the machine as it is (drawn by `tools/worker_diagram.py` from `step` itself).
"""
