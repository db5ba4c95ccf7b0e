// One sample from its messages to its verdicts to its reward.
import { $, ask, figure, labelCells, make, shown, signed, whole } from "./elements.js";
import { mountLabels } from "./labels.js";

const LONG = 20000;
const MANY = 60;

const isTable = (x) => x !== null && typeof x === "object" && !Array.isArray(x);
const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");

// Text in a box; a very long one is cut until asked for.
function box(content, label) {
  const pre = make("pre", { tabIndex: 0, role: "region", "aria-label": label }, shown(content.slice(0, LONG)));
  if (content.length <= LONG) return [pre];
  const more = make("button", { type: "button" }, `Show all ${whole(content.length)} characters`);
  more.addEventListener("click", () => { pre.replaceChildren(shown(content)); more.remove(); pre.focus(); });
  return [pre, more];
}

function contentOf(message) {
  if (typeof message.content === "string") return message.content;
  if (!Array.isArray(message.content)) return message.content === null || message.content === undefined ? "" : pretty(message.content);
  return message.content.map((part) => (isTable(part) && typeof part.text === "string" ? part.text : pretty(part))).join("\n");
}

// --- verdicts --------------------------------------------------------------------------------

function verdictRow(name, verdict) {
  const failed = isTable(verdict) && (verdict.kind !== undefined || verdict.error !== undefined);
  const value = !isTable(verdict) ? pretty(verdict) : failed ? make("span", { className: "lost" }, shown(String(verdict.kind ?? "failed")))
    : typeof verdict.score === "number" ? figure(verdict.score) : typeof verdict.rank === "number" ? `rank ${figure(verdict.rank, 1)}` : "–";
  const reason = isTable(verdict) ? pretty((failed ? verdict.error : verdict.reason) ?? "") : "";
  return make("tr", {}, make("th", { scope: "row" }, make("code", {}, shown(name))), make("td", { className: "n" }, value), make("td", { className: "reason" }, shown(reason.slice(0, LONG))));
}

function verdicts(table, caption) {
  const rows = Object.entries(table).map(([name, verdict]) => verdictRow(name, verdict));
  if (!rows.length) return null;
  const labels = ["Grader", "Verdict", "Reason"];
  const body = make("tbody", {}, ...rows);
  labelCells(body, labels);
  const head = make("tr", {}, ...labels.map((label, i) => make("th", { scope: "col", className: i === 1 ? "n" : "" }, label)));
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption }, make("table", { className: "verdicts cards" }, make("caption", { className: "unseen" }, caption), make("thead", {}, head), body));
}

// --- messages --------------------------------------------------------------------------------

function article(message, turn, number) {
  const role = isTable(message) && typeof message.role === "string" ? message.role : "message";
  const node = make("article", { className: role === "assistant" ? "message assistant" : "message" });
  const head = make("header", {}, make("h4", {}, shown(role.slice(0, 60)), turn ? `, turn ${whole(number)}` : ""));
  if (turn && typeof turn.env_reward === "number") head.append(make("span", {}, `environment’s reward ${signed(turn.env_reward)}`));
  if (turn && typeof turn.advantage === "number") head.append(make("span", {}, `advantage ${signed(turn.advantage)}`));
  node.append(head);
  const content = isTable(message) ? contentOf(message) : pretty(message);
  if (content) node.append(...box(content, `What ${role === "assistant" ? "the policy" : "the " + role.slice(0, 60)} said`));
  if (isTable(message) && Array.isArray(message.tool_calls) && message.tool_calls.length) node.append(...box(pretty(message.tool_calls), "Tool calls"));
  if (turn && isTable(turn.verdicts)) {
    const table = verdicts(turn.verdicts, `Verdicts on turn ${number}`);
    if (table) node.append(table);
  }
  return node;
}

function messages(story) {
  const list = Array.isArray(story.sample.messages) ? story.sample.messages : [];
  const part = make("section", { className: "part" }, make("h3", {}, "Messages"));
  if (!list.length) {
    part.append(make("p", { className: "hint" }, "This run’s folder has verdicts and rewards, but not the messages; they are in the rollouts that were graded."));
    return part;
  }
  const turns = new Map(story.turns.map((turn, i) => [turn.message, [turn, i + 1]]));
  let from = 0;
  const more = make("button", { type: "button" });
  const next = () => {
    for (const end = Math.min(list.length, from + MANY); from < end; from++) more.before(article(list[from], ...(turns.get(from) || [null, 0])));
    more.hidden = from >= list.length;
    more.textContent = `Show more of ${whole(list.length)} messages`;
  };
  more.addEventListener("click", next);
  part.append(more);
  next();
  return part;
}

// --- the reward ------------------------------------------------------------------------------

function outcome(sample) {
  const details = isTable(sample.details) ? sample.details : {};
  const table = Object.fromEntries(Object.entries(details).filter(([name, verdict]) => name !== "source" && isTable(verdict)));
  const part = make("section", { className: "part" }, make("h3", {}, "Verdicts on the whole"));
  part.append(verdicts(table, "Verdicts on the whole") || make("p", { className: "hint" }, "No grader judged the whole of this sample."));
  if (details.source && details.source !== "graders") part.append(make("p", { className: "hint" }, "Source of the reward: ", shown(pretty(details.source))));
  return part;
}

const entries = (pairs) => make("dl", {}, ...pairs.map(([name, value]) => make("div", {}, make("dt", {}, shown(name)), make("dd", {}, value))));

function reward(story) {
  const { sample } = story;
  const part = make("section", { className: "part sums" }, make("h3", {}, "How the reward came together"));
  if (typeof sample.reward !== "number") {
    const missing = isTable(sample.missing) ? sample.missing : {};
    const why = [missing.kind, missing.message].filter((text) => typeof text === "string").join(": ");
    part.append(make("p", { className: "lost" }, "Reward missing. ", shown(why)));
  }
  const info = isTable(sample.reward_info) ? sample.reward_info : {};
  const known = Object.entries(info).filter(([name]) => name !== "env_reward");
  const env = sample.env_reward ?? info.env_reward;
  part.append(entries([["environment’s reward", figure(env)], ...known.map(([name, value]) => [name, figure(value)]), ["reward", figure(sample.reward)]]));
  for (const line of story.formula || []) part.append(make("p", {}, line));
  return part;
}

function advantage(story) {
  const { sample, group } = story;
  const part = make("section", { className: "part sums" }, make("h3", {}, "Advantage"));
  const rows = [["left out: this group without its failures", story.left_out === null ? "none, left out itself" : signed(story.left_out)], ["failures as 0", signed(story.as_zero)]];
  if (typeof sample.advantage === "number") rows.unshift(["recorded by the run", signed(sample.advantage)]);
  part.append(entries(rows));
  if (story.turned) part.append(make("p", { className: "turns" }, "Its sign turns if failures count as 0."));
  if (Array.isArray(sample.turn_advantages)) part.append(make("p", {}, "Per turn: " + sample.turn_advantages.map((x) => signed(x)).join(", ")));
  part.append(make("p", { className: "hint" }, `Its group: ${whole(group.size)} samples, ${whole(group.missing)} missing, mean ${figure(group.mean)}, std ${figure(group.std)}.`));
  return part;
}

// --- the section -----------------------------------------------------------------------------

export class Story {
  constructor(guard) {
    this.story = null;
    $("sample-previous").addEventListener("click", () => guard(this.open(this.run, this.story.previous)));
    $("sample-next").addEventListener("click", () => guard(this.open(this.run, this.story.next)));
  }

  // Labels can be asked for before a sample was chosen.
  offer(run) {
    if (!this.story && $("labels").hidden) mountLabels($("labels"), null, { run, open: (row) => this.open(run, row) });
  }

  reset() {
    this.story = null;
    $("labels").hidden = true;
    $("story-body").replaceChildren();
    $("story-title").textContent = "One sample";
    $("story-steps").hidden = true;
    $("story-hint").hidden = false;
  }

  async open(run, row) {
    const story = await ask("/api/sample", { generation: run.generation, row });
    if (!story) return;
    Object.assign(this, { run, story });
    const { sample, group } = story;
    $("story-hint").hidden = true;
    $("story-steps").hidden = false;
    $("sample-previous").disabled = story.previous === null;
    $("sample-next").disabled = story.next === null;
    const step = run.kind === "grade" ? "" : ` of step ${whole(group.step)}`;
    $("story-title").replaceChildren(`Sample ${typeof sample.index === "number" ? sample.index : row}${step}, group `, shown(group.name || "without a name"));
    const facts = [["reward", typeof sample.reward === "number" ? figure(sample.reward) : "missing"]];
    for (const name of ["seed", "policy_version", "tokens"]) if (typeof sample[name] === "number") facts.push([name.replace("_", " "), whole(sample[name])]);
    $("story-body").replaceChildren(make("div", { className: "sums" }, entries(facts)), messages(story), outcome(sample), reward(story), advantage(story));
    await mountLabels($("labels"), story, { run, open: (other) => this.open(run, other) });
    $("story-title").focus({ preventScroll: true });
    $("story").scrollIntoView({ block: "start" });
  }
}
