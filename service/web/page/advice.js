// The verdict on an answer and what to do about it, in the answer's own numbers.

import { count, percent, plural, time } from "./format.js";

export const VERDICTS = {
  prefill: "Bound by prefill",
  decode: "Bound by decode",
  queue: "Bound by the queue",
  client: "Bound by the reader",
  service: "Bound by the service",
};

/** One sentence for the phase that took the most of an answer. */
export function advice(phases, budget) {
  const share = (ms) => `${time(ms)} of ${time(phases.total_ms)} (${percent(ms, phases.total_ms)})`;
  const words = {
    prefill: () =>
      `Reading the prompt took ${share(phases.prefill_ms)}: ${plural(phases.computed_tokens, "token")} ` +
      `to compute, ${count(phases.cached_tokens)} from the cache. Send less, and keep what stays the same ` +
      `first and what changes last, so that it stays cached.`,
    decode: () =>
      `Writing took ${share(phases.decode_ms)}: ${plural(phases.decode_steps, "step")} of ` +
      `${time(phases.tpot_ms)} each. Ask for less output: a lower max_tokens` +
      `${budget ? ` (now ${count(budget.max_output_tokens)})` : ""}, or a schema in place of prose.`,
    queue: () =>
      `Waiting for others took ${share(phases.admission_ms + phases.queue_ms)}; neither phase is slow. ` +
      `Add capacity, or make requests smaller so that more fit.`,
    client: () =>
      `The reader was slower than the model: the engine was done with its ` +
      `${plural(phases.decode_steps + 1, "token")} long before ${time(phases.total_ms)} had passed.`,
    service: () =>
      `The service's own work was the largest part of ${time(phases.total_ms)}. That is a fault to report.`,
  };
  return words[phases.bound_by]?.() ?? "";
}
