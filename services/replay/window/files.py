"""The files of the replay window: its page, which is part of the package, and the model's tokenizer."""

import asyncio
import hashlib
import os
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, HTTPException, Response

from services.replay.window.answers import IfNoneMatch, answer, unchanged

TOKENIZER, TOKENIZER_BYTES = "tokenizer.json", 256 * 2**20
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def file_routes(model_path: str) -> APIRouter:
    """/, /page/<file> and /tokenizer.json."""
    routes = APIRouter()
    page = {file.name: file.read_bytes() for file in (files("services.replay") / "page").iterdir() if file.is_file()}
    tags = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in page.items()}

    @routes.get("/", include_in_schema=False)
    async def index(seen: IfNoneMatch = None) -> Response:
        """The page."""
        return await asset("index.html", seen)

    @routes.get("/page/{name}")
    async def asset(name: str, seen: IfNoneMatch = None) -> Response:
        """A file of the page."""
        if name not in page:
            raise HTTPException(404, "the page has no such file.")
        if seen == tags[name]:
            return unchanged(tags[name])
        return answer(page[name], tags[name], f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8")

    @routes.get(f"/{TOKENIZER}")
    async def tokenizer(seen: IfNoneMatch = None) -> Response:
        """The model's tokenizer, by which the page turns ids into text."""
        path = Path(model_path) / TOKENIZER
        found = await asyncio.to_thread(_stat, path) if model_path else None
        if found is None:
            raise HTTPException(404, "there is no tokenizer.json at model.path on the machine of replay.")
        if found.st_size > TOKENIZER_BYTES:
            raise HTTPException(413, f"{TOKENIZER} is larger than {TOKENIZER_BYTES} bytes.")
        tag = f'"{found.st_mtime_ns}-{found.st_size}"'
        return unchanged(tag) if seen == tag else answer(await asyncio.to_thread(path.read_bytes), tag)

    return routes


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
