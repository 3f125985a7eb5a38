"""`headrace eval`: suites, the session that answers them, the scores and their intervals."""
