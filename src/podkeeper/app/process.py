"""The agent's own process: what is set once for all of it, by whoever owns the process (never by a library user)."""

import gc

_THRESHOLDS = (50_000, 20, 50)


def tune_garbage_collection() -> None:
    """Look for cycles more rarely: an agent holds hundreds of thousands of long-lived values and makes few cycles.

    With the usual thresholds a tenth of the time of a busy node with 3,000 pods goes into looking at the same values
    again and again. What is loaded by now never goes away, and is not looked at again at all.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
