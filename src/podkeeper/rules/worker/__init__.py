"""The pod worker as a pure state machine: states, events and orders.

* `updates`: the input of a worker (`Update`, `KillOptions`)
* `states`: the states of one pod
* `events`: the events that change a state, and the orders for the shell
* `step`: the decision, with `syncs` (how syncs begin and end) and `timing` (delays between syncs)
* `predicates`: questions about a state
* `static_order`, `workers`: decisions across pods

`engine/workers.py` executes the orders. `docs/worker-states.md` shows the machine. `tools/worker_diagram.py`
generates that page from `step`.
"""
