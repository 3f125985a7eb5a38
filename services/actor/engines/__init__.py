"""The two engines that sample tokens, vLLM and torch, behind one interface."""
