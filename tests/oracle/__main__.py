"""Replay recorded files: `python -m tests.oracle [--only tables|scripts] FILE...`. Exit 1 on any difference."""

import argparse
import sys
import time
from pathlib import Path

from tests.oracle.replay import InvalidRecording, Part, read_recording, replay

SHOWN_FAILURES_PER_FILE = 10


def main(arguments: list[str]) -> int:
    """Replay each file and print the first differences. The last line is `N passed, M failed`."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description="Replay recorded cases of the kubelet.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded file, plain or gzip JSON")
    parser.add_argument(
        "--only", choices=[Part.TABLES.value, Part.SCRIPTS.value], help="replay only this part of each file"
    )
    options = parser.parse_args(arguments)
    passed = failed = 0
    for path in options.files:
        started = time.perf_counter()
        try:
            report = replay(read_recording(path), Part(options.only or Part.ALL))
        except InvalidRecording as error:
            print(f"INVALID {error}")
            failed += 1
            continue
        for failure in report.failures[:SHOWN_FAILURES_PER_FILE]:
            print(f"FAILED {failure.case}")
            for difference in failure.differences:
                print(f"    {difference}")
        hidden = len(report.failures) - SHOWN_FAILURES_PER_FILE
        if hidden > 0:
            print(f"... and {hidden} more failed cases in {path}")
        seconds = time.perf_counter() - started
        print(f"{path}: {report.passed} as the kubelet, {len(report.failures)} different, {seconds:.1f} s")
        passed += report.passed
        failed += len(report.failures)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
