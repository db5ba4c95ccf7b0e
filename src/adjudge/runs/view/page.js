// A run, followed: asks for what is new and draws it.
import { curve } from "./charts.js";
import { ask, forget } from "./ask.js";
import { $, make, shown, whole } from "./elements.js";
import { Explorer } from "./explorer.js";
import { Story } from "./story.js";

const LIVE = 1000;
const IDLE = 5000;
const LAST = 20;
const FIRST = 3;

const story = new Story((promise) => failing(promise));
let run = null;
const explorer = new Explorer((row) => failing(story.visit(row)), (promise) => failing(promise));
const view = { following: true, range: null, mode: "latest", charts: [], at: null, drawn: "" };

// --- head ------------------------------------------------------------------------------------

function head() {
  document.title = `${run.label || "Run"}: ${run.status.split(",")[0]}`;
  $("title").replaceChildren(shown(run.label || (run.kind === "grade" ? "Grading run" : "Run")));
  if ($("state").dataset.state !== run.state) $("said").textContent = run.status;
  $("state").dataset.state = run.state;
  const left = run.indexed.behind && run.indexed.size ? `, ${Math.floor(100 * (1 - run.indexed.behind / run.indexed.size))} % of the samples read` : "";
  $("state").textContent = run.status + left;
  $("follow").hidden = run.state === "done";
  $("progress").hidden = run.progress === null;
  $("progress").value = run.progress || 0;
  const facts = [...run.facts];
  if (run.changed_at) facts.push(["Last written", `${new Date(run.changed_at * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`]);
  if (run.samples) facts.push(["Samples", `${whole(run.samples)} in ${whole(run.groups)} groups`]);
  if (run.broken) facts.push(["Lines that could not be read", whole(run.broken)]);
  $("facts").replaceChildren(...facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, make("span", {}, shown(text))))));
  $("tiles").replaceChildren(...run.tiles.map((tile) => make("div", { className: tile.alarm ? "alarm" : "" }, make("dt", {}, tile.name), make("dd", {}, tile.value), make("dd", {}, shown(tile.note)))));
  $("report").hidden = !run.report;
  $("sentinel").hidden = !run.alarms.length;
  $("alarms").replaceChildren(...run.alarms.map((one) => make("li", { className: one.note ? "note" : "" }, make("b", {}, `Step ${one.step ?? "–"}, `, shown(one.rule.replaceAll("_", " "))), ": ", shown(one.seen), ". ", shown(one.otherwise && `Or else: ${one.otherwise}.`), make("br", {}), "What to change: ", shown(one.advice), ".")));
}

// --- curves ----------------------------------------------------------------------------------

function curves() {
  const { steps, charts, width, rows } = run.curves;
  $("curves").hidden = document.querySelector("nav a").hidden = run.kind === "grade";
  $("no-curves").hidden = rows > 0;
  $("reading").hidden = rows === 0;
  const pointed = (share) => {
    const known = steps.filter((x) => x !== null);
    const wanted = known[0] + share * (known[known.length - 1] - known[0]);
    let best = 0;
    steps.forEach((step, i) => { if (step !== null && Math.abs(step - wanted) < Math.abs(steps[best] - wanted)) best = i; });
    read(best);
  };
  view.charts = charts.map((chart) => curve(chart, steps, pointed));
  const nodes = view.charts.map((chart) => chart.node);
  $("charts").replaceChildren(...nodes.slice(0, FIRST));
  $("more-charts").replaceChildren(...nodes.slice(FIRST));
  $("more-charts").parentNode.hidden = nodes.length <= FIRST;
  const averaged = width > 1 ? [`Each point is the mean of ${whole(width)} steps.`] : [];
  $("averaged").textContent = [...averaged, ...(run.alarms.some((one) => !one.note && one.step !== null) ? ["Upright lines are the sentinel’s alarms."] : [])].join(" ");
  $("at").max = Math.max(0, steps.length - 1);
  read(view.at === null ? steps.length - 1 : Math.min(view.at, steps.length - 1), true);
}

// All charts show their values at one step; by default the last.
function read(place, keep) {
  const { steps } = run.curves;
  if (!keep) view.at = place >= steps.length - 1 ? null : place;
  const step = steps[place];
  $("at").value = place;
  const text = typeof step === "number" ? whole(Math.round(step)) : "–";
  $("at-step").textContent = text;
  $("at").setAttribute("aria-valuetext", "step " + text);
  for (const chart of view.charts) chart.at(place, view.at !== null);
}

// --- the chosen steps ------------------------------------------------------------------------

function choose() {
  const grading = run.kind === "grade";
  $("range").hidden = grading || !run.samples;
  const first = run.first_step ?? 0;
  const last = run.last_step ?? 0;
  if (view.mode === "every" || grading) view.range = [first, last];
  else if (view.mode === "latest") view.range = [Math.max(first, last - LAST + 1), last];
  for (const [id, value] of [["from", view.range[0]], ["to", view.range[1]]]) {
    $(id).min = first;
    $(id).max = last;
    if (document.activeElement !== $(id)) $(id).value = value;
  }
  $("latest").setAttribute("aria-pressed", String(view.mode === "latest"));
  $("every").setAttribute("aria-pressed", String(view.mode === "every"));
}

async function samples() {
  if (!run.samples) return;
  choose();
  await explorer.show(run, view.range);
}

function ranged(mode) {
  view.mode = mode;
  if (mode === "own") {
    const ends = [Number($("from").value), Number($("to").value)].map((x) => (Number.isSafeInteger(x) ? x : 0));
    view.range = [Math.min(...ends), Math.max(...ends)];
  }
  explorer.page = 0;
  failing(samples());
}

// --- following -------------------------------------------------------------------------------

async function look() {
  const found = await ask("/api/overview", { version: view.drawn });
  if (!found) return;
  const anew = run && run.generation !== found.generation;
  run = found;
  view.drawn = found.version;
  if (anew) {
    for (const name of ["groups", "sample", "find", "disagreements"]) forget("/api/" + name);
    explorer.page = 0;
    story.reset();
    view.at = null;
  }
  head();
  curves();
  await samples();
  await story.follow(run);
  document.documentElement.dataset.version = found.version;
}

function failing(promise) {
  return promise.catch((error) => {
    $("state").dataset.state = "lost";
    $("state").textContent = `no answer from adjudge view (${error.message}); asking again`;
    view.drawn = "";
  });
}

async function follow() {
  if (view.following && !document.hidden) await failing(look());
  const busy = run && run.indexed.behind > 0;
  setTimeout(follow, busy ? 0 : run && run.state === "done" ? IDLE : LIVE);
}

$("follow").addEventListener("click", () => {
  view.following = !view.following;
  $("follow").setAttribute("aria-pressed", String(view.following));
  $("follow").textContent = view.following ? "Following" : "Paused";
});
$("at").addEventListener("input", () => read(Number($("at").value)));
$("latest").addEventListener("click", () => ranged("latest"));
$("every").addEventListener("click", () => ranged("every"));
for (const id of ["from", "to"]) $(id).addEventListener("change", () => ranged("own"));
document.addEventListener("visibilitychange", () => { if (!document.hidden && view.following) failing(look()); });

follow();
