// The `openai` npm package: every format, and the class of an error. usage: node speak.mjs BASE_URL TEXT
import OpenAI from "openai";

const [baseURL, input] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const bytes = {};
for (const response_format of ["mp3", "opus", "aac", "flac", "wav", "pcm"]) {
  const response = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input, response_format });
  bytes[response_format] = (await response.arrayBuffer()).byteLength;
}
let error;
try {
  await client.audio.speech.create({ model: "tts-1", voice: "nobody", input });
} catch (caught) {
  error = { name: caught.constructor.name, status: caught.status, code: caught.code, param: caught.param };
}
const models = [];
for await (const model of client.models.list()) models.push(model.id);
console.log(JSON.stringify({ bytes, error, models }));
