"""Builds the dense index: the embeddings of the corpus in one .npy file, chunk by chunk.

The file has its full size from the start; `embedded.txt` in the scratch folder holds how many documents of it
are done and is written after the chunk is on disk, so an interrupted build continues with the chunk it was at.
"""

from pathlib import Path

import numpy as np

from services.env_search.backend import IndexSpec, Progress
from services.env_search.corpus import Corpus
from services.env_search.dense import FILE, Encoder
from shared.errors import UserError
from shared.files import write_whole

CHUNK_DOCUMENTS = 4096
DONE_FILE = "embedded.txt"


def build_dense(
    corpus: Corpus,
    directory: Path,
    scratch: Path,
    spec: IndexSpec,
    progress: Progress,
    chunk_documents: int = CHUNK_DOCUMENTS,
) -> list[float]:
    """Write the embeddings of `corpus` under `directory`; returns the encoder's probe for the manifest.

    Raises UserError where no encoder is named or it cannot be loaded, or naming the line where the corpus is
    malformed.
    """
    if not spec.encoder:
        raise UserError("The dense backend needs an encoder: give --encoder DIRECTORY_OR_NAME (search.encoder).")
    encoder = Encoder(spec.encoder)
    probe = encoder.probe()
    total = len(corpus)
    done_file = scratch / DONE_FILE
    done = int(done_file.read_text()) if done_file.exists() else 0
    vectors = (
        np.load(directory / FILE, mmap_mode="r+")
        if done
        else np.lib.format.open_memmap(directory / FILE, mode="w+", dtype=np.float32, shape=(total, len(probe)))
    )
    for start in range(done, total, chunk_documents):
        stop = min(start + chunk_documents, total)
        vectors[start:stop] = encoder(list(corpus.contents(start, stop)), spec.passage_prefix)
        vectors.flush()
        write_whole(done_file, str(stop))
        progress("embedding", stop, total)
    return [round(float(value), 6) for value in probe]
