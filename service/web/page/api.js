// Talks to the service this page came from, and to nobody else.

const KEY = "twophase-key";

let held = ""; // where the browser allows no storage

/** The API key: for this tab only, never kept beyond it. */
export const key = {
  get() {
    try {
      return sessionStorage.getItem(KEY) ?? held;
    } catch {
      return held;
    }
  },
  set(value) {
    held = value;
    try {
      sessionStorage.setItem(KEY, value);
    } catch {
      // It is held until the page is left.
    }
  },
};

export class Refusal extends Error {
  /** What the service said no with. Status 0: it could not be reached. */
  constructor(status, error, retryAfterS = null) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.param = error.param;
    this.retryAfterS = retryAfterS;
  }
}

/** The absolute address of a route, also behind a proxy that serves this page under a path. */
export const address = (path) => new URL(path, document.baseURI).href;

/** A response that is an answer; everything else is thrown as a Refusal. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path), {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { message: `Nothing answers at ${address("")}.`, code: "unreachable" });
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export const getJson = async (path, options) => (await call(path, options)).json();

async function refusal(response) {
  const retryAfter = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  let error = { message: `The answer was ${response.status} ${response.statusText}.`, code: null };
  try {
    error = (await response.json()).error ?? error;
  } catch {
    // Not from the service itself: something in between answered in its own way.
  }
  return new Refusal(response.status, error, Number.isNaN(retryAfter) ? null : retryAfter);
}

/** The events of a stream, parsed, up to [DONE]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await read(reader);
    if (done) throw new Refusal(0, { message: "The stream ended in the middle.", code: "broken_stream" });
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.startsWith("data: ") ? part.slice(6) : "";
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { message: "The connection broke in the middle.", code: "broken_stream" });
  }
}
