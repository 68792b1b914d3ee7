// Where the time of one answer went: one bar under the other, each beginning where the one before ended.

import { advice, VERDICTS } from "./advice.js";
import { el } from "./dom.js";
import { count, plural, rate, time } from "./format.js";
import { paceChart } from "./pace.js";

const PHASES = [
  ["render", "chat template and tokens"],
  ["admission", "budget, and the wait for a slot"],
  ["queue", "from the slot to the engine's first work"],
  ["prefill", "reading the prompt, to the first token"],
  ["decode", "writing, first token to last"],
];

/** What stands under an answer: verdict, figures, waterfall and pace. */
export function timing({ phases, usage, budget, seen, stopped, error }) {
  const parts = phases ? [verdict(phases, budget), sum(phases)] : [cut(seen, stopped, error)];
  return el(
    "section",
    { class: "timing", "aria-label": "Where the time went" },
    ...parts,
    table(phases ? measured(phases) : watched(seen), phases?.total_ms ?? seen.totalMs),
    phases && figures(phases, usage, budget, seen),
    paceChart(seen.gaps),
  );
}

function verdict(phases, budget) {
  if (!phases.bound_by) return null;
  return el(
    "p",
    { class: "verdict" },
    el("strong", { class: `badge ${phases.bound_by}` }, VERDICTS[phases.bound_by]),
    " ",
    advice(phases, budget),
  );
}

function cut(seen, stopped, error) {
  const words = stopped ? "Stopped by you; the engine was told to stop as well." : error ? "It broke off." : "";
  return el("p", { class: "verdict" }, `${words} What follows is what this browser saw.`);
}

/** Two terms, and what little lies around them. The first token comes out of prefill; steps follow. */
function sum(phases) {
  const { total_ms: total, decode_ms: decode, decode_steps: steps, tpot_ms: pace } = phases;
  if (decode === null) return null;
  const rest = measured(phases).at(-1).ms;
  return el(
    "p",
    { class: "sum" },
    el("span", { class: "term before" }, time(total - decode - rest)),
    " to the first token + ",
    el("span", { class: "term after" }, `${plural(steps, "step")} × ${time(pace)}`),
    ` + ${time(rest)} around them = ${time(total)}`,
  );
}

/** The server's phases, and what is left of the total, so that the rows add up to it. */
function measured(phases) {
  const rows = PHASES.map(([name, what]) => ({ name, what, ms: phases[`${name}_ms`] ?? 0 }));
  const rest = phases.total_ms - rows.reduce((all, { ms }) => all + ms, 0);
  return [...rows, { name: "rest", what: "reading the request and handing over", ms: Math.max(0, rest) }];
}

function watched({ firstMs, totalMs }) {
  const first = firstMs ?? totalMs;
  return [
    { name: "prefill", what: "until the first text", ms: first },
    { name: "decode", what: "until it ended", ms: totalMs - first },
  ];
}

function table(rows, totalMs) {
  let start = 0;
  const lines = rows.map(({ name, what, ms }) => {
    const line = el(
      "tr",
      { "data-phase": name, "data-ms": ms },
      el("th", { scope: "row", title: what }, name),
      el("td", { class: "lane", "aria-hidden": "true" }, bar(name, start / totalMs, ms / totalMs)),
      el("td", { class: "ms" }, time(ms)),
    );
    start += ms;
    return line;
  });
  const total = el("tr", { class: "total", "data-ms": totalMs }, el("th", { scope: "row" }, "total"), el("td"));
  total.append(el("td", { class: "ms" }, time(totalMs)));
  const caption = el("caption", { class: "unseen" }, "Time of each phase of this answer");
  return el("table", { class: "waterfall" }, caption, el("tbody", {}, lines, total));
}

const bar = (name, start, length) =>
  el("span", { class: `bar ${name}`, "--start": start.toFixed(5), "--length": Math.max(0, length).toFixed(5) });

function figures(phases, usage, budget, seen) {
  const rows = [
    ["first text", time(phases.ttft_ms ?? phases.total_ms), `${time(seen.firstMs ?? seen.totalMs)} seen here`],
    ["pace", phases.tpot_ms > 0 ? rate(1000 / phases.tpot_ms) : "one token", `${time(phases.tpot_ms)} each`],
    ["read", plural(usage.prompt_tokens, "token"), cacheWords(phases)],
    ["written", plural(usage.completion_tokens, "token"), budgetWords(budget)],
  ];
  const cell = ([name, value, more]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value, more && el("small", {}, more)));
  return el("dl", { class: "figures" }, rows.map(cell));
}

/** `cache` says why the match with earlier prompts ended, where anything is remembered. */
function cacheWords({ cached_tokens: cached, preemptions, cache }) {
  const broken = cache?.miss ? `; ${cache.miss.cause}` : "";
  const again = preemptions > 0 ? `, thrown out ${plural(preemptions, "time")}` : "";
  return `${count(cached)} from the cache${broken}${again}`;
}

function budgetWords(budget) {
  const { max_output_tokens: most, dropped_messages: dropped, clamped_from: wish } = budget;
  const words = [`of at most ${count(most)}`];
  if (wish) words.push(`${count(wish)} asked for`);
  if (dropped) words.push(`${plural(dropped, "old message")} left out`);
  return words.join(", ");
}
