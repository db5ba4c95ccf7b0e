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
