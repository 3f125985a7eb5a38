"""The state of a running system on a terminal."""

import time
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.called import called
from cli.run.progress import DASH, gib, number, percent, version
from cli.status import sentence


def print_state(shown: str, state: dict[str, Any]) -> None:
    """Where it stands and what it waits for, its services, actors, streams, last events and warnings."""
    console = Console(markup=False)
    console.print(Text.assemble((shown, "bold cyan"), f"  {_standing(state)}"))
    if state["redis_trouble"]:
        console.print(f"  {state['redis_trouble']}", style="bold red", highlight=False)
    for text in state["troubles"]:
        console.print(f"  {text}", style="bold red", highlight=False)
    if state["waiting_for"]:
        console.print(f"  waiting for {state['waiting_for']}", style="dim", highlight=False)
    console.print(_figures(state))
    console.print(f"  {_services(state['services'], state['version'])}", highlight=False)
    console.print(_actors(state["actors"]))
    console.print(_streams(state))
    for event in state["events"]:
        console.print(_line(event, _sentence(event)))
    if state["warnings"]:
        console.print("  last warnings", style="yellow")
    for event in state["warnings"]:
        console.print(_line(event, sentence(event)))


def _standing(state: dict[str, Any]) -> str:
    step = state["step"]
    if state["finished"]:
        return "finished"
    return (
        f"step {step['step'] + 1}/{step.get('steps', '?')}, weights {state['version']}"
        if step
        else "no step trained yet"
    )


def _figures(state: dict[str, Any]) -> Table:
    step, evaluated = state["step"] or {}, state["eval"] or {}
    table = Table.grid(padding=(0, 3))
    table.add_row("  reward", number(step.get("reward_mean")), "acceptance", percent(step.get("acceptance")))
    table.add_row("  held-out EM", percent(evaluated.get("em")), "buffer", f"{step.get('buffer_groups', DASH)} groups")
    table.add_row("  lag", number(step.get("lag_mean"), 2), "step", f"{number(step.get('seconds'), 2)} s")
    letters = f"{state['dead_letters']}: see `{called()} deadletters`" if state["dead_letters"] else "0"
    table.add_row("  Redis", gib(state["redis_memory_bytes"]), "dead letters", letters)
    return table


def _services(heard: dict[str, float | None], announced: str | None) -> str:
    """When each last asked Redis for something; a learner asks between two steps, and first announces its weights."""
    silent = {"replay": "is not up yet", "learner": f"has announced {announced}" if announced else "is not up yet"}
    said = [f"{name} {silent[name] if ago is None else f'was heard {ago:.1f} s ago'}" for name, ago in heard.items()]
    return ", ".join(said)


def _actors(actors: list[dict[str, Any]]) -> Table:
    table = Table("actor", "heartbeat", "version", "engine", "groups", "tokens/s", box=box.SIMPLE_HEAD)
    for actor in actors:
        table.add_row(
            actor["id"],
            f"{actor['heartbeat_age_s']:.1f} s ago",
            version(actor.get("version")),
            str(actor.get("engine", DASH)),
            str(actor.get("groups_running", DASH)),
            number(actor.get("tokens_per_s"), 0),
        )
    if not actors:
        table.add_row("none is alive", *[""] * 5)
    return table


def _streams(state: dict[str, Any]) -> Table:
    table = Table("stream", "entries", "pending", box=box.SIMPLE_HEAD)
    for name, figures in state["streams"].items():
        table.add_row(name, str(figures["length"]), str(figures["pending"]))
    return table


def _line(event: dict[str, Any], said: str) -> Text:
    return Text.assemble("  ", (time.strftime("%H:%M:%S", time.localtime(event["time"])), "dim"), f" {said}")


def _sentence(event: dict[str, Any]) -> str:
    kind = event["kind"]
    if kind == "swap":
        took = f"{number(event.get('seconds'), 2)} s"
        return f"{event.get('actor')} took over weights {version(event.get('version'))} in {took}"
    if kind == "eval":
        return (
            f"evaluation of version {event.get('round')}: EM {percent(event.get('em'))} on {event.get('n')} questions"
        )
    return f"{kind} {event.get('text', '')}".strip()
