"""Run scenarios inside a booted systemd: requests on stdin, errors on stdout ("" for success).

Started by `BootedSystemd.run_scenario`. A scenario is a function of a module, plain or async.
"""

import asyncio
import importlib
import inspect
import json
import os
import sys
import traceback


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of scenarios is not a result
    for line in sys.stdin:
        request = json.loads(line)
        try:
            scenario = getattr(importlib.import_module(request["module"]), request["name"])
            result = scenario(*request["arguments"])
            if inspect.iscoroutine(result):
                asyncio.run(result)
            error = ""
        except BaseException:
            error = traceback.format_exc()
        out.write(f"{json.dumps(error)}\n")
        out.flush()


if __name__ == "__main__":
    main()
