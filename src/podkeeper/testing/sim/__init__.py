"""The simulation: whole nodes live in virtual time, everything goes wrong, and promises are checked at every step.

    world          what outlives the agent, its lives, who watches;  life: the cords that a death cuts;  loop: its time
    records        what can be seen happening;  truth: what containers really did;  troubles: what went wrong for whom
    trace          all that happened, and its hash;  scribe: in words;  timeline: of one pod
    history        what happens and when, as data;  profile: how much of it;  spelling: on the command line
    workload       pods of all kinds come and go: pods, stories, stories_static, deeds
    mischief       what goes wrong: mischief_agent, mischief_calls, mischief_around
    invariants     the promises, I1 to I22
    play           one history, from its plan to its outcome;  shrink: a smaller one that fails
    campaign       many seeds in several processes;  report: what came of them;  state: a file to continue from
    perturb        Sieve's perturbations, one by one;  telling: a tale twice;  scenes: the world at rest

A seed decides everything. Nothing is faked about the engine: it is wired as in production. `docs/simulation.md` tells
how to run it, read a failure, and write scenarios and invariants.
"""
