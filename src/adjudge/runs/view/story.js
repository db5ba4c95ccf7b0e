// A sample of a run that may still grow: asked for by its link, drawn by the page that the report has, too.
import { ask } from "./ask.js";
import { $, make } from "./elements.js";
import { mountLabels } from "./labels.js";
import { SamplePage, describeFound, disagreementsList } from "./sample.js";

const GROWN = 1.1;
const LABELLING = "adjudge-labelling";

// What a link asks for: 17 is an index, 3/17 a step and an index.
function questionOf(link) {
  const found = /^(?:(-?\d{1,15})\/)?(-?\d{1,15})$/.exec(link);
  if (!found) return null;
  return found[1] === undefined ? { index: found[2] } : { step: found[1], index: found[2] };
}

export class Story {
  constructor(guard) {
    this.guard = guard;
    this.run = null;
    this.worst = [];
    this.counted = 0;
    this.begun = false;
    this.ready = null;
    this.page = new SamplePage($("sample"), (link) => this.find(link), guard, (found) => this.label(found));
    this.page.right.prepend(labelling());
  }

  // People's labels of the sample that is shown, or of none yet.
  label(found) {
    return mountLabels($("labels"), found, { run: this.run, open: (row) => this.visit(row) });
  }

  reset() {
    $("labels").hidden = true;
    this.page.reset();
    this.worst = [];
    this.counted = 0;
  }

  // Opens what the address names, else the worst disagreement, and follows the list of these.
  async follow(run) {
    this.run = run;
    $("story").hidden = !run.samples;
    // A grading run is read for its samples: they come first.
    if (run.kind === "grade" && $("story").nextElementSibling !== $("groups")) $("groups").before($("disagreements"), $("story"));
    if (!run.samples || run.indexed.behind > 0) return;
    if (run.samples >= this.counted * GROWN || (run.state === "done" && run.samples !== this.counted)) await this.list();
    if (this.begun && this.page.link) return;
    this.begun = true;
    if (this.page.wanted !== null) await this.page.open(this.page.wanted, true);
    else if (this.worst.length) await this.page.open(this.worst[0].link, false);
    else {
      this.ready = await ask("/api/sample", { generation: run.generation, row: 0 });
      // Not where somebody has chosen one meanwhile.
      if (this.ready && !this.page.link && !this.page.opening) await this.page.open(this.ready.link, false);
    }
  }

  async list() {
    const found = await ask("/api/disagreements", { generation: this.run.generation });
    if (!found) return;
    this.counted = found.samples;
    this.worst = found.worst;
    $("disagreements").hidden = !found.worst.length;
    $("disagreements-list").replaceChildren(...disagreementsList(found, (link) => this.guard(this.page.visit(link))));
  }

  // By its row, as groups name it.
  async visit(row) {
    this.ready = await ask("/api/sample", { generation: this.run.generation, row });
    if (this.ready) await this.page.visit(this.ready.link);
  }

  async answer(link) {
    const { ready, run } = this;
    this.ready = null;
    if (ready?.link === link) return ready;
    const question = run && questionOf(link);
    const place = question && (await ask("/api/find", { generation: run.generation, ...question }));
    return place && ask("/api/sample", { generation: run.generation, row: place.row });
  }

  async find(link) {
    const found = await this.answer(link);
    const { run } = this;
    if (!found) return null;
    return describeFound(found, this.worst, run.samples, run.kind !== "grade");
  }
}

// People's labels beside the sample, unfolded where they were last time, and by any of their keys.
function labelling() {
  const node = make("details", { id: "labelling" }, make("summary", {}, "Label this sample"), $("labels"));
  try { node.open = localStorage.getItem(LABELLING) === "on"; } catch { /* folded */ }
  node.addEventListener("toggle", () => {
    try { localStorage.setItem(LABELLING, node.open ? "on" : "off"); } catch { /* folded next time */ }
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea, [contenteditable]");
    if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && /^[yrwpPmbusoq0-9.]$/.test(event.key)) node.open = true;
  }, { capture: true });
  return node;
}
