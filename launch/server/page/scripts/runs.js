// Shows an answer's text as Markdown blocks, in runs: what one step added has one colour.

import { numTokens } from "./answer.js";
import { h } from "./dom.js";
import { blocksOf } from "./markdown.js";

export const NUM_COLOURS = 5;
const TAGS = { paragraph: "p", item: "p", quote: "blockquote", code: "pre" };

export class Runs {
  /** onPick: called with the index of a step whose run is clicked. */
  constructor(element, onPick = null) {
    this.element = element;
    this.drawn = []; // for each block, a key of what is drawn
    if (onPick) element.addEventListener("click", (event) => {
      const run = event.target.closest("[data-step]");
      if (run && getSelection().isCollapsed) onPick(Number(run.dataset.step));
    });
  }

  /** Draws the steps. Blocks that have not changed stay as they are, so a selection survives. */
  draw(steps) {
    const text = steps.map((step) => step.text).join("");
    const runs = bordersOf(steps);
    const blocks = blocksOf(text);
    let first = 0;
    blocks.forEach((block, number) => {
      while (first < runs.length && runs[first].end <= block.start) first += 1;
      const key = `${block.kind} ${block.start} ${block.end} ${block.parts.length} ${lastRun(runs, first, block.end)}`;
      if (this.drawn[number] === key && number < blocks.length - 1) return;
      this.drawn[number] = key;
      const made = element(block, text, runs, first);
      const old = this.element.children[number];
      if (old) old.replaceWith(made);
      else this.element.append(made);
    });
    while (this.element.children.length > blocks.length) this.element.lastChild.remove();
    this.drawn.length = blocks.length;
  }

  /** Lights the run of a step and dims what came later; null shows all alike. */
  light(index) {
    for (const run of this.element.querySelectorAll("[data-step]")) {
      const step = Number(run.dataset.step);
      run.classList.toggle("run-shown", step === index);
      run.classList.toggle("run-later", index !== null && step > index);
    }
  }
}

function bordersOf(steps) {
  let end = 0;
  return steps.map((step) => {
    const start = end;
    end += step.text.length;
    return { start, end, step };
  });
}

function lastRun(runs, first, end) {
  let last = first;
  while (last + 1 < runs.length && runs[last + 1].start < end) last += 1;
  return last;
}

function element(block, text, runs, first) {
  const tag = block.kind === "heading" ? `h${Math.min(6, block.level + 2)}` : TAGS[block.kind];
  const made = h(tag, { class: `block-${block.kind}` });
  if (block.kind === "item") {
    made.classList.add(`level-${Math.min(3, block.level)}`);
    made.append(h("span", { class: "item-mark" }, /\d/.test(block.mark) ? `${block.mark} ` : "• "));
  }
  for (const part of block.parts) {
    for (let number = first; number < runs.length && runs[number].start < part.end; number += 1) {
      const { start, end, step } = runs[number];
      const shown = text.slice(Math.max(start, part.start), Math.min(end, part.end));
      if (shown) made.append(run(shown, step, part.style));
    }
  }
  return made;
}

function run(text, step, style) {
  const colour = numTokens(step) > 1 || !step.trace ? `run-${step.index % NUM_COLOURS}` : "run-single";
  return h("span", { class: `run ${colour} ${style}`.trim(), "data-step": String(step.index) }, text);
}
