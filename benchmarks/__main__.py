"""`python -m benchmarks NAME [--SIZE VALUE ...] [--json]`: a benchmark as `headrace bench` starts it.

SIGINT ends it as an exception does, so that its folders and processes go with it, and nothing is said. It may come
twice, from the terminal and from the command: a second one would break into that.
"""

import runpy
import signal
import sys
from typing import Any

STOPPED = 130


def _once(*_: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _once)
    try:
        runpy.run_module(f"benchmarks.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(STOPPED)
