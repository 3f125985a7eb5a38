"""The replay window in a real browser, over a real replay process with 512 groups of 16 rollouts."""

import math
from collections.abc import Iterator
from statistics import median

import httpx
import pytest

from services.actor.tags import HINT
from tests.e2e.page import Page
from tests.replay.stored_groups import PASSAGE, RETRIEVED, SAMPLED

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

GROUPS, ROLLOUTS = 512, 16
SCRIPT = '<script>document.title = "run"</script><img src=x onerror="document.title = \'run\'">'
EVIL_PASSAGE = PASSAGE.replace("A mountain", f"{SCRIPT} A mountain é ☃ in")
FIRST = [
    (SAMPLED, "<search> </search>"),
    (RETRIEVED, HINT),
    (SAMPLED, f"Zürich? {SCRIPT} <search> Mount <b>Vassar</b> </search>"),
    (RETRIEVED, EVIL_PASSAGE),
    (SAMPLED, "<answer> Orrin & ☃ </answer>"),
]
ROWS = "#groups tbody tr[data-id]"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, redis_server_url: str) -> Iterator[Page]:
    shown = Page(tmp_path_factory.mktemp("page"), redis_server_url, GROUPS, ROLLOUTS, FIRST)
    yield shown
    shown.close()


@pytest.mark.alone
def test_512_groups_of_16_rollouts_are_there_within_two_seconds(page: Page) -> None:
    took = []
    for _ in range(5):
        page.open()
        page.find(ROWS)
        took.append(page.js("return performance.getEntriesByName('shown')[0].startTime"))
    print(f"512 groups shown after {median(took):.0f} ms, of {[round(t) for t in took]}")
    assert median(took) < 2000
    assert len(page.texts(ROWS)) == GROUPS
    page.until(lambda: "512 stored groups" in page.find("#scatter").get_attribute("aria-label"), "summary of the plot")


def test_every_measured_group_is_drawn_on_its_side_of_the_gate(page: Page) -> None:
    page.open()
    page.find(ROWS)
    groups = httpx.get(f"{page.url}/window/groups").json()
    tau = httpx.get(f"{page.url}/window/now").json()["tau"]
    drawn = page.scatter()
    assert drawn["within"] == sum(d <= tau for d in groups["drift"] if d is not None) > 0
    assert drawn["passed"] + drawn["refused"] + len(drawn["accepted"]) == GROUPS
    left, gate, right = page.js(AROUND, drawn["gate"], 3)
    assert left != gate != right and left != right, "a line, washed on the side that it lets in"


AROUND = """const [x, off] = arguments, canvas = document.getElementById("scatter");
    const { data } = canvas.getContext("2d").getImageData(Math.round(x) - off, 30, 2 * off + 1, 1);
    return [0, off, 2 * off].map((at) => data.slice(4 * at, 4 * at + 4).join())"""


def test_everything_comes_from_the_service_itself_and_nothing_is_refused(page: Page) -> None:
    page.open()
    page.find(ROWS)
    fetched = page.js("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert len(fetched) > 12 and all(name.startswith(page.url) for name in fetched)
    assert page.complaints() == []


def test_a_rollout_that_holds_markup_is_shown_and_not_run(page: Page) -> None:
    page.open(f"/#group/{page.ids[3]}")
    page.find(".rollout[open] .piece .text")
    encoded = [page.tokenizer.encode(text, add_special_tokens=False).ids for _, text in FIRST]
    decoded = [page.tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded]
    assert page.texts(".rollout[open] .piece .text") == decoded, "token by token, what the tokenizer itself says"
    assert SCRIPT in decoded[2] and SCRIPT in decoded[3]
    assert page.js("return document.querySelectorAll('#group script, #group img, #group b b').length") == 0
    assert page.js("return document.title") != "run"
    assert "searched “Mount <b>Vassar</b>”" in page.texts(".rollout summary")[0]
    assert page.complaints() == []


def test_an_opened_group_says_what_is_known_of_it(page: Page) -> None:
    page.open(f"/#group/{page.ids[3]}")
    page.find(".rollout[open] .piece .text")
    about = httpx.get(f"{page.url}/groups/{page.ids[3]}").json()
    facts = dict(zip(page.texts("#group dt"), page.texts("#group dd"), strict=True))
    assert facts["replayed"] == f"{about['row']['uses']} times"
    assert facts["Headroom"] == f"{about['row']['headroom']:.3f}"
    assert page.texts("#prompt") == ["Where is Mount Vassar?"]
    assert f"expected: {about['task']['ground_truth'][0]}" in page.texts("#group .head")[0]
    assert len(page.texts(".rollout")) == ROLLOUTS
    assert "✓ right" in page.texts(".rollout summary")[0] and "truncated" in page.texts(".rollout summary")[-1]
    labels = page.texts(".rollout[open] .label")
    assert "weights 0." in labels[0] and labels[1].startswith("said by the environment")
    assert labels[3].startswith("retrieved for “Mount <b>Vassar</b>”passage doc-7") and "not trained on" in labels[3]
    masked = page.js("return [...document.querySelectorAll('.rollout[open] .piece.masked .t')].map((e) => e.className)")
    assert masked and set(masked) == {"t masked"}, "what was retrieved has no shade"
    assert (
        page.js("return document.querySelectorAll('.rollout[open] .piece:not(.masked) .t[class*=\" h\"]').length") > 0
    )


SHADES = """return (async (id) => {
    const { readPayload } = await import("/page/payload.js");
    const group = readPayload(await (await fetch(`/groups/${id}/payload`)).arrayBuffer());
    const shown = [...document.querySelectorAll(".rollout[open] .t:not(.masked)")];
    return [Array.from(group.lGen.slice(0, shown.length)), shown.map((e) => e.className)];
})(arguments[0])"""


def test_the_shade_follows_the_stored_probabilities(page: Page) -> None:
    page.open(f"/#group/{page.ids[3]}")
    page.find(".rollout[open] .piece .text")
    log_probabilities, classes = page.js(SHADES, page.ids[3])
    wanted = [min(9, int(-10 * math.expm1(value))) for value in log_probabilities]
    assert classes == [f"t h{shade}" if shade else "t" for shade in wanted] and len(set(wanted)) > 3


def test_rows_are_walked_opened_and_left_by_keys_alone(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open()
    page.find(ROWS)
    page.js("document.querySelector(arguments[0]).focus()", f"{ROWS}[tabindex='0']")
    active = page.browser.switch_to.active_element
    active.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert page.js("return document.activeElement.dataset.id") == page.ids[2], "of highest Headroom, the third"
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.find(".rollout[open] .piece .text")
    assert page.js("return location.hash") == f"#group/{page.ids[2]}"
    page.js("document.querySelector('.rollout[open] .text').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert " p " in page.texts(".token-says")[0] and "weights 0." in page.texts(".token-says")[0]
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.until(lambda: page.js("return document.activeElement.dataset.id") == page.ids[2], "focus on the row again")


def test_the_table_sorts_and_filters(page: Page) -> None:
    page.open()
    page.find(ROWS)
    page.js("[...document.querySelectorAll('#groups th button')].find((b) => b.textContent === 'Drift').click()")
    drifts = [float(text) for text in page.texts(f"{ROWS} td:nth-child(5)") if text != "–"]
    assert drifts == sorted(drifts, reverse=True) and len(drifts) < GROUPS
    page.js(
        "const k = document.getElementById('groups-kind'); k.value = 'unmeasured'; k.dispatchEvent(new Event('input'))"
    )
    assert set(page.texts(f"{ROWS} td:nth-child(5)")) == {"–"} and len(page.texts(ROWS)) == GROUPS - len(drifts)
    page.js(
        "const f = document.getElementById('groups-find'); f.value = 'nothing'; f.dispatchEvent(new Event('input'))"
    )
    assert page.texts("#groups .empty") == ["No group is of this kind."]


def test_what_another_gate_would_let_in_is_counted_from_the_measured_drifts(page: Page) -> None:
    page.open()
    page.find(ROWS)
    page.js("const t = document.getElementById('tau'); t.value = '-2.5'; t.dispatchEvent(new Event('input'))")
    drifts = [d for d in httpx.get(f"{page.url}/window/groups").json()["drift"] if d is not None]
    within = sum(d <= 10**-2.5 for d in drifts)
    assert f"{within} of {len(drifts)}" in page.texts("#tau-says")[0]
    page.js("document.getElementById('tau-reset').click()")
    assert f"{sum(d <= 0.01 for d in drifts)} of {len(drifts)}" in page.texts("#tau-says")[0]


@pytest.mark.parametrize("path", ["/", "/#group/s00000003"])
def test_a_narrow_screen_needs_no_sideways_scrolling(page: Page, path: str) -> None:
    page.open(path, width=400, height=800)
    page.find(ROWS if path == "/" else ".rollout[open] .text")
    assert page.js("return document.documentElement.scrollWidth") <= 400


def test_the_colours_are_the_systems_until_the_reader_chooses(page: Page) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        preferred = [{"name": "prefers-color-scheme", "value": scheme}]
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
        page.open()
        seen.append(page.js(background))
    assert seen[0] != seen[1]
    page.find("#theme").click()
    assert page.js(background) == seen[0]
    page.open()
    assert page.js(background) == seen[0], "the choice is kept"
    page.js("localStorage.clear()")


COLOURS = """
    const probe = document.createElement("span"), out = {};
    document.body.append(probe);
    for (const theme of ["light", "dark"]) for (const name of ["text", "quiet", "accent", "page", "card", "row"]) {
        document.documentElement.dataset.theme = theme;
        probe.style.color = `var(--${name})`;
        out[`${theme} ${name}`] = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
    }
    return out;
"""


def test_contrast_of_text_is_at_least_four_and_a_half_in_both_schemes(page: Page) -> None:
    def luminance(rgb: list[float]) -> float:
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in rgb)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    page.open()
    colours = {name: luminance(rgb) for name, rgb in page.js(COLOURS).items()}
    for theme in ("light", "dark"):
        for text in ("text", "quiet", "accent"):
            for ground in ("page", "card", "row"):
                low, high = sorted([colours[f"{theme} {text}"], colours[f"{theme} {ground}"]])
                assert (high + 0.05) / (low + 0.05) >= 4.5, f"{theme}: {text} on {ground}"


@pytest.mark.parametrize(
    ("decoder", "vocabulary", "ids", "pieces"),
    [
        ({"type": "ByteLevel"}, {"Ġa": 0, "Ã": 1, "¼": 2}, [0, 1, 2], [" a", "", "ü"]),
        ({"type": "Metaspace"}, {"▁to": 0, "day": 1, "<0xC3>": 2, "<0xBC>": 3}, [0, 1, 2, 3], [" to", "day", "", "ü"]),
        ({"type": "WordPiece", "prefix": "##"}, {"to": 0, "##day": 1}, [0, 1], [" to", "day"]),
        (None, {"to": 0}, [0, 7], ["to", "[7]"]),
    ],
)
def test_the_page_reads_the_usual_kinds_of_tokenizers(
    page: Page, decoder: dict | None, vocabulary: dict, ids: list, pieces: list
) -> None:
    page.open()
    file = {"decoder": decoder, "model": {"vocab": vocabulary}}
    script = """return (async (file, ids) => {
        const { Tokenizer } = await import("/page/tokenizer.js");
        return new Tokenizer(file).pieces(ids);
    })(...arguments)"""
    assert page.js(script, file, ids) == pieces


def test_a_damaged_payload_is_a_sentence(page: Page) -> None:
    page.open()
    script = """return (async (bytes) => { const { readPayload } = await import("/page/payload.js");
        try { readPayload(Uint8Array.from(bytes).buffer); } catch (error) { return error.message; } })(...arguments)"""
    whole = list(httpx.get(f"{page.url}/groups/{page.ids[3]}/payload").content)
    assert page.js(script, whole) is None
    for damaged in (whole[:-40], whole[:3], [], [0xC1], [0x81, 0xDB, 255, 255, 255, 255], [0x01]):
        assert page.js(script, damaged), "a sentence"


def test_a_group_that_is_gone_and_a_service_that_is_gone_are_said(page: Page) -> None:
    page.open("/#group/t99999999")
    page.until(lambda: "no such group is stored" in "".join(page.texts("#group")), "sentence")
    page.open()
    page.find(ROWS)
    page.process.terminate()
    page.until(lambda: "does not answer" in page.texts("#status")[0], "sentence")
