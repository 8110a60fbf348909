// Every call of ElevenLabs' npm package that speaks or lists, with its defaults. usage: node calls.mjs URL TEXT
// Files of what was heard go to the working directory.
import { writeFileSync } from "node:fs";
import { ElevenLabsClient } from "@elevenlabs/elevenlabs-js";

const [baseUrl, text] = process.argv.slice(2);
const client = new ElevenLabsClient({ apiKey: "KEY", baseUrl });
const speech = client.textToSpeech;
const bytesOf = async (stream) => Buffer.from(await new Response(stream).arrayBuffer());
writeFileSync("convert.mp3", await bytesOf(await speech.convert("heart", { text })));
writeFileSync("stream.mp3", await bytesOf(await speech.stream("heart", { text })));
writeFileSync("opus.opus", await bytesOf(await speech.convert("heart", { text, outputFormat: "opus_48000_64" })));
const timed = await speech.convertWithTimestamps("heart", { text });
writeFileSync("timed.mp3", Buffer.from(timed.audioBase64, "base64"));
const pieces = [];
for await (const piece of await speech.streamWithTimestamps("heart", { text })) {
  pieces.push(piece);
}
writeFileSync("timed_stream.mp3", Buffer.concat(pieces.map(({ audioBase64 }) => Buffer.from(audioBase64, "base64"))));
/** Characters and their seconds, of the objects that have some. */
const alignment = (told, name) => {
  const found = told.map((each) => each[name]).filter(Boolean);
  return {
    text: found.flatMap(({ characters }) => characters).join(""),
    starts: found.flatMap(({ characterStartTimesSeconds }) => characterStartTimesSeconds),
    ends: found.flatMap(({ characterEndTimesSeconds }) => characterEndTimesSeconds),
  };
};
const lists = {
  written: [alignment([timed], "alignment"), alignment(pieces, "alignment")],
  said: [alignment([timed], "normalizedAlignment"), alignment(pieces, "normalizedAlignment")],
  voices: (await client.voices.getAll()).voices.map((voice) => voice.name),
  found: (await client.voices.search()).voices.map((voice) => voice.voiceId),
  models: (await client.models.list()).map((model) => model.modelId),
  tier: (await client.user.subscription.get()).tier,
};
console.log(JSON.stringify(lists));
