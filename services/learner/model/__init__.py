"""The trained model: its forward pass over packed rows, log-probabilities, batches by tokens, the optimiser."""
