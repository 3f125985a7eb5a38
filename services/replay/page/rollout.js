// One rollout: what the policy sampled, token by token, and what the environment put between, greyed: it is masked out
// of the loss. Drawn when it is first unfolded.

import { el } from "/page/dom.js";
import { count, number, percent, small } from "/page/format.js";

// Each gives 0 to 9 for a token: l is log p under the engine, r under the trainer at the first training (or null), A
// the advantage.
const tenth = (x) => Math.max(0, Math.min(9, Math.floor(10 * x)));
export const SHADES = {
  probability: { name: "probability", low: "sure", high: "surprising", of: (l) => tenth(-Math.expm1(l)) },
  headroom: {
    name: "Headroom",
    low: "nothing left to learn",
    high: "much left",
    of: (l, r, A) => (A === 0 ? 0 : tenth(A > 0 ? -Math.expm1(r ?? l) : Math.exp(r ?? l))),
  },
  trainer: {
    name: "the trainer's probability",
    reference: true,
    low: "sure",
    high: "surprising",
    of: (l, r) => tenth(-Math.expm1(r)),
  },
  gap: {
    name: "trainer against engine",
    reference: true,
    low: "the same",
    high: "a nat apart",
    of: (l, r) => tenth(Math.abs(l - r)),
  },
  none: { name: "nothing", low: "", high: "", of: () => 0 },
};
const SHORT = 160;

export class RolloutView {
  // context: the group, l_ref or null, the reader of ids, the header or null, where a token's figures are said
  constructor(rollout, context) {
    Object.assign(this, { rollout, ...context });
    this.spans = [];
    this.figures = [];
    const { first, length } = rollout;
    this.words = this.reader.pieces(this.group.tokens.subarray(first, first + length));
    this.element = el("details", { class: "card rollout" }, this.summary());
    this.element.addEventListener("toggle", () => this.element.open && this.unfold());
  }

  sampledText() {
    return this.rollout.pieces
      .filter((p) => p.sampled)
      .map((p) => this.wordsOf(p))
      .join("\n");
  }

  wordsOf(piece) {
    return this.words.slice(piece.start, piece.end).join("");
  }

  summary() {
    const { index, trained, length } = this.rollout,
      h = this.header,
      text = this.sampledText();
    const answer = [...text.matchAll(/<answer>(.*?)<\/answer>/gs)].at(-1)?.[1].trim();
    const queries = matches(text, "search").filter(Boolean); // a search for nothing is none
    const said = [
      queries.length ? `searched ${queries.map((q) => `“${cut(q, 60)}”`).join(", ")}` : "",
      answer === undefined ? "no answer" : `answered “${cut(answer, 80)}”`,
    ];
    const parts = [el("b", {}, `${index + 1} of ${this.group.rollouts.length}`)];
    if (h)
      parts.push(
        el(
          "span",
          h.correct[index] ? { class: "right" } : { class: "quiet" },
          h.correct[index] ? "✓ right" : "✗ wrong",
        ),
        el("span", {}, `reward ${h.rewards[index] === null ? "none" : number(h.rewards[index], 2)}`),
      );
    parts.push(
      el("span", {}, `A ${signed(this.group.advantages[index])}`),
      el("span", { class: "quiet" }, `${trained} of ${count(length, "token")} trained`),
    );
    if (h && h.statuses[index] !== "finished") parts.push(el("span", {}, h.statuses[index].replace("_", " ")));
    return el("summary", {}, ...parts, el("span", { class: "said" }, said.filter(Boolean).join(", ")));
  }

  unfold() {
    if (this.spans.length || this.body) return;
    const { rollout, group } = this;
    let trained = rollout.firstTrained,
      turn = 0,
      searches = 0,
      query;
    const pieces = rollout.pieces.map((piece) => {
      const spans = [],
        from = trained;
      for (let i = piece.start; i < piece.end; i++) {
        const masked = !group.mask[rollout.first + i];
        const span = el("span", { class: masked ? "t masked" : "t" }, this.words[i]);
        span.dataset.i = this.spans.length;
        this.spans.push(span);
        this.figures.push({ id: group.tokens[rollout.first + i], at: masked ? -1 : trained });
        if (!masked) trained++;
        spans.push(span);
      }
      const versions = [...new Set(group.versions.slice(from, trained))];
      if (piece.sampled) query = matches(this.wordsOf(piece), "search")[0];
      // a turn without a search has no entry in the documents: the environment answers it with a hint
      const documents = !piece.sampled && query ? (rollout.documents[searches++] ?? []) : [];
      const label = piece.sampled ? sampledLabel(++turn, piece, versions) : retrievedLabel(piece, query, documents);
      const text = el("div", { "class": "text", "tabindex": 0, "role": "group", "aria-label": label[0] }, ...spans);
      return el(
        "div",
        { class: piece.sampled ? "piece" : "piece masked" },
        el("div", { class: "label" }, ...label.map((part) => el("span", {}, part))),
        text,
      );
    });
    this.body = el("div", { class: "body" }, ...pieces);
    this.body.addEventListener("pointerover", (e) => e.target.dataset.i && this.here(Number(e.target.dataset.i)));
    this.body.addEventListener("keydown", (e) => this.key(e));
    this.element.append(this.body);
    if (this.shade) this.shadeBy(this.shade);
  }

  shadeBy(shade) {
    this.shade = shade;
    const A = this.group.advantages[this.rollout.index];
    this.figures.forEach(({ at }, i) => {
      if (at < 0) return;
      const step = shade.of(this.group.lGen[at], this.lRef ? this.lRef[at] : null, A);
      this.spans[i].className = step ? `t h${step}` : "t";
    });
    this.pointed = null;
  }

  here(i) {
    this.pointed?.classList.remove("here");
    this.pointed = this.spans[i];
    this.pointed.classList.add("here");
    const { id, at } = this.figures[i];
    const token = `${JSON.stringify(this.words[i])} id ${id}`;
    if (at < 0) return this.says(`${token}, masked`);
    const l = this.group.lGen[at],
      r = this.lRef?.[at];
    const trainer = r === undefined ? "" : `, trainer p ${percent(Math.exp(r))}, difference ${small(r - l)} nats`;
    this.says(`${token}, p ${percent(Math.exp(l))}${trainer}, weights ${this.group.versions[at]}`);
  }

  key(e) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step || !e.target.classList.contains("text")) return;
    const inside = [...e.target.children];
    const at = inside.indexOf(this.pointed);
    const to = inside[Math.max(0, Math.min(inside.length - 1, at < 0 ? 0 : at + step))];
    if (to) this.here(Number(to.dataset.i));
    e.preventDefault();
  }
}

const sampledLabel = (turn, piece, versions) => [
  `turn ${turn}, sampled`,
  count(piece.end - piece.start, "token"),
  versions.length ? `weights ${versions.join(", ")}` : "not trained on",
];
const retrievedLabel = (piece, query, documents) => [
  documents.length ? `retrieved for “${cut(query, SHORT)}”` : "said by the environment",
  ...(documents.length ? [`${documents.length === 1 ? "passage" : "passages"} ${documents.join(", ")}`] : []),
  count(piece.end - piece.start, "token"),
  "masked, not trained on",
];
const matches = (text, tag) => [...text.matchAll(new RegExp(`<${tag}>(.*?)</${tag}>`, "gs"))].map((m) => m[1].trim());
const cut = (text, n) => (text.length > n ? `${text.slice(0, n)}…` : text);
const signed = (x) => (x > 0 ? `+${number(x, 2)}` : x < 0 ? `−${number(-x, 2)}` : "0");
