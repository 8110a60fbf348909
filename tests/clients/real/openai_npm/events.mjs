// `audio.speech.create` of OpenAI's npm package, as a stream of events. An AbortController interrupts it.
import OpenAI from "openai";

import { follow, settings } from "../steps.mjs";

const RATE_HZ = 24000;
const [url] = process.argv.slice(2);
const client = await settings("openai_npm/events", url, import.meta.url, { OpenAI }, "client");
const errors = [];

/** The events of a body, each the JSON behind one `data:`. */
async function* eventsOf(body) {
  let text = "";
  for await (const piece of body.pipeThrough(new TextDecoderStream())) {
    const events = (text + piece).split(/\r\n\r\n|\n\n/);
    text = events.pop();
    for (const event of events) yield JSON.parse(event.match(/^data: (.*)$/m)[1]);
  }
}

await follow(
  async (input, sound, signal) => {
    const asked = { model: "gpt-4o-mini-tts", voice: "alloy", input, response_format: "pcm", stream_format: "sse" };
    const response = await client.audio.speech.create(asked, { signal });
    for await (const event of eventsOf(response.body)) {
      if (signal.aborted) return;
      if (event.type === "speech.audio.delta") sound.add(Buffer.from(event.audio, "base64"), RATE_HZ);
      else if (event.type === "speech.audio.done") return;
      else errors.push(event);
    }
    errors.push("no end");
  },
  { errors },
);
