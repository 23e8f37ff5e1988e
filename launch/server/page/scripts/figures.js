// Figures of the shown answer: speed, tokens per step, rows against the step-time curve, window and pool.

import { numTokens } from "./answer.js";
import { byId, count, h, oncePerFrame, s, setText } from "./dom.js";
import { plot } from "./plot.js";

const MOST_DOTS = 400;
const NUM_POINTS = 60; // of the speed over time

export class Figures {
  constructor(connection, replay) {
    Object.assign(this, { connection, replay });
    this.tiles = Object.fromEntries(["tokens/s", "tokens per step", "tokens", "steps"].map((name) => [name, tile(name)]));
    this.speed = figure("Tokens per second, over time");
    this.gain = figure("Tokens per step");
    this.cost = figure("Time of a step, by its rows");
    this.window = figure("Lookahead window and pool");
    byId("tiles").append(...Object.values(this.tiles).map((one) => one.element));
    byId("figures-body").append(...[this.speed, this.gain, this.cost, this.window].map((one) => one.element));
    const draw = oncePerFrame(() => this.draw());
    replay.addEventListener("change", draw);
    connection.addEventListener("state", draw);
    draw();
  }

  draw() {
    const { answer, index } = this.replay;
    const steps = (answer?.steps ?? []).slice(0, index + 1);
    this.drawTiles(answer, steps.length);
    const isTraced = Boolean(answer?.isTraced);
    this.drawSpeed(isTraced ? answer.steps : [], index);
    this.drawGain(isTraced ? answer.steps : [], index);
    this.drawCost(steps);
    this.drawWindow(this.replay.step?.trace);
  }

  drawTiles(answer, count) {
    const show = (name, value, digits) => setText(this.tiles[name].value, value ? value.toFixed(digits) : "–");
    show("tokens/s", answer?.tokensPerSecond(count), 0);
    show("tokens per step", answer?.isTraced ? answer.tokensPerStep(count) : null, 2);
    show("tokens", answer?.tokens(count), 0);
    show("steps", answer?.isTraced ? count : null, 0);
  }

  drawSpeed(steps, index) {
    this.speed.element.hidden = steps.length < 3;
    if (steps.length < 3) return;
    const line = speeds(steps);
    const dots = line.filter((point) => point[0] >= steps[index].at / 1000 - 1e-6).slice(0, 1);
    this.speed.set(plot({ line, dots, shown: 0, x: "seconds", y: "tokens/s", label: "Tokens per second over time" }));
  }

  drawGain(steps, index) {
    this.gain.element.hidden = steps.length < 3;
    if (steps.length < 3) return;
    this.gain.set(bars(steps.map(numTokens), index));
  }

  drawCost(steps) {
    const curve = this.connection.state?.curve ?? [];
    const all = steps.filter((step) => step.trace?.step_ms).slice(-MOST_DOTS);
    const dots = all.map(({ trace }) => [trace.rows, trace.step_ms]);
    this.cost.element.hidden = !curve.length && !dots.length;
    if (this.cost.element.hidden) return;
    const widest = Math.max(32, 1.6 * Math.max(0, ...dots.map((dot) => dot[0])));
    const near = curve.filter(([rows], place) => rows <= widest || curve[place - 1]?.[0] < widest);
    const words = "Time of steps by their rows: the learnt curve, and the steps of this answer";
    // A step that waited for something else would squeeze the rest into a line.
    const high = 2.5 * Math.max(median(dots.map((dot) => dot[1])), ...near.map((point) => point[1]));
    const capped = dots.map(([rows, ms]) => [rows, Math.min(ms, high)]);
    this.cost.set(plot({ line: near, dots: capped, shown: dots.length - 1, x: "rows", y: "milliseconds", label: words }));
    const last = all.at(-1)?.trace;
    this.cost.note(!last ? `milliseconds, ${this.connection.state?.curve_origin ?? "measured"}` : `${count(last.rows, "row")}: ${last.step_ms.toFixed(1)} ms` +
      (last.expected_ms ? `, by the curve ${last.expected_ms.toFixed(1)} ms` : ""));
  }

  drawWindow(trace) {
    const has = Boolean(trace?.window) || (trace?.pool ?? null) !== null;
    this.window.element.hidden = !has;
    if (!has) return;
    const [columns, levels] = trace.window ?? [0, 0];
    this.window.set(columns ? grid(columns, levels) : h("p", { class: "note" }, "No window in this step."));
    const pool = (trace.pool ?? null) === null ? "" : `${trace.pool} n-grams in the pool`;
    this.window.note([columns ? `${columns} columns × ${levels} levels` : "", pool].filter(Boolean).join(" · "));
  }
}

/** [seconds, tokens a second] over the answer, each the mean of the eighth of its time that came before. */
function speeds(steps) {
  const [start, end] = [steps[0].at, steps.at(-1).at];
  const span = Math.max(1, (end - start) / 8);
  const line = [];
  let [first, next, tokens] = [1, 1, 0]; // steps from `first` to before `next` are within the span
  for (let point = 0; point < NUM_POINTS; point += 1) {
    const at = start + span + (point / (NUM_POINTS - 1)) * (end - start - span);
    for (; next < steps.length && steps[next].at <= at + 1e-6; next += 1) tokens += numTokens(steps[next]);
    for (; first < next && steps[first].at <= at - span; first += 1) tokens -= numTokens(steps[first]);
    line.push([at / 1000, (1000 * tokens) / span]);
  }
  return line;
}

function tile(name) {
  const value = h("dd", {}, "–");
  return { value, element: h("div", { class: "tile" }, h("dt", {}, name), value) };
}

function figure(title) {
  const body = h("div", { class: "figure-body" });
  const note = h("p", { class: "note" });
  const element = h("div", { class: "figure", hidden: true }, h("h3", {}, title), body, note);
  return { element, set: (content) => body.replaceChildren(content), note: (words) => setText(note, words) };
}

function bars(values, index) {
  const [width, height] = [280, 64];
  const most = Math.max(...values);
  const wide = width / Math.max(24, values.length);
  const svg = s("svg", { class: "plot bars", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Tokens of each step, at most ${most}` });
  values.forEach((value, place) => {
    const tall = (value / most) * (height - 4);
    svg.append(s("rect", { class: place === index ? "bar bar-lit" : place > index ? "bar bar-later" : "bar",
      x: place * wide + wide * 0.1, width: wide * 0.8, y: height - tall, height: tall, rx: Math.min(1.5, wide / 4) }));
  });
  return svg;
}

function grid(columns, levels) {
  const size = Math.max(3, Math.min(14, 264 / columns - 2));
  const svg = s("svg", { class: "window", role: "img", "aria-label": `A window of ${columns} columns and ${levels} levels`,
    viewBox: `0 0 ${columns * (size + 2)} ${levels * (size + 2)}`, width: columns * (size + 2), height: levels * (size + 2) });
  for (let level = 0; level < levels; level += 1)
    for (let column = 0; column < columns; column += 1)
      svg.append(s("rect", { x: column * (size + 2), y: level * (size + 2), width: size, height: size, rx: size / 5 }));
  return svg;
}

function median(values) {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}
