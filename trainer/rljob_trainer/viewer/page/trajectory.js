// One sample turn by turn: who wrote it, each token with its log-probabilities, calls of tools, images.

import { calls } from "./calls.js";
import { element, go, place, shown } from "./dom.js";

const REPEATED = /(<[^<>\s]{1,40}>)\1{3,}/g; // the places of an image's tokens
const AUTHORS = { policy: "policy", prompt: "prompt", environment: "environment", demonstration: "demonstration" };
const SHADES = {
  likelihood: { text: "how unlikely they were", legend: "Red marks tokens that the policy found unlikely." },
  difference: {
    text: "trainer minus rollout server",
    legend: "Red marks tokens that the trainer finds less likely than the rollout server did, green those that it finds likelier.",
  },
};
const WHOLE = { likelihood: 5, difference: 0.5 }; // in log-probability: where the shade is darkest

// `images`: the address in front of an image's number.
export function trajectory(sample, step, images) {
  const facts = [
    ["prompt", sample.prompt_index], ["sample", sample.sample], ["branch", sample.branch], ["reward", shown(sample.reward)],
    ["data source", sample.data_source], ["said", sample.prediction], ["answer", sample.answer], ["cut off", sample.truncated ? "yes" : undefined],
    ...Object.entries(sample.metrics ?? {}).map(([name, value]) => [name, shown(value)]),
  ].filter(([, value]) => value !== undefined && value !== "");
  const segments = (Array.isArray(sample.segments) ? sample.segments : []).filter((one) => one !== null);
  const compared = segments.some((segment) => differences(segment).length > 0);
  const shade = compared && Object.hasOwn(SHADES, place().shade ?? "") ? place().shade : "likelihood";
  return element("section", { class: "card" },
    element("div", { class: "facts" }, facts.map(([name, value]) => element("span", {}, element("span", { class: "muted" }, `${name} `), String(value)))),
    legend(segments, shade),
    compared ? chooser(shade) : null,
    segments.map((segment) => turn(segment, step, shade, images)));
}

function legend(segments, shade) {
  const some = segments.some((segment) => Array.isArray(segment.tokens));
  const text = "Blue was written by the policy and is learnt from; grey and yellow were given and are not.";
  return element("p", { class: "muted" }, some ? `${text} ${SHADES[shade].legend} Point at one for its numbers.` : text);
}

function chooser(shade) {
  const options = Object.entries(SHADES).map(([name, { text }]) => element("option", { value: name, selected: name === shade }, text));
  return element("label", { class: "bar" }, "Shade tokens by", element("select", { change: (event) => go({ shade: event.target.value }) }, options));
}

function turn(segment, step, shade, images) {
  const who = Object.hasOwn(AUTHORS, segment.source) ? AUTHORS[segment.source] : "unknown";
  return element("div", { class: `turn ${who}` },
    element("div", { class: "who" }, facts(segment, who, step).map((fact) => element("span", {}, fact))),
    pictures(segment, images),
    element("div", { class: "text" }, Array.isArray(segment.tokens) ? tokens(segment, shade) : plain(String(segment.text ?? ""))));
}

function facts(segment, who, step) {
  const known = [who];
  if (who === "policy") known.push(`weights of step ${segment.policy_step}`, `age ${step - 1 - segment.policy_step}`);
  const logProbs = named(segment).map(([, logProb]) => logProb).filter(Number.isFinite), apart = differences(segment).map(Math.abs);
  if (logProbs.length) known.push(`mean log-probability ${shown(mean(logProbs))}`);
  if (apart.length) known.push(`trainer differs by ${shown(mean(apart))}, at most ${shown(apart.reduce((a, b) => Math.max(a, b)))}`);
  if (Array.isArray(segment.images)) known.push(segment.images.length === 1 ? "1 image" : `${segment.images.length} images`);
  if (typeof segment.reward === "number") known.push(`reward ${shown(segment.reward)}`);
  return known;
}

function named(segment) {
  return (Array.isArray(segment.tokens) ? segment.tokens : []).filter(Array.isArray);
}

function differences(segment) {
  return named(segment).map(difference).filter(Number.isFinite);
}

// The trainer's log-probability minus the rollout server's; NaN where one is not known.
function difference([, rollout, trainer]) {
  return typeof rollout === "number" && typeof trainer === "number" ? trainer - rollout : NaN;
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function pictures(segment, images) {
  const kept = (Array.isArray(segment.images) ? segment.images : []).filter(Number.isInteger);
  if (!kept.length) return null;
  const image = (number, i) => element("img", { src: `${images}${number}`, alt: `image ${i + 1}, as the model reads it`, loading: "lazy" });
  return element("div", { class: "images" }, kept.map(image));
}

// Tokens one by one, a tool call in a frame. Those behind the last one that is named follow as text.
function tokens(segment, shade) {
  const pairs = named(segment), nodes = [];
  const framed = calls(pairs.map(([text]) => text).join("")).map(([begin, end]) => ({ begin, end, frame: element("span", { class: "call" }) }));
  let at = 0;
  for (const pair of pairs) {
    const end = at + String(pair[0]).length, call = framed.find((one) => one.begin < end && at < one.end);
    if (call && !nodes.includes(call.frame)) nodes.push(call.frame);
    if (call) call.frame.append(token(pair, shade));
    else nodes.push(token(pair, shade));
    at = end;
  }
  return segment.rest ? [...nodes, element("span", { class: "muted" }, String(segment.rest))] : nodes;
}

function token(pair, shade) {
  const [text, logProb, trainer] = pair, apart = difference(pair);
  const node = element("span", { class: "token" }, String(text));
  if (typeof logProb !== "number") return node;
  node.title = `log-probability ${shown(logProb)}, probability ${shown(Math.exp(logProb))}`;
  if (Number.isFinite(apart)) node.title += `; trainer ${shown(trainer)}, difference ${shown(apart)}`;
  const part = (shade === "difference" ? apart : logProb) / WHOLE[shade], strength = Math.min(1, Math.abs(part));
  if (strength > 0.02) node.style.backgroundColor = `rgb(var(${part < 0 ? "--less" : "--more"}) / ${(0.6 * strength).toFixed(2)})`;
  return node;
}

function plain(text) {
  const short = text.replaceAll(REPEATED, (all, one) => `(${one} \u00D7 ${all.length / one.length})`), nodes = [];
  let at = 0;
  for (const [begin, end] of calls(short)) {
    nodes.push(short.slice(at, begin), element("span", { class: "call" }, short.slice(begin, end)));
    at = end;
  }
  return [...nodes, short.slice(at)];
}
