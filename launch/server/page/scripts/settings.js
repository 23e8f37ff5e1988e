// The settings of requests, kept in this browser.

import { byId, h, setText } from "./dom.js";

const STORE = "lookahead-settings";
const FIELDS = {
  method: "auto", maxTokens: "256", temperature: "0", seed: "", topP: "", topK: "", minP: "", repetitionPenalty: "",
  system: "",
};
const IDS = {
  method: "method", maxTokens: "max-tokens", temperature: "temperature", seed: "seed", topP: "top-p", topK: "top-k",
  minP: "min-p", repetitionPenalty: "repetition-penalty", system: "system",
};
// By the name that a request has for it, the field of a setting that is left out where the field is empty.
const OPTIONAL = { seed: "seed", top_p: "top-p", top_k: "top-k", min_p: "min-p", repetition_penalty: "repetition-penalty" };
const METHODS = ["auto", "lookahead", "prompt_lookup", "jacobi", "autoregressive"];

export class Settings {
  constructor(connection) {
    const kept = read();
    for (const [name, id] of Object.entries(IDS)) {
      const field = byId(id);
      if (name === "method") this.offer(METHODS, kept.method);
      field.value = kept[name];
      if (!field.value) field.value = FIELDS[name];
      field.addEventListener("input", () => this.keep());
    }
    connection.addEventListener("state", () => {
      if (connection.state?.methods?.length) this.offer(connection.state.methods, byId("method").value);
    });
    this.keep();
  }

  offer(methods, chosen) {
    const field = byId("method");
    const ordered = [...methods].sort((a, b) => rank(a) - rank(b));
    field.replaceChildren(...ordered.map((name) => h("option", { value: name }, name.replaceAll("_", " "))));
    field.value = methods.includes(chosen) ? chosen : ordered[0];
    setText(byId("settings-summary"), this.summary());
  }

  /** method, maxTokens, system, and as a request wants them, the settings of sampling. */
  get values() {
    const number = (id, fallback) => {
      const { value, validity } = byId(id);
      return value === "" || !validity.valid ? fallback : Number(value);
    };
    const chosen = Object.entries(OPTIONAL).map(([name, id]) => [name, number(id, null)]);
    return {
      method: byId("method").value,
      maxTokens: number("max-tokens", Number(FIELDS.maxTokens)),
      system: byId("system").value.trim(),
      sampling: {
        temperature: number("temperature", Number(FIELDS.temperature)),
        ...Object.fromEntries(chosen.filter(([, value]) => value !== null)),
      },
    };
  }

  keep() {
    const values = Object.fromEntries(Object.entries(IDS).map(([name, id]) => [name, byId(id).value]));
    try { localStorage.setItem(STORE, JSON.stringify(values)); } catch { /* for this visit only */ }
    setText(byId("settings-summary"), this.summary());
  }

  summary() {
    const { method, maxTokens, system, sampling: { temperature, seed, ...others } } = this.values;
    const parts = [method.replaceAll("_", " "), `${maxTokens} tokens`, temperature ? `temperature ${temperature}` : "greedy"];
    if (seed !== undefined && temperature) parts.push(`seed ${seed}`);
    for (const [name, value] of Object.entries(others)) parts.push(`${name.replace("_", "-")} ${value}`);
    if (system) parts.push("system prompt");
    return parts.join(" · ");
  }
}

function rank(method) {
  const place = METHODS.indexOf(method);
  return place < 0 ? METHODS.length : place;
}

function read() {
  try {
    return { ...FIELDS, ...JSON.parse(localStorage.getItem(STORE)) };
  } catch {
    return { ...FIELDS };
  }
}
