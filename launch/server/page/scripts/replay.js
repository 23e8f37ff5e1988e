// Which step of which answer is shown: the newest while it is written, or the one that the slider says.

import { byId, oncePerFrame, setText } from "./dom.js";

const LONGEST_MS = 1500; // of a pause in a replay at measured times
const EDITABLE = "input, textarea, select, dialog";

export class Replay extends EventTarget {
  constructor() {
    super();
    this.answer = null;
    this.index = 0;
    this.follows = true; // the newest step is shown
    this.timer = 0;
    this.slider = byId("step");
    this.button = byId("play");
    this.changed = oncePerFrame(() => this.update());
    this.slider.addEventListener("input", () => { this.pause(); this.go(Number(this.slider.value)); });
    this.button.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** Shows an answer: its newest step, as it comes. */
  load(answer) {
    this.pause();
    if (this.answer) this.answer.removeEventListener("step", this.changed);
    this.answer = answer;
    this.follows = true;
    answer?.addEventListener("step", this.changed);
    this.changed();
  }

  get step() {
    return this.answer?.steps[this.index] ?? null;
  }

  /** Whether the reader looks back, so that later text is dimmed. */
  get looksBack() {
    return Boolean(this.answer?.steps.length) && !this.follows;
  }

  go(index) {
    const last = (this.answer?.steps.length ?? 0) - 1;
    this.index = Math.max(0, Math.min(last, index));
    this.follows = this.answer?.state === "running" && this.index === last;
    this.changed();
  }

  update() {
    const last = (this.answer?.steps.length ?? 0) - 1;
    if (this.follows) this.index = Math.max(0, last);
    this.slider.disabled = this.button.disabled = last < 0;
    this.slider.max = String(Math.max(0, last));
    this.slider.value = String(this.index);
    this.slider.setAttribute("aria-valuetext", last < 0 ? "no step" : `Step ${this.index + 1} of ${last + 1}`);
    setText(this.button, this.timer ? "Pause" : "Play");
    this.dispatchEvent(new Event("change"));
  }

  play() {
    if (!this.answer?.steps.length) return;
    if (this.index >= this.answer.steps.length - 1) this.index = -1;
    this.follows = false;
    this.next();
  }

  next() {
    const { steps } = this.answer;
    if (this.index + 1 >= steps.length) {
      this.pause();
      return;
    }
    this.index += 1;
    this.timer = setTimeout(() => this.next(), this.delay(steps));
    this.changed();
  }

  delay(steps) {
    const speed = byId("speed").value;
    if (speed !== "measured") return 1000 / Number(speed);
    const after = steps[this.index + 1];
    return after ? Math.min(LONGEST_MS, after.at - steps[this.index].at) : 300;
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.changed();
  }

  onKey(event) {
    const { altKey, ctrlKey, metaKey, key, target } = event;
    if (altKey || ctrlKey || metaKey || document.body.dataset.view !== "chat" || !this.answer?.steps.length) return;
    if (target.closest?.(EDITABLE) && target.value !== "") return; // an empty box has no use for arrows
    const last = this.answer.steps.length - 1;
    const to = { ArrowLeft: this.index - 1, ArrowRight: this.index + 1, Home: 0, End: last }[key];
    if (to === undefined) return;
    event.preventDefault();
    this.pause();
    this.go(to);
  }
}
