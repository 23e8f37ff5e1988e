// Small plots as SVG: a line, dots, and two axes with few numbers.

import { s } from "./dom.js";

const WIDTH = 280;
const EDGE = { left: 34, right: 8, top: 10, bottom: 22 };

/**
 * line, dots: [[x, y], ...]; shown: the dot that is lit, or null. x, y: names of the axes. label: what it shows, in words.
 * stepped: whether the line holds its height until the next point.
 */
export function plot({ line = [], dots = [], shown = null, x, y, label, height = 116, stepped = false, zeroX = true }) {
  const points = [...line, ...dots];
  const svg = s("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label });
  if (!points.length) return svg;
  const [xs, ys] = [points.map((point) => point[0]), points.map((point) => point[1])];
  const least = zeroX ? 0 : Math.min(...xs);
  const most = Math.max(...xs, least + 1);
  const top = nice(Math.max(...ys) || 1);
  const px = (value) => EDGE.left + ((value - least) / (most - least)) * (WIDTH - EDGE.left - EDGE.right);
  const py = (value) => height - EDGE.bottom - (Math.min(value, top) / top) * (height - EDGE.top - EDGE.bottom);
  for (const part of [0, 0.5, 1]) {
    svg.append(s("path", { class: "plot-grid", d: `M${EDGE.left} ${py(top * part)} H${WIDTH - EDGE.right}` }),
      s("text", { class: "plot-number", x: EDGE.left - 6, y: py(top * part), "text-anchor": "end" }, number(top * part)));
  }
  svg.append(
    s("text", { class: "plot-number", x: px(least), y: height - 9 }, number(least)),
    s("text", { class: "plot-number", x: WIDTH - EDGE.right, y: height - 9, "text-anchor": "end" }, number(most)),
    s("text", { class: "plot-name", x: (EDGE.left + WIDTH - EDGE.right) / 2, y: height - 9, "text-anchor": "middle" }, x),
    s("title", {}, `${y} by ${x}`));
  if (line.length) svg.append(s("path", { class: "plot-line", d: path(line, px, py, stepped) }));
  dots.forEach(([a, b], place) => {
    if (place !== shown) svg.append(s("circle", { class: "plot-dot", cx: px(a), cy: py(b), r: 2.4 }));
  });
  const lit = dots[shown];
  if (lit) svg.append(s("circle", { class: "plot-dot plot-dot-lit", cx: px(lit[0]), cy: py(lit[1]), r: 4.5 }));
  return svg;
}

function path(points, px, py, stepped) {
  return points.map(([a, b], place) => {
    if (!place) return `M${px(a)} ${py(b)}`;
    return stepped ? `H${px(a)} V${py(b)}` : `L${px(a)} ${py(b)}`;
  }).join(" ");
}

/** The smallest round number that is not below `value`. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.999);
}

const number = (value) => (value >= 10 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1));
