"""`headrace chaos`: a run that is hurt on purpose, and a checker that reads nothing but its durable log."""
