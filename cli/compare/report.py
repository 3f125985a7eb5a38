"""The report of a study: what was compared, what came out, how sure that is, and how it was measured.

    report.md, report.html    the same text; the page holds its pictures
    plots/*.png               the pictures
    runs.csv                  a row for each run        steps.csv        a row for each step of each run
    differences.csv           paired differences        ages.csv         how many replayed groups had which age

All of it is a function of the runs' folders: writing it again gives the same files.
"""

from collections.abc import Sequence
from pathlib import Path

from cli.compare import csvs, plots, tables
from cli.compare.document import Block, Heading, Picture, Table, Text, as_html, as_markdown
from cli.compare.results import Results, collect
from cli.compare.study import Study

SAYS = {
    "step_time": "Stacked bars: mean time of a step by what the learner did, for each arm",
    "quality": "Mean@k and Best@k of each arm with the interval over seeds",
    "training": "Share of right answers in training against fresh groups and against time, and entropy (mean -log p)",
    "replay": "Acceptance, scanned groups, replayed groups, replay KL, Headroom and distinct ages, by step",
    "ages": "Histogram of the ages of replayed groups, for each arm that replays",
    "what_if": "Acceptance and KL that other gates would have had, by multiple of tau",
    "counterfactual": "Headroom, Drift and age of the picked groups against those of the newest groups",
}


def write(study: Study) -> Path:
    """Write everything into the study's folder; returns report.html."""
    results = collect(study)
    pictures = plots.draw_all(results.arms, study.folder / "plots", study.head.samples)
    blocks = _blocks(results, pictures)
    csvs.write(results, study.folder)
    (study.folder / "report.md").write_text(as_markdown(blocks, study.folder))
    page = study.folder / "report.html"
    page.write_text(as_html(blocks, f"Study {study.head.name}"))
    return page


def _blocks(results: Results, pictures: dict[str, Path]) -> list[Block]:
    def picture(name: str) -> list[Block]:
        return [Picture(pictures[name], SAYS[name])] if name in pictures else []

    blocks: list[Block] = [Heading(f"Study {results.study.head.name}", 1), *tables.opening(results)]
    sources = tables.by_source(results)
    blocks += [Heading("Results"), tables.headline(results)]
    blocks += [tables.step_parts(results), *picture("step_time"), *picture("quality")]
    blocks += [sources] if sources is not None else []
    blocks += [Heading("Differences"), *tables.differences(results)]
    blocks += [Heading("While training"), *picture("training")]
    if "replay" in pictures:
        blocks += [Heading("What was replayed"), tables.replayed(results), *picture("replay"), *picture("ages")]
    if "counterfactual" in pictures:
        blocks += [Heading("Against the newest groups of the same buffer"), Text(COUNTERFACTUAL)]
        blocks += [*picture("counterfactual")]
    if "what_if" in pictures:
        blocks += [Heading("Other gates"), Text(WHAT_IF), *picture("what_if")]
    blocks += [Heading("How it was measured"), *_method(results)]
    blocks += [Heading("Runs"), tables.runs(results)]
    return blocks


COUNTERFACTUAL = (
    "At every step the buffer is the same for both: what the policy picked, and what `naive` (the newest groups) would "
    "have picked from it. The second were scanned too where there was time before the batch was ready."
)
WHAT_IF = (
    "From the drifts of the groups that were scanned, without another run. What a scan meets depends on the gate in "
    "force, so this says where a gate starves and where it lets everything in, not what a run under it would be."
)


def _method(results: Results) -> Sequence[Block]:
    study = results.study
    blocks: list[Block] = [Text(sentence) for sentence in tables.method(results)]
    blocks.append(Table(("setting of all arms", "value"), [(f"`{k}`", f"{v}") for k, v in study.common.items()]))
    rows = [
        (arm, str(results.steps_of(arm)), ", ".join(f"`{k}` = {v}" for k, v in settings.items()) or "as the base")
        for arm, settings in study.settings.items()
    ]
    blocks.append(Table(("arm", "steps", "its own settings"), rows))
    blocks.append(Table(("place", ""), list(results.place.items())))
    return blocks
