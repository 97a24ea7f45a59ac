// Where a step's time goes, by what waited for it.

import { drawn, element, go, place, shown } from "./dom.js";
import { timeline } from "./timeline.js";

const WHO = {
  "time/generate": "rollouts, driver", "time/starved": "ranks wait", "time/data": "ranks wait", "time/tokenise": "driver's workers",
  "time/measure": "other gangs", "time/critic": "critic", "time/train": "ranks", "time/sync": "ranks, rollouts", "time/pause": "rollouts",
  "time/sync_servers": "ranks wait for rollouts",
  "time/save": "ranks", "time/save_background": "rank 0, meanwhile", "time/upload": "driver, meanwhile", "time/step": "the whole step",
};

export async function times(runs) {
  const steps = [...new Set(runs.flatMap((run) => run.metrics.steps))].sort((a, b) => a - b);
  const timed = steps.filter((step) => runs.some((run) => value(run, "time/step", step) !== undefined));
  if (!timed.length) return [element("p", {}, "No step is done yet.")];
  const step = timed.includes(Number(place().step)) ? Number(place().step) : timed.at(-1), i = timed.indexOf(step);
  const to = (text, other) => element("button", { disabled: other === undefined, click: () => go({ step: other, sample: "" }) }, text);
  return [
    element("div", { class: "bar" }, to("\u2039 step", timed[i - 1]), `step ${step}`, to("step \u203A", timed[i + 1]),
      element("span", { class: "muted" }, "Parts may overlap: generation with training, saving with all.")),
    ...(await Promise.all(runs.map((run, k) => processes(run, k, step)))),
    element("div", { class: "wide" }, runs.map((run, k) => table(run, k, step))),
  ];
}

async function processes(run, k, step) {
  return element("section", { class: "card" }, element("h2", { class: `run run-${k}` }, `${run.name} by process`), await timeline(k, run, step));
}

function table(run, k, step) {
  const parts = Object.keys(run.metrics.values).filter((name) => name.startsWith("time/")).map((name) => [name, value(run, name, step)])
    .filter(([, seconds]) => seconds !== undefined).sort((a, b) => b[1] - a[1]);
  const longest = Math.max(1e-9, ...parts.map(([, seconds]) => seconds));
  const rows = parts.map(([name, seconds]) => element("tr", {},
    element("th", { scope: "row" }, name.slice(5)), element("td", { class: "muted" }, WHO[name] ?? ""),
    element("td", { class: "part" }, bar(seconds / longest)), element("td", { class: "number" }, `${shown(seconds)} s`)));
  return element("section", { class: "card" }, element("h2", { class: `run run-${k}` }, run.name), element("table", { class: "times" }, rows));
}

function bar(part) {
  return drawn("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { width: Math.max(0.4, 100 * part), height: 4 }));
}

function value(run, name, step) {
  const found = (run.metrics.values[name] ?? [])[run.metrics.steps.indexOf(step)];
  return typeof found === "number" ? found : undefined;
}
