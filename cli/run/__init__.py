"""A run as local processes: its plan, the processes, what a person sees of it, and what it leaves behind."""
