"""Turns question files into chats that show a very small model the tag grammar by three worked examples.

    python examples/smollm2/few_shot.py questions.jsonl prompts.jsonl

SmolLM2-135M follows an example far better than an instruction. Input: one JSON object a line with `question` and
`golden_answers` (or what else `data.train` accepts); output: the same answers with a `prompt` of chat messages.
"""

import argparse
import json
from pathlib import Path

from shared.prompts import open_prompts

SHOWN = (
    (
        "Who wrote the novel Dune?",
        "author of the novel Dune",
        "Doc 1(Title: Dune) Dune is a 1965 novel by Frank Herbert.",
        "Frank Herbert",
    ),
    (
        "What is the capital of Peru?",
        "capital city of Peru",
        "Doc 1(Title: Peru) Peru is a country in South America. Its capital is Lima.",
        "Lima",
    ),
    (
        "When did the Eiffel Tower open?",
        "Eiffel Tower opening year",
        "Doc 1(Title: Eiffel Tower) The tower was opened to the public in 1889.",
        "1889",
    ),
)


def chat(question: str) -> list[dict[str, str]]:
    """The examples as earlier turns of the conversation, then the question."""
    messages = []
    for asked, query, found, answer in SHOWN:
        transcript = f"<search> {query} </search>\n\n<information>{found}</information>\n\n<answer> {answer} </answer>"
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": transcript}]
    return [*messages, {"role": "user", "content": question}]


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", help="a file of questions")
    parser.add_argument("out", type=Path, help="the file to write")
    args = parser.parse_args()
    source = open_prompts(args.questions)
    with args.out.open("w") as out:
        for i in range(len(source)):
            example = source[i]
            line = {"id": example.id, "data_source": example.data_source, "prompt": chat(example.question)}
            out.write(json.dumps(line | {"golden_answers": example.ground_truth}) + "\n")
    print(f"wrote {len(source)} prompts to {args.out}")


if __name__ == "__main__":
    main()
