"""`headrace up`: any configuration as local processes, started, watched and ended together."""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from cli.overrides import is_set

EPILOG = """examples:
  headrace up examples/atlas.toml                            a small search agent, on this machine
  headrace up run.toml --learner.lr 2e-6 --actor.count 3     two settings changed: on four GPUs, three for actors
  headrace up run.toml --dry-run                             check it, print the resolved configuration
  headrace up --resume runs/atlas-001                        go on where a stopped run stands
  headrace up --resume runs/atlas-001 --run.steps 200        the same, for longer

Settings come from the file, then from HEADRACE_SECTION__KEY variables, then from the command line; `headrace config`
lists all of them. Ctrl-C ends every process (within ten seconds, unless run.stop_s is longer); the run can be resumed.

--dry-run refuses what can run on no machine: settings that are wrong or contradict each other, and files that are here
and do not hold what they should: model, data, passages, index. What is not on this machine may be on the one that the
run is meant for: each such thing is noted, above and below the configuration, as is a run folder that is taken. Ports,
disk, a retriever or a Redis of your own are only looked for when the run starts.
"""


def add_parser(subparsers: Any) -> None:
    """Add `up` to the subparsers of the `headrace` command."""
    up = subparsers.add_parser(
        "up",
        help="run a configuration on this machine",
        usage="headrace up CONFIG.toml [--section.key VALUE ...] [--dry-run]\n       headrace up --resume RUN_DIR",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    up.add_argument("config", nargs="?", metavar="CONFIG.toml", help="the configuration; see examples/")
    up.add_argument("--resume", metavar="RUN_DIR", help="continue the run in this folder, with its own configuration")
    up.add_argument("--dry-run", action="store_true", help="check, and print what would run (see below)")
    up.add_argument("--help-config", action="store_true", help="list every setting with its default")
    up.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until the end (0), Ctrl-C (130) or a failure (UserError)."""
    from cli.run.preflight import Preflight
    from shared.errors import UserError

    if args.help_config:
        from cli.settings_help import print_settings

        print_settings()
        return 0
    if (args.config is None) == (args.resume is None):
        raise UserError(
            "name either a configuration (headrace up CONFIG.toml) or a run to continue (--resume RUN_DIR)."
        )
    config = resolve(args.config, args.resume, args.overrides)
    if args.resume is not None and not args.dry_run:
        from cli.run import artefacts, session, untrained
        from shared.files import is_held

        if artefacts.is_complete(config):
            return show_finished(config)
        if is_held(config.run_dir / untrained.LOCK):
            raise UserError(session.running(config.run_dir))  # its ports are taken, too, and nothing is wrong with them
    preflight = Preflight(config, resuming=args.resume is not None, dry_run=args.dry_run)
    preflight.check()
    if args.dry_run:
        _print_plan(config, preflight.notes)
        return 0
    for note in preflight.notes:
        print(f"headrace: note: {note}", file=sys.stderr)
    return launch(preflight, anew=args.resume is None)


def resolve(config_file: str | None, resume: str | None, overrides: list[str]) -> Any:
    """The configuration to run, with absolute paths and real ports.

    An env.url that the user wrote stays as it is, unless it is that of the run's own retriever, whose port it follows.
    """
    from cli.run import plan
    from shared.config import load
    from shared.errors import UserError

    if resume is not None:
        folder = Path(resume)
        _refuse_without_settings(folder)
        config = load(folder / "config.toml", overrides)
        if config.run.name != folder.resolve().name:
            raise UserError(
                f"{folder} holds the run '{config.run.name}', whose keys in Redis carry that name: "
                "rename the folder back to it."
            )
        follows = _url_follows(folder / "config.toml", overrides)
        config = plan.with_values(config, {"run.root": str(folder.resolve().parent)})
    else:
        config = load(config_file, overrides)
        follows = config_file is not None and _url_follows(Path(config_file), overrides)
    return addressed(config, follows)


def _refuse_without_settings(folder: Path) -> None:
    """UserError where the configuration of a run is not there, or is not what the run wrote: text with settings."""
    from shared.errors import UserError

    file = folder / "config.toml"
    if not file.exists() and not any((folder / name).exists() for name in ("events.jsonl", "checkpoints")):
        raise UserError(f"{folder} is not the folder of a run: it holds no config.toml.")
    if file.is_file() and file.read_bytes().strip():
        return
    what = "is a folder" if file.is_dir() else "is empty" if file.exists() else "is not there"
    raise UserError(
        f"{file} {what}, and the run's own configuration belongs there: put it back from a backup, or write there what "
        "`headrace up CONFIG.toml --dry-run` prints with the file and the settings that the run was started with."
    )


def addressed(config: Any, follows: bool) -> Any:
    """With absolute paths and real ports; `follows`: env.url is that of the retriever which this run starts."""
    from cli.run import plan, ports

    values: dict[str, object] = {}
    if config.replay.port == 0:
        values["replay.port"] = ports.free_port()
    if config.search.port == 0:
        values["search.port"] = ports.free_port()
    config = plan.with_values(config, values)
    if config.search.corpus and follows and not plan.is_own_retriever(config.env.url, config.search.port):
        config = plan.with_values(config, {"env.url": plan.search_url(config.search.port)})
    return plan.absolute_paths(config)


def _url_follows(file: Path, overrides: list[str]) -> bool:
    """Whether env.url is that of the run's own retriever: in the file not written, or with the file's search.port."""
    from cli.run import plan
    from shared.settings import Search
    from shared.toml_files import read_toml

    if is_set(overrides, "env.url") or "HEADRACE_ENV__URL" in os.environ:
        return False
    tree = read_toml(file, "configuration file", "examples/atlas.toml")
    url, port = tree.get("env", {}).get("url"), tree.get("search", {}).get("port", Search().port)
    return url is None or plan.is_own_retriever(url, port)


def launch(checked: Any, anew: bool = False) -> int:
    """Run the configuration of a Preflight; the artefacts are in its folder when this returns.

    anew: what a run that never trained a step has left in the folder goes first.
    """
    from cli.called import called
    from cli.run import artefacts, ending, plan, questions, session, untrained
    from cli.run.progress import screen_for
    from shared.files import write_whole

    config = checked.config
    run_dir: Path = config.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    with session.lock(run_dir):
        if anew:
            untrained.clear(run_dir)
        (run_dir / "logs").mkdir(exist_ok=True)
        questions.keep(run_dir, checked.questions)
        write_whole(run_dir / "config.toml", config.to_toml())
        page = plan.service_url(config.replay.host, config.replay.port)
        print(f"The buffer and every rollout are shown at {page}, and by `{called()} top`.", flush=True)
        screen = screen_for(sys.stdout)
        try:
            outcome = asyncio.run(_session(config, screen))
        finally:
            screen.close()
        with session.undisturbed():
            finished = outcome.finished or artefacts.is_complete(config)  # a stop may come with the last word
            summary = artefacts.write(run_dir, pictures=finished)
            if finished:
                ending.print_summary(run_dir, summary)
            else:
                ending.print_stopped(run_dir, outcome.stop_seconds)
    return 0 if finished else 130


def show_finished(config: Any) -> int:
    """What a finished run came to; its artefacts are written again, for one that was interrupted just then."""
    from cli.run import artefacts, ending, session

    with session.lock(config.run_dir):
        summary = artefacts.write(config.run_dir, pictures=True)
    steps = config.run.steps
    print(
        f"The run in {ending.shorten(config.run_dir)} has trained all of its {steps} steps; go on with "
        f"--run.steps {2 * steps}, for example."
    )
    ending.print_summary(config.run_dir, summary)
    return 0


async def _session(config: Any, screen: Any) -> Any:
    from cli.run.session import Session
    from shared.cores import available

    return await Session(config, screen, available()).run()


def _print_plan(config: Any, notes: list[str]) -> None:
    """The resolved configuration as TOML; all else is a comment in it, so that the output is a configuration too."""
    from cli.run import devices, plan
    from shared.cores import available
    from shared.gpus import visible_gpus

    own_redis = [] if config.redis.url else ["redis (its own, on a free port)"]
    names = own_redis + [spec.name for spec in plan.services_of(config, available())]
    noted = "".join(f"# note: {note}\n" for note in notes)
    print(noted + config.to_toml())
    print(f"# would start: {', '.join(names)}")
    print(f"# in the folder {config.run_dir}")
    print(f"# on {_threads(config)}")
    gpus = visible_gpus() or []
    if gpus and devices.refusal(config, len(gpus)) is None:
        print(f"# GPUs, {len(gpus)} visible: {devices.placing(config, len(gpus))}")
    print(f"# a step: {_step(config)}")
    print(noted, end="")


def _threads(config: Any) -> str:
    from cli.run.pins import share
    from shared.cores import available

    cores = available()
    sharing = share(config, cores)
    return f"{len(cores)} cores; threads: learner {sharing.learner}, each actor {sharing.actor}; {sharing}"


def _step(config: Any) -> str:
    fresh = f"{config.learner.batch} fresh groups of {config.rollout.group_size}"
    if config.replay.policy == "none":
        return f"{fresh}, none replayed"
    source = "replay.select" if config.replay.select else "half of learner.batch"
    return f"{fresh}, at most {config.replay_groups} replayed ({source})"
