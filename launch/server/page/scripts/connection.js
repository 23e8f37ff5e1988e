// Talks to the server this page came from: the key, plain requests, and whether the server can be reached.

const KEY = "lookahead-key";
const POLL_MS = 4000;
const POLL_SOON_MS = 700;

/** A refusal by the server. status: of HTTP; 0 if there was no answer. */
export class Refused extends Error {
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export class Connection extends EventTarget {
  constructor() {
    super();
    this.state = null; // what GET /lookahead/state says; null before the first answer
    this.isReachable = null;
    this.isOld = false; // the server has no /lookahead/state
    this.hasNoTrace = false; // it refuses requests for traces
    this.hasNoTemplate = false; // its model cannot read messages
    this.hurry = 0; // how many want the state often
    this.timer = 0;
  }

  get key() {
    try { return sessionStorage.getItem(KEY) || ""; } catch { return this.ownKey || ""; }
  }

  set key(key) {
    this.ownKey = key;
    try { sessionStorage.setItem(KEY, key); } catch { /* kept in this object alone */ }
    this.dispatchEvent(new Event("key"));
  }

  /** Sends a request and returns the response. Raises Refused unless it is a success. */
  async send(path, body, signal) {
    const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    if (body) headers["Content-Type"] = "application/json";
    const options = { method: body ? "POST" : "GET", headers, signal, cache: "no-store" };
    if (body) options.body = JSON.stringify(body);
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      this.note(false);
      throw new Refused(0, "The server cannot be reached.");
    }
    if (response.ok) return response;
    throw await this.refusal(response);
  }

  async refusal(response) {
    let error = {};
    try { error = (await response.json()).error || {}; } catch { /* no body of an API */ }
    if (response.status === 401) this.dispatchEvent(new Event("key-needed"));
    return new Refused(response.status, error.message || `The server answered ${response.status}.`, error.param);
  }

  /** Asks for the state now, and then again and again. */
  async watch() {
    clearTimeout(this.timer);
    if (!document.hidden || !this.state) await this.look();
    const isSoon = this.hurry > 0 || !this.isReachable;
    this.timer = setTimeout(() => this.watch(), isSoon ? POLL_SOON_MS : POLL_MS);
  }

  async look() {
    try {
      const response = await fetch("lookahead/state", { cache: "no-store", headers: this.headersForState() });
      if (response.ok) this.take(await response.json(), false);
      else if (response.status === 404) this.take(null, true);
      else if (response.status === 401) this.dispatchEvent(new Event("key-needed"));
      this.note(true);
    } catch {
      this.note(false);
    }
  }

  headersForState() {
    return this.key ? { Authorization: `Bearer ${this.key}` } : {};
  }

  take(state, isOld) {
    this.state = state;
    if (state) this.hasNoTrace = state.may_trace === false;
    this.isOld = isOld;
    this.dispatchEvent(new Event("state"));
  }

  note(isReachable) {
    if (isReachable === this.isReachable) return;
    const wasLost = this.isReachable === false;
    if (wasLost) this.hasNoTrace = this.hasNoTemplate = false; // it may be another server now
    this.isReachable = isReachable;
    this.dispatchEvent(new CustomEvent("reachable", { detail: { isReachable, wasLost } }));
    if (!isReachable) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.watch(), POLL_SOON_MS);
    }
  }

  /** Asks for the state often until the returned function is called. */
  watchClosely() {
    this.hurry += 1;
    this.watch();
    return () => { this.hurry -= 1; };
  }
}
