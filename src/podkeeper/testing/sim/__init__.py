"""Simulation: run whole nodes in virtual time, inject faults, check invariants.

Invariants are checked at every step.

    world          everything that outlives the agent (API, runtime, journal); agent_process: one process of it
    loop           the event loop with virtual time
    records        events as values on a bus; ground_truth: the true history of containers; active_faults: fault log
    trace          everything that happened, and its hash; trace_writer: as text; timeline: the trace of one pod
    schedule       the timed actions of a run, as data; profile: rates and amounts; plan_args: command-line options
    workload       the pods of a node: pods, pod_scripts, static_pod_scripts, actions
    faults         the injected faults: faults_agent, faults_calls, faults_services
    invariants     I1 to I22
    run            run one schedule; shrink: find a smaller schedule that fails
    campaign       run many seeds in several processes; report: print results; state: a file to continue from
    perturb        Sieve's perturbations, one by one; perturbed_run: a scenario with one; scenario: snapshots

A seed determines everything. The engine is wired as in production. `docs/simulation.md` describes how to run the
simulation, read a failure, and write scenarios and invariants.
"""
