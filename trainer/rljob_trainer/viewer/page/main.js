// The page: runs are asked for once, and again on reload; the address says what is shown.

import { ask, element, place } from "./dom.js";
import { curves } from "./curves.js";
import { samples } from "./samples.js";
import { times } from "./times.js";

const VIEWS = { curves, samples, time: times };
const main = document.getElementById("view");
let runs = [], newest = 0;

async function view() {
  const wanted = place().view ?? "curves", name = Object.hasOwn(VIEWS, wanted) ? wanted : "curves";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#view=${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  return VIEWS[name](runs);
}

// What the work makes, or why it fails. Only what was begun last is shown: answers may come in another order.
async function draw(work) {
  const own = ++newest;
  const made = await work().catch((error) => [element("p", { class: "error" }, String(error.message))]);
  if (own !== newest) return;
  main.replaceChildren(...made);
  main.dataset.ready = "yes";
}

async function load() {
  const found = await ask("/api/runs");
  runs = await Promise.all(found.map(async (run, i) => ({ ...run, metrics: await metrics(i) })));
  document.getElementById("runs").replaceChildren(...runs.map((run, i) => element("span", { class: `run run-${i}`, title: run.path }, run.name)));
  document.title = `${runs.map((run) => run.name).join(", ")} - RLJob`;
  addEventListener("hashchange", () => draw(view));
  return view();
}

// A run that has not begun has no metrics.
async function metrics(i) {
  try {
    return await ask(`/api/runs/${i}/metrics`);
  } catch {
    return { steps: [], values: {} };
  }
}

draw(load);
