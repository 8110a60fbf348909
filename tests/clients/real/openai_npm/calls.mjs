// Every call of the `openai` npm package that this server has, once. usage: node calls.mjs BASE_URL RECORDING
import fs from "node:fs";

import OpenAI from "openai";

const [baseURL, recording] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const told = {};
const file = () => fs.createReadStream(recording);
const refusal = async (call) => {
  try {
    await call();
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
};

told.model = (await client.models.retrieve("gpt-4o-mini-tts-2025-12-15")).object;
told.unknownModel = await refusal(() => client.models.retrieve("gpt-5"));
told.deletedModel = await refusal(() => client.models.delete("tts-1"));

const speech = { model: "gpt-4o-mini-tts", voice: "ash", input: "Hello there.", response_format: "pcm" };
const optional = { instructions: null, speed: null, stream_format: null };
told.nulls = (await (await client.audio.speech.create({ ...speech, ...optional })).arrayBuffer()).byteLength;
const styled = await client.audio.speech.create({ ...speech, instructions: "Speak calmly." });
told.ignored = styled.headers.get("x-vivavoce-ignored");
told.fast = (await (await client.audio.speech.create({ ...speech, speed: 2 })).arrayBuffer()).byteLength;
const events = await client.audio.speech.create({ ...speech, stream_format: "sse" });
told.events = [...new Set((await events.text()).match(/^event: .*$/gm))];
const timed = { ...speech, word_timestamps: true };
const lines = (await (await client.audio.speech.create({ ...timed, stream_format: "sse" })).text()).trim().split(/\r?\n/);
told.words = JSON.parse(lines.at(-1).replace("data: ", "")).words;
const whole = await client.audio.speech.create({ ...timed, stream: false });
told.wordsOfFile = JSON.parse(whole.headers.get("x-word-timestamps"));
told.unknownField = await refusal(() => client.audio.speech.create({ ...speech, sped: 1 }));

const consents = [];
for (const name of ["one", "two", "three"]) {
  consents.push(await client.audio.voiceConsents.create({ name, language: "en-US", recording: file() }));
}
told.consent = consents[0].object;
told.renamed = (await client.audio.voiceConsents.update(consents[0].id, { name: "first" })).name;
told.retrieved = (await client.audio.voiceConsents.retrieve(consents[0].id)).name;
told.listed = [];
for await (const consent of client.audio.voiceConsents.list({ limit: 2 })) told.listed.push(consent.name);

const voice = await client.audio.voices.create({ name: "My voice", consent: consents[0].id, audio_sample: file() });
told.voice = { id: voice.id, name: voice.name, object: voice.object, type: voice.type, prompt: voice.prompt };
const own = await client.audio.speech.create({ ...speech, voice: { id: voice.id } });
told.own = (await own.arrayBuffer()).byteLength;
const prompt = { name: "other", type: "prompt", prompt: "An old man.", model: "auto", script_hint: "A script." };
told.prompt = await refusal(() => client.audio.voices.create(prompt));
told.deletedVoice = await client.audio.voices.delete(voice.id);
told.deletedTwice = await refusal(() => client.audio.voices.delete(voice.id));
for (const consent of consents) told.deletedConsent = await client.audio.voiceConsents.delete(consent.id);
told.deletedConsent = { ...told.deletedConsent, id: told.deletedConsent.id === consents[2].id };
console.log(JSON.stringify(told));
