// One answer being read: its text as it comes, and the times at which this browser saw it.

import { call, events, Refusal } from "./api.js";

const FIGURES = ["usage", "phases", "budget"];

/**
 * Ask for a streamed answer. `onText(answer)` is called for each piece.
 * The returned answer is what there is, also when it was stopped or broke: then `stopped` or `error` says so.
 * A refusal, which comes before any answer, is thrown.
 */
export async function streamed(request, { signal, onText = () => {} }) {
  const begun = performance.now();
  const body = { ...request, stream: true, stream_options: { include_usage: true } };
  const answer = { text: "", reasoning: "", finish: null, seen: { firstMs: null, gaps: [], totalMs: 0 } };
  const response = await call("v1/chat/completions", { body, signal });
  try {
    let last = null;
    for await (const event of events(response)) {
      if (event.error) throw new Refusal(200, event.error);
      for (const name of FIGURES) if (event[name]) answer[name] = event[name];
      if (!takeText(answer, event.choices[0])) continue;
      const now = performance.now() - begun;
      if (last === null) answer.seen.firstMs = now;
      else answer.seen.gaps.push(now - last);
      last = now;
      onText(answer);
    }
  } catch (error) {
    if (error.name === "AbortError") answer.stopped = true;
    else answer.error = error;
  }
  answer.seen.totalMs = performance.now() - begun;
  return answer;
}

/** Ask for the same, sent whole at the end. */
export async function whole(request, { signal }) {
  const begun = performance.now();
  const response = await call("v1/chat/completions", { body: { ...request, stream: false }, signal });
  const body = await response.json();
  const seenMs = performance.now() - begun;
  const { message, finish_reason: finish } = body.choices[0];
  const { usage, phases, budget } = body;
  const seen = { firstMs: seenMs, gaps: [], totalMs: seenMs };
  return { text: message.content ?? "", finish, usage, phases, budget, seen };
}

function takeText(answer, choice) {
  if (!choice) return false;
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  const { content, reasoning: thought, tool_calls: tools } = choice.delta ?? {};
  if (content) answer.text += content;
  if (thought) answer.reasoning += thought;
  for (const tool of tools ?? []) answer.text += `${tool.function?.name ?? ""}${tool.function?.arguments ?? ""}`;
  return Boolean(content || thought || tools?.length);
}
