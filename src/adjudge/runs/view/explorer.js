// Groups of the chosen steps; each leads to the first of its samples.
import { ask } from "./ask.js";
import { $, figure, labelCells, make, shown, whole } from "./elements.js";

const cell = (text, className = "n") => make("td", { className }, text);
const heads = (labels) => make("tr", {}, ...labels.map(([label, className]) => make("th", { scope: "col", className: className || "" }, label)));
const nameOf = (group, grading) => (grading ? group.name || "(no name)" : group.name || "step " + group.step);

export class Explorer {
  // `choose(row)` shows a sample; `guard` takes promises and says on the page when one fails.
  constructor(choose, guard) {
    this.page = 0;
    $("show").addEventListener("change", () => { this.page = 0; guard(this.load()); });
    $("previous").addEventListener("click", () => { this.page -= 1; guard(this.load()); });
    $("next").addEventListener("click", () => { this.page += 1; guard(this.load()); });
    $("group-table").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) choose(Number(button.dataset.row));
    });
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
    const found = await ask("/api/groups", { generation: run.generation, first: range[0], last: range[1], show: $("show").value, page: this.page });
    if (!found) return;
    this.page = found.page;
    const focused = document.activeElement?.dataset?.row;
    const grading = run.kind === "grade";
    const labels = [...(grading ? [] : [["Step", "n"]]), ["Group"], ["Size", "n"], ["Missing", "n"], ["Turned", "n"], ["Mean", "n"], ["Std", "n"]];
    $("group-table").tHead.replaceChildren(heads(labels));
    $("group-table").tBodies[0].replaceChildren(...found.groups.map((group) => this.line(group, grading)));
    const of = found.found === found.of ? "" : ` of ${whole(found.of)}`;
    labelCells($("group-table").tBodies[0], labels.map(([label]) => label));
    $("groups-of").textContent = `${whole(found.found)}${of} groups${grading ? "" : ` of steps ${whole(range[0])} to ${whole(range[1])}, the latest first`}`;
    $("pages").textContent = `page ${whole(found.page + 1)} of ${whole(found.pages)}`;
    $("previous").disabled = found.page === 0;
    $("next").disabled = found.page >= found.pages - 1;
    if (focused !== undefined) document.querySelector(`#group-table [data-row="${Number(focused)}"]`)?.focus();
  }

  line(group, grading) {
    const button = make("button", { type: "button", className: "link" }, shown(nameOf(group, grading)));
    button.dataset.row = group.row;
    const missing = make("td", { className: "n" }, group.missing ? make("span", { className: "lost" }, whole(group.missing)) : "0");
    return make("tr", {}, ...(grading ? [] : [cell(whole(group.step))]), make("th", { scope: "row", className: "id" }, button), cell(whole(group.size)), missing,
      cell(group.missing && group.turned !== null ? whole(group.turned) : "–"), cell(figure(group.mean)), cell(figure(group.std)));
  }
}
