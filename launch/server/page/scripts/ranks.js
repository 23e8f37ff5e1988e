// The ranks of the server: their states, how many rows of the shown step each has, what each did in it if some drafted
// ahead, and a button that kills one.

import { byId, h, setText } from "./dom.js";
import { rankClass } from "./palette.js";
import { roleOf } from "./roles.js";

const BACK_MS = 60000; // how long a rank is watched closely after it was killed

export class Ranks {
  constructor(connection, replay, labels) {
    Object.assign(this, { connection, replay, labels });
    this.items = new Map();
    this.killed = new Map(); // ranks that are expected to come back, and whether they have been seen gone
    connection.addEventListener("state", () => this.draw());
    connection.addEventListener("reachable", () => this.draw());
    replay.addEventListener("change", () => this.drawRows());
    labels.addEventListener("change", () => this.drawRows());
  }

  draw() {
    const state = this.connection.state;
    byId("ranks-block").hidden = !state;
    if (!state) return;
    const isLost = this.connection.isReachable === false;
    for (const { rank, state: word } of state.ranks) {
      const item = this.items.get(rank) ?? this.add(rank);
      const shown = isLost ? "unknown" : word;
      item.element.dataset.state = shown;
      setText(item.state, { lost: "lost, being restarted", unknown: "not known" }[shown] ?? shown);
      item.kill.hidden = !state.may_kill;
      item.kill.disabled = shown !== "serving";
      this.tell(rank, word);
    }
    const known = new Set(state.ranks.map(({ rank }) => rank));
    for (const [rank, item] of this.items) if (!known.has(rank)) { item.element.remove(); this.items.delete(rank); }
    this.drawRows();
  }

  /** Says what becomes of a rank that was killed here. */
  tell(rank, word) {
    if (!this.killed.has(rank)) return;
    if (word !== "serving") {
      this.killed.set(rank, true);
      setText(byId("ranks-note"), `Rank ${rank} is gone. The text goes on without it.`);
    } else if (this.killed.get(rank)) {
      this.killed.delete(rank);
      setText(byId("ranks-note"), `Rank ${rank} is back.`);
    }
  }

  add(rank) {
    const state = h("span", { class: "rank-state" });
    const rows = h("span", { class: "rank-rows" });
    const bar = h("span", { class: "rank-bar", "aria-hidden": "true" }, h("span"));
    const role = h("span", { class: "rank-role" });
    const kill = h("button", { type: "button", class: "quiet small kill", "aria-label": `Kill rank ${rank}` }, "Kill");
    kill.addEventListener("click", () => this.kill(rank));
    const element = h("li", { class: `rank ${rankClass(rank)}` },
      h("span", { class: `swatch ${rankClass(rank)}`, "aria-hidden": "true" }),
      h("span", { class: "rank-name" }, `rank ${rank}`), state, rows, bar, kill, role);
    byId("ranks").append(element);
    const item = { element, state, rows, bar: bar.firstChild, kill, role };
    this.items.set(rank, item);
    return item;
  }

  drawRows() {
    const trace = this.replay.step?.trace;
    const ranks = trace?.ranks ?? "";
    const most = ranks.length || 1;
    for (const [rank, item] of this.items) {
      const rows = [...ranks].filter((digit) => parseInt(digit, 36) === rank).length;
      setText(item.rows, ranks ? `${rows} of ${ranks.length} nodes` : "");
      item.bar.style.width = `${(100 * rows) / most}%`;
      setText(item.role, trace?.drafting ? roleOf(rank, trace, (token) => this.labels.of(token)) : "");
    }
  }

  async kill(rank) {
    this.killed.set(rank, false);
    setText(byId("ranks-note"), `Killing rank ${rank}…`);
    const stop = this.connection.watchClosely();
    try {
      await this.connection.send(`lookahead/ranks/${rank}/kill`, {});
      setTimeout(stop, BACK_MS);
    } catch (error) {
      stop();
      this.killed.delete(rank);
      setText(byId("ranks-note"), error.message);
    }
  }
}
