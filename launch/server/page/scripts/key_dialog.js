// Asks for the server's API key when one is needed, and when one was refused.

import { byId, setText } from "./dom.js";

const FIRST = "It is kept in this tab alone and forgotten when the tab is closed.";
const WRONG = "The server does not know this key. Is it complete?";

export class KeyDialog {
  constructor(connection) {
    this.connection = connection;
    this.isDeclined = false;
    this.dialog = byId("key-dialog");
    byId("key-form").addEventListener("submit", (event) => { event.preventDefault(); this.take(); });
    byId("key-cancel").addEventListener("click", () => { this.isDeclined = true; this.dialog.close(); });
    this.dialog.addEventListener("cancel", () => { this.isDeclined = true; });
    connection.addEventListener("key-needed", () => this.ask());
    connection.addEventListener("state", () => {
      if (connection.state?.needs_key && !connection.key && !this.isDeclined) this.ask();
    });
  }

  ask() {
    if (this.dialog.open) return;
    setText(byId("key-words"), this.connection.key ? WRONG : FIRST);
    this.dialog.showModal();
    byId("key").focus();
  }

  async take() {
    this.connection.key = byId("key").value.trim();
    byId("key").value = "";
    this.dialog.close();
    try {
      await this.connection.send("v1/models"); // a wrong key is asked for again
    } catch { /* told by the events of the connection */ }
    this.connection.watch();
  }
}
