// The AI SDK's speech in every format, its default first. usage: node calls.mjs URL TEXT
// Files of what was heard go to the working directory.
import { writeFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { generateSpeech } from "ai";

const [url, text] = process.argv.slice(2);
const openai = createOpenAI({ apiKey: "KEY", baseURL: `${url}/v1` });
const types = {};
for (const outputFormat of [undefined, "mp3", "opus", "aac", "flac", "wav"]) {
  const { audio } = await generateSpeech({ model: openai.speech("tts-1"), text, outputFormat });
  writeFileSync(`speech.${outputFormat ?? "default"}`, audio.uint8Array);
  types[outputFormat ?? "default"] = audio.mediaType;
}
console.log(JSON.stringify(types));
