// Questions to the server of the live page.
const asked = new Map();

// An answer of the server; null where there is nothing new, where it is about a run written anew,
// and where the path was asked again meanwhile: answers do not come in the order of the questions.
export async function ask(path, questions) {
  const turn = (asked.get(path) || 0) + 1;
  asked.set(path, turn);
  const response = await fetch(path + "?" + new URLSearchParams(questions), { cache: "no-store" });
  if (response.status === 204 || response.status === 409 || response.status === 404) return null;
  if (!response.ok) throw new Error((await response.text()).trim() || String(response.status));
  const answer = await response.json();
  return asked.get(path) === turn ? answer : null;
}

// Drop what is still to be answered at a path: the page shows something else by now.
export const forget = (path) => asked.set(path, (asked.get(path) || 0) + 1);
