// Metrics over steps, those of two runs in one picture.

import { address, drawn, element, go, place, shown } from "./dom.js";

const WIDTH = 340, HEIGHT = 150, LEFT = 58, BOTTOM = 130, TOP = 8;
const FIRST = [
  "reward/mean", "evaluation/reward", "train/loss", "evaluation/loss", "train/kl", "train/entropy", "train/grad_norm",
  "response_length/mean", "train_rollout/log_prob_diff_mean", "train_rollout/policy_age", "perf/tokens_per_s", "time/step",
];
const OWN = /^(reward|evaluation)_metrics\//; // what the job's own reward functions returned

export function curves(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics.values)))].sort();
  const wanted = place().filter ?? "";
  const chosen = wanted ? names.filter((name) => name.includes(wanted)).slice(0, 60) : first(names);
  const box = element("input", {
    type: "search", placeholder: "part of a name", "aria-label": "Filter metrics", value: wanted, list: "names",
    change: (event) => go({ filter: event.target.value }),
  });
  const all = element("datalist", { id: "names" }, names.map((name) => element("option", { value: name })));
  const found = wanted ? `${chosen.length} metrics` : `${chosen.length} of ${names.length} metrics`;
  return [
    element("div", { class: "bar" }, box, all, element("span", { class: "muted" }, found), wanted ? element("a", { href: address({ filter: "" }) }, "back to the first ones") : null),
    element("div", { class: "grid" }, chosen.map((name) => curve(name, runs))),
  ];
}

function first(names) {
  return [...FIRST.filter((name) => names.includes(name)), ...names.filter((name) => OWN.test(name)).slice(0, 12)];
}

function curve(name, runs) {
  const lines = runs.map((run) => points(run, name));
  const all = lines.flat();
  const last = lines.map((line, i) => element("span", { class: `run run-${i}` }, line.length ? shown(line.at(-1)[1]) : "-"));
  const readout = element("span", { class: "muted" });
  const picture = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": name });
  if (all.length) draw(picture, lines, readout);
  return element("section", { class: "card" }, element("h2", {}, name), element("div", { class: "facts" }, last, readout), picture);
}

function points(run, name) {
  const values = run.metrics.values[name] ?? [];
  return run.metrics.steps.map((step, i) => [step, values[i]]).filter(([, value]) => typeof value === "number");
}

function draw(picture, lines, readout) {
  const all = lines.flat();
  const [x0, x1] = span(all.map(([step]) => step)), [y0, y1] = span(all.map(([, value]) => value));
  const x = (step) => LEFT + ((WIDTH - LEFT - 6) * (step - x0)) / (x1 - x0);
  const y = (value) => BOTTOM - ((BOTTOM - TOP) * (value - y0)) / (y1 - y0);
  for (const value of [y0, (y0 + y1) / 2, y1]) {
    picture.append(drawn("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) }));
    picture.append(drawn("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, shown(value)));
  }
  picture.append(drawn("text", { x: LEFT, y: HEIGHT - 3 }, `step ${x0}`), drawn("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, String(x1)));
  lines.forEach((line, i) => {
    const path = line.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    picture.append(drawn("path", { class: `run-${i}`, d: line.length === 1 ? `${path}h2` : path }));
  });
  picture.addEventListener("pointermove", (event) => {
    const rect = picture.getBoundingClientRect();
    const step = x0 + ((((event.clientX - rect.left) / rect.width) * WIDTH - LEFT) * (x1 - x0)) / (WIDTH - LEFT - 6);
    readout.textContent = lines.map((line) => nearest(line, step)).filter(Boolean).join(", ");
  });
}

function nearest(line, step) {
  if (!line.length) return "";
  const found = line.reduce((a, b) => (Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a));
  return `step ${found[0]}: ${shown(found[1])}`;
}

function span(values) {
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}
