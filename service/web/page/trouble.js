// Errors in words, with what to do. The service says what is wrong; here is what this page can do about it.

import { el } from "./dom.js";

const TITLES = {
  0: "No connection",
  401: "A key is needed",
  403: "Not allowed",
  408: "Too slow",
  413: "Too large",
  429: "Busy",
  503: "Not ready",
  504: "Out of time",
};

const REMEDIES = {
  unreachable: "Check that the service runs and that you are on its network, then try again.",
  broken_stream: "What came until then is kept. Try again when the service is back.",
  invalid_api_key: "Enter a key that this service knows.",
  context_length_exceeded: "Shorten the text, lower the output limit, or let the oldest turns go.",
  input_budget_exceeded: "Shorten the text, or let the oldest turns go.",
  output_budget_exceeded: "Lower the output limit.",
  rate_limit_exceeded: "Your key's own limit for a minute is used up; wait and try again.",
  overloaded: "Others are being answered first; wait and try again.",
  not_ready: "The model is being loaded, which takes about half a minute; then try again.",
  draining: "The service is going down; try again when it is back.",
  engine_unavailable: "The engine has stopped; its operator's log says why.",
};

export const title = (error) => TITLES[error.status] ?? (error.status >= 500 ? "A fault" : "Not possible");

export function remedy(error) {
  const wait = error.retryAfterS ? ` The service asks to wait ${error.retryAfterS} s.` : "";
  return (REMEDIES[error.code] ?? "") + wait;
}

/** A card that says what happened; `actions` are [label, run] pairs. */
export function troubleCard(error, actions) {
  const buttons = actions.map(([label, run]) => el("button", { type: "button", onclick: run }, label));
  return el(
    "article",
    { class: "trouble", role: "alert" },
    el("h3", {}, title(error)),
    el("p", {}, error.message),
    remedy(error) && el("p", {}, remedy(error)),
    buttons.length > 0 && el("p", { class: "row" }, buttons),
  );
}
