// The table of samples. Text of samples reaches the page by textContent only.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("rows").textContent);
  const count = data.count;
  const graders = data.graders;
  const state = { query: "", show: "all", grader: -1, group: null, sort: "index", down: false, page: 0, size: 50 };
  const open = new Set();
  let found = [];

  // --- columns: a text column is a list, or a table of distinct texts with one id a row -------

  const text = (column) => ({
    texts: column.texts,
    ids: column.ids || null,
    at: column.ids ? (row) => column.texts[column.ids[row]] : (row) => column.texts[row],
    folded: null,
  });
  const group = text(data.group);
  const prompt = text(data.prompt);
  const response = text(data.response);
  const message = text(data.missing_message);
  const kind = text(data.missing_kind);
  const notes = data.notes.map(text);
  const searched = [group, prompt, response, message, kind, ...notes];
  const indexOf = (row) => (data.index ? data.index[row] : row);
  const unjudged = data.not_evaluable.map((rows) => {
    const flags = new Uint8Array(count);
    for (const row of rows) flags[row] = 1;
    return flags;
  });

  // Columns of whole numbers have no decimals; large numbers lose theirs.
  const formatter = (values) => {
    const integral = values.every((x) => x === null || Number.isInteger(x));
    return (x) => (x === null ? "–" : integral || Math.abs(x) >= 1000 ? whole(Math.round(x)) : x.toFixed(3).replace("-", "−"));
  };

  // --- search, filter, sort ----------------------------------------------------------------------

  function fold(column) {
    column.folded ||= column.texts.map((s) => s.toLowerCase());
    return column.folded;
  }

  // "exact phrase" or single words, all of which must occur somewhere in the sample.
  const termsOf = (query) => [...query.toLowerCase().matchAll(/"([^"]+)"?|(\S+)/g)].map((m) => m[1] || m[2]);

  function holds(column, term) {
    const folded = fold(column);
    if (!column.ids) return (row) => folded[row].includes(term);
    const flags = new Uint8Array(folded.length);
    let any = false;
    for (let i = 0; i < folded.length; i++) if (folded[i].includes(term)) any = flags[i] = 1;
    return any ? (row) => flags[column.ids[row]] === 1 : null;
  }

  function keeping() {
    const { show, grader } = state;
    const chosen = grader < 0 ? graders.map((_, g) => g) : [grader];
    const tests = termsOf(state.query).map((term) => {
      const columns = searched.map((column) => holds(column, term)).filter(Boolean);
      return (row) => columns.some((has) => has(row));
    });
    if (state.group !== null) tests.push((row) => group.at(row) === state.group);
    if (show === "missing") tests.push((row) => data.reward[row] === null);
    if (show === "failed") tests.push((row) => chosen.some((g) => data.scores[g][row] === null));
    if (show === "not_evaluable") tests.push((row) => chosen.some((g) => unjudged[g][row]));
    return tests;
  }

  const numeric = (key, label, values) => ({ key, label, numeric: true, value: (row) => values[row], format: formatter(values) });
  const columns = [
    { key: "index", label: "Sample", value: indexOf },
    { key: "group", label: "Group", value: (row) => group.at(row), plain: true },
    { ...numeric("reward", "Reward", data.reward), first: true },
    ...(data.env_reward ? [numeric("env", "Env reward", data.env_reward)] : []),
    ...graders.map((name, g) => ({ ...numeric("g" + g, name, data.scores[g]), grader: g })),
    numeric("length", "Length, chars", data.length),
    numeric("calls", "Tool calls", data.tool_calls),
  ];
  // What a narrow window leaves to the opened row.
  const later = (column) => (column.numeric && !column.first && column.grader !== state.grader ? " later" : "");
  const visible = () => columns.filter((c) => c.grader === undefined || state.grader < 0 || c.grader === state.grader);

  const orders = new Map();
  const collator = new Intl.Collator("en", { numeric: true });

  function ranked(key) {
    if (!orders.has(key)) {
      const { value, plain } = columns.find((c) => c.key === key);
      const values = Array.from({ length: count }, (_, row) => value(row));
      const compare = plain ? (a, b) => collator.compare(values[a], values[b]) : (a, b) => values[a] - values[b];
      const present = [...values.keys()].filter((row) => values[row] !== null).sort((a, b) => compare(a, b) || a - b);
      orders.set(key, { present, absent: [...values.keys()].filter((row) => values[row] === null) });
    }
    return orders.get(key);
  }

  function select() {
    const tests = keeping();
    const { present, absent } = ranked(state.sort);
    const keep = (row) => tests.every((test) => test(row));
    found = present.filter(keep);
    if (state.down) found.reverse();
    found.push(...absent.filter(keep));
    state.page = 0;
    draw();
  }

  // --- drawing -----------------------------------------------------------------------------------

  function head() {
    const cells = visible().map((column) => {
      const sorted = column.key === state.sort;
      const arrow = sorted ? (state.down ? "\u00a0↓" : "\u00a0↑") : "";
      const button = make("button", { type: "button", "data-sort": column.key });
      // Long names may break after an underscore.
      column.label.split(/(?<=_)/).forEach((part, i) => button.append(...(i ? [make("wbr"), part] : [part])));
      button.append(arrow);
      const cell = make("th", { scope: "col", className: (column.numeric ? "n" : "") + (column.grader === undefined ? "" : later(column)) }, button);
      if (sorted) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      return cell;
    });
    const last = state.grader < 0 ? "Response" : "Reason";
    return make("tr", {}, ...cells, make("th", { scope: "col" }, last));
  }

  function cellOf(column, row) {
    if (column.key === "index") {
      const expanded = String(open.has(row));
      return make("th", { scope: "row" }, make("button", { type: "button", className: "toggle", "aria-expanded": expanded, "data-row": row }, String(indexOf(row))));
    }
    if (column.plain) return make("td", { className: "id", title: group.at(row) }, shown(group.at(row)));
    const value = column.value(row);
    const cell = make("td", { className: "n" + later(column), "data-label": column.label });
    if (column.key === "reward" && value === null) cell.append(make("span", { className: "lost" }, kind.at(row) || "missing"));
    else if (column.grader === undefined) cell.append(column.format(value));
    else cell.append(scoreOf(column.grader, row));
    return cell;
  }

  function scoreOf(g, row) {
    const score = data.scores[g][row];
    if (score === null) return make("span", { className: "lost", title: notes[g].at(row) }, "failed");
    const figure = columns.find((c) => c.grader === g).format(score);
    if (unjudged[g][row]) return make("span", { className: "aside", title: "not evaluable: the grader’s stated default" }, figure + " n/e");
    return figure;
  }

  function line(row) {
    const source = state.grader < 0 ? response : notes[state.grader];
    const snippet = source.at(row).slice(0, 240);
    return make("tr", { "data-opens": row }, ...visible().map((column) => cellOf(column, row)), make("td", { className: "text" }, shown(snippet)));
  }

  function detail(row) {
    const inner = make("div", { className: "inner" });
    if (data.reward[row] === null) {
      const why = [kind.at(row), message.at(row)].filter(Boolean).join(": ");
      inner.append(make("p", { className: "wide lost" }, "Reward missing. ", shown(why)));
    }
    const own = columns.filter((c) => c.numeric && c.grader === undefined);
    inner.append(make("p", { className: "wide facts" }, ...own.map((c) => make("span", {}, make("small", {}, c.label), " ", c.format(c.value(row))))));
    const body = graders.map((name, g) => make("tr", {}, make("th", { scope: "row" }, make("code", {}, name)), make("td", { className: "n" }, scoreOf(g, row)), make("td", {}, shown(notes[g].at(row)))));
    const headings = ["Grader", "Score", "Reason"].map((label, i) => make("th", { scope: "col", className: i === 1 ? "n" : "" }, label));
    inner.append(make("table", { className: "wide" }, make("thead", {}, make("tr", {}, ...headings)), make("tbody", {}, ...body)));
    for (const [label, column] of [["Prompt", prompt], ["Response", response]])
      inner.append(make("div", {}, make("h4", {}, label), make("pre", { tabIndex: 0 }, shown(column.at(row)))));
    const only = make("button", { type: "button", "data-group": row }, "Show this group only");
    const full = Object.hasOwn(inFull, String(indexOf(row))) ? make("button", { type: "button", "data-story": indexOf(row) }, "Show the whole sample") : make("span", { className: "hint" }, "The whole sample: ", make("code", {}, "adjudge view FOLDER"));
    inner.append(make("div", { className: "wide controls" }, only, full));
    return make("tr", { className: "detail" }, make("td", { colSpan: visible().length + 1 }, inner));
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(found.length / state.size));
    state.page = Math.min(Math.max(0, state.page), pages - 1);
    const start = state.page * state.size;
    const rows = found.slice(start, start + state.size);
    const table = document.querySelector(".samples");
    table.tHead.replaceChildren(head());
    table.tBodies[0].replaceChildren(...rows.flatMap((row) => (open.has(row) ? [line(row), detail(row)] : [line(row)])));
    $("page").value = state.page + 1;
    $("page").max = pages;
    $("pages").textContent = "of " + whole(pages);
    $("previous").disabled = state.page === 0;
    $("next").disabled = state.page === pages - 1;
    const span = rows.length ? `, ${whole(start + 1)} to ${whole(start + rows.length)} shown` : "";
    const here = data.total > count ? ` on this page (the run has ${whole(data.total)})` : "";
    $("status").textContent = `${whole(found.length)} of ${whole(count)} samples${here}${span}`;
    $("group").hidden = state.group === null;
    $("group").replaceChildren("Group ", shown(state.group || ""), " ×");
    $("group").title = "Show all groups";
  }

  // --- events ------------------------------------------------------------------------------------

  const options = (id, entries) => $(id).append(...entries.map(([value, label]) => make("option", { value }, label)));
  options("show", [["all", "all samples"], ["missing", "reward missing"], ["failed", "a grader failed"], ["not_evaluable", "not evaluable"]]);
  options("grader", [[-1, "all graders"], ...graders.map((name, g) => [g, name])]);

  let pause = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(() => { state.query = $("search").value; select(); }, 150);
  });
  $("show").addEventListener("change", () => { state.show = $("show").value; select(); });
  $("grader").addEventListener("change", () => {
    state.grader = Number($("grader").value);
    if (!visible().some((c) => c.key === state.sort)) state.sort = "index";
    select();
  });
  $("group").addEventListener("click", () => { state.group = null; select(); $("search").focus(); });
  $("size").addEventListener("change", () => { state.size = Number($("size").value); state.page = 0; draw(); });
  $("page").addEventListener("change", () => { state.page = Number($("page").value) - 1; draw(); });
  $("previous").addEventListener("click", () => { state.page -= 1; draw(); });
  $("next").addEventListener("click", () => { state.page += 1; draw(); });

  const refocus = (selector) => document.querySelector(selector)?.focus();
  const toggle = (row) => { if (!open.delete(row)) open.add(row); draw(); };
  document.querySelector(".samples").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) {
      // A click anywhere in a row opens it, but not the end of selecting its text.
      const line = event.target.closest("a") ? null : event.target.closest("tr[data-opens]");
      if (line && event.detail < 2 && getSelection().isCollapsed) toggle(Number(line.dataset.opens));
      return;
    }
    const { sort, row, group: member, story } = button.dataset;
    if (story !== undefined) storyPage.visit(story);
    if (sort !== undefined) {
      state.down = state.sort === sort ? !state.down : sort !== "index" && sort !== "group";
      state.sort = sort;
      select();
      refocus(`[data-sort="${sort}"]`);
    } else if (row !== undefined) {
      toggle(Number(row));
      refocus(`[data-row="${Number(row)}"]`);
    } else if (member !== undefined) {
      state.group = group.at(Number(member));
      select();
      $("group").focus();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      $("search").focus();
    }
  });

  function broken() {
    if (!data.broken.length) return;
    const rows = data.broken.map((b) => make("tr", {}, make("td", {}, make("code", {}, shown(b.where))), make("td", {}, shown(b.message))));
    $("broken").append(make("h3", {}, "Broken rows, the first " + data.broken.length), make("table", { className: "data" }, make("tbody", {}, ...rows)));
  }

  // --- samples in full ---------------------------------------------------------------------------

  const { stories } = data;
  const inFull = stories.samples || {};

  // Ways lead to samples that are here in full, the next ones of the run in their order.
  function waysFrom(found, order) {
    const at = order.indexOf(found);
    const after = [...order.slice(at + 1), ...order.slice(0, at)];
    const failed = (one) => one.story.reward === null || one.story.graders.some((grader) => grader.failure !== null);
    const link = (one) => one?.link ?? null;
    return { previous: link(order[at - 1]), next: link(order[at + 1]), group: link(after.find((one) => one.group.id === found.group.id)), failure: link(after.find(failed)) };
  }

  function showStories() {
    const order = Object.values(inFull).sort((a, b) => a.row - b.row);
    if (!order.length) return null;
    const all = stories.disagreements.worst.map((one) => ({ ...one, gone: !Object.hasOwn(inFull, one.link) }));
    const worst = all.filter((one) => !one.gone);
    const find = (link) => {
      if (!Object.hasOwn(inFull, link)) return null;
      const found = { ...structuredClone(inFull[link]), steps: waysFrom(inFull[link], order) };
      for (const member of found.story.members) member.gone = !Object.hasOwn(inFull, member.link);
      return describeFound(found, worst, data.total, false);
    };
    const page = new SamplePage($("sample"), find, (promise) => promise);
    $("sample-part").hidden = false;
    $("disagreements").hidden = !all.length;
    $("disagreements-list").replaceChildren(...disagreementsList({ ...stories.disagreements, worst: all }, (link) => page.visit(link)));
    page.open(page.wanted ?? (worst[0] || order[0]).link, page.wanted !== null);
    return page;
  }

  broken();
  const storyPage = showStories();
  $("table").hidden = false;
  select();
  // Fold the texts for searching while nobody waits.
  const idle = window.requestIdleCallback || ((f) => setTimeout(f, 50));
  const prepare = (left) => { if (left.length) idle(() => { fold(left[0]); prepare(left.slice(1)); }); };
  prepare(searched);
})();
