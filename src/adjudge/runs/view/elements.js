// What only the live page makes; it follows report/elements.js.
export function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

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

// Each cell bears its heading: in a narrow window a row is a card.
export function labelCells(body, labels) {
  for (const row of body.rows) for (const [i, label] of labels.entries()) if (row.cells[i].tagName === "TD") row.cells[i].dataset.label = label;
}

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
