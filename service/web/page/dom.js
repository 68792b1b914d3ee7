// Elements without markup in strings: text is always text, so nothing an answer says can become a page.

export const $ = (id) => document.getElementById(id);

/** An element with attributes, `on…` listeners, custom properties (`--name`) and children. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) set(node, name, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** The same for drawings. */
export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) set(node, name, value);
  node.append(...children);
  return node;
}

function set(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name.startsWith("--")) node.style.setProperty(name, value);
  else node.setAttribute(name, value === true ? "" : value);
}

/** Say something to those who listen rather than look. */
export function announce(text) {
  $("said").textContent = text;
}

/** `run` once, a little after the last call. */
export function debounced(run, ms) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(run, ms);
  };
}
