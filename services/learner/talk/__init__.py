"""What the learner says to Redis and to people, and how it waits for either."""
