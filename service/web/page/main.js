// The page: what happens when somebody sends, stops, compares or starts anew.

import { streamed } from "./answer.js";
import { call, getJson, Refusal } from "./api.js";
import { markDropped, watchBudget } from "./budget.js";
import { comparison } from "./compare.js";
import { askForKey, setWish, wireExport, wireKey, wireTheme, wireWishes } from "./controls.js";
import { $, announce } from "./dom.js";
import { count, plural, time } from "./format.js";
import { forget, keep, model, request, restore, talk, toolsFault } from "./talk.js";
import { troubleCard } from "./trouble.js";
import { addCard, addTurn, growingTurn, showTalk } from "./view.js";

const POLL_MS = 1500;
const OPEN = "dialog[open], :popover-open"; // Escape closes these first
const draft = () => $("draft").value.trim();
let stopper = null; // of the answer under way

const budget = watchBudget(draft, markDropped);

async function meet() {
  try {
    await call("readyz");
    const { data } = await getJson("v1/models");
    Object.assign(model, { id: data[0].id, window: data[0].max_model_len });
    $("model").textContent = `${model.id} · ${count(model.window)} tokens`;
    await budget.look();
  } catch (error) {
    if (error.code !== "not_ready") return trouble(error, [["Try again", meet]]);
    $("model").textContent = "the model is being loaded …";
    setTimeout(meet, POLL_MS);
  }
}

async function send() {
  const text = draft();
  if (stopper || !text) return;
  if (budget.refusal() || toolsFault()) return announce($("fault").textContent);
  const body = request(text);
  const { messages } = talk; // of this conversation: a new one may begin meanwhile
  messages.push({ role: "user", content: text });
  const asked = addTurn(messages.at(-1), messages.length - 1);
  $("draft").value = "";
  const growing = growingTurn(messages.length);
  begin("Answering");
  try {
    const answer = await streamed(body, { signal: stopper.signal, onText: growing.show });
    if (!answer.text && !answer.finish) throw answer.error ?? new DOMException("Stopped.", "AbortError");
    if (messages === talk.messages) end(growing, answer);
  } catch (error) {
    if (messages !== talk.messages) return;
    growing.remove();
    asked.remove();
    messages.pop(); // refused, or stopped before any answer: the text goes back to where it can be changed
    $("draft").value = [text, $("draft").value].filter(Boolean).join("\n");
    if (error.name !== "AbortError") trouble(error, [["Try again", send]]);
    else announce("Stopped before the answer began.");
  } finally {
    over();
  }
}

function end(growing, answer) {
  const { text, reasoning, usage, phases, budget: spent, seen, stopped } = answer;
  const rounded = { ...seen, gaps: seen.gaps.map((ms) => Math.round(100 * ms) / 100) };
  const error = answer.error?.message;
  const message = { role: "assistant", content: text, reasoning };
  message.figures = { usage, phases, budget: spent, seen: rounded, stopped, error };
  talk.messages.push(message);
  growing.finish(message);
  if (answer.error) trouble(answer.error, []);
  else if (stopped) announce("Stopped.");
  else announce(`The answer is complete: ${plural(usage.completion_tokens, "token")} in ${time(phases.total_ms)}.`);
}

async function compare() {
  const text = draft();
  if (stopper || toolsFault()) return;
  const body = request(text);
  if (!text && body.messages.at(-1)?.role === "assistant") body.messages.pop();
  if (!body.messages.some(({ role }) => role === "user")) {
    return announce("Type something to compare with.");
  }
  begin("Comparing");
  const { card, done } = comparison(body, stopper.signal);
  addCard(card);
  try {
    await done;
    card.scrollIntoView({ block: "nearest" });
    announce(card.querySelector(".outcome").textContent);
  } catch (error) {
    stopper.abort(); // the other one, too
    if (error.name !== "AbortError") {
      card.remove();
      trouble(error, [["Try again", compare]]);
    }
  } finally {
    over();
  }
}

function begin(words) {
  settled();
  stopper = new AbortController();
  document.body.classList.add("busy");
  announce(words);
}

function over() {
  stopper = null;
  document.body.classList.remove("busy");
  if (!keep()) announce("This browser keeps no conversation: its storage is full or switched off.");
  toField();
  budget.look();
}

/** Where there is a keyboard, so that no phone unfolds its own over the answer. */
function toField() {
  if (matchMedia("(pointer: fine)").matches) $("draft").focus();
}

function trouble(error, actions) {
  if (!(error instanceof Refusal)) throw error;
  if (error.status === 401) askForKey();
  const offered = error.status === 401 ? [["Enter a key", askForKey]] : actions;
  settled();
  addCard(troubleCard(error, offered.map(([label, run]) => [label, () => (settled(), run())])));
}

/** Old trouble goes when something new is tried. */
function settled() {
  for (const card of document.querySelectorAll("article.trouble")) card.remove();
}

function choose(text, maxTokens) {
  $("draft").value = text;
  setWish("maxTokens", maxTokens);
  $("draft").focus();
  budget.look();
}

function anew() {
  stopper?.abort();
  forget();
  keep();
  showTalk(choose);
  budget.look();
  $("draft").focus();
}

function wire() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("draft").addEventListener("input", budget.changed);
  $("draft").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing || document.querySelector(OPEN)) return;
    stopper?.abort();
  });
  $("stop").addEventListener("click", () => stopper?.abort());
  $("compare").addEventListener("click", compare);
  $("anew").addEventListener("click", anew);
  wireWishes(budget.changed);
  wireTheme();
  wireExport(draft);
  $("let-go").addEventListener("click", () => {
    setWish("truncation", "auto");
    budget.look();
  });
  wireKey(() => {
    settled();
    meet();
  });
}

restore();
wire();
showTalk(choose);
meet();
