// Which colour a source of nodes has, and which outline a rank. The colours themselves are in styles/theme.css.

const NUM_SOURCE_COLOURS = 7;
const NUM_RANK_OUTLINES = 8;
// Sources of a tree that is shown before the server has sent its legend.
const WORDS = { r: "last token", w: "window", n: "n-grams of the window", p: "prompt", a: "recycled answers" };
const ORDER = "nspghaijmo";

/** The CSS class of a source. legend: of GET /lookahead/state; may be empty. */
export function sourceClass(letter, legend) {
  if (letter === "r") return "source-root";
  if (letter === "w") return "source-window";
  const others = Object.keys(legend).filter((one) => !"rw".includes(one) && !ORDER.includes(one));
  const place = [...ORDER, ...others].indexOf(letter);
  return `source-${Math.max(0, place) % NUM_SOURCE_COLOURS}`;
}

export const sourceName = (letter, legend) => String(legend[letter] ?? WORDS[letter] ?? letter).replaceAll("_", " ");

export const rankClass = (rank) => `rank-${rank % NUM_RANK_OUTLINES}`;
