// Figures as people read them; a dash where there is none.

export const DASH = "–";
const known = (x) => typeof x === "number" && Number.isFinite(x);

const formats = [0, 1, 2, 3].map(
  (digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
);
export const number = (x, digits = 3) => (known(x) ? formats[digits].format(x) : DASH);
export const percent = (x) => (known(x) ? `${(100 * x).toFixed(1)} %` : DASH);

// Three figures, with an exponent only where zeros would have to be counted.
export function small(x) {
  if (!known(x)) return DASH;
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1000 || size < 1e-4) return x.toExponential(1).replace("e-", "e−").replace("e+", "e");
  return x
    .toPrecision(size < 0.001 ? 2 : 3)
    .replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "");
}

export function clock(seconds) {
  if (!known(seconds)) return DASH;
  const whole = Math.max(0, Math.floor(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (x) => String(x).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

export function bytes(x) {
  if (!known(x)) return DASH;
  if (x >= 2 ** 30) return `${(x / 2 ** 30).toFixed(2)} GiB`;
  return x >= 2 ** 20 ? `${Math.round(x / 2 ** 20)} MiB` : `${Math.round(x / 1024)} KiB`;
}

export const version = (v) => (Array.isArray(v) ? v.join(".") : (v ?? DASH));
export const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

export const mean = (values) => {
  const there = values.filter(known);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
};

export const last = (values) => values.findLast(known) ?? null;
