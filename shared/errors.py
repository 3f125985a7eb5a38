"""The one error type whose text is meant for a person."""


class UserError(ValueError):
    """Something the user can mend: one sentence saying what is wrong, where, and what to do.

    Entry points print the sentence and exit with status 2; no stack trace is shown.
    """
