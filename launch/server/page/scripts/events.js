// Reads server-sent events from a response as they come.

/** Whether this browser lets a page read a response piece by piece. */
export function canStream() {
  return typeof ReadableStream === "function" && typeof TextDecoder === "function" &&
    typeof Response === "function" && "body" in Response.prototype;
}

/** Yields the data of each event: parsed JSON, until [DONE]. Returns whether [DONE] came. */
export async function* readEvents(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const events = rest.split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const event of events) {
        const data = dataOf(event);
        if (data === "[DONE]") return true;
        if (data) yield JSON.parse(data);
      }
      if (done) return false;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  return event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart())
    .join("\n");
}
