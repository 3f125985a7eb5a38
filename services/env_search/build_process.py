"""An index is built in a process of its own, which never outlives the one that wants it.

What only building needs (bm25s, a second encoder) is gone from memory when serving starts.
"""

import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from pathlib import Path

from services.env_search.backend import IndexSpec
from services.env_search.index import build_index


def build_apart(corpus: Path, folder: Path, spec: IndexSpec) -> None:
    """`build_index` where it is missing. Raises what it raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_end_with_parent) as process:
        process.submit(build_index, corpus, folder, spec).result()


def _end_with_parent() -> None:
    """A pool's process waits for its next task for ever, also when nobody is left to give it one."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)  # what is half built is written aside, and built on by the next one

    threading.Thread(target=wait, daemon=True).start()
