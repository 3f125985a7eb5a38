"""Nothing that this system reads from a disk or a socket may be run: no pickle, no eval, no shell, no remote code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    file
    for part in ("services", "shared", "cli", "examples", "deploy", "benchmarks")
    for file in (ROOT / part).rglob("*.py")
)
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
RUNS = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
NEEDS = {"torch.load": "weights_only=True", "yaml.load": "Loader=yaml.SafeLoader"}


def offences(source: str) -> Iterator[str]:
    """Every call and import in `source` that could run what it is given."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"import {a.name}" for a in node.names if a.name.split(".")[0] in UNPICKLERS)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLERS:
            # the error that a safe loader raises is no loader
            yield from (f"from {node.module} import {a.name}" for a in node.names if a.name != "UnpicklingError")
        if isinstance(node, ast.Call):
            name, words = ast.unparse(node.func), [ast.unparse(keyword) for keyword in node.keywords]
            shown = ast.unparse(node)
            if name in RUNS or name in SHELLS or name.endswith(("create_subprocess_shell", ".read_pickle")):
                yield shown
            if "shell=True" in words or "allow_pickle=True" in words or "trust_remote_code=True" in words:
                yield shown
            if name in NEEDS and NEEDS[name] not in words:
                yield shown
            if name.endswith(".from_pretrained") and not {"**NO_CODE", "trust_remote_code=False"} & set(words):
                yield shown


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_source_can_run_what_it_reads(file: Path):
    found = list(offences(file.read_text()))
    if file.relative_to(ROOT).parts[0] == "examples":  # they load what they have just written
        found = [offence for offence in found if "from_pretrained" not in offence]
    assert not found


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "from pickle import loads",
        "import dill as d",
        "eval(text)",
        "exec(code)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "numpy.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
        "asyncio.create_subprocess_shell(line)",
        "AutoModel.from_pretrained(path)",
        "AutoTokenizer.from_pretrained(path, trust_remote_code=True)",
    ],
)
def test_each_way_to_run_data_is_noticed(planted: str):
    assert list(offences(planted))


def test_what_is_harmless_is_not():
    assert not list(offences("torch.load(p, weights_only=True)\nclient.eval(s)\nmodel.eval()\nre.compile(x)"))
