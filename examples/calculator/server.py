"""A calculator in the retriever's place: a tool of one's own is a server that answers POST /retrieve.

    python examples/calculator/server.py --port 8100          and --env.url http://127.0.0.1:8100 for the run, with
                                                              --search.corpus "" where it has a corpus

The policy writes <search> 12 * (3 + 4) </search> and reads "Doc 1(Title: 12 * (3 + 4)) 84". docs/environments.md has
the contract, and a prompt that says all this to a model.
"""

import argparse
import ast
import operator
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

TOOL = "calculator-1"  # another name when answers change: what was stored with the old ones is not replayed
LARGEST = 10**15
OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Calls(BaseModel):
    """What an actor asks; it also sends "topk" and "return_scores", which mean nothing here."""

    queries: list[str]


app = FastAPI()


@app.post("/retrieve")
def retrieve(calls: Calls) -> dict[str, list[list[dict[str, str]]]]:
    """One answer to each query, in their order; here one document each. An empty list is an answer too."""
    return {"result": [[{"id": query, "title": query, "text": answer(query)}] for query in calls.queries]}


@app.get("/health")
def health() -> dict[str, str]:
    """Which tool this is."""
    return {"index": TOOL}


def answer(expression: str) -> str:
    """The value, or why there is none: what a policy writes is wrong as often as not, and never an error of ours."""
    try:
        found = value(ast.parse(expression.strip(), mode="eval").body)
        return str(found) if isinstance(found, int) else f"{found:.10g}"
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return "no value"


def value(node: ast.expr) -> float:
    """The value of a sum, difference, product, quotient or number. ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and abs(node.value) < LARGEST:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    raise ValueError("no arithmetic")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8100, help="where it listens on this machine (default 8100)")
    uvicorn.run(app, port=parser.parse_args().port, log_level="warning")
