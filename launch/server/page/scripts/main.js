// Puts the page together.

import { Chat } from "./chat.js";
import { Connection } from "./connection.js";
import { byId, setText } from "./dom.js";
import { EXAMPLE } from "./example.js";
import { Figures } from "./figures.js";
import { NO_TRACE } from "./generation.js";
import { KeyDialog } from "./key_dialog.js";
import { Labels } from "./labels.js";
import { Race } from "./race.js";
import { Ranks } from "./ranks.js";
import { Replay } from "./replay.js";
import { Settings } from "./settings.js";
import { TreeView } from "./tree.js";

const connection = new Connection();
const settings = new Settings(connection);
const replay = new Replay();
const labels = new Labels(connection);
const tree = new TreeView(connection, labels);
new Ranks(connection, replay, labels);
new Figures(connection, replay);
new Chat(connection, settings, replay);
new Race(connection, settings);
new KeyDialog(connection);

const EMPTY = "Each step tries a small tree of tokens at once and keeps the longest path that the model agrees with. " +
  "Send a message to watch it.";

replay.addEventListener("change", () => {
  const { answer, step } = replay;
  const isBare = answer && answer.state !== "running" && !answer.isTraced && answer.steps.length;
  if (!answer) tree.show(EXAMPLE, EMPTY);
  else tree.show(step?.trace ? step : null, isBare ? NO_TRACE : step ? "" : "Reading the prompt…");
  setText(byId("tree-title"), step?.trace ? `Step ${step.index + 1} of ${answer.steps.length}` : "Token tree");
});

for (const name of ["view", "panel"]) {
  const buttons = [...document.querySelectorAll(`.switch [data-${name}]`)];
  for (const button of buttons) button.addEventListener("click", () => {
    document.body.dataset[name] = button.dataset[name];
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
  });
}

connection.addEventListener("state", () => {
  const model = connection.state?.model;
  if (model) setText(byId("model"), model);
  else if (connection.isOld) setText(byId("model"), "connected");
});

const banner = byId("banner");
connection.addEventListener("reachable", ({ detail: { isReachable, wasLost } }) => {
  byId("reachable").className = `dot ${isReachable ? "dot-on" : "dot-off"}`;
  banner.hidden = isReachable && !wasLost;
  banner.classList.toggle("banner-good", isReachable);
  setText(banner, isReachable ? "The server is back." : "The server cannot be reached. The page waits for it and tries again.");
  if (isReachable && wasLost) setTimeout(() => { banner.hidden = connection.isReachable; }, 4000);
});

document.addEventListener("visibilitychange", () => { if (!document.hidden) connection.watch(); });
connection.watch();
