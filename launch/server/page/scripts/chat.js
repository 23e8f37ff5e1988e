// The conversation: messages, answers in coloured runs, and the box to write in.

import { byId, count, h, oncePerFrame, setText } from "./dom.js";
import { begin } from "./generation.js";
import { Runs } from "./runs.js";

const EXAMPLES = [
  "Write a Python function that returns the n-th Fibonacci number.",
  "List the planets of the solar system, one a line, with one fact each.",
  "Explain in three sentences why the sky is blue.",
];

export class Chat {
  constructor(connection, settings, replay) {
    Object.assign(this, { connection, settings, replay });
    this.turns = []; // {question, answer, runs, figures, element}
    this.list = byId("turns");
    this.box = byId("message");
    this.stopping = null;
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.ask(this.box.value); });
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    byId("stop").addEventListener("click", () => this.stopping?.abort());
    byId("new-chat").addEventListener("click", () => this.clear());
    replay.addEventListener("change", () => this.light());
    this.clear();
  }

  clear() {
    this.stopping?.abort();
    this.turns = [];
    this.list.replaceChildren(h("div", { class: "welcome" },
      h("p", { class: "welcome-title" }, "Ask the model something."),
      h("p", {}, "Tokens of one colour were written by one step. The tree shows what the step tried."),
      h("div", { class: "examples" }, ...EXAMPLES.map((text) => {
        const button = h("button", { type: "button", class: "example" }, text);
        button.addEventListener("click", () => this.ask(text));
        return button;
      }))));
    this.replay.load(null);
    this.box.focus({ preventScroll: true });
  }

  async ask(text) {
    const question = text.trim();
    if (!question || this.stopping) return;
    if (!this.turns.length) this.list.replaceChildren();
    this.box.value = "";
    const stopping = new AbortController();
    this.working(stopping);
    const messages = [...this.messages(), { role: "user", content: question }];
    const answer = begin(this.connection, { ...this.settings.values, messages, signal: stopping.signal });
    const turn = this.addTurn(question, answer);
    this.replay.load(answer);
    await answer.finished;
    if (this.stopping !== stopping) return;
    this.working(null);
    if (answer.state === "failed" && !answer.text) this.takeBack(turn);
  }

  messages() {
    return this.turns.filter(({ answer }) => answer.text).flatMap(({ question, answer }) => [
      { role: "user", content: question }, { role: "assistant", content: answer.text }]);
  }

  working(stopping) {
    const held = document.activeElement === byId("send") || document.activeElement === byId("stop");
    this.stopping = stopping;
    byId("send").hidden = Boolean(stopping);
    byId("stop").hidden = !stopping;
    this.list.setAttribute("aria-busy", String(Boolean(stopping)));
    if (held) byId(stopping ? "stop" : "send").focus();
  }

  /** A question without an answer goes back into the box, so that it can be sent again. */
  takeBack(turn) {
    if (!this.box.value) this.box.value = turn.question;
  }

  addTurn(question, answer) {
    const body = h("div", { class: "answer-text" });
    const figures = h("p", { class: "answer-figures" });
    const note = h("p", { class: "answer-note", role: "status" });
    const replay = h("button", { type: "button", class: "quiet small", hidden: true }, "Replay");
    const element = h("article", { class: "turn", "aria-label": `Question ${this.turns.length + 1}` },
      h("p", { class: "question" }, question), body,
      h("div", { class: "answer-foot" }, figures, replay), note);
    const runs = new Runs(body, (index) => { this.show(answer); this.replay.go(index); });
    const turn = { question, answer, runs, element };
    this.turns.push(turn);
    this.list.append(element);
    replay.addEventListener("click", () => { this.show(answer); this.replay.play(); });
    const draw = oncePerFrame(() => {
      const isAtEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 80;
      runs.draw(answer.steps);
      body.classList.toggle("is-writing", answer.state === "running");
      element.dataset.state = answer.state;
      setText(figures, figuresOf(answer));
      setText(note, answer.notes.join(" "));
      replay.hidden = answer.state === "running" || answer.steps.length < 2;
      if (this.replay.answer === answer) this.light();
      if (isAtEnd) this.list.scrollTop = this.list.scrollHeight;
    });
    answer.addEventListener("step", draw);
    draw();
    this.list.scrollTop = this.list.scrollHeight;
    return turn;
  }

  show(answer) {
    if (this.replay.answer !== answer) this.replay.load(answer);
  }

  light() {
    const { replay } = this;
    for (const turn of this.turns) {
      const isShown = turn.answer === replay.answer;
      turn.element.classList.toggle("turn-shown", isShown && this.turns.length > 1);
      if (isShown && replay.looksBack) turn.runs.light(replay.index);
      else if (turn.wasLit) turn.runs.light(null);
      turn.wasLit = isShown && replay.looksBack;
    }
  }
}

export function figuresOf(answer) {
  const tokens = answer.tokens();
  const parts = [];
  if (tokens !== null) parts.push(count(tokens, "token"));
  if (answer.isTraced) parts.push(count(answer.steps.length, "step"), `${answer.tokensPerStep().toFixed(1)} per step`);
  const speed = answer.tokensPerSecond();
  if (speed) parts.push(`${speed.toFixed(0)} tokens/s`);
  if (answer.state === "stopped") parts.push("stopped");
  else if (answer.finish === "length") parts.push("limit reached");
  return parts.join(" · ");
}
