"""`python -m services.env_search`: serve the corpus the configuration names."""

from pathlib import Path
from typing import TYPE_CHECKING

from services.env_search.stop import end_at_once_while_starting

if TYPE_CHECKING:
    from shared.config import Config


def serve(config: "Config") -> None:
    """Open the index and serve. An index of the run's own (no search.index) is built where it is missing.

    Without a corpus, where the run asks none of us, only /health and /metrics are answered: containers that wait for it
    start.
    """
    from services.env_search import server
    from services.env_search.app import Retriever
    from services.env_search.backend import IndexSpec
    from services.env_search.build_process import build_apart
    from services.env_search.index import open_index
    from services.env_search.requests import Limits
    from services.env_search.unasked import why_unasked
    from shared.http_server import listen

    search = config.search
    spec = IndexSpec.of(search)
    corpus = Path(search.corpus)
    sock = listen(search.host, search.port, "search.port")
    if not search.corpus and (why := why_unasked(config, sock.getsockname()[1])):
        server.stand_by(sock, why)
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
    server.announce(index, sock)
    server.serve(retriever, limits, sock)


if __name__ == "__main__":
    end_at_once_while_starting()
    from shared.service import main

    main("env_search", serve)
