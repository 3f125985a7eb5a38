"""`headrace config`: every setting with its default and meaning, as a TOML file to start from."""

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add `config` to the subparsers of the `headrace` command."""
    config = subparsers.add_parser("config", help="list every setting with its default", description=__doc__)
    config.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the settings."""
    from cli.settings_help import print_settings

    print_settings()
    return 0
