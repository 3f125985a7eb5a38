"""What two or more services need: wire format, streams, configuration, metrics, rewards, prompts."""
