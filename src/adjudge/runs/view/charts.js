// Curves over steps, as SVG.
import { draw, figure, make, whole } from "./elements.js";

const HEIGHT = 150;

const isNumber = (x) => typeof x === "number";

// --- curves ----------------------------------------------------------------------------------

function scaleOf(chart, steps) {
  const values = chart.lines.flatMap((line) => line.values).filter(isNumber);
  if (!values.length) return null;
  const least = values.reduce((a, b) => Math.min(a, b));
  const most = values.reduce((a, b) => Math.max(a, b));
  const bottom = chart.low === null ? least : Math.min(chart.low, least);
  let top = chart.high === null ? most : Math.max(chart.high, most);
  if (top - bottom < 1e-9) top = bottom + 1;
  const known = steps.filter(isNumber);
  const first = known[0];
  const last = Math.max(known[known.length - 1], first + 1);
  return {
    bottom, top, first, last: known[known.length - 1],
    x: (step) => (100 * (step - first)) / (last - first),
    y: (value) => 100 * (1 - (value - bottom) / (top - bottom)),
  };
}

// A line in pieces: it is broken where values are missing.
function polylines(scale, line, steps, place) {
  const pieces = [[]];
  line.values.forEach((value, i) => {
    if (!isNumber(value) || !isNumber(steps[i])) pieces.push([]);
    else pieces[pieces.length - 1].push(scale.x(steps[i]).toFixed(2) + "," + scale.y(value).toFixed(2));
  });
  return pieces.filter((piece) => piece.length).map((piece) => {
    const points = piece.length > 1 ? piece : [piece[0], piece[0].replace(/^[^,]+/, (x) => (Number(x) + 0.6).toFixed(2))];
    return draw("polyline", { class: "s" + place, points: points.join(" ") });
  });
}

const SHARES = [0, 0.5, 1];

const grid = () => SHARES.map((share) => draw("line", { class: "grid", x1: 0, x2: "100%", y1: HEIGHT * (1 - share), y2: HEIGHT * (1 - share) }));

// The scale stands beside the plot: lines may go anywhere in it.
function axis(scale) {
  const digits = scale.top - scale.bottom < 0.1 ? 4 : 2;
  const texts = SHARES.map((share) => {
    const node = draw("text", { x: "100%", y: HEIGHT * (1 - share) + 4, "text-anchor": "end" });
    node.textContent = figure(scale.bottom + share * (scale.top - scale.bottom), digits);
    return node;
  });
  return draw("svg", { class: "scale", "aria-hidden": "true", height: HEIGHT + 18 }, ...texts);
}

function key(line, place, several) {
  const item = make("li", {});
  if (several) {
    const sign = draw("svg", { class: "key", viewBox: "0 0 22 8", "aria-hidden": "true" });
    sign.append(draw("polyline", { class: "s" + place, points: "0,4 22,4" }));
    item.append(sign);
  }
  item.append(line.name, make("output", {}));
  return item;
}

function said(chart) {
  const ends = chart.lines.map((line) => {
    const present = line.values.filter(isNumber);
    return present.length ? `${line.name} from ${figure(present[0])} to ${figure(present[present.length - 1])}` : "";
  });
  return `${chart.title}: ${ends.filter(Boolean).join("; ")}`;
}

// A figure, and `at(i, pointing)`, which shows the values of point `i`, with a line where `pointing`.
// `pointed(share)` is called with where the pointer is.
export function curve(chart, steps, marks, pointed) {
  const scale = scaleOf(chart, steps);
  if (!scale) return null;
  const several = chart.lines.length > 1;
  const keys = chart.lines.map((line, place) => key(line, place, several));
  const plot = draw("svg", { width: "100%", height: HEIGHT, viewBox: "0 0 100 100", preserveAspectRatio: "none" });
  for (const mark of marks) {
    if (mark < scale.first || mark > scale.last) continue;
    const x = scale.x(mark).toFixed(2);
    plot.append(draw("line", { class: "mark", x1: x, x2: x, y1: 0, y2: 100 }));
  }
  chart.lines.forEach((line, place) => plot.append(...polylines(scale, line, steps, place)));
  const cursor = draw("line", { class: "cursor", y1: 0, y2: 100, visibility: "hidden" });
  plot.append(cursor);
  const labels = [[0, "start", "step " + whole(Math.round(scale.first))], ["100%", "end", whole(Math.round(scale.last))]].map(([x, anchor, text]) => {
    const node = draw("text", { x, y: HEIGHT + 14, "text-anchor": anchor });
    node.textContent = text;
    return node;
  });
  const svg = draw("svg", { class: "plot", role: "img", "aria-label": said(chart), width: "100%", height: HEIGHT + 18 }, ...grid(), plot, ...labels);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    if (box.width) pointed(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  });
  const node = make("figure", {}, make("figcaption", {}, make("b", {}, chart.title), make("ul", {}, ...keys)), make("div", { className: "chart" }, axis(scale), svg));
  node.dataset.title = chart.title;
  const at = (i, pointing) => {
    keys.forEach((item, place) => { item.lastChild.textContent = figure(chart.lines[place].values[i]); });
    const known = pointing && isNumber(steps[i]);
    cursor.setAttribute("visibility", known ? "visible" : "hidden");
    if (known) for (const end of ["x1", "x2"]) cursor.setAttribute(end, scale.x(steps[i]).toFixed(2));
  };
  return { node, at };
}
