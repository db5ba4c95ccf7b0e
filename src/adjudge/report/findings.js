// What stands out about a run's judges, the worst first, with ways to the samples.
import { make, shown, whole } from "./elements.js";

// One finding: its buttons go from one of its samples to the next.
function findingLine(one, visit) {
  const links = one.links.filter((link) => !one.gone?.includes(link));
  const node = make("li", {}, make("b", {}, shown(one.grader), ": "), shown(one.text), " ", shown(one.advice));
  if (one.otherwise) node.append(" ", make("span", { className: "hint" }, shown(`Or: ${one.otherwise}`)));
  if (links.length) {
    let at = -1;
    const button = make("button", { type: "button", className: "link" }, "Show the first");
    button.addEventListener("click", () => {
      at = (at + 1) % links.length;
      button.textContent = links.length > 1 ? `Next such (now ${whole(at + 1)} of ${whole(links.length)})` : "Show it";
      visit(links[at]);
    });
    node.append(" ", button);
  } else if (one.links.length) node.append(" ", make("span", { className: "hint" }, shown(`Sample ${one.links.slice(0, 3).join(", ")}: `), make("code", {}, "adjudge view FOLDER")));
  return node;
}

// The content of the section; empty where the run has no judge.
export function findingsList(found, visit) {
  if (!found.graders.length) return found.trouble ? [make("p", { className: "hint" }, shown(found.trouble))] : [];
  const lines = (level) => found.findings.filter((one) => one.level === level).map((one) => findingLine(one, visit));
  const warnings = lines("warning");
  const notes = lines("note");
  const parts = [warnings.length ? make("ul", { className: "findings" }, ...warnings) : make("p", {}, "Nothing stands out.")];
  if (notes.length) parts.push(make("p", { className: "hint" }, "Also, and common in runs where nothing is wrong:"), make("ul", { className: "findings" }, ...notes));
  const looked = `${whole(found.samples)} samples of ${found.graders.join(", ")}${found.trouble ? ` (${found.trouble})` : ""}`;
  parts.push(make("p", { className: "hint" }, shown(`Checked by rules, in ${looked}: ${found.checked.join("; ")}. What no rule looks for may still be wrong.`)));
  if (found.unchecked.length) parts.push(make("p", { className: "hint" }, shown(`Not checked: ${found.unchecked.join("; ")}.`)));
  return parts;
}
