"""Opens a data set by path or hub name; rows are read when they are asked for.

JSON lines are mapped and parsed one at a time; parquet stays in Arrow's columns. Either way 170,000 rows cost
no Python objects until they are used. Every error names the file and the line or row.
"""

import json
import re
from pathlib import Path
from typing import Any, Protocol

from shared.errors import UserError
from shared.lines import LineFile, file_size
from shared.prompts.example import COLUMNS, Example, read_row

HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(/(?P<part>[\w.-]+))?(:(?P<split>\w+))?")


class PromptSource(Protocol):
    """A data set: `len(source)` examples, `source[i]` the i-th. UserError where row i cannot be read."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


class JsonLines:
    """One JSON object a line."""

    def __init__(self, path: Path, whole_rows: bool) -> None:
        self._lines = LineFile(path)
        self._whole = whole_rows
        self._path = path

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Example:
        try:
            row = json.loads(self._lines[index].decode("utf-8-sig"))
            if not isinstance(row, dict):
                raise ValueError("is not a JSON object.")
            return read_row(row, source=self._path.stem, index=index, whole=self._whole)
        except (ValueError, RecursionError) as error:
            unread = isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError)
            problem = "is not JSON." if unread else str(error)
            raise UserError(f"{self._path} line {self._lines.number(index)} {problem}") from None


class Table:
    """An Arrow table: the columns of a parquet file, or of a hub data set."""

    def __init__(self, table: Any, where: str, source: str, whole_rows: bool) -> None:
        self._table = table
        self._whole = whole_rows
        self._where = where
        self._source = source

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._where}")
        try:
            row = self._table.slice(index, 1).to_pylist()[0]
            return read_row(row, source=self._source, index=index, whole=self._whole)
        except ValueError as error:
            problem = "holds text that is not UTF-8." if isinstance(error, UnicodeDecodeError) else str(error)
            raise UserError(f"{self._where} row {index} {problem}") from None


def open_prompts(source: str, *, whole_rows: bool = False) -> PromptSource:
    """Open `source`: a .parquet file, a file of JSON lines, or a hub name `owner/name[/part][:split]` (split train
    by default). whole_rows: keep the columns that are not known here, and take rows without an answer (`read_row`).

    Raises UserError where it cannot be opened, holds nothing, or its first row is not of a known form.
    """
    if not source:
        raise UserError("No data set is named: set data.train to a parquet file, a file of JSON lines, or a hub name.")
    path = Path(source)
    if path.suffix == ".parquet":
        prompts: PromptSource = Table(_read_parquet(path, whole_rows), str(path), path.stem, whole_rows)
    elif not path.exists() and HUB_NAME.fullmatch(source) and path.suffix not in (".json", ".jsonl"):
        prompts = Table(_read_hub(source), source, source, whole_rows)
    else:
        file_size(path)
        prompts = JsonLines(path, whole_rows)
    if not len(prompts):
        raise UserError(f"{source} holds no prompts: a data set needs at least one row.")
    prompts[0]
    return prompts


def _read_parquet(path: Path, whole_rows: bool) -> Any:
    """The known columns of a parquet file, or all, as an Arrow table, mapped."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file_size(path)
    try:
        names = pq.read_schema(path).names
        return pq.read_table(path, columns=[name for name in names if whole_rows or name in COLUMNS], memory_map=True)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a column's name that is no UTF-8
        first = str(error).partition("\n")[0]
        raise UserError(f"{path} cannot be read as parquet ({first}): check that the download is complete.") from None


def _read_hub(source: str) -> Any:
    """A hub data set as an Arrow table, where `datasets` is installed and the hub can be reached."""
    instead = "download its parquet file and give the path"
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"{source} is no file here, and reading it from the hub needs the package datasets: "
            f"pip install -e '.[hub]' in Headrace's folder, or {instead}."
        ) from None
    named = HUB_NAME.fullmatch(source)
    assert named is not None
    try:
        return datasets.load_dataset(named["name"], named["part"], split=named["split"] or "train").with_format(
            "arrow"
        )[:]
    except Exception as error:  # noqa: BLE001 - the hub's client fails in many ways, all of them the user's to see
        first = str(error).partition("\n")[0][:200] or type(error).__name__
        raise UserError(f"{source} is no file here and could not be read from the hub ({first}): {instead}.") from None
