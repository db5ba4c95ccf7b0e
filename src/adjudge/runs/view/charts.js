// Curves over steps, which Python drew: their values at one step.
import { figure, grown } from "./elements.js";

// A figure, and `at(i, pointing)`, which shows the values of point `i`, with a line where `pointing`.
// `pointed(share)` is called with where the pointer is.
export function curve(chart, steps, pointed) {
  const node = grown(chart.figure);
  const outputs = node.querySelectorAll("output");
  const cursor = node.querySelector(".cursor");
  const plot = node.querySelector(".plot");
  node.dataset.title = chart.title;
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    if (box.width) pointed(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  });
  const known = steps.filter((step) => step !== null);
  const width = Math.max(known[known.length - 1] - known[0], 1);
  const at = (i, pointing) => {
    chart.values.forEach((values, place) => { outputs[place].textContent = figure(values[i]); });
    const there = pointing && typeof steps[i] === "number";
    cursor.setAttribute("visibility", there ? "visible" : "hidden");
    if (there) for (const end of ["x1", "x2"]) cursor.setAttribute(end, ((100 * (steps[i] - known[0])) / width).toFixed(2));
  };
  return { node, at };
}
