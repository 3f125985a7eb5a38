"""An index is built in a process of its own, which never outlives the one that wants it.

What only building needs (bm25s, a second encoder) is gone from memory when serving starts.
"""

import os
import signal
import threading
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from services.env_search.backend import IndexSpec
from services.env_search.index import build_index
from shared.errors import UserError

END_S = 10.0  # of a process that has said its last


def build_apart(corpus: Path, folder: Path, spec: IndexSpec) -> None:
    """`build_index` where it is missing. Raises its UserError, or one where the process ended without a word.

    A pool would leave semaphores behind where this process ends in the midst of it.
    """
    context = get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_build, args=(theirs, corpus, folder, spec), daemon=True)
    resource_tracker.ensure_running()  # here, since it lets all signals through when it has started
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C reaches the child too: it ends with us
    process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    theirs.close()
    with mine:
        try:
            error: UserError | None = mine.recv()
        except EOFError:
            process.join(END_S)
            raise UserError(
                f"The build of {folder} ended with status {process.exitcode}: see above, or the machine's memory; "
                "another start goes on from what is done."
            ) from None
    process.join(END_S)
    if error:
        raise error


def _build(say: Connection, corpus: Path, folder: Path, spec: IndexSpec) -> None:
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)  # what is half built is written aside, and built on by the next one

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        build_index(corpus, folder, spec)
        say.send(None)
    except UserError as error:
        say.send(error)
