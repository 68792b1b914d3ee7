// Figures as people read them.

export const count = (value) => Math.round(value).toLocaleString("en");

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** Milliseconds in the unit that fits. */
export function time(ms) {
  if (ms < 9.95) return `${ms.toFixed(ms < 1 ? 2 : 1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(2)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** Bytes in the unit that fits. */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let at = 0;
  while (size >= 999.5 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  return `${size >= 99.5 || at === 0 ? Math.round(size) : size.toFixed(1)} ${units[at]}`;
}

export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "0 %");

export function rate(perSecond) {
  return `${perSecond >= 99.5 ? count(perSecond) : perSecond.toFixed(1)} tokens/s`;
}
