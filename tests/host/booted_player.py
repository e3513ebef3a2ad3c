"""Plays scenes inside of a booted systemd: orders come in on the standard input, troubles go out ("": none).

Run by `Booted.play`. A scene is a function of some module, plain or async.
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
    os.dup2(2, 1)  # what scenes print is no answer
    for line in sys.stdin:
        order = json.loads(line)
        try:
            scene = getattr(importlib.import_module(order["module"]), order["name"])
            result = scene(*order["arguments"])
            if inspect.iscoroutine(result):
                asyncio.run(result)
            trouble = ""
        except BaseException:
            trouble = traceback.format_exc()
        out.write(f"{json.dumps(trouble)}\n")
        out.flush()


if __name__ == "__main__":
    main()
