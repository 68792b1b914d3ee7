// Everything around the conversation: wishes, theme, key, export.

import { address, key } from "./api.js";
import { $, announce } from "./dom.js";
import { asCurl, asJson, download } from "./share.js";
import { keep, talk, toolsFault } from "./talk.js";

const THEME = "twophase-theme";
const WISHES = ["system", "maxTokens", "temperature", "truncation", "tools"];

/** Fields of the panel, kept as they change. */
export function wireWishes(changed) {
  for (const name of WISHES) {
    $(name).value = talk.wishes[name] ?? "";
    $(name).addEventListener("input", () => {
      talk.wishes[name] = $(name).value;
      keep();
      changed();
    });
  }
}

export function setWish(name, value) {
  talk.wishes[name] = value;
  $(name).value = value;
  keep();
}

/** Light and dark follow the system until somebody chooses. */
export function wireTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const label = () => $("theme").setAttribute("aria-label", `Use the ${isDark() ? "light" : "dark"} theme`);
  const chosen = kept(THEME);
  if (chosen) document.documentElement.dataset.theme = chosen;
  label();
  system.addEventListener("change", label);
  $("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    keepValue(THEME, document.documentElement.dataset.theme);
    label();
  });
}

/** Some browsers allow a page no storage, and throw where it is only looked at. */
function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function keepValue(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // It holds until the page is left.
  }
}

/** Ask for the key; `entered` is called when there is a new one. */
export function wireKey(entered) {
  const dialog = $("key-dialog");
  $("key-open").hidden = !key.get();
  $("key-form").addEventListener("submit", () => {
    key.set($("key").value.trim());
    $("key").value = "";
    entered();
  });
  $("key-forget").addEventListener("click", () => {
    key.set("");
    dialog.close();
    entered();
  });
  $("key-open").addEventListener("click", () => askForKey());
}

export function askForKey() {
  $("key-open").hidden = false;
  $("key-forget").hidden = !key.get();
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

/** Export as a file and as a command. */
export function wireExport(draft) {
  $("export").addEventListener("click", () => download(asJson(), "conversation.json"));
  $("curl").addEventListener("click", () => {
    if (toolsFault()) return announce(toolsFault());
    $("command").textContent = asCurl(draft());
    $("copied").textContent = "";
    $("curl-dialog").showModal();
  });
  $("copy").addEventListener("click", copy);
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
}

async function copy() {
  try {
    await navigator.clipboard.writeText($("command").textContent);
    $("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren($("command"));
    $("copied").textContent = `The browser does not let pages at ${address("")} copy; it is selected, press Ctrl+C.`;
  }
}
