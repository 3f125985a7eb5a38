#!/usr/bin/env bash
# What this machine's GPU makes of Headrace, as a table, in at most ten minutes: a bfloat16 learner and vLLM side by side.
#
#   deploy/gpu_check.sh                                        a random model in the shape of Qwen2.5-0.5B
#   deploy/gpu_check.sh --model FOLDER                         a real one; 18 bytes a parameter must fit beside vLLM
#   deploy/gpu_check.sh --model FOLDER --learner.lora_rank 16  with any setting of a run
#   deploy/gpu_check.sh --device cpu --tiny                    the same steps without a GPU, in a minute
#
# Ends with 0; with 2 and a sentence where something is missing; with 124 after ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
PYTHONPATH=. exec timeout -k 15 600 "$PYTHON" deploy/gpu_check.py "$@"
