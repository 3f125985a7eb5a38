"""The `headrace` command. Each subcommand is a module of its own, imported only when it is called."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from shared.nearest import hint

USAGE = """headrace: asynchronous GRPO in which replay is a service

  headrace demo                      train a small search agent here, in a few minutes, and see it learn
  headrace up CONFIG.toml            run a configuration on this machine; --resume RUN_DIR continues one
  headrace compare STUDY.toml        several configurations over seeds, and a report that says how sure it is
  headrace tau RUN_DIR|CONFIG.toml   which gate on Drift (replay.tau) suits a run
  headrace chaos CONFIG.toml         kill and disturb a run at random, and judge what its log says
  headrace status [RUN_DIR]          what a running system is doing
  headrace top [RUN_DIR]             the same at a glance, drawn anew every second
  headrace deadletters [RUN_DIR]     messages that were refused, from where, and why
  headrace watch [CONFIG.toml]       follow a run that something else started, and record it
  headrace export [RUN_DIR] --to T   a run's figures for TensorBoard, or as a table
  headrace eval MODEL [--suite S]    how well a model or a run's newest version answers, k samples a question
  headrace bench [NAME ...]          figures of this machine as ratios to its limits and to peers
  headrace doctor                    what this machine can run, and what is missing
  headrace index build CORPUS OUT    build a retrieval index over a file of passages
  headrace config                    every setting with its default and meaning

A run is one TOML file. Any setting can be changed on the command line or in the environment:

  headrace up run.toml --learner.lr 2e-6 --replay.tau .02
  HEADRACE_LEARNER__LR=2e-6 headrace up run.toml

`headrace COMMAND --help` says more. Start with `headrace demo`, then read runs/<name>/samples.md.
"""

COMMANDS = {
    "up": "cli.up",
    "demo": "cli.demo",
    "compare": "cli.compare.command",
    "tau": "cli.tau",
    "chaos": "cli.chaos.command",
    "status": "cli.status",
    "top": "cli.top",
    "deadletters": "cli.deadletters",
    "watch": "cli.watch",
    "export": "cli.export",
    "eval": "cli.eval.command",
    "bench": "cli.bench",
    "doctor": "cli.doctor",
    "index": "cli.index",
    "config": "cli.config",
}
TAKES_OVERRIDES = {"up", "demo", "compare", "tau", "chaos", "watch", "eval"}
STOPPED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0, 2 for a mistake of the user, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _answer(words)
        finally:
            if sys.stdout:
                sys.stdout.flush()  # where it cannot be written, that is told here and not at the exit
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        if error.strerror is None:  # no answer of the system: a fault of ours
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"headrace: {words[0].lstrip('-') if words else 'help'} cannot go on: {error.strerror}{where}.",
            file=sys.stderr,
        )
        _drop_output()
        return 2


def _answer(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"headrace {version('headrace')}")
        return 0
    if words[0] not in COMMANDS:
        print(f"headrace: there is no command '{words[0]}'; {hint(words[0], COMMANDS, cutoff=0.6)}", file=sys.stderr)
        return 2
    return _call(words)


class _Parser(argparse.ArgumentParser):
    """What is wrong with the words is told in a sentence, as any other mistake of the user."""

    def print_help(self, file: Any = None) -> None:
        """As the library does, but an output that takes nothing is told."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        from shared.errors import UserError

        said = message.removeprefix("argument ").replace(": must be ", " must be ")
        raise UserError(f"{said}; `{self.prog} --help` says what it takes.")


def _call(words: list[str]) -> int:
    from cli.overrides import split_overrides
    from shared.errors import UserError

    command = words[0]
    overrides: list[str] = []
    if command in TAKES_OVERRIDES:
        words, overrides = split_overrides(words)
    parser = _Parser(prog="headrace", allow_abbrev=False)
    subparsers = parser.add_subparsers(dest="command")
    importlib.import_module(COMMANDS[command]).add_parser(subparsers)
    try:
        args, unknown = parser.parse_known_args(words)
        args.overrides = overrides
        if unknown:
            raise UserError(_unknown(command, unknown[0], subparsers.choices[command]))
        return args.run(args)
    except UserError as error:
        from cli.called import as_called

        print(f"headrace: {as_called(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        if not (sentence := _of_redis(error)):
            raise
        print(f"headrace: {command} cannot go on: {sentence}", file=sys.stderr)
        return 2


def _of_redis(error: Exception) -> str | None:
    """What is said of an error of Redis, without its library for a command that has not used it."""
    if "redis" not in sys.modules:
        return None
    import redis

    from shared.redis_client import refusal

    if isinstance(error, redis.RedisError):
        return refusal(error) or f"Redis says '{str(error).rstrip('.')}': see its log, and redis.url."
    return None


def _drop_output() -> None:
    """What cannot be written would fail again at the exit."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unknown(command: str, word: str, parser: argparse.ArgumentParser) -> str:
    """What is said of a word that the command does not take: the option or the setting that may have been meant."""
    from shared.config import known_keys
    from shared.foreign import ours

    here = ours(word.lstrip("-+").partition("=")[0]) if command in TAKES_OVERRIDES else None
    if here:
        return f"{command} has no use for '{word}'; here it is {here} (docs/coming-from.md has more of them)."
    if not word.startswith("--"):
        return f"{command} has no use for '{word}'; `headrace {command} --help` says what it takes."
    word = word.partition("=")[0]
    options = [option for option in parser._option_string_actions if option.startswith("--")]  # no public name
    settings = [f"--{key}" for key in known_keys()] if command in TAKES_OVERRIDES else []
    exact = [setting for setting in settings if setting.rpartition(".")[2] == word[2:]]
    if len(exact) > 1:
        return f"{command} has no option {word}; did you mean one of {', '.join(exact)}?"
    return f"{command} has no option {word}; {hint(word, exact or [*options, *settings], shown=options)}"


if __name__ == "__main__":
    sys.exit(main())
