// People's labels of the sample that is shown: keys, buttons, a queue, and blind labelling.
import { make, shown, whole } from "./elements.js";

const NAME = "adjudge-author";
const BLIND = "adjudge-blind";
const KEYS = "y right · w wrong · 0–9 score · p better, P worse than the other · o show it · m note · b blind · u undo · q queue · s skip";

const desk = { node: null, story: null, context: null, facts: null, about: null, round: null, entry: null, written: [], busy: false, leaving: null, said: "" };

// What was chosen earlier in this browser; it may keep nothing.
function remembered(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}
function remember(name, value) {
  try { localStorage.setItem(name, value); } catch { /* asked again next time */ }
}

const author = () => remembered(NAME) || "";
const isBlind = () => remembered(BLIND) === "on";
const scale = () => desk.facts?.scales.find((one) => one.grader === desk.about) || { low: null, high: null, levels: [] };
const own = () => (desk.facts?.labels || []).filter((one) => (one.grader ?? null) === desk.about);
const judged = (label) => label.verdict !== undefined || label.score !== undefined || label.preferred_over !== undefined;
const isTyping = (target) => target instanceof HTMLElement && target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");

// The panel for a sample, or for none: `context` has the run, and opens a sample by its row.
export async function mountLabels(node, story, context) {
  const changed = desk.story?.row !== story?.row || !story;
  Object.assign(desk, { node, story, context });
  if (changed && desk.entry?.row !== story?.row) desk.entry = null;
  await refresh();
}

async function read(path, questions) {
  const name = author();
  const asked = new URLSearchParams(name ? { ...questions, author: name } : questions);
  const response = await fetch(`${path}?${asked}`, { cache: "no-store" });
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

async function refresh() {
  const { story, context } = desk;
  try {
    const facts = await read("/api/labels", story ? { row: story.row, generation: context.run.generation } : {});
    if (story !== desk.story) return;
    desk.facts = facts;
  } catch (error) {
    desk.said = `Labels are not there: ${error.message}`;
  }
  draw();
}

// --- writing ---------------------------------------------------------------------------------

async function send(fields) {
  const { story, context, facts } = desk;
  if (!story || !facts || facts.read_only || desk.busy) return null;
  desk.busy = true;
  const label = { generation: context.run.generation, row: story.row, author: facts.author, grader: desk.about, blind: isBlind(), queue: desk.entry?.queue ?? null, ...fields };
  try {
    const headers = { "Content-Type": "application/json", "X-Adjudge-Token": facts.token };
    const response = await fetch("/api/labels", { method: "POST", headers, body: JSON.stringify(label), cache: "no-store" });
    if (!response.ok) throw new Error((await response.text()).trim());
    return (await response.json()).label;
  } catch (error) {
    desk.said = `Not saved: ${error.message}`;
    draw();
    return null;
  } finally {
    desk.busy = false;
  }
}

async function label(fields, words) {
  const row = desk.story?.row;
  if (row === desk.leaving) return; // a key for the next sample, which is not there yet
  const written = await send(fields);
  if (!written) return;
  desk.written.push({ row, id: written.id, grader: desk.about });
  desk.said = `Saved: ${words}.`;
  if (!desk.entry || !judged(written)) return refresh();
  desk.leaving = row;
  await advance();
  if (desk.leaving === row) desk.leaving = null; // the next sample may be left already
}

async function undo() {
  const last = desk.written.pop();
  const found = last ?? own().map((one) => ({ row: desk.story.row, id: one.id, grader: desk.about })).pop();
  if (!found) return say("Nothing to take back.");
  if (desk.story.row !== found.row) await desk.context.open(found.row);
  desk.about = found.grader;
  if (await send({ row: found.row, withdrawn: found.id, queue: null })) {
    desk.said = "Taken back.";
    desk.round = null;
  }
  await refresh();
}

function say(text) {
  desk.said = text;
  draw();
}

// Blind, nobody knows what the judge said: right and wrong are of the answer, where it is one of two.
function verdict(right) {
  if (!isBlind()) return label({ verdict: right ? "right" : "wrong" }, right ? "the judge is right" : "the judge is wrong");
  const { levels, low, high } = scale();
  if (levels.length !== 2) return say("Blind, and not one of two levels: type a score.");
  return label({ score: right ? high : low }, right ? "a right answer" : "a wrong answer");
}

// The one that a sample is compared with: the one it nearly ties with, else its neighbour.
const other = () => desk.entry?.beside ?? desk.story.previous ?? desk.story.next;

// Shows the other one, to be compared with this one; why it is asked goes along where both were.
function swap() {
  const row = other();
  if (row === null) return say("It is alone in its group.");
  const tie = desk.entry?.queue === "near tie";
  desk.entry = { row, queue: tie ? "near tie" : null, beside: desk.story.row };
  return desk.context.open(row);
}

function prefer(reversed) {
  const row = other();
  if (row === null) return say("It is alone in its group.");
  return label(reversed ? { row, over: desk.story.row } : { over: row }, reversed ? "the other one is better" : "this one is better");
}

// --- the queue -------------------------------------------------------------------------------

async function advance(skip = 0) {
  try {
    const round = await read("/api/labels/queue", {});
    desk.round = round;
    const next = round.entries[Math.min(skip, round.entries.length - 1)];
    if (!next) {
      desk.entry = null;
      desk.said = "Nothing is left in the queue.";
      await refresh();
    } else {
      desk.entry = next;
      await desk.context.open(next.row);
    }
  } catch (error) {
    say(`The queue is not there: ${error.message}`);
  }
}

function skip() {
  const entries = desk.round?.entries || [];
  const place = entries.findIndex((one) => one.row === desk.entry?.row);
  const next = entries[place + 1];
  if (!desk.entry || !next) return say("Nothing to skip to.");
  desk.entry = next;
  return desk.context.open(next.row);
}

// --- the panel -------------------------------------------------------------------------------

function blindness() {
  const { story } = desk;
  const hidden = isBlind() && story && !own().some(judged);
  if (hidden) document.body.dataset.blind = "on";
  else delete document.body.dataset.blind;
  return hidden;
}

function button(text, key, act, pressed) {
  const node = make("button", { type: "button" }, text, make("kbd", {}, key));
  node.setAttribute("aria-keyshortcuts", key);
  if (pressed !== undefined) node.setAttribute("aria-pressed", String(pressed));
  node.addEventListener("click", act);
  return node;
}

function names() {
  const name = make("input", { id: "label-author", value: desk.facts.author, maxLength: 80, autocomplete: "off" });
  name.addEventListener("change", () => { remember(NAME, name.value.trim()); desk.round = null; desk.written = []; refresh(); });
  const about = make("select", { id: "label-about" }, ...desk.facts.scales.map((one) => make("option", { value: one.grader ?? "", selected: one.grader === desk.about }, one.grader === null ? "the reward as a whole" : shown(one.grader))));
  about.addEventListener("change", () => { desk.about = desk.facts.scales[about.selectedIndex].grader; about.blur(); draw(); });
  return make("div", { className: "controls" }, make("label", {}, "You are ", name), make("label", {}, "About ", about), button("Blind", "b", toggle, isBlind()));
}

function toggle() {
  remember(BLIND, isBlind() ? "off" : "on");
  draw();
}

function scoring() {
  const { low, high } = scale();
  const range = low === null ? "" : `${low} to ${high}`;
  const input = make("input", { id: "label-score", inputMode: "decimal", autocomplete: "off", "aria-label": `Your score, on the judge’s scale; it gave ${range}`, placeholder: range });
  const save = () => {
    const score = Number(input.value.replace(",", "."));
    if (!input.value.trim() || !Number.isFinite(score)) return say("A score is a number.");
    return label({ score }, `score ${score}`);
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") save();
    if (event.key === "Escape") { input.value = ""; input.blur(); }
  });
  const button = make("button", { type: "button" }, "Save score");
  button.addEventListener("click", save);
  return make("span", { className: "scoring" }, input, button);
}

function noting() {
  const area = make("textarea", { id: "label-note", maxLength: 4000, rows: 2, "aria-label": "A note; Ctrl and Enter save it" });
  const save = () => (area.value.trim() ? label({ note: area.value.trim(), queue: null }, "the note") : say("The note is empty."));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    if (event.key === "Escape") { area.value = ""; area.blur(); }
  });
  const button = make("button", { type: "button" }, "Save note", make("kbd", {}, "m"));
  button.addEventListener("click", save);
  return make("div", { className: "noting" }, area, button);
}

function words(one) {
  if (one.verdict !== undefined) return `the judge is ${one.verdict}`;
  if (one.score !== undefined) return `score ${one.score}`;
  return one.preferred_over === undefined ? "note" : `better than sample ${one.over_index}`;
}

function listed() {
  const items = own().map((one) => make("li", {}, `${words(one)}${one.note ? ": " : ""}`, shown(one.note || ""), make("small", {}, ` ${one.time.slice(0, 16).replace("T", " ")} UTC${one.blind ? ", blind" : ""}`)));
  return items.length ? make("ul", { className: "labelled" }, ...items) : null;
}

function progress() {
  const { round, entry, facts } = desk;
  const parts = [];
  if (round) parts.push(`${whole(round.labelled)} of ${whole(round.of)} labelled`);
  if (entry?.queue) parts.push(`here because: ${entry.queue}`);
  parts.push(`${whole(facts.labelled)} samples labelled by you in all`);
  return make("p", { id: "label-progress", className: "hint" }, `${parts.join(" · ")}.`);
}

function draw() {
  const { node, story, facts } = desk;
  const hidden = blindness();
  if (!node || !facts) return;
  node.hidden = false;
  const typed = document.activeElement?.closest?.("#labels") ? document.activeElement.id : "";
  const heading = make("h3", {}, "Your labels");
  if (facts.read_only) return node.replaceChildren(heading, make("p", { className: "hint" }, "This page is read only."), ...[listed()].filter(Boolean));
  const start = button("Next of the queue", "q", () => advance());
  const parts = [heading, names()];
  if (story) {
    const buttons = [button(hidden ? "Right answer" : "Judge is right", "y", () => verdict(true)), button(hidden ? "Wrong answer" : "Judge is wrong", "w", () => verdict(false)), scoring()];
    if (other() !== null) buttons.push(button("Better than the other", "p", () => prefer(false)), button("Worse", "P", () => prefer(true)), button("Show the other", "o", swap));
    parts.push(make("div", { className: "controls" }, ...buttons, button("Undo", "u", undo), start, button("Skip", "s", skip)), noting());
  } else parts.push(make("div", { className: "controls" }, start));
  if (hidden) parts.push(make("p", { className: "hint" }, "Blind: what the judge gave is hidden until you have labelled this sample."));
  parts.push(...[listed()].filter(Boolean), progress(), make("p", { id: "label-said", role: "status" }, shown(desk.said)), make("p", { className: "hint keys" }, KEYS));
  const drafts = Object.fromEntries(["label-score", "label-note"].map((id) => [id, story && node.dataset.row === String(story.row) ? document.getElementById(id)?.value || "" : ""]));
  node.dataset.row = story ? story.row : "";
  node.replaceChildren(...parts);
  for (const [id, text] of Object.entries(drafts)) if (text && document.getElementById(id) && !desk.said.startsWith("Saved")) document.getElementById(id).value = text;
  if (typed) document.getElementById(typed)?.focus();
}

// --- keys ------------------------------------------------------------------------------------

function digit(key) {
  const { levels } = scale();
  const single = levels.length > 1 && levels.every((level) => Number.isInteger(level) && level >= 0 && level <= 9);
  if (single && levels.includes(Number(key))) return label({ score: Number(key) }, `score ${key}`);
  const input = document.getElementById("label-score");
  input.value = key;
  return input.focus();
}

const ACTIONS = {
  y: () => verdict(true), r: () => verdict(true), w: () => verdict(false), p: () => prefer(false), P: () => prefer(true),
  m: () => document.getElementById("label-note").focus(), b: toggle, u: undo, s: skip, o: swap,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.repeat || isTyping(event.target)) return;
  if (!desk.facts || desk.facts.read_only || desk.busy) return;
  const act = event.key === "q" ? () => advance() : desk.story && (/^[0-9.]$/.test(event.key) ? () => digit(event.key) : ACTIONS[event.key]);
  if (!act) return;
  event.preventDefault();
  act();
});
