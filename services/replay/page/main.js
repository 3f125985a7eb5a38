// Ties the page together: asks once a second where the run is, fetches what has changed, shows the overview or a group.

import { asker } from "/page/api.js";
import { Curves, ratio } from "/page/curves.js";
import { byId, el, setText } from "/page/dom.js";
import { DASH, bytes, clock, count, last, mean, number, percent, small, version } from "/page/format.js";
import { GroupView } from "/page/group.js";
import { Scatter, whatIf } from "/page/scatter.js";
import { Table } from "/page/table.js";

const EVERY_MS = 1000,
  HIDDEN_MS = 10000,
  RECENT = 10,
  KEPT = 500;
const ask = { now: asker("/window/now"), groups: asker("/window/groups"), steps: asker("/window/steps") };
const open = (id) => {
  location.hash = `group/${encodeURIComponent(id)}`;
};
const scatter = new Scatter(open),
  table = new Table(open),
  curves = new Curves(),
  group = new GroupView();
const seen = { groups: null, history: null };
let now = null,
  groups = null,
  other = null;
let history = { columns: null, evals: [], notices: [] };

async function poll() {
  try {
    now = await ask.now();
    const work = [];
    if (now.groups !== seen.groups) work.push(newGroups());
    if (now.history !== seen.history) work.push(newSteps());
    await Promise.all(work);
    showNow();
  } catch (error) {
    const said = error.status ? error.message : "The replay service does not answer; asking again.";
    status(`${said[0].toUpperCase()}${said.slice(1)}`, "lost");
  }
  setTimeout(poll, document.hidden ? HIDDEN_MS : EVERY_MS);
}

async function newGroups() {
  groups = (await ask.groups()) ?? groups;
  seen.groups = now.groups;
  showGroups();
  if (!performance.getEntriesByName("shown").length) performance.mark("shown");
}

async function newSteps() {
  const known = history.columns?.step.at(-1) ?? -1;
  const back = now.step - 1 < known; // the run went back to an older step
  const got = await ask.steps(`?after=${back || known < 0 ? -1 : known}`);
  seen.history = now.history;
  if (!got) return;
  const before = back ? null : history.columns;
  const columns = Object.fromEntries(
    Object.entries(got.columns).map(([name, values]) => [name, [...(before?.[name] ?? []), ...values].slice(-KEPT)]),
  );
  history = { ...got, columns };
  curves.show(columns, history.evals, now);
  showNotices();
}

function showNow() {
  byId("overview").hidden = Boolean(opened());
  setText(byId("run"), now.run);
  document.title = `${now.run} · Headrace replay`;
  const c = history.columns,
    seconds = c ? mean(c.seconds.slice(-RECENT)) : null;
  setText(byId("where"), `${now.step} of ${now.steps} steps`);
  byId("progress").max = now.steps;
  byId("progress").value = now.step;
  setText(byId("left"), seconds && now.step < now.steps ? `${clock(seconds * (now.steps - now.step))} left` : "");
  const waits = now.waiting_for
    ? `Replay waits for ${now.waiting_for}${now.waiting_s >= 2 ? `, since ${clock(now.waiting_s)}` : ""}.`
    : "";
  status(now.finished ? "The run has finished." : waits || "Replay waits for nothing.", now.finished ? "" : "live");
  showTiles(c);
  showActors();
}

function showTiles(c) {
  const recent = (values) => (values ? mean(values.slice(-RECENT)) : null);
  const em = history.evals.filter((e) => typeof e.em === "number");
  const gap = c ? last(c.engine_gap) : null;
  const gapLimit = c ? last(c.engine_gap_limit) : null;
  const tiles = [
    ["learner idle", percent(c ? ratio(recent(c.wait_s), recent(c.step_s)) : null), `last ${RECENT} steps`],
    [
      "acceptance",
      now.gated ? percent(recent(c?.acceptance)) : DASH,
      now.gated ? `τ = ${small(now.tau)}` : `no gate under ${now.policy}`,
    ],
    ["lag", number(recent(c?.lag_mean), 2), `at most ${now.max_lag} allowed`],
    ["replay KL", small(recent(c?.replay_kl)), `Drift of replayed ${small(recent(c?.drift_mean))}`],
    [
      "engine gap",
      small(gap),
      gap === null || gapLimit === null
        ? "not measured yet"
        : `${gap >= gapLimit ? "reaches" : "below"} the limit of ${small(gapLimit)}`,
    ],
    [
      "held-out EM",
      em.length ? percent(em.at(-1).em) : DASH,
      em.length > 1 ? `was ${percent(em[0].em)}` : em.length ? "before training" : "no evaluation yet",
    ],
    ["buffer", `${now.buffer_groups} / ${now.capacity}`, `${now.fresh_groups} fresh, ${now.tasks_running} running`],
    ["payloads", bytes(now.payload_bytes), `of ${bytes(now.max_bytes)}`],
  ];
  const list = byId("tiles");
  if (list.children.length !== tiles.length)
    list.replaceChildren(
      ...tiles.map(([name]) => el("div", {}, el("dt", {}, name), el("dd"), el("dd", { class: "note" }))),
    );
  tiles.forEach(([, value, note], i) => {
    setText(list.children[i].children[1], value);
    setText(list.children[i].children[2], note);
  });
}

function showGroups() {
  const slider = byId("tau"),
    gated = now.gated && now.tau > 0;
  byId("what-if").hidden = !gated;
  if (gated) {
    const logs = [Math.log10(now.tau), ...groups.drift.filter((d) => d > 0).map(Math.log10)];
    slider.min = Math.floor(Math.min(...logs) - 0.5);
    slider.max = Math.ceil(Math.max(...logs) + 0.1);
    if (other === null) slider.value = Math.log10(now.tau);
  }
  showWhatIf();
  const empty =
    now.policy === "none"
      ? "The policy none stores nothing."
      : "No group is stored yet. A group enters when the step that it was fresh in is trained.";
  table.show(groups, now.tau, empty);
}

function showWhatIf() {
  const tau = now.gated ? now.tau : null,
    tried = other ?? tau;
  scatter.show(groups, tau, other);
  if (tau === null) return;
  setText(byId("tau-value"), small(tried));
  byId("tau").setAttribute("aria-valuetext", small(tried));
  byId("tau-reset").disabled = other === null;
  setText(byId("tau-says"), whatIf(groups, tried, tau));
}

function showActors() {
  const rows = now.actors.map((a) =>
    el(
      "tr",
      {},
      el("td", {}, a.id),
      el("td", {}, a.state ?? DASH),
      ...[version(a.version), a.groups_running ?? DASH, number(a.tokens_per_s, 0), bytes(a.memory)].map((x) =>
        el("td", { class: "n" }, x),
      ),
    ),
  );
  if (!rows.length) rows.push(el("tr", {}, el("td", { colspan: 6, class: "empty" }, "No actor is alive.")));
  byId("actors").tBodies[0].replaceChildren(...rows);
  setText(byId("actors-count"), count(now.actors.length, "actor"));
}

function showNotices() {
  const items = history.notices
    .toReversed()
    .map((n) =>
      el(
        "li",
        {},
        el("time", {}, new Date(1000 * n.time).toLocaleTimeString("en-GB")),
        el("span", {}, [n.kind, n.who].filter(Boolean).join(", ") + (n.text ? `: ${n.text}` : "")),
      ),
    );
  byId("notices").replaceChildren(...(items.length ? items : [el("li", { class: "empty" }, "Nothing was warned of.")]));
}

function status(text, kind) {
  setText(byId("status"), text);
  byId("status").className = `status ${kind}`;
}

const opened = () => (location.hash.startsWith("#group/") ? decodeURIComponent(location.hash.slice(7)) : null);

function route() {
  const id = opened(),
    was = group.id;
  byId("overview").hidden = Boolean(id) || !now;
  byId("group").hidden = !id;
  if (id) group.show(id);
  else {
    group.id = null;
    byId("group").replaceChildren();
    if (groups) table.draw();
    if (was) (table.find(was) ?? byId("groups-title")).focus();
  }
}

byId("tau").addEventListener("input", (e) => {
  other = 10 ** Number(e.target.value);
  if (groups) showWhatIf();
});
byId("tau-reset").addEventListener("click", () => {
  other = null;
  byId("tau").value = Math.log10(now.tau);
  showWhatIf();
});
addEventListener("hashchange", route);
addEventListener("keydown", (e) => {
  if (e.key === "Escape" && opened()) location.hash = "";
});
document.addEventListener("visibilitychange", () => scatter.draw());

const dark = matchMedia("(prefers-color-scheme: dark)"),
  root = document.documentElement;
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
const showTheme = () => {
  setText(byId("theme"), isDark() ? "☀ light" : "☾ dark");
  scatter.draw();
};
byId("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("headrace-theme", root.dataset.theme);
  } catch {
    /* it lasts as long as the page */
  }
  showTheme();
});
dark.addEventListener("change", showTheme);
showTheme();
route();
poll();
