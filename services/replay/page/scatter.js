// Headroom against Drift, one point a group, with the gate; below it, which share of the measured groups each gate
// lets in.

import { byId, setText } from "/page/dom.js";
import { count, number, percent, small } from "/page/format.js";

const LEFT = 44,
  RIGHT = 14,
  TOP = 24,
  SHARE = 52,
  GAP = 30,
  FOOT = 34,
  NEVER = 58;
const REFUSED = 1,
  ACCEPTED = 2;

export class Scatter {
  constructor(open) {
    this.canvas = byId("scatter");
    this.tip = byId("scatter-tip");
    this.open = open;
    this.groups = null;
    this.at = -1;
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.canvas.addEventListener("pointermove", (e) => this.point(this.nearest(e.offsetX, e.offsetY)));
    this.canvas.addEventListener("pointerleave", () => this.point(-1));
    this.canvas.addEventListener("blur", () => this.point(-1));
    this.canvas.addEventListener("click", (e) => {
      const i = this.nearest(e.offsetX, e.offsetY);
      if (i >= 0) this.open(this.groups.id[i]);
    });
    this.canvas.addEventListener("keydown", (e) => this.key(e));
  }

  // groups: columns of /window/groups; tau: the gate, or null where the policy has none; other: the gate that is tried.
  show(groups, tau, other) {
    Object.assign(this, { groups, tau, other });
    if (this.at >= groups.id.length) this.at = -1;
    this.draw();
    const measured = groups.drift.filter((d) => d !== null);
    const inside = measured.filter((d) => d <= tau).length;
    const gate = tau === null ? "" : `, ${inside} of them within tau ${small(tau)}`;
    const measures = `${measured.length} with a measured Drift${gate}`;
    const says = `${count(groups.total, "stored group")}, ${measures}. The table below lists them.`;
    this.canvas.setAttribute("aria-label", groups.id.length ? says : "No group is stored yet.");
  }

  domain() {
    const logs = this.groups.drift.filter((d) => d > 0).map(Math.log10);
    for (const gate of [this.tau, this.other]) if (gate > 0) logs.push(Math.log10(gate));
    if (!logs.length) return [-4, -1];
    let [low, high] = [Infinity, -Infinity];
    for (const x of logs) [low, high] = [Math.min(low, x), Math.max(high, x)];
    return [Math.max(low - 0.25, -12), Math.max(high + 0.25, low + 0.75)];
  }

  layout() {
    const width = this.canvas.clientWidth,
      height = this.canvas.clientHeight;
    const [low, high] = this.domain();
    const left = LEFT + (this.groups.drift.includes(null) ? NEVER : 0);
    const bottom = height - FOOT - SHARE - GAP;
    const x = (log) => left + ((log - low) / (high - low)) * (width - RIGHT - left);
    const drift = (d) => x(Math.min(Math.max(Math.log10(d), low), high));
    const y = (headroom) => bottom - headroom * (bottom - TOP);
    return { width, height, low, high, left, bottom, x, drift, y, right: width - RIGHT };
  }

  position(i, l = this.layout()) {
    const d = this.groups.drift[i];
    // groups that were never scanned lie in a strip of their own, spread by their place in it
    const x = d === null ? LEFT + 10 + (hash(this.groups.id[i]) % (NEVER - 24)) : d > 0 ? l.drift(d) : l.left;
    return [x, l.y(this.groups.headroom[i])];
  }

  draw() {
    if (!this.groups || !this.canvas.clientWidth) return;
    const l = this.layout();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(l.width * ratio);
    this.canvas.height = Math.round(l.height * ratio);
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const colour = colours(this.canvas);
    this.frame(c, l, colour);
    if (!this.groups.id.length) {
      c.fillStyle = colour.quiet;
      c.textAlign = "center";
      c.fillText("No group is stored yet.", (l.left + l.right) / 2, (TOP + l.bottom) / 2);
      return;
    }
    const at = this.groups.id.map((_, i) => this.position(i, l));
    const drawn = [0, REFUSED, ACCEPTED].map((mark) => at.filter((_, i) => this.groups.mark[i] === mark));
    drawn.forEach((places, mark) => places.forEach((place) => this.dot(c, place, mark, colour)));
    this.share(c, l, colour);
    this.say(l, at, drawn);
    if (this.at >= 0) {
      const [x, y] = this.position(this.at, l);
      c.strokeStyle = colour.text;
      c.lineWidth = 1.5;
      c.beginPath();
      c.arc(x, y, 8, 0, 2 * Math.PI);
      c.stroke();
    }
  }

  // What a picture does not tell: where the gate is, how many points lie within it, how many of each mark, and where the
  // accepted ones are, in CSS pixels.
  say(l, at, drawn) {
    const gate = this.tau > 0 ? l.drift(this.tau) : NaN;
    Object.assign(this.canvas.dataset, {
      gate: gate.toFixed(2),
      within: at.filter(([x], i) => this.groups.drift[i] !== null && x <= gate).length,
      passed: drawn[0].length,
      refused: drawn[REFUSED].length,
      accepted: drawn[ACCEPTED].map((place) => place.map((v) => v.toFixed(2)).join(",")).join(" "),
    });
  }

  dot(c, [x, y], mark, colour) {
    c.beginPath();
    c.arc(x, y, mark === ACCEPTED ? 4.5 : mark === REFUSED ? 3.8 : 2.4, 0, 2 * Math.PI);
    if (mark === REFUSED) {
      c.strokeStyle = colour.text;
      c.lineWidth = 1.4;
      c.stroke();
    } else {
      c.fillStyle = mark === ACCEPTED ? colour.accent : colour.faint;
      c.fill();
    }
  }

  frame(c, l, colour) {
    if (this.tau > 0) {
      c.fillStyle = colour.wash;
      c.fillRect(l.left, TOP, Math.max(0, l.drift(this.tau) - l.left), l.bottom - TOP);
    }
    c.lineWidth = 1;
    c.textBaseline = "middle";
    for (const h of [0, 0.25, 0.5, 0.75, 1]) {
      line(c, colour.line, LEFT, l.y(h), l.right, l.y(h));
      c.fillStyle = colour.quiet;
      c.textAlign = "right";
      c.fillText(h.toFixed(2), LEFT - 7, l.y(h));
    }
    const every = Math.max(1, Math.ceil((l.high - l.low) / Math.max(2, (l.right - l.left) / 70)));
    c.textAlign = "center";
    for (let e = Math.ceil(l.low); e <= l.high; e += every) {
      line(c, colour.line, l.x(e), TOP, l.x(e), l.height - FOOT);
      c.fillStyle = colour.quiet;
      c.fillText(small(10 ** e), l.x(e), l.height - FOOT + 11);
    }
    if (l.left > LEFT) {
      line(c, colour.line, l.left, TOP, l.left, l.bottom);
      c.fillText("never", (LEFT + l.left) / 2, l.bottom + 10);
      c.fillText("scanned", (LEFT + l.left) / 2, l.bottom + 21);
    }
    c.textAlign = "right";
    c.fillText("Drift, as last measured", l.right, l.height - 7);
    c.textAlign = "left";
    c.fillText("Headroom, as last measured", 4, 8);
    if (this.tau > 0) this.gate(c, l, this.tau, colour.accent, "τ", []);
    if (this.other > 0 && this.other !== this.tau) this.gate(c, l, this.other, colour.text, "what if", [4, 4]);
  }

  gate(c, l, tau, stroke, label, dash) {
    const x = l.drift(tau);
    c.setLineDash(dash);
    c.lineWidth = 1.5;
    line(c, stroke, x, TOP, x, l.height - FOOT);
    c.setLineDash([]);
    c.fillStyle = stroke;
    c.textAlign = x > l.right - 50 ? "right" : "left";
    c.fillText(label, x + (x > l.right - 50 ? -4 : 4), l.bottom + 12);
  }

  // The share of measured groups at or below each Drift: what other gates would have let in.
  share(c, l, colour) {
    const drifts = this.groups.drift.filter((d) => d !== null).sort((a, b) => a - b);
    if (!drifts.length) return;
    const base = l.height - FOOT,
      top = base - SHARE;
    line(c, colour.line, l.left, base, l.right, base);
    line(c, colour.line, l.left, top, l.right, top);
    c.beginPath();
    c.moveTo(l.left, base);
    drifts.forEach((d, i) => {
      const x = d > 0 ? l.drift(d) : l.left;
      c.lineTo(x, base - (SHARE * i) / drifts.length);
      c.lineTo(x, base - (SHARE * (i + 1)) / drifts.length);
    });
    c.lineTo(l.right, top);
    c.strokeStyle = colour.text;
    c.lineWidth = 1.3;
    c.stroke();
    c.fillStyle = colour.quiet;
    c.textAlign = "right";
    c.fillText("all", LEFT - 7, top);
    c.fillText("none", LEFT - 7, base);
  }

  nearest(x, y, within = 14) {
    if (!this.groups) return -1;
    const l = this.layout();
    let best = -1,
      least = within * within;
    for (let i = 0; i < this.groups.id.length; i++) {
      const [px, py] = this.position(i, l);
      const d = (px - x) ** 2 + (py - y) ** 2;
      if (d < least) [best, least] = [i, d];
    }
    return best;
  }

  point(i) {
    if (i === this.at) return;
    this.at = i;
    this.tip.hidden = i < 0;
    if (i >= 0) {
      const g = this.groups;
      const [x, y] = this.position(i);
      const scores = `Headroom ${number(g.headroom[i])}, Drift ${small(g.drift[i])}`;
      const past = `${count(g.step - g.stored[i], "step")} old, replayed ${count(g.uses[i], "time")}`;
      setText(this.tip, [g.id[i], scores, past].join("\n"));
      const width = this.tip.offsetWidth;
      this.tip.style.left = `${x + 14 + width > this.canvas.clientWidth ? Math.max(0, x - 14 - width) : x + 14}px`;
      this.tip.style.top = `${Math.max(0, y - 20)}px`;
    }
    this.draw();
  }

  key(e) {
    const n = this.groups?.id.length ?? 0;
    if (!n) return;
    if (e.key === "ArrowRight" || e.key === "ArrowDown") this.point((this.at + 1) % n);
    else if (e.key === "ArrowLeft" || e.key === "ArrowUp") this.point((this.at - 1 + n) % n);
    else if (e.key === "Enter" && this.at >= 0) this.open(this.groups.id[this.at]);
    else if (e.key === "Escape") this.point(-1);
    else return;
    e.preventDefault();
  }
}

// What a gate at `other` would have let in, in a sentence.
export function whatIf(groups, other, tau) {
  const within = (marked) =>
    groups.drift.filter((d, i) => d !== null && d <= other && (!marked || groups.mark[i])).length;
  const scanned = groups.mark.filter((mark, i) => mark && groups.drift[i] !== null).length;
  const measured = groups.drift.filter((d) => d !== null).length;
  if (!measured) return "No Drift has been measured yet.";
  const share = (n, of) => `${n} of ${of} (${percent(n / of)})`;
  const last = scanned ? `, of the last scan ${share(within(true), scanned)}` : "";
  const all = groups.drift.filter((d) => d !== null && d <= tau).length;
  const now = other === tau ? "" : ` τ = ${small(tau)} lets in ${all} (${percent(all / measured)}).`;
  return `It lets in ${share(within(false), measured)} of the measured groups${last}.${now}`;
}

function colours(element) {
  // light-dark() is resolved by letting an element take each colour
  const probe = document.createElement("span");
  element.parentElement.append(probe);
  const out = {};
  for (const name of ["accent", "faint", "line", "quiet", "text", "wash"]) {
    probe.style.color = `var(--${name})`;
    out[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return out;
}

function line(c, stroke, x1, y1, x2, y2) {
  c.strokeStyle = stroke;
  c.beginPath();
  c.moveTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  c.lineTo(Math.round(x2) + 0.5, Math.round(y2) + 0.5);
  c.stroke();
}

function hash(id) {
  let h = 7;
  for (let i = 0; i < id.length; i++) h = (h * 31 + id.charCodeAt(i)) >>> 0;
  return h;
}
