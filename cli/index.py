"""`headrace index build CORPUS OUT`: build the index of a corpus of passages, which retrieval then maps from disk.

A large corpus is indexed once, before any run; a run without search.index builds one in its own folder. A build that is
interrupted goes on where it was.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from cli.numbers import setting
from services.env_search.backend import IndexSpec
from services.env_search.index import Built, build_index, differences
from services.env_search.manifest import Manifest, read_manifest

EPILOG = """examples:
  headrace index build passages.jsonl idx                                    BM25, as search.k1, b and stemmer have it
  headrace index build passages.jsonl idx --stemmer none --k1 1.2            other parameters: the run must say the same
  headrace index build wiki.jsonl e5 --backend dense --encoder intfloat/e5-base-v2

A line of the corpus is {"id": "0", "contents": "\\"Title\\"\\nbody"}. The run names the corpus in search.corpus, the
index in search.index, and the parameters under [search]; an index of another corpus or of other parameters is refused.
"""


def add_parser(subparsers: Any) -> None:
    """Add `index build` to the subparsers of the `headrace` command."""
    text = {"description": __doc__, "epilog": EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    index = subparsers.add_parser("index", help="build the index of a retrieval corpus", **text)
    commands = index.add_subparsers(dest="index_command", metavar="build", required=True)
    build = commands.add_parser("build", help="build an index; an interrupted build continues where it was", **text)
    build.add_argument("corpus", type=Path, metavar="CORPUS", help='JSON lines {"id", "contents"}')
    build.add_argument("out", type=Path, metavar="OUT", help="directory of the index")
    build.add_argument("--backend", choices=("bm25", "dense"), default=IndexSpec.backend, help="default %(default)s")
    build.add_argument(
        "--k1", type=setting("search.k1"), default=IndexSpec.k1, help="BM25: term saturation (default %(default)s)"
    )
    build.add_argument(
        "--b", type=setting("search.b"), default=IndexSpec.b, help="BM25: length weight (default %(default)s)"
    )
    build.add_argument(
        "--stemmer", choices=("english", "none"), default=IndexSpec.stemmer, help="BM25: of words (default %(default)s)"
    )
    build.add_argument("--encoder", default="", help="dense: a sentence-transformers directory or hub name")
    build.add_argument("--query-prefix", default=IndexSpec.query_prefix, help="dense: before a query ('%(default)s')")
    build.add_argument(
        "--passage-prefix", default=IndexSpec.passage_prefix, help="dense: before a passage ('%(default)s')"
    )
    build.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build as `args` say; returns the exit code. UserError where it cannot be built."""
    spec = IndexSpec(
        backend=args.backend,
        k1=args.k1,
        b=args.b,
        stemmer=args.stemmer,
        encoder=args.encoder,
        query_prefix=args.query_prefix,
        passage_prefix=args.passage_prefix,
    )
    console = Console(markup=False)
    if (old := read_manifest(args.out)) and (others := _others(old, spec)):
        console.print(f"{args.out} was built with {others}; it is replaced when the new index is complete.")
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stages: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done)

        built = build_index(args.corpus, args.out, spec, show)
    console.print(summary(args.out, built))
    return 0


def _others(old: Manifest, spec: IndexSpec) -> str:
    """What of an index that is there is not as in `spec`."""
    if old.backend != spec.backend:
        return f"backend = {old.backend!r}"
    return " and ".join(f"{name} = {was!r}" for name, was, _ in differences(spec, old))


def summary(out: Path, built: Built) -> Table:
    """What was built, as a table of a row."""
    table = Table(title="already built" if built.reused else "built", title_justify="left")
    for heading in ("index", "documents", "seconds", "bytes", "fingerprint"):
        table.add_column(heading, overflow="fold")
    table.add_row(str(out), f"{built.documents:,}", f"{built.seconds:.1f}", f"{built.bytes:,}", built.fingerprint)
    return table
