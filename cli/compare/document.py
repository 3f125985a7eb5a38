"""A report as a list of blocks, written as Markdown and as one HTML file that needs no other."""

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STYLE = """
:root { --ink: #1f2933; --soft: #616e7c; --line: #e4e7eb; --paper: #ffffff; --shade: #f5f7fa; --accent: #2563eb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --soft: #9aa5b1; --line: #323f4b; --paper: #171c21; --shade: #1f262d; --accent: #7aa2ff; }
  img { background: #ffffff; border-radius: 6px; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 5rem; max-width: 76rem; color: var(--ink); background: var(--paper);
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1.2rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .7rem; }
p { max-width: 46rem; margin: .6rem 0; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; background: var(--shade); }
th.words, td.words { text-align: left; }
img { display: block; max-width: 100%; margin: 1rem 0; }
code { background: var(--shade); padding: .1em .3em; border-radius: 3px; font-size: .88em; }
"""
_NUMBER = re.compile(r"^(x )?[+-]?\d|^–$|^$")


@dataclass(frozen=True)
class Heading:
    """A section; level 1 is the title."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` between backticks."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A PNG beside the report, and what it shows in words."""

    path: Path
    says: str


Block = Heading | Text | Table | Picture


def as_markdown(blocks: Sequence[Block], folder: Path) -> str:
    """The report for a repository; pictures are linked relative to `folder`."""
    parts = []
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {text}")
            case Text(text):
                parts.append(text)
            case Table(head, rows):
                ruler = ["---" if of_words else "---:" for of_words in _words(block)]
                lines = [head, ruler, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
                parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
            case Picture(path, says):
                parts.append(f"![{says}]({path.relative_to(folder)})")
    return "\n\n".join(parts) + "\n"


def as_html(blocks: Sequence[Block], title: str) -> str:
    """The report as one page with its pictures inside."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Table(head, rows):
            marks = [' class="words"' if of_words else "" for of_words in _words(block)]
            top = "".join(f"<th{mark}>{_inline(cell)}</th>" for cell, mark in zip(head, marks, strict=True))
            lines = [
                "".join(f"<td{mark}>{_inline(cell)}</td>" for cell, mark in zip(row, marks, strict=True))
                for row in rows
            ]
            body = "\n".join(f"<tr>{line}</tr>" for line in lines)
            return (
                f'<div class="scroll"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
            )
        case Picture(path, says):
            data = base64.b64encode(path.read_bytes()).decode()
            return f'<img alt="{html.escape(says)}" src="data:image/png;base64,{data}">'


def _words(table: Table) -> list[bool]:
    """Which columns hold words and are set to the left: the first, and those with a cell that is no number."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.head)
    return [n == 0 or not all(_NUMBER.match(cell) for cell in column) for n, column in enumerate(columns)]


def _inline(text: str) -> str:
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escaped)
