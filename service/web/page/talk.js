// The conversation and the wishes around it. They live in this browser and are sent nowhere but to the model.

const PLACE = "twophase-conversation";
const EMPTY = {
  messages: [],
  wishes: { system: "", maxTokens: "256", temperature: "", truncation: "", tools: "" },
};

export const talk = structuredClone(EMPTY);
export const model = { id: null, window: null };

/** Read what an earlier visit left; what cannot be read is left out. */
export function restore() {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE));
    talk.messages = kept.messages.filter(({ role, content }) => role && typeof content === "string");
    Object.assign(talk.wishes, kept.wishes);
  } catch {
    forget();
  }
}

/** Whether it could be kept: a browser may allow no storage, or no more of it. */
export function keep() {
  try {
    localStorage.setItem(PLACE, JSON.stringify(talk));
    return true;
  } catch {
    return false;
  }
}

export function forget() {
  talk.messages = [];
}

/** The request body for the conversation, with `draft` as its newest turn where there is one. */
export function request(draft = "") {
  const { system, maxTokens, temperature, truncation, tools } = talk.wishes;
  const turns = talk.messages.map(({ role, content }) => ({ role, content }));
  const messages = [
    ...(system.trim() ? [{ role: "system", content: system }] : []),
    ...turns,
    ...(draft ? [{ role: "user", content: draft }] : []),
  ];
  return {
    ...(model.id && { model: model.id }),
    messages,
    ...(maxTokens && { max_tokens: Number(maxTokens) }),
    ...(temperature !== "" && { temperature: Number(temperature) }),
    ...(truncation && { truncation }),
    ...(tools.trim() && !toolsFault() && { tools: JSON.parse(tools) }),
  };
}

/** What is wrong with the tool definitions as typed, or nothing. */
export function toolsFault() {
  const { tools } = talk.wishes;
  if (!tools.trim()) return "";
  try {
    return Array.isArray(JSON.parse(tools)) ? "" : "Tool definitions are a JSON list.";
  } catch (error) {
    return `Tool definitions are no JSON yet: ${error.message}`;
  }
}
