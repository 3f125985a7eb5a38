"""Stored groups as the learner sees them: fetched once, checked, kept, cut to what a batch uses."""
