"""The runs of a study, one after the other; each is trained in one session or not at all.

    <folder>/runs/<arm>-s<seed>/    the folder of a run, as `headrace up` leaves it
        trained.json                written when its session has ended: where, how long, how many steps count
        evals/k<samples>/           what its last weights answered to the held-out questions

A run without trained.json was cut off: it is thrown away and made anew, so that no figure mixes two sessions, and a
study that was killed comes to the report of one that was not.
"""

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import IO, Any

import psutil

from cli import up
from cli.compare import evaluation, place
from cli.compare.screen import StudyScreen
from cli.compare.study import Run, Study
from cli.run import artefacts, plan
from cli.run.preflight import Preflight
from cli.run.recorder import METRICS, read_records
from cli.run.session import Session, undisturbed
from cli.run.summary import last_of_each_step
from shared.config import Config, load
from shared.cores import available
from shared.errors import UserError
from shared.files import hold, write_whole
from shared.weights import published

TRAINED = "trained.json"
ORPHANS_S = 20.0
# what is decided anew for each start of a run
_NOT_COMPARED = {"run.root", "replay.port", "search.port", "env.url"}


def trained(run: Run) -> dict[str, Any] | None:
    """What was noted at the end of a run's session; None of one that has to be trained."""
    try:
        return json.loads((run.config.run_dir / TRAINED).read_text())
    except FileNotFoundError:
        return None


def is_made(study: Study, run: Run) -> bool:
    """Whether nothing is left to do for this run."""
    return trained(run) is not None and not evaluation.is_due(study, run)


def make_all(study: Study, screen: StudyScreen) -> bool:
    """Make what is missing; False when the user stopped it. Raises UserError with what stopped a run."""
    evaluation.refuse_absent_questions(study)
    with _lock(study.folder):
        for run in study.runs:
            if is_made(study, run):
                continue
            screen.begin(run)
            note = trained(run) or _train(study, run, screen)
            if note is None:
                return False
            if evaluation.is_due(study, run):
                screen.evaluate(f"asking the held-out questions, {study.head.samples} samples each")
                if not evaluation.evaluate(study, run, run.config.run_dir / note["weights"]):
                    return False
            screen.end(run)
    return True


def check(study: Study) -> None:
    """Raise UserError for what can be known to go wrong, before hours are spent."""
    for run in study.runs:
        if study.head.samples:
            evaluation.refuse_nothing_to_ask(run)
        if trained(run) is not None:
            _refuse_other_settings(study, run)
    evaluation.refuse_other_questions(study, [run for run in study.runs if trained(run) is not None])
    for run in study.runs[: len(study.arms)]:
        if trained(run) is None:
            asked = _with_questions(study, run, _ready(study, run))
            Preflight(asked, dry_run=True).check()  # its folder may be half-made


def _train(study: Study, run: Run, screen: StudyScreen) -> dict[str, Any] | None:
    run_dir = run.config.run_dir
    _wait_for_orphans(run_dir)
    shutil.rmtree(run_dir, ignore_errors=True)
    config = _ready(study, run)
    Preflight(_with_questions(study, run, config)).check()
    busy_before, began = place.busy_share(), time.time()
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / "config.toml").write_text(config.to_toml())
    session = asyncio.run(_session(run, config, screen))
    if session is None:
        return None
    with undisturbed():
        artefacts.write(run_dir, pictures=True)
        steps, weights = _last(run, session.had_enough)
        note = {
            "steps": steps,
            "weights": str(weights),
            "stopped_at_budget": session.had_enough,
            "seconds": round(time.time() - began, 1),
            "busy_before": busy_before,
            "busy_after": place.busy_share(),
            "place": place.describe(),
        }
        write_whole(run_dir / TRAINED, json.dumps(note, indent=1) + "\n")
    return note


async def _session(run: Run, config: Config, screen: StudyScreen) -> Session | None:
    """The session of a run that came to its end; None when the user stopped it."""
    ahead = config.learner.batch * config.replay.max_lag  # generated for the steps to come

    def spent(event: dict[str, Any]) -> bool:
        """Whether a policy that throws fresh groups away has used the budget before its last step."""
        if run.budget is None or event["kind"] != "step" or event["step"] + 1 >= config.run.steps:
            return False
        return event["groups_generated"] >= run.budget + ahead

    session = Session(config, screen, available(), spent)
    outcome = await session.run()
    return session if outcome.finished or session.had_enough else None


def _last(run: Run, had_enough: bool) -> tuple[int, Path]:
    """(steps trained, weights that are evaluated, relative to the run's folder).

    The final checkpoint; for a run that ended at its budget, the newest version that it had published by then.
    """
    steps, folder = run.config.run.steps, run.config.run_dir
    if not had_enough:
        return steps, Path("checkpoints", f"step_{steps}")
    recorded = last_of_each_step(read_records(folder / METRICS))[-1]["step"] + 1
    version = max(v for v in published(folder / "weights") if v.number <= recorded)
    return version.number, Path("weights", version.directory)


def _ready(study: Study, run: Run) -> Config:
    """The configuration to start. Held-out questions are asked after a run; in it only where the study says so."""
    config = run.config
    follows = "url" not in config.env.model_fields_set or plan.is_own_retriever(config.env.url, config.search.port)
    values: dict[str, object] = {"replay.port": 0, "search.port": 0, "eval.every": study.head.held_out_every}
    if not study.head.held_out_every:
        values["data.eval"] = ""
    return up.addressed(plan.with_values(config, values), follows)


def _with_questions(study: Study, run: Run, config: Config) -> Config:
    """For a preflight, which reads the held-out questions only where they are named."""
    return config.model_copy(update={"data": run.config.data}) if study.head.samples else config


def _refuse_other_settings(study: Study, run: Run) -> None:
    file = run.config.run_dir / "config.toml"
    stored, wanted = _settings(load(file, environ={})), _settings(_ready(study, run))
    for key, value in wanted.items():
        if key not in _NOT_COMPARED and stored.get(key) != value:
            raise UserError(
                f"the run in {file.parent} was made with {key} = {stored.get(key)!r}, and the study now says "
                f"{value!r}: give the study another name, or remove that folder."
            )


def _settings(config: Config) -> dict[str, Any]:
    return {f"{s}.{key}": value for s, section in config.model_dump().items() for key, value in section.items()}


def _wait_for_orphans(run_dir: Path) -> None:
    """A command that was killed leaves its processes to their warden for some seconds; they still write here."""
    deadline = time.monotonic() + ORPHANS_S
    while left := _processes_of(run_dir.resolve()):
        if time.monotonic() > deadline:
            raise UserError(f"{len(left)} processes of the run in {run_dir} are still there: end {left[0]}, for one.")
        time.sleep(0.2)


def _processes_of(run_dir: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            inside = Path(process.cwd()).is_relative_to(run_dir)
            if inside or process.environ().get("HEADRACE_CONFIG") == str(run_dir / "config.toml"):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue  # it ended, or is not ours
    return found


def _lock(folder: Path) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return hold(folder / ".lock", f"the study in {folder} is running already: stop it first.")
