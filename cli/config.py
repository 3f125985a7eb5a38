"""`headrace config`: every setting with its default and meaning, as a TOML file to start from."""

import argparse
from typing import Any

EPILOG = """example:
  headrace config > my.toml     then set model.path, data.train and, to search, search.corpus

Every other line is a comment: take the # in front of a setting away to change it.
What a file or the command line sets is checked by `headrace up my.toml --dry-run`, which prints what results.
"""


def add_parser(subparsers: Any) -> None:
    """Add `config` to the subparsers of the `headrace` command."""
    config = subparsers.add_parser(
        "config",
        help="list every setting with its default",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the settings."""
    from cli.settings_help import print_settings

    print_settings()
    return 0
