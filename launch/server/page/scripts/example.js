// The tree that is shown before the first answer: what a step after "The sky is" could look like.

const TEXTS = [" is", " blue", " because", " sunlight", " of", " clear", " today", ".", " the", " limit", " not", " always", " a", " deep"];
const texts = new Map(TEXTS.map((text, id) => [id, text]));

export const EXAMPLE = {
  index: 0,
  text: "",
  at: 0,
  isExample: true,
  label: (token) => texts.get(token) ?? "",
  trace: {
    step: 0,
    tokens: [0, 1, 2, 4, 7, 5, 6, 8, 9, 10, 11, 12, 13, 1],
    parents: [-1, 0, 1, 2, 1, 0, 5, 0, 7, 0, 9, 0, 11, 12],
    sources: "rpppnnnpwwaaww",
    ranks: "00000001111111",
    accepted: [1, 2],
    emitted: [1, 2, 3],
    omitted: 0,
    rows: 7,
    sequences: 1,
    step_ms: 0,
    expected_ms: null,
    window: null,
    pool: null,
  },
};
