"""The last thing on the screen: what a run came to, and where its files are."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.called import called, shorten
from cli.run import artefacts, samples
from cli.run.progress import DASH, clock, gib, number, percent
from cli.run.recorder import EVENTS, METRICS, read_records
from cli.run.summary import last_of_each_step
from shared import checkpoints


def print_summary(run_dir: Path, summary: dict[str, Any]) -> None:
    """The summary of a run that has finished."""
    Console(markup=False).print(summary_table(run_dir, summary))


def print_stopped(run_dir: Path, stop_seconds: float) -> None:
    """What is kept of a run that was stopped, and what to do with it."""
    print(f"Stopped, every process is gone after {stop_seconds:.1f} s. {kept(run_dir)}")
    print(f"Go on with: {called()} up --resume {shorten(run_dir)}")


def kept(run_dir: Path) -> str:
    """How many of the trained steps a checkpoint holds, in a sentence."""
    steps = last_of_each_step(read_records(run_dir / EVENTS))
    trained = steps[-1]["step"] + 1 if steps else 0
    saved = max(checkpoints.steps(run_dir / "checkpoints"), default=0)
    if not trained:
        return "No step was trained yet."
    if saved >= trained:
        return f"Its {trained} trained steps are saved."
    newest = f"the newest checkpoint holds {saved}" if saved else "no checkpoint is there yet"
    return f"Of its {trained} trained steps {newest}: {trained - saved} will be trained again."


def print_next(run_dir: Path) -> None:
    """What one may look at and try, once a first run has finished."""
    shown, steps = shorten(run_dir), len(last_of_each_step(read_records(run_dir / EVENTS)))
    words = [
        (f"less {shown}/{artefacts.SAMPLES}", "read what it answers, before and after"),
        (f"{called()} eval {shown} --k 8", "how well it answers, with intervals"),
        (f"{called()} tau {shown}", "which gate on Drift suits it"),
        (f"{called()} up --resume {shown} --run.steps {2 * steps}", "train it for longer"),
    ]
    width = max(len(command) for command, _ in words)
    print("Next:")
    for command, what in words:
        print(f"  {command:<{width}}  {what}")


def print_samples(run_dir: Path) -> None:
    """One held-out question before and after: one that was learned, where there is one."""
    pairs = samples.before_and_after(read_records(run_dir / EVENTS))
    learned = [p for p in pairs if p[1].get("correct") and not p[0].get("correct")]
    for before, after in (learned or pairs)[:1]:
        console = Console(markup=False)
        for title, rollout in (("before", before), ("after", after)):
            head = f"{title}: {samples.verdict(rollout)}"
            style = "green" if rollout.get("correct") else "red"
            console.print(
                Panel(Text(_shown(str(rollout.get("text", "")))), title=head, border_style=style, box=box.ROUNDED)
            )


def _shown(text: str) -> str:
    """Sampled text, without what would move a terminal's cursor or colour it."""
    return "".join(c for c in text if c.isprintable() or c == "\n").strip()


def summary_table(run_dir: Path, s: dict[str, Any]) -> Table:
    """The figures that matter, in the order in which one asks for them."""
    title = f"{run_dir.name}: {s['steps']} steps in {clock(s['seconds'])}"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_header=False, title_style="bold", title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    for name, value in _rows(s):
        table.add_row(name, value)
    table.add_section()
    for name, file in _files(run_dir):
        table.add_row(name, shorten(file))
    return table


def of_the_policy(s: dict[str, Any]) -> str:
    """What only some policies do with groups."""
    named = {"groups_filtered": "left untrained", "groups_regenerated": "of prompts asked again"}
    return "".join(f", {_whole(s[key])} {what}" for key, what in named.items() if s.get(key))


def _rows(s: dict[str, Any]) -> list[tuple[str, str]]:
    parts = s["learner_seconds"]
    restarts = f", {s['restarts']} restarts" if s["restarts"] else ""
    lost = [("steps lost", f"{s['steps_lost']}, with a checkpoint that was damaged")] if s.get("steps_lost") else []
    return [
        *lost,
        ("EM on held-out questions", _change(s["em_first"], s["em_last"])),
        ("mean reward in training", f"{number(s['reward_first'])} → {number(s['reward_last'])}"),
        (
            "groups",
            f"{_whole(s['groups_generated'])} generated, {_whole(s['groups_trained'])} trained fresh, "
            f"{_whole(s['groups_replayed'])} replayed, {_whole(s['groups_lost'])} lost, "
            f"{_whole(s['groups_trained_twice'])} trained twice{of_the_policy(s)}",
        ),
        (
            "learner idle, whole run",
            f"{percent(s['learner_idle_share'])} (training {parts['training']:.0f} s, "
            f"waiting {parts['waiting_for_groups']:.0f} s, publishing {parts['publishing']:.0f} s)",
        ),
        (
            "acceptance of scanned groups",
            f"{percent(s['acceptance'])}, replayed at age {number(s['replay_age_mean'], 1)}",
        ),
        ("lag of fresh groups", f"mean {number(s['lag_mean'], 2)}, at most {_whole(s['lag_max'])}"),
        (
            "drift of replayed groups",
            f"KL {_small(s['replay_kl'])}, engine gap {_small(s['engine_gap'])}, noise {_small(s.get('drift_noise'))}",
        ),
        (
            "scanning",
            f"{s['scan_seconds_hidden']:.1f} s hidden, {s['scan_seconds_exposed']:.1f} s exposed; "
            f"batches waited {s['selection_seconds_waited']:.1f} s for it; "
            f"selection p99 {number(s['selection_ms_p99'], 2)} ms",
        ),
        ("environment", _environment(s)),
        ("publish to swap", f"{number(s['publish_to_swap_ms_p50'], 0)} ms (median)"),
        ("sampled", f"{_whole(s['tokens_sampled'])} tokens, {number(s['tokens_per_s'], 0)} a second"),
        (
            "payload per group",
            f"{_bytes(s['payload_bytes_in_per_group'])} in, {_bytes(s['payload_bytes_out_per_group'])} out",
        ),
        ("peak memory, all processes", f"{_bytes(s['peak_memory_bytes'])} ({s['peak_memory_kind'] or DASH}){restarts}"),
    ]


def _files(run_dir: Path) -> list[tuple[str, Path]]:
    names = [
        ("figures", artefacts.SUMMARY),
        ("curves", artefacts.CURVES),
        ("steps", METRICS),
        ("sample rollouts", artefacts.SAMPLES),
        ("final checkpoint", artefacts.FINAL),
    ]
    return [(name, run_dir / file) for name, file in names if (run_dir / file).exists()]


def _change(first: float | None, last: float | None) -> str:
    if first is None or last is None:
        return DASH
    return f"{100 * first:.1f} → {100 * last:.1f} % ({100 * (last - first):+.1f} points)"


def _environment(s: dict[str, Any]) -> str:
    waited = f"{number(s['env_seconds_mean'], 2)} s of a rollout"
    return f"{waited}, of it {s['env_latency']} s of latency added to each call" if s["env_latency"] else waited


def _whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _small(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}"


def _bytes(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value / 1024:.1f} KiB" if value < 2**20 else gib(value)
