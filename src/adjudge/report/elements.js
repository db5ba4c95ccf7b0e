// Making elements, for every page with a script. Text of samples reaches the page by textContent only.

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

export const whole = (x) => x.toLocaleString("en-GB").replace("-", "−");

export function draw(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// An element that Python made: its tag, its attributes, its content. Inside an SVG all are SVG's.
export function grown(part, drawn = false) {
  if (!Array.isArray(part)) return part;
  const inside = drawn || part[0] === "svg";
  const node = inside ? draw(part[0], part[1]) : make(part[0], {});
  if (!inside) for (const [name, value] of Object.entries(part[1])) node.setAttribute(name, value);
  node.append(...part.slice(2).map((inner) => grown(inner, inside)));
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
