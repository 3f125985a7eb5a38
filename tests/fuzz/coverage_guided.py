"""A coverage-guided fuzzer behind the same targets: atheris (libFuzzer for Python), in a process of its own per target.

libFuzzer ends its process itself, so what became of the inputs is read from what that process leaves in a file.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.harness import HANG_S, Tally, Target

EVERY = 256  # inputs between two notes of the counts
MEMORY_MIB = 300.0  # that may stay behind all inputs, the corpus of libFuzzer among it


def drive_by_coverage(target: Target, inputs: int, seed: int) -> Tally:
    """As `harness.drive`. Raises AssertionError with the end of the fuzzer's report where it found something."""
    assert target.of_bytes is not None, f"{target.name} takes no raw bytes"
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit("--coverage needs atheris, which has wheels for Python 3.11 to 3.13 on Linux: pip install it.")
    with tempfile.TemporaryDirectory(prefix="headrace-fuzz-") as folder:
        notes, corpus = Path(folder) / "tally.json", Path(folder) / "corpus"
        corpus.mkdir()
        for number, seed_bytes in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed_bytes)
        command = [sys.executable, "-m", "tests.fuzz.coverage_guided", target.name, str(notes)]
        command += [f"-runs={inputs}", f"-seed={seed + 1}", f"-timeout={HANG_S:.0f}", "-rss_limit_mb=4096"]
        command += ["-max_len=16384", f"-artifact_prefix={folder}/", str(corpus)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        found = [file for file in Path(folder).iterdir() if file.name.startswith(("crash", "timeout", "oom", "slow"))]
        worst = [file for file in found if not file.name.startswith("slow")]
        if done.returncode or worst:
            shown = "".join(f"\n{file.name}: {file.read_bytes()[:2000]!r}" for file in worst)
            raise AssertionError(
                f"{target.name}: status {done.returncode}\n{done.stderr[-1500:]}{done.stdout[-1500:]}{shown}"
            )
        tally = Tally(**json.loads(notes.read_text()))
    assert tally.mib < MEMORY_MIB, f"{target.name}: {tally.mib:.0f} MiB stayed behind {tally.inputs} inputs"
    return tally


def _fuzz(name: str, notes: Path, options: list[str]) -> None:
    import atheris  # pyright: ignore[reportMissingImports]
    import psutil

    with atheris.instrument_imports(include=["shared", "services"]):  # pyright: ignore[reportAttributeAccessIssue]
        from tests.fuzz.targets import TARGETS
    target = next(target for target in TARGETS if target.name == name)
    check = target.of_bytes
    assert check is not None
    target.warm()
    tally, memory, before = Tally(), psutil.Process().memory_info, 0

    def one(data: bytes) -> None:
        nonlocal before
        begun = time.process_time()
        taken = check(data)
        tally.slowest_s = max(tally.slowest_s, time.process_time() - begun)
        tally.taken += taken
        tally.refused += not taken
        before = before or memory().rss
        if tally.inputs % EVERY == 0:
            tally.seconds, tally.mib = time.process_time(), (memory().rss - before) / 2**20
            aside = notes.with_suffix(".new")
            aside.write_text(json.dumps(asdict(tally)))
            aside.replace(notes)

    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    _fuzz(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
