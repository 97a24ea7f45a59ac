// Samples of a step by their reward, and one of them turn by turn.

import { address, ask, element, go, place, shown } from "./dom.js";
import { trajectory } from "./trajectory.js";

export async function samples(runs) {
  const at = Math.min(Number(place().run ?? 0) || 0, runs.length - 1), run = runs[at];
  const steps = run.samples;
  if (!steps.length) return [chooser(runs, at, []), element("p", {}, "This run has no samples: only jobs of task rl write them, those of the last 50 steps.")];
  const step = steps.includes(Number(place().step)) ? Number(place().step) : steps.at(-1);
  const found = await ask(`/api/runs/${at}/samples/${step}`);
  const sorted = found.map((sample, i) => ({ ...sample, key: String(i) })).sort((a, b) => (b.reward ?? 0) - (a.reward ?? 0));
  const chosen = sorted.find((sample) => sample.key === place().sample) ?? sorted[0];
  return [
    chooser(runs, at, steps, step),
    summary(run, step),
    element("div", { class: "split" },
      element("ul", { class: "list card" }, sorted.map((sample) => entry(sample, chosen))),
      chosen ? trajectory(chosen, step, `/api/runs/${at}/samples/${step}/images/`) : element("p", {}, "no samples")),
  ];
}

function chooser(runs, at, steps, step) {
  const i = steps.indexOf(step);
  const link = (text, to) => element("button", { disabled: to === undefined, click: () => go({ step: to, sample: "" }) }, text);
  const names = runs.map((run, k) => element("option", { value: k, selected: k === at }, run.name));
  return element("div", { class: "bar" },
    runs.length > 1 ? element("select", { "aria-label": "Run", change: (event) => go({ run: event.target.value, step: "", sample: "" }) }, names) : null,
    steps.length ? link("\u2039 step", steps[i - 1]) : null,
    steps.length ? element("select", { "aria-label": "Step", change: (event) => go({ step: event.target.value, sample: "" }) },
      steps.map((one) => element("option", { value: one, selected: one === step }, `step ${one}`))) : null,
    steps.length ? link("step \u203A", steps[i + 1]) : null);
}

const OF_STEP = {
  "reward/mean": "mean reward", "train_rollout/log_prob_diff_mean": "trainer's log-probabilities differ by", "train_rollout/policy_age": "mean age",
  "train/entropy": "entropy", "response_length/mean": "mean length",
};

// What is known of all samples of the step.
function summary(run, step) {
  const i = run.metrics.steps.indexOf(step);
  const known = Object.entries(OF_STEP).map(([name, text]) => [text, (run.metrics.values[name] ?? [])[i]]).filter(([, value]) => typeof value === "number");
  return element("div", { class: "facts" }, known.map(([text, value]) => element("span", {}, element("span", { class: "muted" }, `${text} `), shown(value))));
}

function entry(sample, chosen) {
  const snippet = String(sample.response ?? "").slice(0, 120);
  return element("li", {}, element("a", { href: address({ sample: sample.key }), "aria-current": sample === chosen && "true" },
    element("span", { class: "reward" }, shown(sample.reward)),
    element("span", { class: "muted" }, `${sample.prompt_index}.${sample.sample}`),
    element("span", { class: "snippet" }, snippet)));
}
