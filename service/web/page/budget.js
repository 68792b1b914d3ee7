// The budget of the request as it is being typed, told by the service's own dry run.

import { getJson, Refusal } from "./api.js";
import { $, announce, debounced, el } from "./dom.js";
import { bytes, count, percent, plural, time } from "./format.js";
import { model, request, talk, toolsFault } from "./talk.js";
import { remedy } from "./trouble.js";

const LONGEST = 40; // characters shown of a difference
const PAUSE_MS = 180;
const CUTTABLE = ["context_length_exceeded", "input_budget_exceeded"];
const PARTS = [
  ["content", "content"],
  ["system", "system"],
  ["tools", "tools"],
  ["template", "template"],
  ["output", "kept for the answer"],
  ["left", "left of the window"],
];

/** Watch what would be sent. `draft()` is the text typed; `onDropped(indexes)` hears which turns would go. */
export function watchBudget(draft, onDropped) {
  const state = { refusal: null, running: null };

  async function look() {
    state.running?.abort();
    const body = toolsFault() ? null : request(draft());
    if (!body?.messages.length) return settle(state, null, null);
    state.running = new AbortController();
    const { signal } = state.running;
    try {
      const told = await getJson("v1/chat/completions/explain", { body, signal });
      settle(state, told, null);
      onDropped(dropped(told, body.messages));
      showCapacity(await capacity(told, signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Refusal)) throw error;
      settle(state, null, error);
      onDropped([]);
    }
  }
  const lookSoon = debounced(look, PAUSE_MS);
  const changed = () => {
    state.refusal = null; // it was about another text
    lookSoon();
  };
  return { changed, look, refusal: () => state.refusal };
}

function settle(state, told, refusal) {
  const over = refusal?.status === 400 ? refusal : null;
  if (over && !$("bar").classList.contains("refused")) announce(`This cannot be sent. ${over.message}`);
  state.refusal = over;
  showBar(told ? shares(told) : {}, told, over);
  showForecast(told);
  $("let-go").hidden = !(over && CUTTABLE.includes(over.code) && talk.messages.length > 0);
  $("fault").textContent = toolsFault() || (refusal ? `${refusal.message} ${over ? "" : remedy(refusal)}` : "");
}

/** Disjoint parts of the window, in tokens: they add up to it. */
export function shares({ budget, messages, shares: owners }) {
  const of = (wanted) =>
    messages.reduce((all, m) => all + (isSystem(m) === wanted && !m.dropped ? m.content_tokens : 0), 0);
  const system = of(true);
  const content = of(false);
  const tools = owners.tool_definitions.tokens;
  const { prompt_tokens: prompt, max_output_tokens: output, context_window: window } = budget;
  const template = Math.max(0, prompt - system - content - tools);
  return { content, system, tools, template, output, left: Math.max(0, window - prompt - output) };
}

const isSystem = ({ role }) => role === "system" || role === "developer";

/** Numbers, in the conversation kept here, of the turns that would be left out. */
function dropped(told, sent) {
  const before = isSystem(sent[0]) ? 1 : 0;
  return told.messages.filter((message) => message.dropped).map(({ index }) => index - before);
}

function showBar(parts, told, refusal) {
  const bar = $("bar");
  bar.classList.toggle("refused", Boolean(refusal));
  bar.replaceChildren(
    ...PARTS.filter(([name]) => parts[name]).map(([name]) =>
      el("span", { class: `part ${name}`, "--tokens": parts[name], "data-tokens": parts[name] }),
    ),
  );
  const line = refusal ? "Over the budget" : told ? summary(parts, told) : empty();
  $("budget-line").textContent = line;
  bar.setAttribute("aria-label", line);
  $("legend").replaceChildren(
    ...PARTS.map(([name, words]) =>
      el("div", { class: name }, el("dt", {}, words), el("dd", {}, name in parts ? count(parts[name]) : "–")),
    ),
  );
}

function summary(parts, { budget }) {
  const away = budget.dropped_messages
    ? ` · ${plural(budget.dropped_messages, "old message")} left out`
    : "";
  const wish = budget.clamped_from ? ` (of ${count(budget.clamped_from)} wished)` : "";
  return (
    `${count(budget.prompt_tokens)} in · ${count(parts.output)}${wish} out · ` +
    `${count(parts.left)} left of ${count(budget.context_window)}${away}`
  );
}

const empty = () => (model.window ? `${count(model.window)} tokens of context, all free` : "");

function showForecast(told) {
  const lines = told ? [told.advice, ...reuse(told), ...prediction(told)] : [];
  $("forecast").replaceChildren(...lines.filter(Boolean).map((line) => el("p", {}, line)));
}

/** How much of the prompt is cached already, and why not more. Null where nothing is remembered. */
function reuse({ cache, prompt_tokens: prompt }) {
  if (!cache) return [];
  const lines = [`${count(cache.forecast_tokens)} of ${count(prompt)} prompt tokens should be cached.`];
  const { miss, advice } = cache;
  if (miss?.cause === "block boundary") lines.push(advice);
  else if (miss) lines.push(`The match ends at token ${count(miss.index)}, ${miss.cause}${found(miss)}. ${advice}`);
  return lines;
}

/** The text where the match ends, as it was and as it is, for those who may see it. */
function found({ text_before: before, text_after: after }) {
  if (after === null || after === undefined) return "";
  return before === null ? ` (${quoted(after)})` : ` (${quoted(before)} is now ${quoted(after)})`;
}

const quoted = (text) => JSON.stringify(text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);

/** From this server's own rates; null until it has measured some. */
function prediction({ predicted }) {
  const { ttft_ms: first, total_ms: total } = predicted ?? {};
  if (!first) return [];
  return [`First token expected after ${time(first)}${total ? `, the last after ${time(total)}` : ""}.`];
}

async function capacity({ budget, kv }, signal) {
  const asked = new URLSearchParams({
    prompt_tokens: budget.prompt_tokens,
    output_tokens: budget.max_output_tokens,
  });
  return { kv, found: await getJson(`v1/capacity?${asked}`, { signal }) };
}

function showCapacity({ kv, found }) {
  const { capacity_tokens: all, used_tokens: used, chats_now: now, chats_idle: idle } = found;
  const needs = kv.total_bytes
    ? `${bytes(kv.prompt_bytes)} for its prompt, ${bytes(kv.total_bytes)} when the answer is complete`
    : `${plural(kv.total_tokens, "token")} when the answer is complete`;
  const lines = [`This conversation takes ${needs}.`];
  if (all !== null) {
    lines.push(`${count(now)} of its kind fit now, ${count(idle)} on an idle engine.`);
    lines.push(`${count(used)} of ${plural(all, "token")} of cache in use (${percent(used, all)}).`);
  }
  $("kv-meter").hidden = all === null;
  $("kv-meter").max = all ?? 1;
  $("kv-meter").value = used ?? 0;
  $("capacity").replaceChildren(...lines.map((line) => el("p", {}, line)));
}

/** Turns that stay in the conversation here and would not be sent. */
export function markDropped(indexes) {
  const gone = new Set(indexes);
  for (const at of talk.messages.keys()) {
    $(`turn-${at}`)?.classList.toggle("left-out", gone.has(at));
  }
}
