// Samples of a step by their reward, and one of them turn by turn.

import { address, ask, element, go, place, shown } from "./dom.js";

const CALL = /(<tool_call>[\s\S]*?<\/tool_call>)/;
const AUTHORS = { policy: "policy", prompt: "prompt", environment: "environment", demonstration: "demonstration" };

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
      chosen ? trajectory(chosen, step) : element("p", {}, "no samples")),
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

function trajectory(sample, step) {
  const facts = [
    ["prompt", sample.prompt_index], ["sample", sample.sample], ["branch", sample.branch], ["reward", shown(sample.reward)],
    ["data source", sample.data_source], ["said", sample.prediction], ["answer", sample.answer], ["cut off", sample.truncated ? "yes" : undefined],
    ...Object.entries(sample.metrics ?? {}).map(([name, value]) => [name, shown(value)]),
  ].filter(([, value]) => value !== undefined && value !== "");
  const segments = (Array.isArray(sample.segments) ? sample.segments : []).filter((one) => one !== null);
  return element("section", { class: "card" },
    element("div", { class: "facts" }, facts.map(([name, value]) => element("span", {}, element("span", { class: "muted" }, `${name} `), String(value)))),
    legend(segments),
    segments.map((segment) => turn(segment, step)));
}

function legend(segments) {
  const some = segments.some((segment) => Array.isArray(segment.tokens));
  const text = "Blue was written by the policy and is learnt from; grey and yellow were given and are not.";
  return element("p", { class: "muted" }, some ? `${text} Red marks tokens that the policy found unlikely; point at one for its log-probability.` : text);
}

function turn(segment, step) {
  const who = Object.hasOwn(AUTHORS, segment.source) ? AUTHORS[segment.source] : "unknown";
  const facts = [who];
  if (who === "policy") facts.push(`weights of step ${segment.policy_step}`, `age ${step - 1 - segment.policy_step}`);
  if (Array.isArray(segment.tokens) && segment.tokens.length) facts.push(`mean log-probability ${shown(mean(segment.tokens))}`);
  if (segment.images) facts.push(`${segment.images} images`);
  if (typeof segment.reward === "number") facts.push(`reward ${shown(segment.reward)}`);
  return element("div", { class: `turn ${who}` },
    element("div", { class: "who" }, facts.map((fact) => element("span", {}, fact))),
    element("div", { class: "text" }, Array.isArray(segment.tokens) ? tokens(segment) : calls(String(segment.text ?? ""))));
}

function mean(pairs) {
  const known = pairs.filter(Array.isArray).map(([, logProb]) => logProb).filter((value) => typeof value === "number");
  return known.reduce((sum, value) => sum + value, 0) / known.length;
}

// Tokens one by one, a tool call in a frame. Those behind the last one that is named follow as text.
function tokens(segment) {
  const named = segment.tokens.filter(Array.isArray);
  const nodes = [];
  let frame = null, seen = "";
  for (const [text, logProb] of named) {
    seen += text;
    if (!frame && seen.endsWith("<tool_call>")) nodes.push((frame = element("span", { class: "call" })));
    (frame ?? { append: (node) => nodes.push(node) }).append(token(String(text), logProb));
    if (frame && seen.endsWith("</tool_call>")) frame = null;
  }
  return segment.rest ? [...nodes, element("span", { class: "muted" }, String(segment.rest))] : nodes;
}

function token(text, logProb) {
  const node = element("span", { class: "token" }, text);
  if (typeof logProb === "number") {
    node.title = `log-probability ${shown(logProb)}, probability ${shown(Math.exp(logProb))}`;
    const doubt = Math.min(1, -logProb / 5);
    if (doubt > 0.05) node.style.backgroundColor = `rgb(var(--doubt) / ${(0.6 * doubt).toFixed(2)})`;
  }
  return node;
}

function calls(text) {
  return text.split(CALL).map((part) => (CALL.test(part) ? element("span", { class: "call" }, part) : part));
}
