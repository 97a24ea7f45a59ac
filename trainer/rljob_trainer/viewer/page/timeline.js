// What each process did during a step, from its spans. Bars of one process that overlap lie under each other.

import { ask, element, shown } from "./dom.js";

const MOST_ROWS = 200;
const TICKS = [0, 0.25, 0.5, 0.75, 1];
const KINDS = ["training", "scoring", "generating", "syncing", "saving", "evaluating", "measure", "learn"]; // those with a colour of their own

// The spans that overlap with the step: a file has those that ended in its step, so some are in that of the next.
export async function timeline(at, run, step) {
  if (!run.spans.includes(step)) return element("p", { class: "muted" }, "This step has no spans: the last 50 steps have some.");
  const files = await Promise.all([step, step + 1].filter((one) => run.spans.includes(one)).map((one) => ask(`/api/runs/${at}/spans/${one}`)));
  const all = files.flatMap((file) => file.flatMap(spans)), whole = all.find((span) => span.name === `step ${step}` && !span.parent);
  if (!whole) return element("p", { class: "muted" }, "The spans of this step cannot be read.");
  const inside = all.filter((span) => span.parent && span.ended > whole.began && span.began < whole.ended);
  const processes = [...new Set(inside.map((span) => span.process))].sort().slice(0, MOST_ROWS);
  return element("div", { class: "timeline" },
    axis((whole.ended - whole.began) / 1e9),
    processes.map((process) => row(process, inside.filter((span) => span.process === process), whole)),
    legend(inside));
}

// What the colours are: a bar has its name only where that fits.
function legend(inside) {
  const names = new Set(inside.map((span) => span.name)), kinds = KINDS.filter((kind) => names.has(kind));
  return element("p", { class: "legend" }, kinds.map((kind) => element("span", {}, element("span", { class: `span ${kind}` }), kind)));
}

// Of an ExportTraceServiceRequest. What is not as OTLP says is left out.
function spans(request) {
  return list(request.resourceSpans).flatMap((resource) => {
    const named = list(resource.resource?.attributes).find((attribute) => attribute.key === "service.name");
    return list(resource.scopeSpans).flatMap((scope) => list(scope.spans)).map((span) => ({
      process: String(named?.value?.stringValue ?? "unknown"), name: String(span.name ?? ""), parent: span.parentSpanId,
      began: Number(span.startTimeUnixNano), ended: Number(span.endTimeUnixNano),
    })).filter((span) => Number.isFinite(span.began) && Number.isFinite(span.ended));
  });
}

function list(value) {
  return Array.isArray(value) ? value.filter((one) => one !== null && typeof one === "object") : [];
}

function axis(seconds) {
  const ticks = TICKS.map((part) => placed(element("span", {}, `${shown(part * seconds)} s`), part));
  ticks.forEach((tick, i) => (tick.style.transform = `translateX(${-100 * TICKS[i]}%)`)); // the first and the last stay inside
  return element("div", { class: "process axis" }, element("span", {}), element("div", { class: "track" }, ticks));
}

function row(process, own, whole) {
  const ends = [], track = element("div", { class: "track" });
  for (const span of own.sort((a, b) => a.began - b.began)) {
    const free = ends.findIndex((end) => end <= span.began), lane = free < 0 ? ends.length : free;
    ends[lane] = span.ended;
    track.append(bar(span, whole, lane));
  }
  track.style.height = `${1.35 * ends.length}rem`;
  return element("div", { class: "process" }, element("span", { class: "name", title: process }, element("bdi", {}, process)), track);
}

function bar(span, whole, lane) {
  const length = whole.ended - whole.began, began = Math.max(span.began, whole.began), ended = Math.min(span.ended, whole.ended);
  const kind = KINDS.includes(span.name) ? span.name : "other";
  const title = `${span.name}: ${shown((span.ended - span.began) / 1e9)} s, from ${shown((span.began - whole.began) / 1e9)} s of the step`;
  const node = placed(element("span", { class: `span ${kind}`, title }, span.name), (began - whole.began) / length);
  node.style.width = `${(100 * (ended - began)) / length}%`;
  node.style.top = `${1.35 * lane}rem`;
  return node;
}

function placed(node, part) {
  node.style.left = `${100 * part}%`;
  return node;
}
