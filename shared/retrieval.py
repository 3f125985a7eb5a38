"""What the retrieval service and its client agree on besides the protocol that others speak too."""

INDEX_HEADER = "x-headrace-index"  # of an answer of /retrieve: the fingerprint of the index that was searched
