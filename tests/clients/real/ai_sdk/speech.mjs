// `generateSpeech` of the AI SDK with its OpenAI provider: a whole file for each text. An AbortController interrupts it.
import { createOpenAI } from "@ai-sdk/openai";
import { generateSpeech } from "ai";

import { follow, settings } from "../steps.mjs";

const RATE_HZ = 24000;
const [url] = process.argv.slice(2);
const imported = { createOpenAI, generateSpeech };
const openai = await settings("ai_sdk/speech", url, import.meta.url, imported, "openai");
const model = openai.speech("gpt-4o-mini-tts");
const errors = [];

await follow(
  async (text, sound, abortSignal) => {
    const asked = { model, text, outputFormat: "pcm", instructions: "Speak kindly.", abortSignal };
    const { audio, warnings } = await generateSpeech(asked);
    errors.push(...warnings);
    sound.add(Buffer.from(audio.uint8Array), RATE_HZ);
  },
  { errors, streams: false },
);
