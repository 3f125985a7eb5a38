"""All targets, in the order in which they are driven."""

from tests.fuzz import (
    configuration,
    data_files,
    dense_indexes,
    evaluations,
    folders,
    grammar,
    own_parts,
    redis_values,
    results,
    retrieval,
    wire,
    work,
)

TARGETS = [
    *wire.TARGETS,
    *grammar.TARGETS,
    *retrieval.TARGETS,
    *configuration.TARGETS,
    *data_files.TARGETS,
    *own_parts.TARGETS,
    *folders.TARGETS,
    *dense_indexes.TARGETS,
    *evaluations.TARGETS,
    *redis_values.TARGETS,
    *results.TARGETS,
    *work.TARGETS,
]
