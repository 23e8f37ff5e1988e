// Asks the server for an answer and tells the steps as they come. Falls back where the server or the browser is older.

import { Answer } from "./answer.js";
import { Refused } from "./connection.js";
import { canStream, readEvents } from "./events.js";

export const NO_STREAM = "This browser cannot read an answer piece by piece, so it appears whole.";
export const NO_TRACE = "This server does not tell how it decodes, so there is no tree.";
export const NO_TEMPLATE = "This model has no chat template: it continues your text.";
export const CUT = "The connection broke off. The text so far is kept.";

const SILENT_MS = 3000; // after which a stream of a server that cannot be reached is given up

/**
 * Begins an answer and returns it at once; it fills as the server sends.
 * wish: {messages, method, maxTokens, sampling, signal}; sampling: fields of the request's body.
 */
export function begin(connection, wish) {
  const answer = new Answer({ method: wish.method });
  answer.finished = run(connection, wish, answer);
  return answer;
}

async function run(connection, wish, answer) {
  const watch = watchOver(connection, wish, answer);
  try {
    await attempt(connection, { ...wish, signal: watch.signal }, answer);
  } catch (error) {
    if (error.name === "AbortError" && !watch.isLost) answer.end("stopped");
    else fail(connection, error, answer);
  }
  watch.end();
  return answer;
}

/** Ends a request whose server is gone without a word, as when a network breaks: the stream would never end. */
function watchOver(connection, wish, answer) {
  const ending = new AbortController();
  const stop = () => ending.abort();
  let timer = 0;
  const check = () => {
    clearTimeout(timer);
    if (connection.isReachable !== false) return;
    const count = answer.steps.length;
    timer = setTimeout(() => {
      if (answer.steps.length !== count) return check();
      watch.isLost = true;
      stop();
    }, SILENT_MS);
  };
  const watch = { signal: ending.signal, isLost: false, end: () => {
    clearTimeout(timer);
    wish.signal?.removeEventListener("abort", stop);
    connection.removeEventListener("reachable", check);
  } };
  if (wish.signal?.aborted) stop();
  wish.signal?.addEventListener("abort", stop);
  connection.addEventListener("reachable", check);
  return watch;
}

function fail(connection, error, answer) {
  if (error instanceof Refused) answer.note(error.message);
  else {
    answer.note(CUT);
    connection.note(false);
  }
  answer.end("failed");
}

async function attempt(connection, wish, answer) {
  const streams = canStream();
  if (!streams) answer.note(NO_STREAM);
  for (;;) {
    if (connection.hasNoTrace && streams) answer.note(NO_TRACE);
    if (connection.hasNoTemplate) answer.note(NO_TEMPLATE);
    try {
      const [path, body] = request(connection, wish, streams);
      answer.startedAt = performance.now();
      const response = await connection.send(path, body, wish.signal);
      return await (streams ? readStream(response, answer) : readWhole(response, answer));
    } catch (error) {
      if (!(error instanceof Refused) || !learn(connection, error)) throw error;
    }
  }
}

/** Remembers what this server does not know. Returns whether it is worth asking again. */
function learn(connection, error) {
  const { status, message, param } = error;
  if (!connection.hasNoTrace && [400, 403, 422].includes(status) &&
      (param === "lookahead_trace" || message.includes("lookahead_trace")))
    return (connection.hasNoTrace = true);
  if (!connection.hasNoTemplate && status === 400 && message.includes("no chat template"))
    return (connection.hasNoTemplate = true);
  return false;
}

function request(connection, { messages, method, maxTokens, sampling }, streams) {
  const body = { max_tokens: maxTokens, ...sampling };
  if (method) body.decode = { method };
  if (streams) Object.assign(body, { stream: true, stream_options: { include_usage: true } });
  if (streams && !connection.hasNoTrace) body.lookahead_trace = true;
  if (!connection.hasNoTemplate) return ["v1/chat/completions", { ...body, messages }];
  return ["v1/completions", { ...body, prompt: messages.map((message) => message.content).join("") }];
}

async function readStream(response, answer) {
  let finish = null;
  let wasThinking = false;
  const events = readEvents(response);
  for (;;) {
    const { done, value: chunk } = await events.next();
    if (done) {
      if (!chunk && !finish) throw new TypeError("the stream ended early");
      break;
    }
    if (chunk.error) throw new Refused(500, chunk.error.message);
    if (chunk.usage) answer.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    const thought = choice.delta?.reasoning_content ?? "";
    let text = choice.delta?.content ?? choice.text ?? "";
    if (text && wasThinking) text = `\n\n${text}`;
    wasThinking = Boolean(thought) || (wasThinking && !text);
    const trace = Array.isArray(chunk.lookahead?.tokens) ? chunk.lookahead : null;
    if (text || thought || trace) answer.add(thought + text, trace);
    finish = choice.finish_reason ?? finish;
  }
  answer.end("done", finish);
}

async function readWhole(response, answer) {
  const reply = await response.json();
  const choice = reply.choices[0];
  answer.usage = reply.usage;
  answer.add(choice.message?.content ?? choice.text ?? "", null);
  answer.end("done", choice.finish_reason);
}
