// What each rank did in a step that some ranks drafted ahead of.

/**
 * In words. trace: of the step, as the server sends it. label: the text of a token.
 *
 * An end of the step that a rank drafted for is a node and the token after it: what the text went on with, if it came true.
 */
export function roleOf(rank, trace, label) {
  const has = (digits) => [...digits].some((digit) => parseInt(digit, 36) === rank);
  if (has(trace.ranks)) return "verified";
  if (!has(trace.drafting)) return "";
  const ends = trace.drafted_for.flatMap(([drafter, node, token], number) => {
    if (drafter !== rank) return [];
    return [`${label(trace.tokens[node])} → ${label(token)}${number === trace.came_true ? " (came true)" : ""}`];
  });
  return ends.length ? `drafted for ${ends.join(", ")}` : "drafted ahead";
}
