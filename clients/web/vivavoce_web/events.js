// @ts-check
/** Speech as server-sent events, which carry the times of words between the pieces of audio. */

import { VivavoceError } from "./session.js";

const MEDIA_TYPE = "text/event-stream";

/** @typedef {import("./client.js").SpeechEvent} SpeechEvent */

/** @param {Response} response @returns {AsyncGenerator<SpeechEvent, void, undefined>} */
export async function* eventsOf(response) {
  const kind = response.headers.get("content-type") ?? "";
  if (!kind.startsWith(MEDIA_TYPE) || !response.body) {
    await response.body?.cancel();
    const message = `The server sends ${kind} instead of events, so it tells no times of words`;
    throw new VivavoceError({ message, code: "no_events" });
  }
  for await (const message of messagesOf(response.body)) {
    const event = eventOf(message);
    if (event) yield event;
    if (event?.kind === "done") return;
  }
  throw new VivavoceError({ message: "The connection ended before the speech did", code: "stream_broken" });
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
      return { kind: "audio", bytes: Uint8Array.from(atob(message.audio), (char) => char.charCodeAt(0)) };
    case "speech.audio.words":
      return { kind: "words", words: message.words };
    case "speech.audio.done":
      return { kind: "done", words: message.words ?? [], turns: message.segments ?? [], seconds: message.duration ?? null };
    case "speech.audio.error":
      throw new VivavoceError(message.error);
    default:
      return null;
  }
}
