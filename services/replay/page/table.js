// The stored groups as a table: sorted by any column, filtered, walked with the arrow keys.
// A row stays the same element as long as its group is shown, and only what has changed is written: making 512 rows
// anew at every step would take a quarter of a second. The style sheet lays rows out as grids, so their roles are said.

import { byId, el, setText } from "/page/dom.js";
import { count, number, small } from "/page/format.js";

const AT_ONCE = 600; // rows; more are shown on demand
const COLUMNS = [
  { key: "id", name: "group", text: (g, i) => g.id[i], sort: (g, i) => g.id[i], up: true },
  {
    key: "age",
    name: "age",
    says: "steps since it was stored",
    text: (g, i) => g.step - g.stored[i],
    sort: (g, i) => g.step - g.stored[i],
    up: true,
  },
  {
    key: "headroom",
    name: "Headroom",
    says: "as last measured",
    text: (g, i) => number(g.headroom[i]),
    sort: (g, i) => g.headroom[i],
  },
  {
    key: "headroom_ref",
    name: "at first",
    says: "Headroom when it was stored",
    text: (g, i) => number(g.headroom_ref[i]),
    sort: (g, i) => g.headroom_ref[i],
    narrow: true,
  },
  {
    key: "drift",
    name: "Drift",
    says: "as last measured",
    text: (g, i) => small(g.drift[i]),
    sort: (g, i) => g.drift[i],
  },
  { key: "uses", name: "replayed", says: "how often", text: (g, i) => g.uses[i], sort: (g, i) => g.uses[i] },
  {
    key: "right",
    name: "right",
    says: "rollouts with the right answer, of the scored ones",
    text: (g, i) => `${g.right[i]} / ${g.scored[i]}`,
    sort: (g, i) => g.right[i] / (g.scored[i] || 1),
  },
  {
    key: "tokens",
    name: "tokens",
    says: "trained on",
    text: (g, i) => number(g.tokens[i], 0),
    sort: (g, i) => g.tokens[i],
    narrow: true,
  },
];
const DOTS = ["passed", "refused", "accepted"];
const MARKS = [
  "not scanned in the last step",
  "scanned in the last step and not replayed",
  "replayed in the last step",
];

export class Table {
  constructor(open) {
    this.open = open;
    this.sort = { column: COLUMNS[2], up: false };
    this.limit = AT_ONCE;
    this.body = byId("groups").tBodies[0];
    this.rows = new Map(); // of the groups shown, by id
    this.heads = COLUMNS.map((column) => {
      const button = el("button", { type: "button", title: column.says, onclick: () => this.by(column) }, column.name);
      return el("th", { scope: "col", role: "columnheader", class: classes(column) }, button);
    });
    byId("groups").tHead.rows[0].replaceChildren(...this.heads);
    this.body.addEventListener("click", (e) => this.openRow(e.target.closest("tr")));
    this.body.addEventListener("keydown", (e) => this.key(e));
    for (const id of ["groups-kind", "groups-find"]) byId(id).addEventListener("input", () => this.draw());
  }

  show(groups, tau, empty) {
    Object.assign(this, { groups, tau, empty });
    this.draw();
  }

  by(column) {
    const same = this.sort.column === column;
    this.sort = { column, up: same ? !this.sort.up : Boolean(column.up) };
    this.draw();
  }

  chosen() {
    const g = this.groups,
      find = byId("groups-find").value.trim().toLowerCase();
    const keep = {
      all: () => true,
      accepted: (i) => g.mark[i] === 2,
      refused: (i) => g.mark[i] === 1,
      pass: (i) => g.drift[i] !== null && g.drift[i] <= this.tau,
      fail: (i) => g.drift[i] !== null && g.drift[i] > this.tau,
      unmeasured: (i) => g.drift[i] === null,
      used: (i) => g.uses[i] > 0,
    }[byId("groups-kind").value];
    const { column, up } = this.sort;
    const rows = g.id.map((_, i) => i).filter((i) => keep(i) && g.id[i].toLowerCase().includes(find));
    return rows.sort((a, b) => {
      const [x, y] = [column.sort(g, a), column.sort(g, b)];
      if (x === null || y === null) return (x === null) - (y === null); // what was never measured comes last
      return (x < y ? -1 : x > y ? 1 : a - b) * (up ? 1 : -1);
    });
  }

  draw() {
    if (!this.groups) return;
    const rows = this.chosen(),
      shown = rows.slice(0, this.limit);
    this.heads.forEach((head, i) => {
      if (COLUMNS[i] === this.sort.column) head.setAttribute("aria-sort", this.sort.up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    const current = focused ?? this.current;
    const before = this.rows;
    this.rows = new Map(shown.map((i) => [this.groups.id[i], before.get(this.groups.id[i]) ?? new Row()]));
    shown.forEach((i) => this.rows.get(this.groups.id[i]).show(this.groups, i));
    const wanted = [...this.rows.values()].map((row) => row.tr);
    if (!wanted.length) wanted.push(message(this.groups.id.length ? "No group is of this kind." : this.empty));
    if (rows.length > shown.length) wanted.push(this.more(rows.length));
    arrange(this.body, wanted);
    this.find(this.current)?.setAttribute("tabindex", -1);
    this.current = this.rows.has(current) ? current : this.groups.id[shown[0]];
    const here = this.find(this.current);
    here?.setAttribute("tabindex", 0);
    if (focused && here && here !== document.activeElement) here.focus({ preventScroll: true });
    const g = this.groups,
      all =
        g.total > g.id.length
          ? `the ${g.id.length.toLocaleString("en")} of highest Headroom of ${g.total.toLocaleString("en")}`
          : count(g.total, "group");
    setText(byId("groups-count"), rows.length === g.id.length ? all : `${rows.length.toLocaleString("en")} of ${all}`);
  }

  more(total) {
    const button = el(
      "button",
      {
        type: "button",
        onclick: () => {
          this.limit = Infinity;
          this.draw();
        },
      },
      `Show all ${total.toLocaleString("en")}`,
    );
    return el("tr", { role: "row" }, el("td", { role: "cell", colspan: COLUMNS.length }, button));
  }

  find(id) {
    return this.rows.get(id)?.tr;
  }

  openRow(row) {
    if (row?.dataset.id) this.open(row.dataset.id);
  }

  key(e) {
    const rows = [...this.body.rows].filter((row) => row.dataset.id),
      at = rows.indexOf(document.activeElement);
    if (at < 0) return;
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      Home: 0,
      End: rows.length - 1,
      PageDown: at + 15,
      PageUp: at - 15,
    }[e.key];
    if (e.key === "Enter") this.openRow(rows[at]);
    else if (to === undefined) return;
    else {
      const row = rows[Math.max(0, Math.min(rows.length - 1, to))];
      rows[at].setAttribute("tabindex", -1);
      row.setAttribute("tabindex", 0);
      row.focus();
      this.current = row.dataset.id;
    }
    e.preventDefault();
  }
}

class Row {
  constructor() {
    this.dot = el("i");
    this.texts = COLUMNS.map(() => document.createTextNode(""));
    const cells = COLUMNS.map((column, k) =>
      el("td", { role: "cell", class: classes(column) }, k ? null : this.dot, this.texts[k]),
    );
    this.tr = el("tr", { role: "row", tabindex: -1 }, ...cells);
  }

  show(g, i) {
    COLUMNS.forEach((column, k) => {
      const text = String(column.text(g, i));
      if (this.texts[k].data !== text) this.texts[k].data = text;
    });
    if (this.mark === g.mark[i]) return;
    this.mark = g.mark[i];
    this.tr.dataset.id = g.id[i];
    this.tr.setAttribute("aria-label", `group ${g.id[i]}, ${MARKS[this.mark]}`);
    this.dot.className = `dot ${DOTS[this.mark]}`;
    this.dot.title = MARKS[this.mark];
  }
}

// Makes `wanted` the children of `parent`, moving few: what has gone or moves down is taken out before it is waited for.
function arrange(parent, wanted) {
  const kept = new Set(wanted);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const child of wanted) {
    if (at && at !== child && at.nextElementSibling === child) {
      at.remove();
      at = child;
    }
    if (at === child) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
}

const classes = (column) =>
  [column.key === "id" ? "" : "n", column.narrow ? "narrow-off" : ""].join(" ").trim() || null;
const message = (text) => el("tr", { role: "row" }, el("td", { role: "cell", colspan: COLUMNS.length, class: "empty" }, text));
