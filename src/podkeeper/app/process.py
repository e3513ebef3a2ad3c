"""Settings of the whole agent process.

Only the command line uses them, not library users.
"""

import gc

_THRESHOLDS = (50_000, 20, 50)


def tune_garbage_collection() -> None:
    """Run the cyclic garbage collector less often.

    The agent has hundreds of thousands of long-lived objects and few cycles. With the default thresholds, a busy node
    with 3,000 pods spends a tenth of its CPU time on garbage collection.
    """
    gc.collect()
    gc.freeze()  # modules and other objects loaded so far are never freed, so do not scan them again
    gc.set_threshold(*_THRESHOLDS)
