// The conversation on the screen.

import { $, el, svg } from "./dom.js";
import { draw } from "./pace.js";
import { talk } from "./talk.js";
import { timing } from "./waterfall.js";

const EXAMPLES = [
  ["A short question", "What is the capital of France?", "64"],
  ["Long prompt, short answer", longPrompt, "8"],
  ["Short prompt, long answer", "Write a story about a lighthouse keeper and the sea.", "400"],
];

/** Everything anew, from what is kept. `choose(text, maxTokens)` is called with an example. */
export function showTalk(choose) {
  const turns = talk.messages.map((message, at) => turn(message, at));
  $("talk").replaceChildren(...(turns.length ? turns : [welcome(choose)]));
}

/** One more message, at the end. */
export function addTurn(message, at) {
  const node = turn(message, at);
  $("talk").querySelector(".welcome")?.remove();
  $("talk").append(node);
  toEnd();
  return node;
}

function turn({ role, content, reasoning, figures }, at) {
  return el(
    "article",
    { class: `turn ${role}`, id: `turn-${at}` },
    el("h2", { class: "unseen" }, role === "user" ? "You" : "The model"),
    reasoning && el("details", { class: "thought" }, el("summary", {}, "Reasoning"), reasoning),
    el("div", { class: "words" }, ...prose(content)),
    figures && timing(figures),
  );
}

/** Text with its fenced code set apart. */
function prose(text) {
  return text.split(/^```.*\n?/m).map((part, at) => (at % 2 ? el("pre", {}, el("code", {}, part)) : part));
}

/** The place where an answer grows. Drawn once for each frame, however many pieces come. */
export function growingTurn(at) {
  const node = addTurn({ role: "assistant", content: "" }, at);
  const words = node.querySelector(".words");
  words.classList.add("growing");
  const drawing = svg("svg", { class: "pace live", preserveAspectRatio: "none", "aria-hidden": "true" });
  node.append(drawing);
  let latest = null;
  let frame = 0;

  function paint() {
    frame = 0;
    const near = isNearEnd();
    words.textContent = latest.text || latest.reasoning;
    draw(drawing, latest.seen.gaps);
    if (near) toEnd();
  }
  return {
    show(answer) {
      latest = answer;
      frame ||= requestAnimationFrame(paint);
    },
    finish(message) {
      cancelAnimationFrame(frame);
      const near = isNearEnd();
      node.replaceWith(turn(message, at));
      if (near) toEnd();
    },
    remove() {
      cancelAnimationFrame(frame);
      node.remove();
    },
  };
}

/** Something that is no part of the conversation: trouble, or a comparison. */
export function addCard(card) {
  $("talk").querySelector(".welcome")?.remove();
  $("talk").append(card);
  toEnd();
}

function isNearEnd() {
  const { scrollTop, scrollHeight, clientHeight } = $("scroll");
  return scrollHeight - scrollTop - clientHeight < 80;
}

function toEnd() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function welcome(choose) {
  const buttons = EXAMPLES.map(([label, text, most]) =>
    el("button", { type: "button", onclick: () => choose(text instanceof Function ? text() : text, most) }, label),
  );
  return el(
    "section",
    { class: "welcome" },
    el("h2", {}, "One answer is two jobs"),
    el(
      "p",
      {},
      el("b", { class: "prefill" }, "Prefill"),
      " reads the whole prompt at once and decides when the first token comes. ",
      el("b", { class: "decode" }, "Decode"),
      " writes one token at a time and decides the pace. Ask something, and see which of them took the time.",
    ),
    el("p", { class: "row" }, buttons),
  );
}

/** Some 700 words to read and a question that needs few to answer. */
function longPrompt() {
  const goods = ["rope", "oil", "flour", "coal", "salt", "tea", "glass", "timber", "wool", "paper"];
  const lines = Array.from({ length: 60 }, (_, day) => {
    const good = goods[(day * 7) % goods.length];
    return `Day ${day + 1}: the boat brought ${3 + ((day * 5) % 11)} crates of ${good}, and the wind was fair.`;
  });
  return `Here is a harbour master's log.\n\n${lines.join("\n")}\n\nIn one word: was the wind fair?`;
}
