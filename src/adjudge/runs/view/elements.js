// Making elements. Text of samples reaches the page by textContent only.

export const $ = (id) => document.getElementById(id);

// Characters that hide, reorder or break text are shown by their number.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}\p{Cs}]/gu;

export function shown(content) {
  const parts = document.createDocumentFragment();
  let from = 0;
  for (const match of content.matchAll(HIDDEN)) {
    parts.append(content.slice(from, match.index));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.append(make("span", { className: "control" }, "U+" + code));
    from = match.index + match[0].length;
  }
  parts.append(content.slice(from));
  return parts;
}

export function make(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined) continue;
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const whole = (x) => x.toLocaleString("en-GB").replace("-", "−");

// A number for reading; "–" where there is none. Below 1e-12 it is what rounding left of 0.
export function figure(x, digits = 3) {
  if (typeof x !== "number" || !Number.isFinite(x)) return "–";
  if (Math.abs(x) >= 1000) return whole(Math.round(x));
  let text = x.toFixed(Math.abs(x) >= 100 ? 1 : digits);
  if (Number(text) === 0 && Math.abs(x) > 1e-12) text = x.toExponential(1);
  else if (Number(text) === 0) text = text.replace("-", "");
  return text.replaceAll("-", "−");
}

export const signed = (x, digits = 3) => (typeof x === "number" && x > 0 ? "+" : "") + figure(x, digits);

const asked = new Map();

// An answer of the server; null where there is nothing new, where it is about a run written anew,
// and where the path was asked again meanwhile: answers do not come in the order of the questions.
export async function ask(path, questions) {
  const turn = (asked.get(path) || 0) + 1;
  asked.set(path, turn);
  const response = await fetch(path + "?" + new URLSearchParams(questions), { cache: "no-store" });
  if (response.status === 204 || response.status === 409 || response.status === 404) return null;
  if (!response.ok) throw new Error((await response.text()).trim() || String(response.status));
  const answer = await response.json();
  return asked.get(path) === turn ? answer : null;
}

// Drop what is still to be answered at a path: the page shows something else by now.
export const forget = (path) => asked.set(path, (asked.get(path) || 0) + 1);
