"""What is read of a model's folder without torch: odd files in it say nothing, and end nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.model_files import parameters_of, positions_of


@pytest.mark.parametrize(
    ("settings", "positions"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"text_config": {"max_position_embeddings": 256}}, 256),
        ({"text_config": None}, None),
        ({"text_config": [1]}, None),
        ({"max_position_embeddings": "many"}, None),
        ({}, None),
    ],
)
def test_positions_are_those_of_the_model_or_of_its_text_part(
    tmp_path: Path, settings: dict[str, Any], positions: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert positions_of(tmp_path) == positions


def test_a_folder_with_the_name_of_weights_holds_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").mkdir()
    assert parameters_of(tmp_path) == 0
