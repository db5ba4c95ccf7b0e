// Groups of the chosen steps, and the members of one of them.
import { ask } from "./ask.js";
import { $, draw, figure, labelCells, make, shown, signed, whole } from "./elements.js";

const cell = (text, className = "n") => make("td", { className }, text);
const heads = (labels) => make("tr", {}, ...labels.map(([label, className]) => make("th", { scope: "col", className: className || "" }, label)));
const nameOf = (group, grading) => (grading ? group.name || "(no name)" : group.name || "step " + group.step);

export class Explorer {
  // `guard` takes promises and says on the page when one fails.
  constructor(choose, guard) {
    this.choose = choose;
    this.page = 0;
    this.group = null;
    this.found = null;
    $("show").addEventListener("change", () => { this.page = 0; guard(this.load()); });
    $("previous").addEventListener("click", () => { this.page -= 1; guard(this.load()); });
    $("next").addEventListener("click", () => { this.page += 1; guard(this.load()); });
    $("zero").addEventListener("change", () => this.members());
    $("group-table").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) guard(this.open(Number(button.dataset.group), true));
    });
    $("members").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.choose(Number(button.dataset.row));
    });
  }

  // Rows and groups have other numbers after a run was written anew.
  reset() {
    this.group = this.found = null;
    this.page = 0;
    $("group").hidden = true;
  }

  show(run, range) {
    this.run = run;
    this.range = range;
    $("group-controls").hidden = $("list").hidden = !run.samples;
    return this.load();
  }

  async load() {
    const { run, range } = this;
    if (!run || !run.samples) return;
    const found = await ask("/api/groups", { generation: run.generation, from: range[0], to: range[1], show: $("show").value, page: this.page });
    if (!found) return;
    this.page = found.page;
    const focused = document.activeElement?.dataset?.group;
    const grading = run.kind === "grade";
    const labels = [...(grading ? [] : [["Step", "n"]]), ["Group"], ["Size", "n"], ["Missing", "n"], ["Turned", "n"], ["Mean", "n"], ["Std", "n"]];
    $("group-table").tHead.replaceChildren(heads(labels));
    $("group-table").tBodies[0].replaceChildren(...found.groups.map((group) => this.line(group, grading)));
    const of = found.found === found.of ? "" : ` of ${whole(found.of)}`;
    labelCells($("group-table").tBodies[0], labels.map(([label]) => label));
    $("groups-of").textContent = `${whole(found.found)}${of} groups${grading ? "" : ", the latest first"}`;
    $("pages").textContent = `page ${whole(found.page + 1)} of ${whole(found.pages)}`;
    $("previous").disabled = found.page === 0;
    $("next").disabled = found.page >= found.pages - 1;
    if (focused !== undefined) document.querySelector(`#group-table [data-group="${Number(focused)}"]`)?.focus();
  }

  line(group, grading) {
    const button = make("button", { type: "button", className: "link" }, shown(nameOf(group, grading)));
    button.dataset.group = group.id;
    const missing = make("td", { className: "n" }, group.missing ? make("span", { className: "lost" }, whole(group.missing)) : "0");
    const row = make("tr", {}, ...(grading ? [] : [cell(whole(group.step))]), make("th", { scope: "row", className: "id" }, button), cell(whole(group.size)), missing,
      cell(group.missing && group.turned !== null ? whole(group.turned) : "–"), cell(figure(group.mean)), cell(figure(group.std)));
    if (this.group === group.id) row.setAttribute("aria-current", "true");
    return row;
  }

  async open(id, focus) {
    const found = await ask("/api/group", { generation: this.run.generation, id });
    if (!found) return;
    this.group = id;
    this.found = found;
    for (const row of $("group-table").tBodies[0].rows) {
      if (Number(row.querySelector("button").dataset.group) === id) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
    $("group").hidden = false;
    const grading = this.run.kind === "grade";
    $("group-title").replaceChildren("Group ", shown(nameOf(found, grading)), grading ? "" : `, step ${whole(found.step)}`);
    const cut = found.members.length < found.size ? `; the first ${whole(found.members.length)} are shown` : "";
    $("group-facts").textContent = `${whole(found.size)} samples, ${whole(found.missing)} missing; mean ${figure(found.mean)}, std ${figure(found.std)} of those present${cut}`;
    this.members();
    if (focus) {
      $("group-title").focus({ preventScroll: true });
      $("group").scrollIntoView({ block: "nearest" });
    }
  }

  members() {
    const { found } = this;
    if (!found) return;
    // Where nothing is missing, both ways are one.
    const comparable = found.missing > 0 && found.mean_as_zero !== null;
    const zero = $("zero").checked && comparable;
    $("zero").closest("label").hidden = !comparable;
    const recorded = found.members.some((one) => one.advantage !== null || one.turn_advantages);
    const env = found.members.some((one) => one.env_reward !== null);
    const spoken = found.members.some((one) => one.said);
    const most = Math.max(1e-9, ...found.members.flatMap((one) => [Math.abs(one.left_out || 0), Math.abs(one.as_zero || 0)]));
    const labels = [["Sample"], ["Reward", "n"], [found.missing ? "Left out" : "In its group", "n"], ...(zero ? [["Failures as\u00a00", "n"], ["Both"]] : []), ...(recorded ? [["Advantage", "n"]] : []),
      ...(env ? [["Env reward", "n"]] : []), ...found.score_names.map((name) => [name, "n"]), ...(spoken ? [["Last reply"]] : [])];
    $("members").tHead.replaceChildren(heads(labels));
    $("members").tBodies[0].replaceChildren(...found.members.map((one) => {
      const button = make("button", { type: "button", className: "link", "aria-label": `Sample ${one.index}: show its story` }, String(one.index));
      button.dataset.row = one.row;
      const reward = one.reward === null ? make("span", { className: "lost" }, shown(one.missing)) : figure(one.reward);
      const row = make("tr", {}, make("th", { scope: "row" }, button), cell(reward), cell(one.left_out === null ? "none" : signed(one.left_out)));
      if (zero) row.append(asZero(one), make("td", { className: "both" }, bars(one, most)));
      if (recorded) row.append(advantage(one));
      if (env) row.append(cell(figure(one.env_reward)));
      row.append(...one.scores.map((score) => cell(figure(score))));
      if (spoken) row.append(make("td", { className: "text" }, shown(one.said)));
      return row;
    }));
    labelCells($("members").tBodies[0], labels.map(([label]) => label));
    $("zero-says").textContent = zero ? verdict(found) : "";
  }
}

const asZero = (one) => cell(make("span", {}, signed(one.as_zero), one.turned ? make("span", { className: "turns" }, "sign turns") : ""));

function advantage(one) {
  const parts = [signed(one.advantage)];
  if (one.turn_advantages) {
    const each = one.turn_advantages.slice(0, 24).map((x) => signed(x, 2)).join("  ");
    parts.push(make("small", { className: "per-turn" }, `per turn: ${each}${one.turn_advantages.length > 24 ? " …" : ""}`));
  }
  return cell(make("span", {}, ...parts));
}

// Two bars from the middle: left out above, failures as 0 below.
function bars(one, most) {
  const svg = draw("svg", { class: "bar", role: "img", width: "100%", height: 18, "aria-label": `left out ${signed(one.left_out)}, failures as 0 ${signed(one.as_zero)}` });
  [[one.left_out, "one", 1], [one.as_zero, "two", 10]].forEach(([value, kind, y]) => {
    if (value === null) return;
    const width = (50 * Math.abs(value)) / most;
    svg.append(draw("rect", { class: kind, x: (value < 0 ? 50 - width : 50).toFixed(2) + "%", y, width: width.toFixed(2) + "%", height: 7 }));
  });
  svg.append(draw("line", { class: "base", x1: "50%", x2: "50%", y1: 0, y2: 18 }));
  return svg;
}

function verdict(found) {
  const filled = `With failures as 0: mean ${figure(found.mean_as_zero)}, std ${figure(found.std_as_zero)}.`;
  if (!found.turned) return `${filled} No sign turns, but the advantages change.`;
  return `${filled} ${whole(found.turned)} ${found.turned === 1 ? "sign turns" : "signs turn"}.`;
}
