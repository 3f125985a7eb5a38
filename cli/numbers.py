"""Numbers on the command line, with the bounds and in the words of the settings: an argument's `type=`."""

import argparse
from collections.abc import Callable
from typing import Annotated, Any

MOST = 2**31 - 1  # of what is counted


def setting(dotted: str) -> Callable[[str], Any]:
    """What this setting may be."""

    def read(text: str) -> Any:
        from shared.config import Config

        section, _, key = dotted.partition(".")
        fields: Any = Config.model_fields[section].annotation
        field = fields.model_fields[key]
        return _checked(Annotated[field.annotation, field], text)

    return read


def number(kind: type[int] | type[float], **bounds: float) -> Callable[[str], Any]:
    """bounds: gt, ge, lt, le."""

    def read(text: str) -> Any:
        from pydantic import Field

        finite: dict[str, Any] = {"allow_inf_nan": False} if kind is float else {}
        return _checked(Annotated[kind, Field(**bounds, **finite)], text)

    return read


def _checked(kind: Any, text: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    from shared.wrong_values import words

    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"{words(error.errors()[0])} (given: {text})") from None
