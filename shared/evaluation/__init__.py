"""Evaluation of k samples per question: what was asked, what was answered, the metrics and their intervals."""
