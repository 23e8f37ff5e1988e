// Places the nodes of a token tree: a row for each leaf, the accepted path straight along the top.

const CHAR = 7.3; // width of a character of a label
const PAD = 8;
export const HEIGHT = 24;
const ROW = 31;
const GAP = 24; // after a node with branches
const CLOSE = 11; // before a node that is the only one after its parent, as in a chain
const MOST_CHARS = 14;

export function short(text) {
  return text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS - 1)}…` : text;
}

/**
 * trace: as the server sends it. label: the text of a token.
 * Returns {nodes: [{index, token, parent, x, y, width, text, source, rank, isAccepted, isNext}], width, height}.
 * The last node, of the token that the model itself adds, has isNext and no source.
 */
export function layout(trace, label) {
  const nodes = nodesOf(trace, label);
  const children = nodes.map(() => []);
  nodes.forEach((node) => { if (node.parent >= 0) children[node.parent].push(node); });
  for (const list of children) list.sort((a, b) => weight(b) - weight(a) || a.index - b.index);
  let rows = 0;
  const place = (node, x) => {
    Object.assign(node, { x, y: rows * ROW });
    const after = children[node.index];
    const isChain = after.length === 1 && !after[0].isNext;
    after.forEach((child, number) => {
      if (number > 0) rows += 1;
      place(child, x + node.width + (isChain ? CLOSE : GAP));
    });
  };
  place(nodes[0], 0);
  const width = Math.max(...nodes.map((node) => node.x + node.width));
  return { nodes, width, height: rows * ROW + HEIGHT };
}

function nodesOf(trace, label) {
  const accepted = new Set(trace.accepted);
  const nodes = trace.tokens.map((token, index) => node(token, index, trace.parents[index], label, {
    source: trace.sources[index],
    rank: parseInt(trace.ranks[index], 36) || 0,
    isAccepted: accepted.has(index),
    isRoot: index === 0,
  }));
  const next = trace.emitted.at(-1);
  if (trace.emitted.length > trace.accepted.length) {
    nodes.push(node(next, nodes.length, trace.accepted.at(-1) ?? 0, label, { isNext: true }));
  }
  return nodes;
}

function node(token, index, parent, label, more) {
  const full = label(token);
  const text = short(full);
  return { token, index, parent, full, text, width: Math.max(26, text.length * CHAR + 2 * PAD), ...more };
}

const weight = (node) => (node.isAccepted ? 2 : node.isNext ? 1 : 0);

/** The link from a node to its child, as the path of an SVG. */
export function link(from, to) {
  const x0 = from.x + from.width;
  const y0 = from.y + HEIGHT / 2;
  const y1 = to.y + HEIGHT / 2;
  if (y0 === y1) return `M${x0} ${y0} H${to.x}`;
  const bend = to.x - GAP / 2; // the stem lies just before the child's column, so it crosses no other node
  const r = Math.min(8, Math.abs(y1 - y0) / 2);
  return `M${x0} ${y0} H${bend - r} Q${bend} ${y0} ${bend} ${y0 + r} V${y1 - r} Q${bend} ${y1} ${bend + r} ${y1} H${to.x}`;
}
