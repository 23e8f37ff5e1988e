// A race: the same prompt by `autoregressive` and by `auto`, side by side.
//
// Requests that run at the same time share the server's steps, so each would slow the other down. So one runs after the
// other by default, each alone, and both are then shown side by side at the times that were measured. Before that, the
// prompt is sent once for a single token: both then find it computed, and neither pays for it.

import { byId, count, h, oncePerFrame, setText } from "./dom.js";
import { begin } from "./generation.js";
import { Runs } from "./runs.js";

const METHODS = ["autoregressive", "auto"];
const NOTES = {
  apart: "Each runs alone on this server. Then both are shown side by side at the times that were measured.",
  together: "Both run at the same time and share the server's steps, so each slows the other down.",
};
const PROMPT = "Write a Python function that returns the n-th Fibonacci number.";

export class Race {
  constructor(connection, settings) {
    Object.assign(this, { connection, settings });
    this.lanes = METHODS.map((method) => new Lane(method));
    byId("lanes").append(...this.lanes.map((lane) => lane.element));
    byId("race-message").value = PROMPT;
    byId("race-form").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    byId("race-stop").addEventListener("click", () => this.stopping?.abort());
    byId("race-way").addEventListener("change", () => setText(byId("race-note"), NOTES[byId("race-way").value]));
    setText(byId("race-note"), NOTES.apart);
  }

  async start() {
    const prompt = byId("race-message").value.trim();
    if (!prompt || this.stopping) return;
    this.stopping = new AbortController();
    this.working(true);
    setText(byId("race-result"), "");
    for (const lane of this.lanes) lane.clear("");
    try {
      await (byId("race-way").value === "apart" ? this.apart(prompt) : this.together(prompt));
    } catch (error) {
      setText(byId("race-result"), error.message);
    }
    this.stopping = null;
    this.working(false);
  }

  working(isWorking) {
    const held = document.activeElement === byId("race-start") || document.activeElement === byId("race-stop");
    byId("race-start").hidden = isWorking;
    byId("race-stop").hidden = !isWorking;
    if (held) byId(isWorking ? "race-stop" : "race-start").focus();
  }

  begin(prompt, method, maxTokens = Number(byId("race-tokens").value)) {
    const { sampling } = this.settings.values;
    return begin(this.connection, {
      messages: [{ role: "user", content: prompt }], method, maxTokens,
      sampling: { seed: 1, ...sampling }, // one seed, so that both write the same text at any temperature
      signal: this.stopping.signal,
    });
  }

  async apart(prompt) {
    for (const lane of this.lanes) lane.say("The server reads the prompt first, so that neither lane pays for it.");
    await this.begin(prompt, METHODS[0], 1).finished;
    for (const lane of this.lanes.slice(1)) lane.say("Waits until the other lane is measured.");
    const answers = [];
    for (const [number, lane] of this.lanes.entries()) {
      if (this.stopping.signal.aborted) return;
      const answer = this.begin(prompt, lane.method);
      lane.measure(answer);
      answers.push(await answer.finished);
      if (!number) lane.say("Measured. It is shown when the other lane is measured, too.");
    }
    if (this.stopping.signal.aborted || this.hasFailed(answers)) return;
    setText(byId("race-result"), "Both are measured. This is how they ran:");
    await Promise.all(this.lanes.map((lane, number) => lane.replay(answers[number], this.stopping.signal)));
    if (!this.stopping.signal.aborted) this.tell(answers);
  }

  async together(prompt) {
    const answers = this.lanes.map((lane) => {
      const answer = this.begin(prompt, lane.method);
      lane.follow(answer);
      return answer;
    });
    await Promise.all(answers.map((answer) => answer.finished));
    if (!this.stopping.signal.aborted && !this.hasFailed(answers)) this.tell(answers);
  }

  hasFailed(answers) {
    const failed = answers.find((answer) => answer.state === "failed");
    if (failed) setText(byId("race-result"), failed.notes.at(-1));
    return Boolean(failed);
  }

  tell(answers) {
    const [slow, fast] = [...answers].sort((a, b) => b.endedAt - a.endedAt);
    const times = slow.endedAt / Math.max(1, fast.endedAt);
    const first = this.lanes[answers.indexOf(fast)];
    first.element.classList.add("lane-first");
    const same = answers[0].text === answers[1].text ? "Both texts are the same, to the last letter."
      : "The texts differ, as rounding may make them do in 16-bit formats.";
    const lead = times < 1.02 ? "Both took the same time." : `${first.method} finished first, ${times.toFixed(1)} times as fast.`;
    setText(byId("race-result"), `${lead} ${same}`);
  }
}

class Lane {
  constructor(method) {
    this.method = method;
    this.speed = h("span", { class: "lane-speed" }, "–");
    this.figures = h("p", { class: "note" });
    this.body = h("div", { class: "answer-text lane-text", tabIndex: 0, role: "region", "aria-label": `Text by ${method}` });
    this.element = h("div", { class: "lane", "data-method": method },
      h("div", { class: "lane-head" }, h("h3", {}, method), h("span", { class: "lane-badge" }, "first"), this.speed),
      this.figures, this.body);
    this.clear("The text appears here.");
  }

  clear(words) {
    this.element.classList.remove("lane-first", "is-measured");
    setText(this.speed, "–");
    setText(this.figures, "");
    this.say(words);
  }

  /** Says what the lane is doing, in the place of its text. */
  say(words) {
    this.body.replaceChildren(h("p", { class: "lane-words", role: "status" }, words));
  }

  /** Counts an answer without showing it: the race itself is shown later. */
  measure(answer) {
    this.element.classList.add("is-measured");
    const draw = oncePerFrame(() => {
      if (answer.state !== "running") return;
      const tokens = answer.tokens();
      const soFar = tokens === null ? count(answer.steps.length, "step") : `${count(tokens, "token")} in ${count(answer.steps.length, "step")}`;
      this.say(`Is measured, alone on this server: ${soFar} so far.`);
    });
    answer.addEventListener("step", draw);
    draw();
  }

  /** Makes room for a text. */
  begin() {
    this.body.replaceChildren();
    this.runs = new Runs(this.body);
  }

  follow(answer) {
    this.begin();
    const draw = oncePerFrame(() => this.draw(answer, answer.steps.length));
    answer.addEventListener("step", draw);
  }

  /** Shows a finished answer at the times that were measured. */
  replay(answer, signal) {
    this.element.classList.remove("is-measured");
    this.begin();
    const began = performance.now();
    return new Promise((resolve) => {
      const frame = () => {
        const ms = performance.now() - began;
        const shown = signal.aborted ? answer.steps.length : answer.steps.filter((step) => step.at <= ms).length;
        this.draw(answer, shown);
        if (shown < answer.steps.length) setTimeout(frame, 16);
        else resolve();
      };
      frame();
    });
  }

  draw(answer, shown) {
    this.runs.draw(answer.steps.slice(0, shown));
    this.body.scrollTop = this.body.scrollHeight;
    const speed = answer.tokensPerSecond(shown);
    setText(this.speed, speed ? `${speed.toFixed(0)} tokens/s` : "–");
    const tokens = answer.tokens(shown);
    const seconds = ((answer.steps[shown - 1]?.at ?? 0) / 1000).toFixed(1);
    const parts = [tokens === null ? "" : `${tokens} tokens`, answer.isTraced ? `${shown} steps` : "", `${seconds} s`];
    setText(this.figures, parts.filter(Boolean).join(" · "));
  }
}
