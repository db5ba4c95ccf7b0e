// One sample: its transcript, beside it what each grader said, its group, and ways to the next one.
import { $, figure, make, shown, signed, whole } from "./elements.js";
import { TextBox, Transcript, isNumber, isTable, pretty } from "./transcript.js";
import { graderCard, isFailed, placesOf } from "./verdicts.js";

const MEMBERS = 16;

// Keys, what they do in words, and the way of `steps` or the method that they take.
const KEYS = [
  [["j", "n"], "next sample", "next"],
  [["k"], "previous sample", "previous"],
  [["g"], "next in the group", "group"],
  [["f"], "next failure: the reward is missing, or a grader failed", "failure"],
  [["d"], "next of the worst disagreements", "disagreement"],
  [["e"], "fold or unfold tool calls and reasoning", "unfold"],
  [["z"], "graders beside the transcript, or below it in the whole width", "widen"],
  [["t"], "to the transcript", "toTranscript"],
  [["v"], "to the graders’ verdicts", "toVerdicts"],
  [["?"], "this list", "help"],
];
const WAYS = [["previous", "Previous", "k"], ["next", "Next", "j"], ["group", "Next in group", "g"], ["failure", "Next failure", "f"], ["disagreement", "Next disagreement", "d"]];

const entries = (pairs) => make("dl", { className: "sums" }, ...pairs.map(([name, value]) => make("div", {}, make("dt", {}, shown(name)), make("dd", {}, value))));

// `root`: where it is drawn. `find(link)` gives {link, story, title, note, steps, extra} or null, at once or
// later: `link` names the sample in the page's address, `steps` the links of next samples. `onShow` is called
// with what is shown.
export class SamplePage {
  constructor(root, find, guard, onShow) {
    Object.assign(this, { root, find, guard, onShow });
    this.steps = {};
    this.going = Promise.resolve();
    this.pinned = null;
    this.unfolded = false;
    this.title = make("h2", { id: "story-title", tabIndex: -1 }, "One sample");
    this.note = make("p", { className: "hint" });
    this.buttons = new Map(WAYS.map(([way, label, key]) => {
      const button = make("button", { type: "button", disabled: true, title: `key ${key}`, "aria-keyshortcuts": key }, label, make("kbd", { "aria-hidden": "true" }, key));
      button.addEventListener("click", () => this.go(way));
      return [way, button];
    }));
    const help = make("button", { type: "button", title: "key ?" }, "Keys", make("kbd", { "aria-hidden": "true" }, "?"));
    help.addEventListener("click", () => this.help());
    this.why = make("p", { className: "why-here" });
    this.strip = make("div", { className: "strip" });
    this.members = make("div", { className: "members-strip" });
    this.left = make("div", { className: "left" });
    this.verdictsPart = make("div", { className: "verdicts-part" });
    this.right = make("aside", { className: "right", "aria-label": "Verdicts", tabIndex: -1 });
    this.right.append(this.verdictsPart);
    this.sheet = make("div", { className: "sheet" }, this.left, this.right);
    this.body = make("div", { id: "story-body", hidden: true }, this.why, this.strip, this.members, this.sheet);
    root.replaceChildren(this.title, this.note, make("div", { className: "controls sample-steps", role: "toolbar", "aria-label": "Samples" }, ...this.buttons.values(), help), this.body, this.dialog());
    for (const name of ["hashchange", "popstate"]) window.addEventListener(name, () => this.follow());
    document.addEventListener("keydown", (event) => this.key(event));
  }

  // --- which one ---------------------------------------------------------------------------------

  get wanted() {
    const found = /^#sample=(.+)$/.exec(location.hash);
    if (!found) return null;
    try { return decodeURIComponent(found[1]); } catch { return null; }
  }

  // Show what the address names; false where it names none.
  follow() {
    const link = this.wanted;
    if (link === null) return false;
    if (link !== this.link && link !== this.opening) this.guard(this.open(link, true));
    return true;
  }

  // Go to a sample, which the address then names: the browser's way back leads here.
  visit(link) {
    if (link === null || link === undefined || link === this.opening) return Promise.resolve();
    if (this.wanted !== link) history.pushState(null, "", `#sample=${encodeURIComponent(link)}`);
    return this.open(link, true);
  }

  // The next step is taken from where the last one leads, also where a key is pressed before that is shown.
  go(way) {
    const gone = this.going.then(() => this.visit(this.steps[way]));
    this.going = gone.catch(() => {});
    this.guard(gone);
  }

  // Once for a link that is being opened: of two equal questions the first answer is dropped.
  open(link, focus) {
    if (link !== this.opening) this.opened = this.load(link, focus);
    return this.opened;
  }

  async load(link, focus) {
    this.opening = link;
    const found = await this.find(link);
    if (this.opening !== link) return;
    this.opening = null;
    if (!found) {
      this.note.textContent = `Sample ${String(link).slice(0, 80)} is not here.`;
      return;
    }
    this.link = found.link;
    this.show(found);
    if (this.onShow) await this.onShow(found);
    if (focus) {
      this.title.focus({ preventScroll: true });
      this.root.scrollIntoView({ block: "start" });
    }
  }

  reset() {
    this.link = null;
    this.steps = {};
    this.body.hidden = true;
    this.title.textContent = "One sample";
  }

  // --- drawing -----------------------------------------------------------------------------------

  show(found) {
    const { story } = found;
    this.steps = found.steps || {};
    for (const [way, button] of this.buttons) button.disabled = this.steps[way] === null || this.steps[way] === undefined;
    this.title.replaceChildren(...found.title.map((part) => (typeof part === "string" ? shown(part) : part)));
    this.note.replaceChildren(shown([story.where, found.note].filter(Boolean).join(" · ")));
    this.why.hidden = !found.why;
    this.why.replaceChildren(...(found.why ? [make("b", {}, found.why.name), " ", shown(found.why.text)] : []));
    this.pinned = null;
    this.drawStrip(story);
    this.drawMembers(story, found);
    this.drawTranscript(story);
    this.drawVerdicts(story, found);
    this.body.hidden = false;
  }

  drawStrip(story) {
    const chips = [];
    const chip = (name, value, lost) => make("span", { className: lost ? "chip lost" : "chip" }, make("small", {}, shown(name)), " ", make("b", {}, value));
    if (isNumber(story.reward)) chips.push(chip("reward", figure(story.reward)));
    else chips.push(chip("reward", shown(`missing: ${story.missing?.kind ?? "no reward"}`), true));
    if (isNumber(story.env_reward)) chips.push(chip("environment", figure(story.env_reward)));
    if (isNumber(story.advantage)) chips.push(chip("advantage", signed(story.advantage)));
    story.graders.forEach((grader, n) => {
      const value = isFailed(grader) ? "failed" : isNumber(grader.score) ? figure(grader.score) : isNumber(grader.rank) ? `rank ${figure(grader.rank, 1)}` : "–";
      const button = make("button", { type: "button", className: isFailed(grader) ? "chip lost" : "chip" }, make("small", {}, shown(grader.name)), " ", make("b", {}, value));
      button.addEventListener("click", () => this.toCard(n));
      chips.push(button);
    });
    this.strip.replaceChildren(...chips);
  }

  toCard(n) {
    const card = document.getElementById(`grader-${n}`);
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
  }

  drawMembers(story, found) {
    const { members } = story;
    this.members.hidden = members.length < 2;
    const line = (member) => {
      const reward = isNumber(member.reward) ? figure(member.reward) : make("span", { className: "lost" }, "missing");
      const parts = [make("b", {}, String(member.index)), make("span", {}, reward)];
      const advantage = member.advantage ?? member.left_out;
      if (isNumber(advantage)) parts.push(make("small", {}, signed(advantage, 2)));
      if (isNumber(member.env_reward)) parts.push(make("small", {}, `env ${figure(member.env_reward, 2)}`));
      const node = make("button", { type: "button", className: "member", disabled: member.gone === true, title: member.gone ? "not on this page in full" : "", "aria-label": `Sample ${member.index}, reward ${isNumber(member.reward) ? figure(member.reward) : "missing"}` }, ...parts);
      if (member.link === found.link) node.setAttribute("aria-current", "true");
      node.addEventListener("click", () => this.guard(this.visit(member.link)));
      return node;
    };
    const here = members.findIndex((member) => member.link === found.link);
    const from = Math.max(0, Math.min(here - MEMBERS / 2, members.length - MEMBERS));
    const some = members.slice(from, from + MEMBERS).map(line);
    if (members.length > MEMBERS) {
      const all = make("button", { type: "button" }, `all ${whole(members.length)}`);
      all.addEventListener("click", () => this.members.replaceChildren(label, ...members.map(line)));
      some.push(all);
    }
    const label = make("span", { className: "hint" }, "Its group, ", make("small", {}, `reward, advantage${members.some((one) => isNumber(one.env_reward)) ? ", environment" : ""}`));
    this.members.replaceChildren(label, ...some);
  }

  drawTranscript(story) {
    const parts = [make("h3", { id: "transcript", tabIndex: -1 }, "Transcript")];
    this.transcript = null;
    this.response = null;
    const add = (name, text, most = 4000) => {
      const box = new TextBox(text, name, most);
      parts.push(make("article", { className: "message" }, make("header", {}, make("h4", {}, name)), box.node));
      return box;
    };
    if (Array.isArray(story.messages) && story.messages.length) {
      this.transcript = new Transcript(story.messages, story.turns || [], (turn) => this.turnNode(turn, story));
      parts.push(this.transcript.node);
    } else if (story.prompt) add("Prompt", pretty(story.prompt));
    if (story.response) this.response = add(this.transcript ? "The response that was judged" : "Response", pretty(story.response));
    if (parts.length === 1) parts.push(make("p", { className: "hint" }, story.kept?.why ? shown(story.kept.why) : "This run’s folder has verdicts and rewards, but not the messages; they are in the rollouts that were graded."));
    if (story.reference !== null && story.reference !== undefined) add("Reference", pretty(story.reference), 1200);
    this.left.replaceChildren(...parts);
  }

  turnNode(turn, story) {
    if (!turn.graders?.length) return null;
    const gist = turn.graders.map((one) => `${one.name} ${isFailed(one) ? "failed" : isNumber(one.score) ? figure(one.score) : "–"}`).join(", ");
    const cards = turn.graders.map((one, n) => graderCard(one, story, `${turn.number}-${n}`, (...some) => this.light(...some), () => this.dark()));
    const node = make("details", { className: "turn-verdicts", open: turn.graders.length <= 3 }, make("summary", {}, "Verdicts on this turn: ", shown(gist)), ...cards);
    return node;
  }

  drawVerdicts(story, found) {
    const cards = story.graders.map((one, n) => graderCard(one, story, n, (...some) => this.light(...some), () => this.dark()));
    const parts = [make("h3", { id: "verdicts", tabIndex: -1 }, "Graders"), make("div", { className: "graders" }, ...cards)];
    if (!cards.length) parts.push(make("p", { className: "hint" }, "No grader judged the whole of this sample."));
    parts.push(this.rewardNode(story, found));
    this.verdictsPart.replaceChildren(...parts);
  }

  rewardNode(story, found) {
    const node = make("section", { className: "part" }, make("h3", {}, "Reward"));
    if (!isNumber(story.reward)) node.append(make("p", { className: "lost" }, "Reward missing. ", shown([story.missing?.kind, story.missing?.message].filter((text) => typeof text === "string").join(": "))));
    // What a grader's card or the reward itself says already is not said again.
    const names = new Set(story.graders.map((one) => `${one.name}_score`));
    const info = isTable(story.reward_info) ? Object.entries(story.reward_info).filter(([name, value]) => name !== "env_reward" && !names.has(name) && isNumber(value) && value !== story.reward) : [];
    const env = isNumber(story.env_reward) ? [["environment’s reward", figure(story.env_reward)]] : [];
    node.append(entries([["reward", figure(story.reward)], ...env, ...info.map(([name, value]) => [name, figure(value)])]));
    if (story.source && story.source !== "graders") node.append(make("p", { className: "hint" }, "Source of the reward: ", shown(String(story.source))));
    if (found.extra?.chain?.length) node.append(make("h3", {}, "How it came together"), make("dl", { className: "chain" }, ...found.extra.chain.flatMap(([name, text]) => [make("dt", {}, shown(name)), make("dd", {}, shown(text))])));
    if (found.extra?.advantage) node.append(make("h3", {}, "Advantage"), ...found.extra.advantage());
    return node;
  }

  // --- places ------------------------------------------------------------------------------------

  light(grader, place, pinned, button) {
    if (this.pinned && !pinned) return;
    if (pinned && this.pinned === button) {
      this.pinned = null;
      button.setAttribute("aria-pressed", "false");
      this.dark();
      return;
    }
    const places = placesOf(grader).flatMap((some, n) => (place === null || n === place ? some.map((one) => ({ ...one, number: n + 1 })) : []));
    this.transcript?.light(places);
    // A place without a message is one of the response.
    const spans = places.filter((one) => !Number.isInteger(one.message) && Number.isInteger(one.start) && Number.isInteger(one.end));
    this.response?.mark(spans.map((one) => [one.start, one.end, one.number]));
    if (!pinned) return;
    this.pinned?.setAttribute("aria-pressed", "false");
    this.pinned = button;
    button.setAttribute("aria-pressed", "true");
    for (const node of this.left.querySelectorAll("details.lit")) node.open = true;
    this.left.querySelector(".lit")?.scrollIntoView({ block: "center" });
  }

  dark() {
    if (this.pinned) return;
    this.transcript?.dark();
    this.response?.mark([]);
  }

  // --- keys --------------------------------------------------------------------------------------

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || this.keys.open) return;
    if (event.target.closest?.("input, select, textarea, [contenteditable]")) return;
    const known = KEYS.find(([keys]) => keys.includes(event.key));
    if (!known) return;
    event.preventDefault();
    const [, , what] = known;
    if (this.buttons.has(what)) this.go(what);
    else this[what]();
  }

  unfold() {
    this.unfolded = !this.unfolded;
    this.transcript?.foldAll(this.unfolded);
  }

  widen() { this.sheet.classList.toggle("wide"); }

  toHeading(id) {
    const head = $(id);
    head?.focus({ preventScroll: true });
    head?.scrollIntoView({ block: "start" });
  }

  toTranscript() { this.toHeading("transcript"); }

  toVerdicts() { this.toHeading("verdicts"); }

  help() { this.keys.showModal(); }

  dialog() {
    const rows = KEYS.map(([keys, what]) => make("div", {}, make("dt", {}, ...keys.flatMap((key, n) => (n ? [" or ", make("kbd", {}, key)] : [make("kbd", {}, key)]))), make("dd", {}, what)));
    const close = make("button", { type: "button" }, "Close");
    this.keys = make("dialog", { className: "keys", "aria-label": "Keys" }, make("h3", {}, "Keys"), make("dl", {}, ...rows), make("p", { className: "hint" }, "Keys do nothing while you type in a field."), close);
    close.addEventListener("click", () => this.keys.close());
    return this.keys;
  }
}

// What the page shows of an answer about a sample: the live page gets it from its server, a report has it in itself.
// `worst` are the disagreements, `of` says how many samples there are.
export function describeFound(found, worst, of, step) {
  const { story, group } = found;
  const at = worst.findIndex((one) => one.link === found.link);
  const facts = ["seed", "policy_version", "tokens"].filter((name) => isNumber(found[name])).map((name) => `${name.replace("_", " ")} ${whole(found[name])}`);
  return {
    ...found,
    title: [`Sample ${isNumber(story.index) ? story.index : found.row}${step ? ` of step ${whole(group.step)}` : ""}, group `, group.name || "without a name"],
    note: [`${whole(found.row + 1)} of ${whole(of)}`, ...facts].join(" · "),
    why: at < 0 ? null : { name: `Disagreement ${at + 1} of ${worst.length}:`, text: worst[at].text },
    steps: { ...found.steps, disagreement: worst.length === 0 || (worst.length === 1 && at === 0) ? null : worst[(at + 1) % worst.length].link },
    extra: { chain: found.chain, advantage: () => advantageParts(found) },
  };
}

function advantageParts(found) {
  const { story, group } = found;
  const rows = isNumber(story.advantage) ? [["recorded by the run", signed(story.advantage)]] : [];
  if (group.missing) rows.push(["without the failures of its group", found.left_out === null ? "none: its reward is missing" : signed(found.left_out)], ["if failures counted as 0", found.as_zero === null ? "not known after a group step" : signed(found.as_zero)]);
  else rows.push(["in its group", signed(found.left_out)]);
  const parts = [entries(rows)];
  if (found.turned) parts.push(make("p", { className: "turns" }, "Its sign would change if failures counted as 0."));
  if (found.turn_advantages.length) parts.push(make("p", {}, "Per turn: " + found.turn_advantages.map((x) => signed(x)).join(", ")));
  parts.push(make("p", { className: "hint" }, `Its group: ${whole(group.size)} samples, ${whole(group.missing)} missing, mean ${figure(group.mean)}, std ${figure(group.std)}.`));
  return parts;
}

// The worst disagreements as a list: {rule, worst: [{link, name, text, gone}]}; `gone`: it cannot be visited here.
export function disagreementsList(found, visit) {
  const FIRST = 5;
  const line = (one, n) => {
    const name = make(one.gone ? "b" : "button", one.gone ? {} : { type: "button", className: "link" }, shown(one.name));
    if (!one.gone) name.addEventListener("click", () => visit(one.link));
    return make("li", { value: n + 1 }, name, " ", make("span", {}, shown(one.text)));
  };
  const lines = found.worst.map(line);
  const parts = [make("p", { className: "hint" }, "Rule: ", shown(found.rule), ".")];
  if (lines.length) parts.push(make("ol", { className: "disagreements" }, ...lines.slice(0, FIRST)));
  if (lines.length > FIRST) parts.push(make("details", {}, make("summary", {}, `${whole(lines.length - FIRST)} more`), make("ol", { className: "disagreements", start: FIRST + 1 }, ...lines.slice(FIRST))));
  return parts;
}
