// `stream` of ElevenLabs' npm package: a request for each text.
import { ElevenLabsClient } from "@elevenlabs/elevenlabs-js";

import { follow, settings } from "../steps.mjs";

const RATE_HZ = 24000;
const [url] = process.argv.slice(2);
const client = await settings("elevenlabs_npm/stream", url, import.meta.url, { ElevenLabsClient }, "client");

await follow(async (text, sound, abortSignal) => {
  const audio = await client.textToSpeech.stream("heart", { text, outputFormat: "pcm_24000" }, { abortSignal });
  for await (const piece of audio) {
    if (abortSignal.aborted) return;
    sound.add(piece, RATE_HZ);
  }
});
