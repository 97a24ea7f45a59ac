// Where a text calls tools, by the marks of the families' formats (docs/reference/models.md). A call without an end of its own ends with the turn.

const PAIRS = [
  ["<tool_call>", "</tool_call>"],
  ["<minimax:tool_call>", "</minimax:tool_call>"],
  ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
  ["<\uFF5Ctool\u2581calls\u2581begin\uFF5C>", "<\uFF5Ctool\u2581calls\u2581end\uFF5C>"],
  ["<|channel|>commentary to=", "<|call|>"],
  ["[TOOL_CALLS]"],
  ["<|python_tag|>"],
  ["functools["],
];
const CALL = new RegExp(PAIRS.map(([begin, end]) => `${literal(begin)}[^]*?${end ? `(?:${literal(end)}|$)` : "$"}`).join("|"), "g");

// [begin, end] of each, in order.
export function calls(text) {
  return [...text.matchAll(CALL)].map((found) => [found.index, found.index + found[0].length]);
}

function literal(text) {
  return text.replaceAll(/[[\]|/]/g, "\\$&");
}
