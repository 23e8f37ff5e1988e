// Takes text out of the page: to the clipboard, and as a file.

import { h } from "./dom.js";

/** Copies a text. Returns whether that was possible. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // a page that came over HTTP from another machine has no clipboard
  }
}

function copyBySelection(text) {
  const held = document.activeElement;
  const box = h("textarea", { class: "hidden", value: text, "aria-hidden": "true" });
  document.body.append(box);
  box.select();
  const isCopied = document.execCommand("copy");
  box.remove();
  held?.focus();
  return isCopied;
}

/** Lets the browser save a text as a file. */
export function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/markdown" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
