// What each grader said of a sample, what that rests on, and what its judge was shown and replied.
import { draw, figure, make, shown, whole } from "./elements.js";
import { TextBox, badge, contentOf, folded, isNumber, isTable, numberText, pretty } from "./transcript.js";

const squash = (text) => text.replace(/\s+/g, " ").trim();
const rangeText = (range) => (Array.isArray(range) ? `${range[0] === null ? "−∞" : numberText(range[0])} to ${range[1] === null ? "∞" : numberText(range[1])}` : "");
const scoreText = (x) => (isNumber(x) ? numberText(x) : "–");

// --- what can be seen without understanding ---------------------------------------------------

const withoutThinking = (text) => text.replace(/<(think|thinking|reasoning)>[\s\S]*?(<\/\1>|$)/g, "").replace(/^[\s\S]*<\/(think|thinking|reasoning)>/, "").trim();
const saidBy = (messages, role) => messages.filter((one) => isTable(one) && one.role === role).map(contentOf).filter((text) => text.trim());

// The end and the beginning of a sample: what a judge of it must have seen.
function partsToSee(story) {
  const messages = story.messages || [];
  const answers = saidBy(messages, "assistant");
  const answer = typeof story.response === "string" && story.response ? story.response : answers[answers.length - 1] || "";
  return { answer: withoutThinking(answer), question: typeof story.prompt === "string" && story.prompt ? story.prompt : saidBy(messages, "user")[0] || "" };
}

const promptOf = (call) => (call.messages || []).map(contentOf).join("\n");

const inJson = (text) => JSON.stringify(text).slice(1, -1);

// Texts may stand in a prompt as they are, or in JSON. `without`: texts that do not count as a place to stand.
function holder(call, without = []) {
  let prompt = squash(promptOf(call));
  for (const text of without.map(squash).filter(Boolean)) for (const one of [text, inJson(text)]) prompt = prompt.replaceAll(one, " … ");
  return (text) => prompt.includes(text) || prompt.includes(inJson(text));
}

// How many characters of one end of `text` the prompt has.
function shownEnd(has, text, fromEnd) {
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (has(fromEnd ? text.slice(-middle) : text.slice(0, middle))) low = middle;
    else high = middle - 1;
  }
  return low;
}

function textCheck(has, what, text, missing) {
  const wanted = squash(text);
  if (!wanted) return null;
  if (has(wanted)) return ["ok", `the whole ${what} is in the prompt (${whole(text.length)} characters)`];
  const first = shownEnd(has, wanted, false);
  const last = shownEnd(has, wanted, true);
  const most = Math.max(first, last);
  // The end of a short text, "7 seats" of "357 seats", stands in many a prompt by chance.
  if (most < Math.min(40, Math.max(24, wanted.length / 2))) return [missing, `the ${what} is not in the prompt as it stands`];
  return ["warn", `only the ${first >= last ? "first" : "last"} ${whole(most)} of the ${what}’s ${whole(wanted.length)} characters are in the prompt`];
}

// A reference that the answer or a message repeats was not shown by that; a short one stands in many a prompt by chance.
function referenceCheck(call, story, texts) {
  const wanted = squash(String(story.reference));
  if (!wanted) return null;
  if (!holder(call)(wanted)) return ["note", "the reference is not in the prompt as it stands"];
  if (!holder(call, texts)(wanted)) return ["note", "the reference is in the prompt only where the answer or a message says the same"];
  return wanted.length < 4 ? null : ["ok", `the whole reference is in the prompt (${whole(wanted.length)} characters)`];
}

function messagesCheck(has, messages) {
  const said = messages.map((one, at) => [at + 1, isTable(one) && one.role !== "system" ? squash(withoutThinking(contentOf(one))).slice(0, 160) : ""]).filter(([, text]) => text.length > 12);
  const gone = said.filter(([, text]) => !has(text)).map(([at]) => at);
  if (said.length < 3 || said.length - gone.length < 3) return null;
  if (!gone.length) return ["ok", `all ${whole(said.length)} messages with text are in the prompt`];
  return ["warn", `${whole(said.length - gone.length)} of ${whole(said.length)} messages with text are in the prompt; the first that is not: message ${whole(gone[0])}`];
}

const RANGE_WORDS = /[^.\n]*\b(?:from|between|scale|score|rate)\b[^.\n]{0,60}?-?\d+(?:\.\d+)?\s*(?:\([^)]*\)|=[^,;.\n]*)?\s*(?:,|;|to|and|through|-|–|—)\s*[^.\n]{0,40}?-?\d+[^.\n]*/i;

// A line about the scale with the lines of its levels: "Scale, 3 is best:", "3 - good", "2 - fair".
const LEVELS = /^[^\n]*\bscale\b[^\n]*(?:\n\s*[-*]?\s*-?\d+(?:\.\d+)?\s*[-–—:=.)][^\n]*)+/im;

function schemaScale(schema) {
  const properties = isTable(schema) && isTable(schema.properties) ? Object.entries(schema.properties) : [];
  const known = properties.find(([name]) => /^(score|rating|grade|value)$/i.test(name)) || properties.find(([, one]) => isTable(one) && (isNumber(one.minimum) || isNumber(one.maximum)));
  if (!known || !isTable(known[1])) return null;
  const [name, one] = known;
  const numbers = Array.isArray(one.enum) ? one.enum.filter(isNumber) : [];
  const low = one.minimum ?? one.exclusiveMinimum ?? (numbers.length ? Math.min(...numbers) : null);
  const high = one.maximum ?? one.exclusiveMaximum ?? (numbers.length ? Math.max(...numbers) : null);
  return isNumber(low) || isNumber(high) ? { name, low, high } : null;
}

// The numbers that a reply gives as a score, each once, in their order.
function scoresIn(reply) {
  const found = [...reply.matchAll(/["'“]?\b(?:score|rating|grade)\b["'”]?\s*(?:[:=]|is|of)\s*\**\s*(-?\d+(?:\.\d+)?)/gi)].map((one) => Number(one[1]));
  return [...new Set(found)];
}

function scaleChecks(grader, call) {
  const found = [];
  const asked = schemaScale(call.schema);
  if (asked && Array.isArray(grader.range)) {
    const same = asked.low === grader.range[0] && asked.high === grader.range[1];
    const text = `the schema’s ${asked.name} goes from ${scoreText(asked.low)} to ${scoreText(asked.high)}`;
    found.push(same ? ["ok", `${text}, as the grader’s range does`] : ["warn", `${text}, the grader’s range from ${rangeText(grader.range)}`]);
  }
  // Those who write prompts write short lines; on a line of a megabyte the pattern would take hours.
  const lines = promptOf(call).split("\n").filter((line) => line.length < 600).join("\n").slice(0, 60000);
  const levels = lines.match(LEVELS);
  const sentence = levels || lines.match(RANGE_WORDS);
  if (sentence && asked) found.push(["note", `the prompt’s scale: “${(levels ? sentence[0].split("\n").map((line) => line.slice(0, 110)).join("\n") : squash(sentence[0])).slice(0, 700).trim()}”`]);
  return found;
}

function replyChecks(grader, calls) {
  const found = [];
  const unread = calls.filter((call) => call.unread).length;
  if (unread) found.push(["warn", `${whole(unread)} of ${whole(calls.length)} replies could not be read`]);
  const failed = calls.filter((call) => call.reply === null && call.kind).length;
  if (failed) found.push(["warn", `${whole(failed)} of ${whole(calls.length)} calls got no reply`]);
  if (calls.some((call) => call.finish_reason === "length")) found.push(["warn", "a reply was cut at its length limit"]);
  const read = calls.filter((call) => typeof call.reply === "string" && !call.unread);
  for (const call of read) {
    const numbers = scoresIn(call.reply);
    if (numbers.length > 1) found.push(["warn", `a reply names several scores: ${numbers.slice(0, 6).map(scoreText).join(", ")}`]);
    else if (numbers.length === 1 && read.length === 1 && isNumber(grader.score)) {
      const same = Math.abs(numbers[0] - grader.score) < 1e-6;
      found.push(same ? ["ok", `the reply says ${scoreText(numbers[0])}, and that was scored`] : ["warn", `the reply says ${scoreText(numbers[0])}, scored was ${scoreText(grader.score)}`]);
    }
  }
  return found;
}

// [level, text] each: ok, warn, or note. Of calls that differ in the same check, the first that is not well.
export function checksOf(grader, story) {
  const calls = grader.calls || [];
  const { answer, question } = partsToSee(story);
  const checks = new Map();
  const add = (name, found) => {
    if (found && (!checks.has(name) || (checks.get(name)[0] === "ok" && found[0] !== "ok"))) checks.set(name, found);
  };
  for (const call of calls.filter((one) => one.why !== "repair")) {
    const has = holder(call);
    add("answer", textCheck(has, "answer", answer, "warn"));
    add("question", textCheck(has, "question", question, "warn"));
    if (typeof story.reference === "string" || isNumber(story.reference)) add("reference", referenceCheck(call, story, [answer, question, ...(story.messages || []).map(contentOf)]));
    add("messages", messagesCheck(has, story.messages || []));
    scaleChecks(grader, call).forEach((found, n) => add(`scale ${n}`, found));
  }
  const own = scoresIn(answer);
  if (own.length && calls.length) checks.set("own", ["warn", `the answer itself names a score: ${own.slice(0, 6).map(scoreText).join(", ")}`]);
  const verdicts = (grader.orders || []).map((one) => one.verdict).filter((one) => typeof one === "string");
  if (verdicts.length === 2) checks.set("orders", verdicts[0] === verdicts[1] ? ["ok", "both orders say the same"] : ["warn", "the two orders of the pair say different things"]);
  return [...checks.values(), ...replyChecks(grader, calls)];
}

const SIGNS = { ok: ["✓", "checked: "], warn: ["!", "look here: "], note: ["•", ""] };

const checkItem = ([level, text]) => make("li", { className: level }, make("span", { className: "sign", "aria-hidden": "true" }, SIGNS[level][0]), make("span", {}, make("span", { className: "unseen" }, SIGNS[level][1]), shown(text)));

// --- calls of the judge ------------------------------------------------------------------------

const spentText = (call) => {
  const parts = [];
  const { usage } = call;
  if (usage) {
    parts.push(`${whole(usage.input_tokens || 0)} + ${whole(usage.output_tokens || 0)} tokens${usage.cached_tokens ? ` (${whole(usage.cached_tokens)} cached)` : ""}`);
    if (isNumber(usage.cost_usd)) parts.push(`$${usage.cost_usd < 0.01 ? usage.cost_usd.toPrecision(2) : usage.cost_usd.toFixed(3)}`);
  }
  if (isNumber(call.latency_s)) parts.push(call.latency_s < 0.01 ? "under 0.01 s" : `${figure(call.latency_s, 2)} s`);
  if (isNumber(call.attempts) && call.attempts > 1) parts.push(`${whole(call.attempts)} attempts`);
  if (call.finish_reason) parts.push(`ended: ${call.finish_reason}`);
  return parts.join(" · ");
};

// The orders of a pair, in words.
const ORDERS = { as_given: "this response shown first", swapped: "the other shown first" };

function callNode(call, number, of) {
  const node = make("article", { className: call.unread || call.reply === null ? "judge-call bad" : "judge-call" });
  const title = [`Call ${whole(number)} of ${whole(of)}`, ORDERS[call.part] ?? call.part, call.why && call.why !== "first" ? `asked again (${call.why.replace("_", " ")})` : call.draw ? `draw ${whole(call.draw)}` : ""].filter(Boolean).join(", ");
  const head = make("header", {}, make("h5", {}, shown(title)));
  if (call.source) head.append(make("span", { className: "source" }, shown(call.source)));
  if (call.model) head.append(make("span", {}, make("code", {}, shown(call.model))));
  const spent = spentText(call);
  if (spent) head.append(make("span", {}, shown(spent)));
  node.append(head);
  const prompts = (call.messages || []).map((message) => {
    const role = isTable(message) && typeof message.role === "string" ? message.role : "message";
    const content = contentOf(message);
    return make("div", {}, make("p", { className: "part-name" }, "Prompt, ", shown(role.slice(0, 40)), make("span", { className: "at" }, `${whole(content.length)} characters`)), new TextBox(content, `Prompt to the judge, ${role.slice(0, 40)}`, 6000).node);
  });
  node.append(...prompts);
  if (call.schema) node.append(folded(["Schema of the reply"], "more-facts", new TextBox(pretty(call.schema), "Schema").node));
  if (call.choices) node.append(make("p", { className: "part-name" }, "Allowed replies: ", shown(call.choices.join(", "))));
  if (call.reasoning) node.append(folded([`The judge’s reasoning, ${whole(call.reasoning.length)} characters`], "thinking", new TextBox(call.reasoning, "The judge’s reasoning").node));
  if (typeof call.reply === "string") {
    node.append(make("p", { className: "part-name" }, call.unread ? make("b", { className: "lost" }, "Reply, could not be read: ", shown(call.unread)) : "Reply, as it came"), new TextBox(call.reply || "(empty)", "The judge’s reply", 2400).node);
  } else node.append(make("p", { className: "lost" }, "No reply. ", shown([call.kind, call.error].filter(Boolean).join(": "))));
  return node;
}

// The graders whose calls are looked at: still so in the next sample.
const unfolded = new Set();

function callsNode(grader) {
  const calls = grader.calls || [];
  if (!calls.length) return null;
  const total = (pick) => calls.map(pick).filter(isNumber).reduce((a, b) => a + b, 0);
  const facts = [calls.length === 1 ? "1 call" : `${whole(calls.length)} calls`];
  const unread = calls.filter((call) => call.unread).length;
  if (unread) facts.push(`${whole(unread)} unreadable`);
  const tokens = total((call) => call.usage?.input_tokens) + total((call) => call.usage?.output_tokens);
  if (tokens) facts.push(`${whole(tokens)} tokens`);
  const cost = total((call) => call.usage?.cost_usd);
  if (cost) facts.push(`$${cost.toPrecision(2)}`);
  const node = folded(["What the judge was shown ", make("small", {}, shown(facts.join(" · ")))], "judge-calls");
  // Prompts are long: they are made when they are looked at.
  const fill = () => {
    if (!node.querySelector(".calls-list")) node.append(make("div", { className: "calls-list" }, ...calls.map((call, n) => callNode(call, n + 1, calls.length))));
  };
  node.open = unfolded.has(grader.name);
  if (node.open) fill();
  node.firstChild.addEventListener("click", () => {
    if (node.open) unfolded.delete(grader.name);
    else { unfolded.add(grader.name); fill(); }
  });
  node.addEventListener("toggle", () => {
    if (!node.open) return;
    fill();
    if (node.contains(document.activeElement)) node.scrollIntoView({ block: "nearest" });
  });
  return node;
}

// Who answered, and from where: said on the card, because a wrong model spoils every verdict.
const namesOf = (calls, key) => [...new Set((calls || []).map((call) => call[key]).filter((one) => typeof one === "string" && one))];

function unreadNode(calls) {
  const unread = (calls || []).filter((call) => call.unread && typeof call.reply === "string").slice(0, 3);
  if (!unread.length) return null;
  return make("div", { className: "unread" }, ...unread.flatMap((call) => [make("p", { className: "lost" }, "Unreadable reply: ", shown(call.unread)), new TextBox(call.reply || "(empty)", "An unreadable reply of the judge", 600).node]));
}

// --- one grader --------------------------------------------------------------------------------

const MARKS = { met: ["✓", "met"], "not met": ["✗", "not met"], none: ["?", "no verdict"], "not applicable": ["–", "does not apply"], share: ["◐", "met in part"] };

function criteriaNode(criteria) {
  if (!criteria?.length) return null;
  const items = criteria.map((one) => {
    const [sign, word] = MARKS[one.verdict] || MARKS.none;
    const points = isNumber(one.points) ? ` ${one.points > 0 ? "+" : ""}${numberText(one.points)}` : "";
    const text = isNumber(one.share) ? `${word}, ${figure(one.share, 2)}` : word;
    const bad = one.verdict === "none" || (one.verdict === "met" && one.points < 0) || (one.verdict === "not met" && !(one.points < 0));
    const node = make("li", { className: bad ? "criterion bad" : "criterion" }, make("span", { className: "sign", "aria-hidden": "true" }, sign));
    const said = make("div", {}, make("b", {}, text), make("small", {}, points), " ", shown(one.text || one.name || ""));
    if (one.reason) said.append(make("p", { className: "why" }, shown(one.reason)));
    node.append(said);
    return node;
  });
  return make("ul", { className: "criteria", "aria-label": "Criteria" }, ...items);
}

function ordersNode(orders) {
  if (!orders?.length) return null;
  const cells = orders.map((one) => {
    const said = one.failure ? make("span", { className: "lost" }, shown(pretty(isTable(one.failure) ? one.failure.kind || "failed" : one.failure))) : make("b", {}, shown(String(one.verdict ?? "–")));
    const node = make("div", {}, make("p", { className: "part-name" }, one.first === "response" ? ORDERS.as_given : ORDERS.swapped), said);
    if (one.reason) node.append(make("p", { className: "why" }, shown(one.reason.slice(0, 4000))));
    return node;
  });
  return make("div", { className: "orders", role: "group", "aria-label": "The two orders of the pair" }, ...cells);
}

function votesNode(votes) {
  if (!votes?.length) return null;
  const items = votes.map((one) => {
    const said = one.failure ? make("span", { className: "lost" }, shown(String(one.failure.kind ?? "failed"))) : make("b", {}, scoreText(one.score ?? one.rank));
    const why = one.failure ? one.failure.error : one.reason;
    return make("li", {}, shown(String(one.label)), " ", said, why ? make("p", { className: "why" }, shown(String(why).slice(0, 2000))) : "");
  });
  return make("ul", { className: "votes", "aria-label": "Judges and votes" }, ...items);
}

// Where a score lies in its range.
function gauge(score, range) {
  if (!isNumber(score) || !Array.isArray(range) || !isNumber(range[0]) || !isNumber(range[1]) || range[1] <= range[0]) return null;
  const share = Math.min(1, Math.max(0, (score - range[0]) / (range[1] - range[0])));
  const svg = draw("svg", { class: "gauge", width: "100%", height: 8, "aria-hidden": "true" });
  svg.append(draw("rect", { class: "track", x: 0, width: "100%", y: 2, height: 4 }), draw("rect", { class: "one", x: 0, width: `${(100 * share).toFixed(2)}%`, y: 2, height: 4 }));
  svg.append(draw("circle", { class: "dot within", cx: `${(1 + 98 * share).toFixed(2)}%`, cy: 4, r: 4 }));
  return svg;
}

function verdictLine(grader) {
  if (grader.failure) return make("span", { className: "verdict lost" }, "failed: ", shown(String(grader.failure.kind ?? "no kind")));
  const value = isNumber(grader.score) ? numberText(grader.score) : isNumber(grader.rank) ? `rank ${numberText(grader.rank)}` : "–";
  return make("span", { className: "verdict" }, value);
}

// Places that are numbered as one: the two of a pair, or one alone.
export function placesOf(grader) {
  const found = new Map();
  grader.places.filter(isTable).forEach((place, n) => {
    const key = isNumber(place.pair) ? `pair ${place.pair}` : n;
    found.set(key, [...(found.get(key) || []), place]);
  });
  return [...found.values()];
}

function placesNode(grader, light) {
  const places = placesOf(grader);
  if (!places.length) return null;
  const items = places.map((some, n) => {
    const button = make("button", { type: "button", "aria-pressed": "false" }, badge(n + 1), " ", shown(placeText(some)));
    button.addEventListener("click", () => light(grader, n, true, button));
    return make("li", {}, button);
  });
  return make("div", {}, make("p", { className: "part-name" }, "Where in the transcript"), make("ul", { className: "places" }, ...items));
}

function placeText(some) {
  const [{ label, kind }] = some;
  const said = [label, kind].find((one) => typeof one === "string" && one) ?? "";
  const spots = some.map((one) => (Number.isInteger(one.message) ? `message ${whole(one.message + 1)}` : "the response"));
  return [spots.join(" and "), said].filter(Boolean).join(": ");
}

// `light(grader, n, pinned, button)` lights the places of one number, or all where `n` is null; `dark()` ends that.
export function graderCard(grader, story, number, light, dark) {
  const card = make("article", { className: grader.failure ? "grader failed" : "grader", id: `grader-${number}`, tabIndex: -1 });
  const kind = [grader.type !== grader.name ? grader.type : "", grader.asks_judge ? `asks ${grader.judges?.length ? grader.judges.join(", ") : "a judge"}` : "rule", namesOf(grader.calls, "model").join(", "), namesOf(grader.calls, "source").join(", "), grader.role && grader.role !== "score" ? grader.role : "", isNumber(grader.weight) ? (grader.weight ? `weight ${numberText(grader.weight)}` : "reported only") : ""];
  card.append(make("header", {}, make("h4", {}, make("code", {}, shown(grader.name))), verdictLine(grader), Array.isArray(grader.range) ? make("small", {}, `range ${rangeText(grader.range)}`) : "", make("p", { className: "kind" }, shown(kind.filter(Boolean).join(" · ")))));
  const bar = gauge(grader.score, grader.range);
  if (bar) card.append(bar);
  if (grader.failure) card.append(make("p", { className: "lost" }, shown(pretty(grader.failure.error ?? ""))));
  if (grader.evaluable === false) card.append(make("p", { className: "aside" }, "There was nothing to judge: this is the grader’s stated default."));
  const checks = checksOf(grader, story);
  const alarms = checks.filter(([level]) => level === "warn");
  if (alarms.length) card.append(make("ul", { className: "checks", "aria-label": "To look at" }, ...alarms.map(checkItem)));
  const parts = [ordersNode(grader.orders), criteriaNode(grader.criteria), votesNode(grader.votes)].filter(Boolean);
  // The reasons of a pair's orders are its reason.
  if (grader.reason && !grader.orders?.some((one) => one.reason)) card.append(new TextBox(pretty(grader.reason), `Reason of ${grader.name.slice(0, 60)}`, 900).node);
  else if (grader.asks_judge && !grader.failure && !grader.reason && !parts.length) card.append(make("p", { className: "hint" }, "It gave no reason."));
  card.append(...parts);
  const lost = unreadNode(grader.calls);
  if (lost) card.append(lost);
  const places = placesNode(grader, light);
  if (places) {
    card.append(places);
    card.addEventListener("pointerenter", () => light(grader, null, false));
    card.addEventListener("pointerleave", dark);
    card.addEventListener("focusin", () => light(grader, null, false));
    card.addEventListener("focusout", dark);
  }
  const calls = callsNode(grader);
  if (calls) {
    const well = checks.filter(([level]) => level !== "warn");
    if (well.length) calls.firstChild.after(make("ul", { className: "checks" }, ...well.map(checkItem)));
    card.append(calls);
  } else if (grader.asks_judge && !story.kept?.calls) card.append(make("p", { className: "hint" }, "What the judge was shown is not kept for this sample."));
  if (isTable(grader.metadata) && Object.keys(grader.metadata).length) card.append(folded(["Everything that it recorded"], "more-facts", new TextBox(pretty(grader.metadata), "Metadata").node));
  return card;
}

export const isFailed = (grader) => Boolean(grader.failure);
