"""`python -m services.env_search`: serve the corpus the configuration names."""

import sys
from pathlib import Path

from services.env_search.app import Retriever
from services.env_search.backend import IndexSpec
from services.env_search.build_process import build_apart
from services.env_search.index import open_index
from services.env_search.requests import Limits
from services.env_search.server import announce, serve, stand_by
from shared.config import Config, load_service_config
from shared.errors import UserError
from shared.http_server import listen


def main(config: Config) -> None:
    """Open the index and serve. An index of the run's own (no search.index) is built where it is missing.

    Where the run searches nothing (env.kind = "single", no corpus) only /health and /metrics are answered: containers
    that wait for it start.
    """
    search = config.search
    spec = IndexSpec.of(search)
    corpus = Path(search.corpus)
    sock = listen(search.host, search.port, "search.port")
    if config.env.kind == "single" and not search.corpus:
        stand_by(sock)
        return
    if search.corpus and not search.index:
        build_apart(corpus, config.index_dir, spec)
    index = open_index(corpus, config.index_dir, spec)
    retriever = Retriever(
        index,
        cache_entries=search.cache_entries,
        batch_window_ms=search.batch_window_ms,
        max_batch=search.max_batch,
    )
    limits = Limits(
        topk=search.topk,
        max_topk=search.max_topk,
        max_queries=search.max_queries,
        max_query_chars=search.max_query_chars,
    )
    announce(index, sock)
    serve(retriever, limits, sock)


if __name__ == "__main__":
    try:
        main(load_service_config())
    except UserError as error:
        print(f"env_search: {error}", file=sys.stderr)
        sys.exit(2)
