// The conversation as a file, and the next request as a command. Neither ever holds the key.

import { address, key } from "./api.js";
import { request, talk } from "./talk.js";

/** The whole conversation with the figures of each answer, as JSON text. */
export function asJson() {
  const { messages, ...wishes } = request();
  const turns = talk.messages.map(({ role, content, figures }) => ({ role, content, ...(figures ?? {}) }));
  const system = messages[0]?.role === "system" ? [messages[0]] : [];
  return JSON.stringify({ from: address(""), request: wishes, messages: [...system, ...turns] }, null, 2);
}

/** A command for a shell that sends the same request: with `draft`, or the last one again. */
export function asCurl(draft) {
  const body = request(draft);
  if (!draft && body.messages.at(-1)?.role === "assistant") body.messages.pop();
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [
    `curl -N ${quoted(address("v1/chat/completions"))}`,
    `-H 'content-type: application/json'`,
    ...(key.get() ? [`-H "authorization: Bearer $OPENAI_API_KEY"`] : []),
    `-d ${quoted(JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }))}`,
  ];
  return lines.join(" \\\n  ");
}

export function download(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
