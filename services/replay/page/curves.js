// Small curves over the steps, one figure each, read together: the step under the pointer is marked in all of them.

import { byId, el, setText, svg } from "/page/dom.js";
import { DASH, last, number, percent, small } from "/page/format.js";

const W = 240,
  H = 84,
  PAD = 15;
export const ratio = (a, b) => (typeof a === "number" && b > 0 ? a / b : null);

// name, what it means, main series, and where there is one: a fainter second, a bound, evaluations, a fixed range
const CURVES = [
  {
    name: "acceptance",
    says: "accepted of the scanned groups",
    main: (c) => c.acceptance,
    show: percent,
    range: [0, 1],
  },
  {
    name: "replay age",
    says: "steps since a replayed group was stored; mean, and oldest",
    main: (c) => c.age_mean,
    second: (c) => c.age_max,
    show: (x) => number(x, 1),
    floor: 0,
  },
  {
    name: "lag",
    says: "versions between sampling and training; mean, and largest",
    main: (c) => c.lag_mean,
    second: (c) => c.lag_max,
    bound: (now) => now.max_lag,
    show: (x) => number(x, 2),
    floor: 0,
  },
  {
    name: "learner idle",
    says: "share of a step that the learner waited",
    main: (c) => c.wait_s.map((w, i) => ratio(w, c.step_s[i])),
    show: percent,
    range: [0, 1],
  },
  {
    name: "reward",
    says: "mean reward of the fresh groups; dots: held-out exact match",
    main: (c) => c.reward_mean,
    dots: true,
    show: number,
    floor: 0,
    ceiling: 1,
  },
  {
    name: "replay KL",
    says: "k3 between the policy and what it replays",
    main: (c) => c.replay_kl,
    show: small,
    floor: 0,
  },
  {
    name: "Drift of replayed",
    says: "mean over the replayed groups",
    main: (c) => c.drift_mean,
    bound: (now) => now.tau,
    show: small,
    floor: 0,
  },
  {
    name: "scan, exposed",
    says: "seconds a batch waited for its scan alone",
    main: (c) => c.scan_exposed_s,
    show: (x) => `${number(x, 2)} s`,
    floor: 0,
  },
];

export class Curves {
  constructor() {
    this.at = null;
    this.parts = CURVES.map((curve) => {
      const value = el("b");
      const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img" });
      const high = el("span", { class: "range high" }),
        low = el("span", { class: "range low" });
      const area = el("div", { class: "area" }, picture, high, low);
      const holder = el(
        "figure",
        { class: "curve", title: curve.says },
        el("figcaption", { class: "name" }, curve.name, value),
        area,
      );
      picture.addEventListener("pointermove", (e) => this.mark(e.offsetX / picture.clientWidth));
      picture.addEventListener("pointerleave", () => this.mark(null));
      return { curve, value, picture, holder, high, low };
    });
    byId("curves").append(...this.parts.map((part) => part.holder));
  }

  show(columns, evals, now) {
    Object.assign(this, { columns, evals, now });
    for (const part of this.parts) this.draw(part);
    this.name();
  }

  mark(share) {
    const n = this.columns?.step.length ?? 0;
    const at = share === null || !n ? null : Math.max(0, Math.min(n - 1, Math.round(share * (n - 1))));
    if (at === this.at) return;
    this.at = at;
    for (const part of this.parts) this.draw(part);
    this.name();
  }

  name() {
    const steps = this.columns.step;
    const span = steps.length ? `steps ${steps[0]} to ${steps.at(-1)}` : "no step has been trained yet";
    setText(byId("curves-step"), this.at === null ? span : `step ${steps[this.at]}`);
  }

  draw(part) {
    const { curve, value, picture } = part;
    const steps = this.columns.step;
    const main = curve.main(this.columns),
      second = curve.second?.(this.columns) ?? [];
    const bound = curve.bound?.(this.now) ?? null;
    const evals = curve.dots ? this.evals.filter((e) => typeof e.em === "number") : [];
    const [low, high] = span(curve, [...main, ...second, ...evals.map((e) => e.em)], bound);
    const x = (i) => (steps.length > 1 ? (i / (steps.length - 1)) * W : W / 2);
    const y = (v) => H - PAD - ((v - low) / (high - low)) * (H - 2 * PAD);
    const lines = [svg("line", { class: "axis", x1: 0, x2: W, y1: H - PAD, y2: H - PAD })];
    if (typeof bound === "number" && bound <= high && main.some((v) => typeof v === "number"))
      lines.push(
        svg("line", {
          "class": "bound",
          "x1": 0,
          "x2": W,
          "y1": y(bound),
          "y2": y(bound),
          "vector-effect": "non-scaling-stroke",
        }),
      );
    lines.push(...paths(second, "second", x, y), ...paths(main, "main", x, y));
    // dots keep their shape when the picture is stretched: they are short strokes with round ends
    const round = (cx, cy, cls, width) =>
      svg("path", {
        "d": `M${cx} ${cy}h.01`,
        "class": cls,
        "stroke": "currentColor",
        "stroke-width": width,
        "stroke-linecap": "round",
        "vector-effect": "non-scaling-stroke",
      });
    for (const e of evals) {
      const i = steps.length ? e.round - steps[0] : -1;
      if (i >= 0 && i <= steps.length) lines.push(round(x(Math.min(i, steps.length - 1)), y(e.em), "mark", 6));
    }
    if (this.at !== null) {
      lines.push(
        svg("line", {
          "class": "cross",
          "x1": x(this.at),
          "x2": x(this.at),
          "y1": PAD / 2,
          "y2": H - PAD,
          "vector-effect": "non-scaling-stroke",
        }),
      );
      if (typeof main[this.at] === "number") lines.push(round(x(this.at), y(main[this.at]), "mark", 5));
    }
    picture.replaceChildren(...lines);
    const figure = this.at === null ? last(main) : main[this.at];
    setText(value, main.length ? curve.show(figure) : DASH);
    const there = main.some((v) => typeof v === "number");
    setText(part.high, there ? curve.show(high) : "");
    setText(part.low, there ? curve.show(low) : "");
    picture.setAttribute("aria-label", `${curve.name}, ${curve.says}: ${value.textContent}`);
  }
}

function span(curve, values, bound) {
  if (curve.range) return curve.range;
  const there = values.filter((v) => typeof v === "number");
  if (typeof bound === "number" && there.length) there.push(bound);
  const low = Math.min(curve.floor ?? Infinity, ...there),
    high = Math.max(curve.ceiling ?? -Infinity, ...there);
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  return high > low ? [low, high] : [low, low + (Math.abs(low) || 1)];
}

// A line for each stretch of steps that have the figure.
function paths(values, cls, x, y) {
  const out = [];
  let d = "";
  const flush = () => {
    if (d) out.push(svg("path", { "class": cls, "d": d.includes("L") ? d : `${d}h.01`, "stroke-linecap": "round" }));
    d = "";
  };
  values.forEach((v, i) => {
    if (typeof v === "number") d += `${d ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
    else flush();
  });
  flush();
  return out;
}
