// One group opened: what is known of it, its prompt, its rollouts (drawn by rollout.js when they are unfolded).

import { asker, bytes, json, orNull } from "/page/api.js";
import { byId, el } from "/page/dom.js";
import { bytes as size, count, number, percent, small } from "/page/format.js";
import { readPayload, readReference } from "/page/payload.js";
import { RolloutView, SHADES } from "/page/rollout.js";
import { Numbers, Tokenizer } from "/page/tokenizer.js";

const NO_TOKENIZER =
  "There is no tokenizer.json at model.path on the machine of the replay service: token ids are shown, not text.";
const tokenizerFile = asker("/tokenizer.json");
let tokenizer = null; // read once: it is large and does not change while a run lasts

async function theTokenizer() {
  if (!tokenizer) {
    const file = await orNull(tokenizerFile());
    if (file) tokenizer = new Tokenizer(file);
  }
  return tokenizer;
}

export class GroupView {
  constructor() {
    this.root = byId("group");
    this.shade = "probability";
    this.views = [];
  }

  async show(id) {
    this.id = id;
    this.say(id, "Reading the group.");
    try {
      const path = `/groups/${encodeURIComponent(id)}`;
      const [about, raw, reference, words] = await Promise.all([
        json(path),
        bytes(`${path}/payload`),
        orNull(bytes(`${path}/reference`)),
        theTokenizer(),
      ]);
      if (this.id !== id) return; // another one was opened meanwhile
      const group = readPayload(raw);
      this.draw(about, group, reference && readReference(reference, group), words);
    } catch (error) {
      if (this.id === id) this.say(id, `This group cannot be shown: ${error.message}`);
    }
  }

  say(id, sentence) {
    this.root.replaceChildren(head(id), el("p", { class: "quiet", role: "status" }, sentence));
    this.root.focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  draw(about, group, lRef, words) {
    const reader = words ?? new Numbers();
    this.views = group.rollouts.map(
      (rollout) =>
        new RolloutView(rollout, { group, lRef, reader, header: about.header, says: (text) => this.token(text) }),
    );
    const parts = [head(about.id, about.header), facts(about, group), prompt(about, group, reader)];
    if (!words) parts.push(el("p", { class: "status lost" }, NO_TOKENIZER));
    this.root.replaceChildren(
      ...parts,
      this.controls(lRef),
      el("div", { class: "rollouts" }, ...this.views.map((view) => view.element)),
    );
    this.views[0]?.element.setAttribute("open", "");
    this.shadeBy(this.shade in SHADES && (lRef || !SHADES[this.shade].reference) ? this.shade : "probability");
    this.root.focus({ preventScroll: true });
  }

  controls(lRef) {
    const options = Object.entries(SHADES)
      .filter(([, s]) => lRef || !s.reference)
      .map(([key, s]) => el("option", { value: key, selected: key === this.shade }, s.name));
    const select = el("select", { id: "shade", onchange: (e) => this.shadeBy(e.target.value) }, ...options);
    const steps = Array.from({ length: 10 }, (_, i) => el("i", { class: `h${i}` }));
    this.ends = [el("span"), el("span")];
    this.says = el(
      "p",
      { "class": "token-says", "aria-live": "polite" },
      "Point at a token, or walk with the arrow keys inside a text, to read its figures.",
    );
    const unfold = el("button", { type: "button", onclick: () => this.unfold() }, "Unfold all");
    return el(
      "div",
      { class: "controls" },
      el("label", { class: "field" }, "Shade tokens by", select),
      el("span", { "class": "scale", "aria-hidden": "true" }, this.ends[0], el("span", {}, ...steps), this.ends[1]),
      el("span", { class: "grow" }),
      unfold,
      this.says,
    );
  }

  unfold() {
    const open = this.views.some((view) => !view.element.open);
    for (const view of this.views) view.element.open = open;
  }

  shadeBy(name) {
    this.shade = name;
    this.ends[0].textContent = SHADES[name].low;
    this.ends[1].textContent = SHADES[name].high;
    for (const view of this.views) view.shadeBy(SHADES[name]);
  }

  token(text) {
    this.says.textContent = text;
  }
}

function head(id, header) {
  const source = header?.data_source ? el("span", { class: "quiet" }, `from ${header.data_source}`) : null;
  return el(
    "div",
    { class: "group-head" },
    el("a", { href: "#", class: "back" }, "← all groups"),
    el("h1", { id: "group-title" }, id),
    source,
  );
}

function facts(about, group) {
  const { row, header } = about;
  const list = [];
  const add = (name, value) => list.push(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  if (row) {
    add("Headroom", number(row.headroom));
    add("Headroom at first", number(row.headroom_ref));
    add("Drift", row.drift === null ? "never scanned" : small(row.drift));
    add("age", count(about.step - row.step, "step"));
    add("fresh in step", row.step);
    add("replayed", count(row.uses, "time"));
  } else add("state", header ? "not stored: fresh, or its time is over" : "not stored");
  const distinct = [...new Set(group.versions)];
  add("weights", distinct.length > 1 ? `${distinct[0]} to ${distinct.at(-1)}` : distinct[0]);
  add("rollouts", group.rollouts.length);
  if (header) {
    const right = header.correct.filter(Boolean).length;
    add("right", `${right} (${percent(right / header.correct.length)})`);
    add("generation", `${number(header.seconds, 2)} s, ${number(header.env_seconds, 2)} s of it waiting`);
    add("bytes", size(header.payload_bytes));
  }
  add("trained tokens", `${group.lGen.length.toLocaleString("en")} of ${group.tokens.length.toLocaleString("en")}`);
  return el("section", { class: "card" }, el("h2", {}, "This group"), el("dl", { class: "facts" }, ...list));
}

function prompt(about, group, reader) {
  const truth = about.task?.ground_truth ?? [];
  const text = reader.pieces(group.prompt).join("");
  return el(
    "section",
    { class: "card" },
    el(
      "div",
      { class: "head" },
      el("h2", {}, "Prompt"),
      el("span", { class: "quiet" }, count(group.prompt.length, "token")),
      truth.length ? el("span", {}, `expected: ${truth.join(" | ")}`) : null,
    ),
    el("div", { class: "prompt-text", id: "prompt", tabindex: 0 }, text),
  );
}
