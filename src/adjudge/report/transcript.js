// A conversation: who said what, tool calls with their results, reasoning, long texts cut.
import { figure, make, shown, signed, whole } from "./elements.js";

const LONG = 1600;
const LONG_SYSTEM = 300;
const MANY = 80;
const GIST = 90;

export const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
export const isTable = (x) => x !== null && typeof x === "object" && !Array.isArray(x);
export const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");
const oneLine = (content, most = GIST) => {
  const line = content.slice(0, 4 * most).replace(/\s+/g, " ").trim();
  return line.length > most ? line.slice(0, most) + "…" : line;
};
const firstLine = (content) => oneLine(content.trimStart().split("\n", 1)[0]) + (content.trim().includes("\n") ? " …" : "");

// --- texts -----------------------------------------------------------------------------------

// A text in a box. A long one is cut until asked for; `mark` lights parts of it and shows all that it lights.
export class TextBox {
  constructor(content, label, most = LONG) {
    this.content = content;
    this.whole = content.length <= most * 1.25;
    this.end = this.whole ? content.length : most;
    this.spans = [];
    this.pre = make("pre", { tabIndex: 0, role: "region", "aria-label": label });
    this.node = make("div", { className: "text-box" }, this.pre);
    if (!this.whole) {
      this.more = make("button", { type: "button", className: "more" }, `Show all ${whole(content.length)} characters`);
      this.more.addEventListener("click", () => { this.showAll(); this.pre.focus({ preventScroll: true }); });
      this.node.append(this.more);
    }
    this.fill();
  }

  showAll() {
    this.end = this.content.length;
    this.more?.remove();
    this.fill();
  }

  // `spans`: [start, end, number], of which the number tells which place it is.
  mark(spans) {
    this.spans = spans;
    if (spans.some(([, end]) => end > this.end)) this.showAll();
    else this.fill();
  }

  fill() {
    const parts = [];
    let from = 0;
    for (const [start, end, number] of [...this.spans].sort((a, b) => a[0] - b[0])) {
      if (start < from || end <= start) continue;
      parts.push(shown(this.content.slice(from, start)));
      parts.push(make("mark", { className: "lit" }, badge(number), shown(this.content.slice(start, end))));
      from = end;
    }
    parts.push(shown(this.content.slice(from, this.end)));
    if (this.end < this.content.length) parts.push("…");
    this.pre.replaceChildren(...parts);
  }
}

export const badge = (number) => make("span", { className: "place-number", "aria-hidden": "true" }, String(number));

export function folded(gist, className, ...content) {
  return make("details", { className }, make("summary", {}, ...gist), ...content);
}

// --- what a message says ---------------------------------------------------------------------

export function contentOf(message) {
  if (!isTable(message)) return pretty(message);
  if (typeof message.content === "string") return message.content;
  if (!Array.isArray(message.content)) return message.content === null || message.content === undefined ? "" : pretty(message.content);
  return message.content.map((part) => (isTable(part) && typeof part.text === "string" ? part.text : pretty(part))).join("\n");
}

const reasoningOf = (message) => ["reasoning_content", "reasoning", "thinking"].map((key) => message[key]).find((one) => typeof one === "string" && one) ?? "";

// Texts and thinking of a message in their order, each with where it begins in the content.
function partsOf(content) {
  const parts = [];
  let from = 0;
  for (const found of content.matchAll(/<(think|thinking|reasoning)>([\s\S]*?)(<\/\1>|$)/g)) {
    if (found.index > from) parts.push({ start: from, content: content.slice(from, found.index) });
    parts.push({ start: found.index, content: found[0], inner: found[2], thinking: true, ended: found[3] !== "" });
    from = found.index + found[0].length;
  }
  // Many chat templates open the thinking in the prompt: then only its end is here.
  const end = parts.length ? -1 : content.search(/<\/(think|thinking|reasoning)>/);
  if (end > 0) {
    const close = content.indexOf(">", end) + 1;
    parts.push({ start: 0, content: content.slice(0, close), inner: content.slice(0, end), thinking: true, ended: true });
    from = close;
  }
  if (from < content.length) parts.push({ start: from, content: content.slice(from) });
  return parts;
}

function callsOf(message) {
  const calls = isTable(message) && Array.isArray(message.tool_calls) ? message.tool_calls : [];
  return calls.map((call) => {
    const named = isTable(call) && isTable(call.function) ? call.function : isTable(call) ? call : {};
    let args = named.arguments ?? named.args ?? named.input ?? (isTable(call) ? null : call);
    if (typeof args === "string") try { args = JSON.parse(args); } catch { /* shown as it stands */ }
    return { id: isTable(call) ? call.id : null, name: typeof named.name === "string" ? named.name : "call", args };
  });
}

function gistOf(call) {
  const short = (value) => oneLine(typeof value === "string" ? value : JSON.stringify(value) ?? "", 32);
  const args = isTable(call.args) ? Object.entries(call.args).map(([key, value]) => `${oneLine(key, 24)}=${short(value)}`).join(", ") : call.args === null ? "" : short(call.args);
  return oneLine(`${oneLine(call.name, 48)}(${args})`, 120);
}

// The result of each call: by its id, else the next results in their order. [message, call] to the result's place.
function resultsOf(messages) {
  const results = new Map();
  const waiting = [];
  messages.forEach((message, at) => {
    callsOf(message).forEach((call, n) => waiting.push({ key: `${at} ${n}`, id: call.id }));
    if (!isTable(message) || message.role !== "tool") return;
    const id = message.tool_call_id;
    let place = id === null || id === undefined ? 0 : waiting.findIndex((one) => one.id === id);
    if (place < 0) place = waiting.findIndex((one) => one.id === null || one.id === undefined);
    if (place >= 0 && waiting.length) results.set(waiting.splice(place, 1)[0].key, at);
  });
  return results;
}

// --- the transcript --------------------------------------------------------------------------

export class Transcript {
  // `turns`: what is known of replies; `extras(turn)` gives what stands beneath one.
  constructor(messages, turns, extras) {
    this.messages = messages;
    this.turns = new Map(turns.map((turn) => [turn.message, turn]));
    this.extras = extras;
    this.results = resultsOf(messages);
    this.beneath = new Set(this.results.values());
    this.nodes = new Map();
    this.boxes = new Map();
    this.calls = new Map();
    this.number = 0;
    this.from = 0;
    this.node = make("div", { className: "transcript" });
    this.more = make("button", { type: "button" });
    this.more.addEventListener("click", () => this.show(this.from + MANY));
    this.node.append(this.more);
    this.show(MANY);
  }

  show(end) {
    const { messages } = this;
    for (; this.from < Math.min(end, messages.length); this.from++) {
      if (this.beneath.has(this.from)) continue;
      const node = this.article(messages[this.from], this.from);
      this.nodes.set(this.from, node);
      this.more.before(node);
    }
    this.more.hidden = this.from >= messages.length;
    this.more.textContent = `Show more of ${whole(messages.length)} messages`;
  }

  article(message, at) {
    const role = isTable(message) && typeof message.role === "string" ? message.role.slice(0, 60) : "message";
    const turn = this.turns.get(at);
    const known = ["system", "developer", "user", "assistant", "tool"].includes(role);
    const node = make("article", { className: `message ${known ? role : "other"}`, tabIndex: -1 });
    const head = make("header", {}, make("h4", {}, shown(role), turn ? `, turn ${whole(turn.number)}` : ""), make("span", { className: "at" }, `message ${whole(at + 1)}`));
    if (turn && typeof turn.env_reward === "number") head.append(make("span", {}, `environment’s reward ${signed(turn.env_reward)}`));
    if (turn && typeof turn.advantage === "number") head.append(make("span", {}, `advantage ${signed(turn.advantage)}`));
    node.append(head);
    const label = `What ${role === "assistant" ? "the policy" : "the " + role} said`;
    if (isTable(message) && reasoningOf(message)) node.append(thinking(reasoningOf(message), true));
    const content = contentOf(message);
    const most = role === "system" || role === "developer" ? LONG_SYSTEM : LONG;
    const boxes = [];
    const parts = partsOf(content);
    for (const part of parts) {
      if (!part.content.trim()) continue;
      if (part.thinking) {
        const box = new TextBox(part.inner, "Reasoning", LONG);
        const node2 = thinking(part.inner, part.ended, box);
        boxes.push({ start: part.start + part.content.indexOf(part.inner), box, holder: node2 });
        node.append(node2);
      } else {
        const box = new TextBox(part.content, label, most);
        boxes.push({ start: part.start, box });
        if (role === "tool") node.append(folded([make("code", {}, shown(firstLine(part.content)))], "call", box.node));
        else node.append(box.node);
      }
    }
    this.boxes.set(at, boxes);
    callsOf(message).forEach((call, n) => node.append(this.call(call, at, n)));
    if (turn) {
      const more = this.extras(turn);
      if (more) node.append(more);
    }
    return node;
  }

  call(call, at, n) {
    const result = this.results.get(`${at} ${n}`);
    const found = result === undefined ? null : contentOf(this.messages[result]);
    const gist = [make("span", { className: "call-number" }, `${whole(++this.number)}`), make("code", {}, shown(gistOf(call)))];
    gist.push(make("span", { className: "arrow" }, " → "), found === null ? make("i", {}, "no result") : make("code", { className: "result" }, shown(firstLine(found) || "(empty)")));
    const args = new TextBox(pretty(call.args ?? ""), `Arguments of ${call.name.slice(0, 60)}`);
    const node = folded(gist, "call", make("p", { className: "part-name" }, "Arguments"), args.node);
    node.tabIndex = -1;
    if (found !== null) {
      const box = new TextBox(found, `Result of ${call.name.slice(0, 60)}`);
      node.append(make("p", { className: "part-name" }, "Result", make("span", { className: "at" }, `message ${whole(result + 1)}`)), box.node);
      this.boxes.set(result, [{ start: 0, box, holder: node }]);
      this.nodes.set(result, node);
    }
    this.calls.set(`${at} ${n}`, node);
    return node;
  }

  // --- places --------------------------------------------------------------------------------

  // Light `places`: {message, call, start, end, number}.
  light(places) {
    this.dark();
    const spans = new Map();
    for (const place of places) {
      if (!Number.isInteger(place.message)) continue;
      if (place.message >= this.from) this.show(place.message + 1);
      const call = Number.isInteger(place.call) ? this.calls.get(`${place.message} ${place.call}`) : null;
      const node = call || this.nodes.get(place.message);
      if (!node) continue;
      if (!call && Number.isInteger(place.start) && Number.isInteger(place.end)) {
        if (!spans.has(place.message)) spans.set(place.message, []);
        spans.get(place.message).push([place.start, place.end, place.number]);
        continue;
      }
      node.classList.add("lit");
      const head = node.querySelector("summary, header");
      head.prepend(badge(place.number));
    }
    for (const [at, found] of spans) this.markSpans(at, found);
  }

  markSpans(at, found) {
    for (const { start, box, holder } of this.boxes.get(at) || []) {
      const inside = found.map(([a, b, number]) => [Math.max(0, a - start), Math.min(box.content.length, b - start), number]).filter(([a, b]) => b > a);
      box.mark(inside);
      if (inside.length && holder) holder.open = true;
    }
  }

  dark() {
    for (const node of this.node.querySelectorAll(".lit")) node.classList.remove("lit");
    for (const node of this.node.querySelectorAll("summary > .place-number, header > .place-number")) node.remove();
    for (const boxes of this.boxes.values()) for (const { box } of boxes) if (box.spans.length) box.mark([]);
  }

  foldAll(open) {
    for (const node of this.node.querySelectorAll("details.call, details.thinking")) node.open = open;
  }
}

function thinking(content, ended, box = new TextBox(content, "Reasoning")) {
  const length = `Reasoning, ${whole(content.length)} characters${ended ? "" : ", never ended"}`;
  return folded([length + ": ", make("i", {}, shown(firstLine(content)))], "thinking", box.node);
}

export const numberText = (value) => (Number.isInteger(value) ? whole(value) : figure(value));
