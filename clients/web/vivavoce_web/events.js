// @ts-check
/** Speech and answers as server-sent events: audio, and beside it the times of words, or the text that it says. */

import { VivavoceError } from "./session.js";

const MEDIA_TYPE = "text/event-stream";
/** The last event of an answer. It is no JSON. */
const END = "[DONE]";

/** @typedef {import("./client.js").SpeechEvent} SpeechEvent */
/** @typedef {import("./client.js").AnswerEvent} AnswerEvent */

/** @param {Response} response @returns {AsyncGenerator<SpeechEvent, void, undefined>} */
export async function* eventsOf(response) {
  for await (const message of messagesOf(await bodyOf(response))) {
    const event = eventOf(message);
    if (event) yield event;
    if (event?.kind === "done") return;
  }
  throw new VivavoceError({ message: "The connection ended before the speech did", code: "stream_broken" });
}

/** @param {Response} response of a chat @returns {AsyncGenerator<AnswerEvent, void, undefined>} */
export async function* answerOf(response) {
  for await (const message of messagesOf(await bodyOf(response))) {
    if (message.error) throw new VivavoceError(message.error);
    const { delta = {}, finish_reason: reason } = message.choices[0] ?? {};
    const text = delta.content || delta.audio?.transcript;
    if (text) yield { kind: "text", text };
    if (delta.audio?.data) yield { kind: "audio", bytes: bytesOf(delta.audio.data) };
    if (delta.audio?.unspoken) yield { kind: "unspoken", text: delta.audio.unspoken };
    if (reason) {
      yield { kind: "end", reason };
      return;
    }
  }
  throw new VivavoceError({ message: "The connection ended before the answer did", code: "stream_broken" });
}

/** @param {Response} response @returns {Promise<ReadableStream<Uint8Array>>} its body, which is events */
async function bodyOf(response) {
  const kind = response.headers.get("content-type") ?? "";
  if (kind.startsWith(MEDIA_TYPE) && response.body) return response.body;
  await response.body?.cancel();
  const message = `The server sends ${kind} instead of events, so it tells no times of words`;
  throw new VivavoceError({ message, code: "no_events" });
}

/** @param {string} text base64 */
function bytesOf(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

/** @param {ReadableStream<Uint8Array>} body @returns {AsyncGenerator<any>} the JSON of each event */
async function* messagesOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  /** @type {string[]} */
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        if (error instanceof DOMException && error.name === "AbortError") throw error;
        throw new VivavoceError({ message: "The connection to the server broke", code: "stream_broken" });
      });
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice("data:".length));
        else if (!line && data.length) {
          const text = data.join("\n");
          data = [];
          if (text.trim() === END) return;
          yield JSON.parse(text);
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => {}); // the server stops its work if nobody listens any more
  }
}

/** @param {any} message @returns {SpeechEvent | null} null for one that this version does not know */
function eventOf(message) {
  switch (message.type) {
    case "speech.audio.delta":
      return { kind: "audio", bytes: bytesOf(message.audio) };
    case "speech.audio.words":
      return { kind: "words", words: message.words };
    case "speech.audio.done":
      return { kind: "done", words: message.words ?? [], turns: message.segments ?? [] };
    case "speech.audio.error":
      throw new VivavoceError(message.error);
    default:
      return null;
  }
}
