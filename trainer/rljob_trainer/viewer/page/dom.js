// Elements from values. Texts of jobs are hostile: they become text nodes and nothing else.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// A number as people read it; "-" for what is none.
export function shown(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "-";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

// The answer of this server. Throws with what it says.
export async function ask(path) {
  const answer = await fetch(path);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

// What the address names: `#view=samples&step=3`.
export function place() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

export function address(changes) {
  const wanted = Object.entries({ ...place(), ...changes }).filter(([, value]) => value !== undefined && value !== "");
  return "#" + new URLSearchParams(wanted).toString();
}

export function go(changes) {
  location.hash = address(changes);
}
