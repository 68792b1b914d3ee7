// The pace of a stream: one bar for each piece of text, as high as the wait for it was long.

import { el, svg } from "./dom.js";
import { plural, time } from "./format.js";

const HEIGHT = 40;
const MOST_BARS = 240;
const TICK_MS = 0.1; // browsers tell no finer time
const CUT = 5; // times the median: what is higher is cut off there and marked

/** Waits that a reader feels: far over the usual one, and long enough to be seen. */
export function stalls(gaps) {
  const usual = median(gaps);
  return gaps.flatMap((ms, at) => (ms > Math.max(3 * usual, usual + 50) ? [{ at, ms }] : []));
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}

/** The chart with its words, or nothing where there is no second piece. */
export function paceChart(gaps) {
  if (gaps.length < 2) return null;
  const drawing = svg("svg", { class: "pace", preserveAspectRatio: "none", "aria-hidden": "true" });
  draw(drawing, gaps);
  return el("figure", { class: "rhythm" }, drawing, el("figcaption", {}, words(gaps)));
}

function words(gaps) {
  const found = stalls(gaps);
  const longest = found.reduce((most, stall) => (stall.ms > most.ms ? stall : most), { ms: 0 });
  const apart = median(gaps) < TICK_MS ? `less than ${time(TICK_MS)}` : time(median(gaps));
  const usual = `Pieces came ${apart} apart as a rule`;
  if (!found.length) return `${usual}, without a stall.`;
  return `${usual}; ${plural(found.length, "stall")}, the longest ${time(longest.ms)} before piece ${longest.at + 2}.`;
}

/** Bars into a drawing, which may already have some. */
export function draw(drawing, gaps) {
  const usual = median(gaps);
  const top = Math.max(CUT * usual, 5);
  const long = new Set(stalls(gaps).map(({ at }) => at));
  const bars = binned(gaps, long);
  const width = Math.max(bars.length, 40);
  let steady = "";
  let stalled = "";
  for (const [x, { ms, stall }] of bars.entries()) {
    const y = HEIGHT - Math.min(1, ms / top) * HEIGHT;
    const shape = `M${x + 0.14} ${HEIGHT}V${y.toFixed(2)}h.72V${HEIGHT}z`;
    if (stall) stalled += shape;
    else steady += shape;
  }
  const level = (HEIGHT - Math.min(1, usual / top) * HEIGHT).toFixed(2);
  drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  drawing.replaceChildren(
    svg("path", { class: "steady", d: steady }),
    svg("path", { class: "stalled", d: stalled }),
    svg("path", { class: "usual", d: `M0 ${level}H${width}` }),
  );
}

/** At most so many bars; one that stands for several shows the longest wait among them. */
function binned(gaps, long) {
  const each = Math.ceil(gaps.length / MOST_BARS);
  const bars = [];
  for (const [at, ms] of gaps.entries()) {
    const bar = Math.floor(at / each);
    bars[bar] ??= { ms: 0, stall: false };
    bars[bar].ms = Math.max(bars[bar].ms, ms);
    bars[bar].stall ||= long.has(at);
  }
  return bars;
}
