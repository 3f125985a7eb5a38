"""`python -m services.learner.weights.merge ADAPTERS OUT`: a whole model out of a checkpoint's adapters and their base.

ADAPTERS is a checkpoint or version of a run that trains adapters. They are added to the base's weights in float32 and
written in the base's own type, with its tokenizer beside them.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from services.learner.weights.model_files import read_companions
from shared.adapters import BASE, CONFIG, WEIGHTS, base_of
from shared.errors import UserError
from shared.model_files import NO_CODE
from shared.weights import MANIFEST, digest_in, verify


def merge(adapters: Path, out: Path) -> None:
    """Raises UserError where `adapters` holds none or is damaged, or their base is not where or what it was."""
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file

    if not (adapters / CONFIG).is_file() or not (adapters / BASE).is_file():
        raise UserError(
            f"{adapters} holds no adapters of a run: name a checkpoint's folder, as in runs/x/checkpoints/latest."
        )
    if (adapters / MANIFEST).is_file():  # a copy may have been made without it
        verify(adapters, digest_in(adapters))
    base = base_of(adapters)
    dtype = transformers.AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False).dtype
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **NO_CODE)
    model.generation_config = transformers.GenerationConfig.from_model_config(model.config)
    config = peft.PeftConfig.from_json_file(str(adapters / CONFIG))
    merged: Any = peft.get_peft_model(model, peft.LoraConfig(**config))
    peft.set_peft_model_state_dict(merged, load_file(adapters / WEIGHTS))
    merged = merged.merge_and_unload()
    merged.to(dtype or torch.float32).save_pretrained(out)
    for name, content in read_companions(base).items():
        (out / name).write_bytes(content)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapters", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    try:
        merge(args.adapters, args.out)
    except UserError as error:
        sys.exit(f"merge: {error}")


if __name__ == "__main__":
    main()
