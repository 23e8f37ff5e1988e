// Texts of single tokens, for the labels of the tree. Asked for once, many at a time.

const MOST = 512; // of one request

export class Labels extends EventTarget {
  constructor(connection) {
    super();
    this.connection = connection;
    this.texts = new Map();
    this.wanted = new Set();
    this.isAsking = false;
    this.isUnknown = false; // the server has no such route
  }

  /** The text of a token, or its id while that is not known. */
  of(token) {
    const text = this.texts.get(token);
    return text === undefined ? `#${token}` : visible(text);
  }

  /** Sees to it that the texts of these tokens are known soon. */
  want(tokens) {
    for (const token of tokens) if (!this.texts.has(token)) this.wanted.add(token);
    if (!this.isAsking) this.ask();
  }

  async ask() {
    if (!this.wanted.size || this.isUnknown) return;
    this.isAsking = true;
    const ids = [...this.wanted].slice(0, MOST);
    try {
      const response = await this.connection.send("lookahead/tokens", { ids });
      const { texts } = await response.json();
      ids.forEach((id, number) => this.texts.set(id, texts[number]));
      ids.forEach((id) => this.wanted.delete(id));
      this.dispatchEvent(new Event("change"));
    } catch (error) {
      this.isUnknown = [400, 404, 405].includes(error.status);
      this.wanted.clear();
    }
    this.isAsking = false;
    if (this.wanted.size) this.ask();
  }
}

/** A token's text with white space that can be seen. */
export function visible(text) {
  const shown = text.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "·");
  return shown.replace(/^·(?=[^·])/, "") || "∅"; // most tokens begin with a space, so it says nothing
}
