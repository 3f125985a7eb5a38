"""A run that ended before its first step has nothing to lose: its folder may be taken for another start.

So a run that a service refused at its start (an empty file, a port that was taken) does not block its own name.
"""

import shutil
from pathlib import Path

from cli.run import artefacts, local_redis
from cli.run.questions import QUESTIONS
from cli.run.recorder import EVENTS, METRICS, read_records
from shared import checkpoints
from shared.files import PARTIAL

INDEX = "index"  # kept: it takes the longest to make, and is known by its content
LOCK = ".lock"  # held while the run goes on
LOGS, CONFIG = "logs", "config.toml"
CONFIG_ASIDE = CONFIG + PARTIAL
_GOES = (LOGS, "weights", "received", "checkpoints", local_redis.FOLDER, EVENTS, METRICS, CONFIG, CONFIG_ASIDE)
_GOES += (artefacts.SUMMARY, artefacts.SAMPLES, artefacts.CURVES, QUESTIONS, QUESTIONS + PARTIAL)


def is_untrained(run_dir: Path) -> bool:
    """Whether the folder holds a run with its own Redis and no trained step, or a start that was cut off before it had
    written its configuration, and nothing else.
    """
    there = {path.name for path in run_dir.iterdir()}
    if there <= {LOCK, LOGS, CONFIG_ASIDE, QUESTIONS, QUESTIONS + PARTIAL, INDEX}:
        return not any((run_dir / LOGS).glob("*"))
    a_run = local_redis.FOLDER in there and there <= {*_GOES, INDEX, LOCK}
    trained = any(record["kind"] == "step" for record in read_records(run_dir / EVENTS))
    return a_run and not trained and not checkpoints.steps(run_dir / "checkpoints")


def clear(run_dir: Path) -> None:
    """Take away what such a run left; any other folder stays as it is. The caller holds its lock."""
    if not is_untrained(run_dir):
        return
    for name in _GOES:
        path = run_dir / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
