// The conversation: messages, answers in coloured runs, and the box to write in.

import { copy, save } from "./clipboard.js";
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
    byId("export").addEventListener("click", () => save("chat.md", this.asMarkdown()));
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
    byId("export").disabled = true;
    this.box.focus({ preventScroll: true });
  }

  /** Asks a question after the turns so far. isTyped: whether it comes from the box, which is then emptied. */
  async ask(text, isTyped = true) {
    const question = text.trim();
    if (!question || this.stopping) return;
    if (!this.turns.length) this.list.replaceChildren();
    if (isTyped) this.box.value = "";
    const stopping = new AbortController();
    this.working(stopping);
    const { system, ...wish } = this.settings.values;
    const messages = [...this.messages(system), { role: "user", content: question }];
    const answer = begin(this.connection, { ...wish, messages, signal: stopping.signal });
    const turn = this.addTurn(question, answer);
    this.replay.load(answer);
    await answer.finished;
    if (this.stopping !== stopping) return;
    this.working(null);
    if (answer.state === "failed" && !answer.text) this.takeBack(turn);
  }

  /** Asks a question in the place of a turn's, which goes with all that came after it. */
  askAnew(turn, question) {
    if (!question.trim() || this.stopping) return;
    for (const { element } of this.turns.splice(this.turns.indexOf(turn))) element.remove();
    this.ask(question, false);
  }

  messages(system = "") {
    const turns = this.turns.filter(({ answer }) => answer.text).flatMap(({ question, answer }) => [
      { role: "user", content: question }, { role: "assistant", content: answer.text }]);
    return system ? [{ role: "system", content: system }, ...turns] : turns;
  }

  asMarkdown() {
    const parts = this.messages(this.settings.values.system).map(({ role, content }) => `## ${role}\n\n${content.trim()}\n`);
    return parts.join("\n");
  }

  working(stopping) {
    const held = document.activeElement === byId("send") || document.activeElement === byId("stop");
    this.stopping = stopping;
    byId("send").hidden = Boolean(stopping);
    byId("stop").hidden = !stopping;
    byId("export").disabled = !this.turns.length;
    for (const { again, edit } of this.turns) again.disabled = edit.disabled = Boolean(stopping);
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
    const [replay, copied, again, edit] = ["Replay", "Copy", "Regenerate", "Edit"].map((name) =>
      h("button", { type: "button", class: "quiet small", hidden: name !== "Edit", disabled: name === "Edit" }, name));
    const asked = h("p", { class: "question" }, question);
    const element = h("article", { class: "turn", "aria-label": `Question ${this.turns.length + 1}` },
      h("div", { class: "question-row" }, edit, asked), body,
      h("div", { class: "answer-foot" }, figures, replay, copied, again), note);
    const runs = new Runs(body, (index) => { this.show(answer); this.replay.go(index); });
    const turn = { question, answer, runs, element, again, edit };
    this.turns.push(turn);
    copied.addEventListener("click", async () => {
      setText(copied, (await copy(answer.text)) ? "Copied" : "Not copied");
      setTimeout(() => setText(copied, "Copy"), 1500);
    });
    again.addEventListener("click", () => this.askAnew(turn, question));
    edit.addEventListener("click", () => this.edit(turn, asked));
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
      copied.hidden = answer.state === "running" || !answer.text;
      again.hidden = answer.state === "running";
      if (this.replay.answer === answer) this.light();
      if (isAtEnd) this.list.scrollTop = this.list.scrollHeight;
    });
    answer.addEventListener("step", draw);
    draw();
    this.list.scrollTop = this.list.scrollHeight;
    return turn;
  }

  /** Puts a box in the place of a question. Sending it drops the turn's answer and all later turns. */
  edit(turn, asked) {
    const box = h("textarea", { class: "edit-box", value: turn.question, rows: 3, "aria-label": "Edit the question" });
    const send = h("button", { type: "submit", class: "primary small" }, "Send again");
    const cancel = h("button", { type: "button", class: "quiet small" }, "Cancel");
    const form = h("form", { class: "edit" }, box, h("div", { class: "edit-row" }, cancel, send));
    const close = () => { form.replaceWith(asked); turn.edit.hidden = false; turn.edit.focus(); };
    form.addEventListener("submit", (event) => { event.preventDefault(); this.askAnew(turn, box.value); });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target !== box) return;
      event.preventDefault();
      form.requestSubmit();
    });
    cancel.addEventListener("click", close);
    turn.edit.hidden = true;
    asked.replaceWith(form);
    box.focus();
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
