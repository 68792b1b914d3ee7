// The same request twice at the same moment: sent whole, and streamed. The first byte moves, the total stays.

import { streamed, whole } from "./answer.js";
import { el } from "./dom.js";
import { plural, time } from "./format.js";

/** A card that fills while both run. `done` is settled when both are over, with the first refusal if any. */
export function comparison(request, signal) {
  const same = { ...request, temperature: 0 }; // so that both write the same text
  const lanes = { whole: lane("Streaming off"), streamed: lane("Streaming on") };
  const outcome = el("p", { class: "outcome" });
  const card = el(
    "section",
    { class: "compare", "aria-label": "Streaming off and on, side by side" },
    el("h3", {}, "The same request, whole and streamed"),
    el("div", { class: "pair" }, lanes.whole.box, lanes.streamed.box),
    outcome,
  );
  const clock = ticking(Object.values(lanes));
  const done = Promise.all([
    run(lanes.whole, whole(same, { signal })),
    run(lanes.streamed, streamed(same, { signal, onText: (answer) => lanes.streamed.text(answer) })),
  ]);
  done
    .then(([off, on]) => {
      if (on.stopped) return;
      outcome.textContent = verdict(off, on);
    })
    .catch(() => Object.values(lanes).forEach((lane) => lane.stop()))
    .finally(() => clock.stop());
  return { card, done };
}

async function run(lane, answering) {
  const answer = await answering;
  if (answer.error) throw answer.error; // it broke off in the middle
  lane.finish(answer);
  return answer;
}

function verdict(off, on) {
  const moved = off.seen.firstMs - on.seen.firstMs;
  return (
    `First text ${time(moved)} earlier: after ${time(on.seen.firstMs)} in place of ${time(off.seen.firstMs)}. ` +
    `The last after ${time(on.seen.totalMs)} and ${time(off.seen.totalMs)}: the work is the same.`
  );
}

function lane(name) {
  const words = el("p", { class: "state" }, "waiting");
  const text = el("div", { class: "sample", tabindex: "0", "aria-label": `${name}: the text` });
  const bar = el("div", { class: "race", "aria-hidden": "true" }, el("span", { class: "wait" }), el("span", { class: "flow" }));
  const state = { firstMs: null, nowMs: 0, over: false };
  return {
    state,
    box: el("div", { class: "lane-box" }, el("h4", {}, name), bar, words, text),
    text(answer) {
      state.firstMs ??= answer.seen.firstMs;
      text.textContent = answer.text;
    },
    finish(answer) {
      this.text(answer);
      Object.assign(state, { firstMs: answer.seen.firstMs, nowMs: answer.seen.totalMs, over: true });
      const size = answer.usage ? `, ${plural(answer.usage.completion_tokens, "token")}` : "";
      words.textContent = `first text ${time(answer.seen.firstMs ?? answer.seen.totalMs)}, all ${time(state.nowMs)}${size}`;
    },
    stop() {
      if (!state.over) words.textContent = "stopped";
      state.over = true;
    },
    scale(mostMs) {
      const first = state.firstMs ?? state.nowMs;
      bar.style.setProperty("--wait", first / mostMs);
      bar.style.setProperty("--flow", Math.max(state.over ? 0.006 : 0, (state.nowMs - first) / mostMs));
    },
  };
}

/** Both bars on one scale, drawn anew for each frame while anything runs. */
function ticking(lanes) {
  const begun = performance.now();
  let frame = 0;
  const tick = () => {
    for (const { state } of lanes) if (!state.over) state.nowMs = performance.now() - begun;
    const most = Math.max(1, ...lanes.map(({ state }) => state.nowMs));
    for (const lane of lanes) lane.scale(most);
    frame = requestAnimationFrame(tick);
  };
  tick();
  return {
    stop() {
      cancelAnimationFrame(frame);
      tick();
      cancelAnimationFrame(frame);
    },
  };
}
