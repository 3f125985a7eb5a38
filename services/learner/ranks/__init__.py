"""One model held by several processes: starting them, what rank 0 has them do, shards of weights and optimiser."""
