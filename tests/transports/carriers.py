"""A carrier that reads as a test wants: a file `wait` beside the versions halts it, `wrong` spoils every piece."""

import sys
import time
from pathlib import Path
from typing import Any

from shared.transports import carrier

_read = carrier._read


def read(path: Path, start: int, length: int) -> Any:
    beside = path.parent.parent
    while start and (beside / "wait").exists():
        time.sleep(0.02)
    data = _read(path, start, length)
    if (beside / "wrong").exists():
        data[0] ^= 1
    return data


if __name__ == "__main__":
    carrier._read = read
    carrier.main(sys.argv[1:])
