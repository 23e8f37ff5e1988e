// Makes elements. Text is only ever set as text: nothing here, or anywhere on the page, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element. Properties are set as properties, except `class`, `role`, `data-*` and `aria-*`. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "role" || /^(aria|data)-/.test(name)) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** An SVG element with these attributes. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Sets text only where it differs, so that nothing is announced or laid out again without need. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** "1 token", "2 tokens". */
export const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

/** Runs `work` at most once a frame, however often it is called. */
export function oncePerFrame(work) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    const run = () => { if (isDue) { isDue = false; work(); } };
    requestAnimationFrame(run);
    setTimeout(run, 250); // a hidden tab has no frames
  };
}
