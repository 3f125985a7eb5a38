"""What comes from outside is printed as it is: rich reads `[red]` as a colour, and fails at `[/tmp/x]`."""

import io
import json
import re
from pathlib import Path

import pytest
import redis
from rich.console import Console

from cli import doctor
from cli.chaos import report as chaos_report
from cli.chaos.checker import Verdict
from cli.eval.progress import Progress
from cli.eval.report import print_report
from cli.machine import Check
from cli.main import main
from cli.run.ending import print_summary
from cli.run.summary import summarise
from shared import events
from shared.streams import Keys
from tests.cli.chaos.test_command import COUNTS, made
from tests.cli.test_eval_report import JOB, answered, report

ODD = "lost [/tmp/x] [red]here[/red]"
CLI = Path(__file__).resolve().parents[2] / "cli"


def test_status_shows_events_warnings_and_names_as_they_are(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    keys, run = Keys("[bold]x[/]"), "[bold]x[/]"
    with redis.Redis.from_url(redis_url) as client:
        events.emit(client, keys, "warning", actor="[b]a[/b]", text=ODD)
        events.emit(client, keys, "actor", text=ODD)
        client.sadd(keys.actors, "[b]a[/b]")
        client.set(keys.actor("[b]a[/b]"), json.dumps({"engine": "[/e]"}), ex=10)
    assert main(["status", "--redis", redis_url, "--run", run]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert run in said and f"[b]a[/b]: {ODD}" in said and f"actor {ODD}" in said and "[/e]" in said


def test_the_reports_show_outside_text_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    chaos_report.show(made(verdict=Verdict([ODD], COUNTS, True, 0), ended=f"the run ended: {ODD}"), ODD, file)
    assert file.getvalue().count(ODD) == 3

    doctor._print_report([Check("[b]", "ok", ODD, f"advice {ODD}")], "torch", True)
    assert capsys.readouterr().out.count(ODD) == 2

    found = report(JOB, [answered(0, "[/s]", [True, False])], [1], {}) | {"model": ODD}
    with (console := Console(width=100, markup=False)).capture() as printed:
        print_report(found, console)
    assert ODD in printed.get() and printed.get().count("[/s]") == 2

    print_summary(tmp_path / "[b]x", summarise([]))
    assert "[b]x: 0 steps" in capsys.readouterr().out


def test_progress_shows_outside_text_as_it_is() -> None:
    file = io.StringIO()
    Progress(3, file).note(ODD)
    assert ODD in file.getvalue()


def test_every_console_takes_text_for_text() -> None:
    consoles = {
        f"{file.relative_to(CLI)}: {call}"
        for file in CLI.rglob("*.py")
        for call in re.findall(r"\bConsole\(.*?\)", file.read_text())
    }
    assert len(consoles) > 10
    assert {call for call in consoles if "markup=False" not in call and not call.startswith("bench.py")} == set()
