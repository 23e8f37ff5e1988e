// Draws the token tree of a step as SVG, with its legend and a line of words.

import { numTokens } from "./answer.js";
import { byId, count, h, s, setText } from "./dom.js";
import { visible } from "./labels.js";
import { rankClass, sourceClass, sourceName } from "./palette.js";
import { HEIGHT, layout, link } from "./tree_layout.js";

const SMALLEST = 0.68; // of the natural size; a larger tree is scrolled
const LARGEST = 1.15;
const MARGIN = 6;

export class TreeView {
  constructor(connection, labels) {
    this.connection = connection;
    this.labels = labels;
    this.canvas = byId("canvas");
    this.step = undefined;
    labels.addEventListener("change", () => this.draw());
    connection.addEventListener("state", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** step: of an answer; null shows `words` instead. */
  show(step, words = "") {
    this.step = step;
    this.words = words;
    if (step?.trace && !step.isExample) this.labels.want(tokensOf(step.trace));
    this.draw();
  }

  draw() {
    const { step } = this;
    if (step === undefined) return;
    this.canvas.classList.toggle("is-example", Boolean(step?.isExample));
    setText(byId("step-line"), step?.trace && !step.isExample ? figuresOf(step.trace) : "");
    if (!step?.trace) {
      this.canvas.replaceChildren(h("p", { class: "empty" }, this.words));
      byId("legend").replaceChildren();
      return;
    }
    const label = step.isExample ? (token) => visible(step.label(token)) : (token) => this.labels.of(token);
    const placed = layout(step.trace, label);
    const words = step.isExample ? "An example of a token tree" : describe(step, placed);
    this.canvas.replaceChildren(this.picture(placed, words));
    if (step.isExample) this.canvas.append(h("p", { class: "empty" }, this.words));
    this.drawLegend(placed);
    if (document.activeElement === byId("step")) setText(byId("step-words"), words);
  }

  picture({ nodes, width, height }, words) {
    const [full, tall] = [width + 2 * MARGIN, height + 2 * MARGIN];
    const room = this.canvas.getBoundingClientRect();
    const fit = Math.min((room.width - 24) / full, (room.height - 24) / tall);
    const scale = Math.max(SMALLEST, Math.min(LARGEST, fit));
    const svg = s("svg", {
      class: "tree", role: "img", "aria-label": words,
      viewBox: `${-MARGIN} ${-MARGIN} ${full} ${tall}`, width: full * scale, height: tall * scale,
    });
    const links = nodes.filter((node) => node.parent >= 0).sort((a, b) => isLit(a) - isLit(b));
    for (const node of links) {
      const kind = node.isNext ? "link link-next" : node.isAccepted ? "link link-lit" : "link";
      svg.append(s("path", { class: kind, d: link(nodes[node.parent], node) }));
    }
    for (const node of nodes) svg.append(this.node(node));
    return svg;
  }

  node(node) {
    const legend = this.connection.state?.legend ?? {};
    const kind = node.isNext ? "node node-next"
      : `node ${sourceClass(node.source, legend)} ${rankClass(node.rank)}${isLit(node) ? " node-lit" : ""}`;
    const about = node.isNext ? "the model's own next token"
      : `${sourceName(node.source, legend)}, rank ${node.rank}${node.isAccepted ? ", accepted" : ""}`;
    return s("g", { class: kind, transform: `translate(${node.x} ${node.y})` },
      s("title", {}, `${node.full} (${node.token}): ${about}`),
      s("rect", { width: node.width, height: HEIGHT, rx: 7 }),
      s("text", { x: node.width / 2, y: HEIGHT / 2 }, node.text));
  }

  drawLegend({ nodes }) {
    const legend = this.connection.state?.legend ?? {};
    const sources = new Map();
    const ranks = new Set();
    for (const node of nodes) {
      if (node.isNext) continue;
      ranks.add(node.rank);
      if (!node.isRoot) sources.set(node.source, (sources.get(node.source) ?? 0) + 1);
    }
    const items = [...sources].map(([letter, count]) => item(`swatch ${sourceClass(letter, legend)}`,
      `${sourceName(letter, legend)} ${count}`));
    if (ranks.size > 1 || (this.connection.state?.ranks?.length ?? 1) > 1)
      items.push(...[...ranks].sort((a, b) => a - b).map((rank) => item(`swatch ${rankClass(rank)}`, `rank ${rank}`)));
    items.push(item("swatch swatch-lit", "accepted"), item("swatch swatch-next", "the model's next"));
    byId("legend").replaceChildren(...items);
  }
}

function tokensOf(trace) {
  const ends = (trace.drafted_for ?? []).map(([, , token]) => token);
  return [...trace.tokens, ...trace.emitted, ...ends];
}

const isLit = (node) => Boolean(node.isAccepted || node.isRoot);

const item = (kind, words) => h("li", {}, h("span", { class: kind, "aria-hidden": "true" }), words);

function figuresOf(trace) {
  const parts = [count(trace.emitted.length, "token"), count(trace.rows, "row")];
  if (trace.step_ms) parts.push(`${trace.step_ms.toFixed(trace.step_ms < 10 ? 1 : 0)} ms`);
  if (trace.sequences > 1) parts.push(`shared by ${trace.sequences} texts`);
  if (trace.omitted) parts.push(`${trace.omitted} more nodes not shown`);
  return parts.join(" · ");
}

function describe(step, { nodes }) {
  const real = nodes.filter((node) => !node.isNext);
  const texts = nodes.filter((node) => node.isAccepted || node.isNext).map((node) => node.full);
  return `Step ${step.index + 1}: ${count(real.length, "node")}, ` +
    `${count(numTokens(step), "token")} written: ${texts.join(", ")}`;
}
