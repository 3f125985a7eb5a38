"""The page that shows what replay thinks, and the read-only requests behind it."""
