// Reads the simple part of Markdown that models write. Knows nothing of elements: it says where blocks and styles lie.
//
// A block is {kind, start, end, level, parts}; a part is {start, end, style}: a stretch of the source that is shown.
// What no part covers, such as the marks themselves, is not shown.

const FENCE = /^ {0,3}(```+|~~~+)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const ITEM = /^([ \t]*)([-*+]|\d{1,3}[.)])[ \t]+/;
const QUOTE = /^ {0,3}>[ \t]?/;
// Code first: nothing inside it is marked up. Marks must touch a word, so that 2 * 3 * 4 stays as it is.
const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|(\*\*|__)(?=\S)(.+?\S|\S)\3|(?<![\w*])([*_])(?=[^\s*_])(.*?[^\s*_])\5(?![\w*])/gs;

/** The blocks of a text, in order. */
export function blocksOf(text) {
  const blocks = [];
  let open = null; // the paragraph or fence that the next line may belong to
  for (const { start, end } of linesOf(text)) {
    const line = text.slice(start, end);
    if (open?.kind === "code") {
      if (isFenceEnd(line, open.fence)) open = close(open, start);
      else open.end = end;
      continue;
    }
    const fence = FENCE.exec(line);
    if (fence) {
      open = { kind: "code", fence: fence[1], start: Math.min(end + 1, text.length), end: Math.min(end + 1, text.length) };
      blocks.push(open);
      continue;
    }
    open = readLine(line, start, end, open, blocks);
  }
  for (const block of blocks) {
    block.parts = block.kind === "code" ? [{ start: block.start, end: block.end, style: "" }]
      : inlineParts(text, block.start, block.end, "");
  }
  return blocks;
}

function readLine(line, start, end, open, blocks) {
  if (!line.trim()) return null;
  for (const [kind, pattern] of [["heading", HEADING], ["item", ITEM], ["quote", QUOTE]]) {
    const found = pattern.exec(line);
    if (!found) continue;
    const block = { kind, start: start + found[0].length, end, level: 0, mark: "" };
    if (kind === "heading") block.level = found[1].length;
    if (kind === "item") Object.assign(block, { level: Math.floor(found[1].length / 2), mark: found[2] });
    blocks.push(block);
    return kind === "heading" ? null : block;
  }
  if (open) {
    open.end = end;
    return open;
  }
  const block = { kind: "paragraph", start, end };
  blocks.push(block);
  return block;
}

function isFenceEnd(line, fence) {
  const found = FENCE.exec(line);
  return found !== null && found[1].startsWith(fence) && line.trim() === found[1];
}

function close(block, start) {
  block.end = Math.max(block.start, start - 1);
  return null;
}

function* linesOf(text) {
  for (let start = 0; start <= text.length;) {
    const found = text.indexOf("\n", start);
    const end = found < 0 ? text.length : found;
    yield { start, end };
    start = end + 1;
  }
}

function inlineParts(text, start, end, style) {
  const parts = [];
  const source = text.slice(start, end);
  let at = 0;
  for (const found of source.matchAll(INLINE)) {
    const [whole, ticks, code, strong, strongText, , emText] = found;
    if (found.index > at) parts.push({ start: start + at, end: start + found.index, style });
    const inner = start + found.index + (ticks ?? strong ?? "*").length;
    if (code !== undefined) parts.push({ start: inner, end: inner + code.length, style: `${style} code` });
    else {
      const length = (strongText ?? emText).length;
      parts.push(...inlineParts(text, inner, inner + length, `${style} ${strong ? "strong" : "em"}`));
    }
    at = found.index + whole.length;
  }
  if (at < source.length) parts.push({ start: start + at, end, style });
  return parts;
}
