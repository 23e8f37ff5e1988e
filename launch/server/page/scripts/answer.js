// One answer: its text in runs, one a step, with what the server told about each step.

/** A step: `text` that it added, `at` milliseconds after the request, `trace` as in docs/usage.md, or null. */
export class Answer extends EventTarget {
  constructor({ method = "", startedAt = performance.now() } = {}) {
    super();
    this.method = method;
    this.startedAt = startedAt;
    this.steps = [];
    this.usage = null;
    this.state = "running"; // then "done", "stopped" or "failed"
    this.finish = null; // the server's finish_reason
    this.notes = [];
    this.endedAt = null; // milliseconds after the request
  }

  get text() {
    return this.steps.map((step) => step.text).join("");
  }

  get isTraced() {
    return this.steps.some((step) => step.trace);
  }

  add(text, trace, at = performance.now() - this.startedAt) {
    const last = this.steps.at(-1);
    if (!trace && last?.trace) last.text += text; // the end of a text that was held back
    else this.steps.push({ index: this.steps.length, text, trace, at });
    this.dispatchEvent(new Event("step"));
  }

  note(words) {
    if (!this.notes.includes(words)) this.notes.push(words);
    this.dispatchEvent(new Event("step"));
  }

  end(state, finish = null) {
    this.state = state;
    this.finish = finish;
    this.endedAt = this.steps.at(-1)?.at ?? performance.now() - this.startedAt;
    this.dispatchEvent(new Event("step"));
    this.dispatchEvent(new Event("end"));
  }

  /** Tokens of the first `count` steps; null if nobody has told. */
  tokens(count = this.steps.length) {
    if (!this.isTraced) return count === this.steps.length ? this.usage?.completion_tokens ?? null : null;
    return this.steps.slice(0, count).reduce((sum, step) => sum + numTokens(step), 0);
  }

  tokensPerStep(count = this.steps.length) {
    const tokens = this.tokens(count);
    return tokens === null || !count ? null : tokens / count;
  }

  /** Tokens a second from the request to its last token. */
  tokensPerSecond(count = this.steps.length) {
    const tokens = this.tokens(count);
    const at = this.steps[count - 1]?.at;
    return tokens === null || !at ? null : (1000 * tokens) / at;
  }
}

export const numTokens = (step) => step.trace?.emitted?.length ?? 1;
