// `chat.completions.create` of OpenAI's npm package: whole, as a stream, interrupted, and refused. Prints what came as JSON.
import OpenAI from "openai";

const [url, question] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: question }];
const asked = { model: "gpt-audio", modalities: ["text", "audio"], audio: { voice: "alloy", format: "pcm16" }, messages };

const whole = await client.chat.completions.create(asked);
const { audio } = whole.choices[0].message;

const streamed = { transcript: "", bytes: 0, finish: null, usage: null };
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } })) {
  const [choice] = chunk.choices;
  streamed.transcript += choice?.delta.audio?.transcript ?? "";
  streamed.bytes += Buffer.from(choice?.delta.audio?.data ?? "", "base64").length;
  streamed.finish = choice?.finish_reason ?? streamed.finish;
  streamed.usage = chunk.usage ?? streamed.usage;
}

const later = await client.chat.completions.create({
  model: "gpt-audio",
  messages: [...messages, { role: "assistant", audio: { id: audio.id } }, { role: "user", content: "Really?" }],
});

const long = await client.chat.completions.create({ ...asked, messages: [{ role: "user", content: "word ".repeat(100) }], stream: true });
let pieces = 0;
for await (const chunk of long) if (chunk.choices[0]?.delta.audio?.data && ++pieces === 2) break; // which aborts the request

const refused = await client.chat.completions.create({ ...asked, n: 2 }).catch((error) => {
  return { name: error.constructor.name, status: error.status, code: error.code, param: error.param };
});

console.log(
  JSON.stringify({
    whole: { transcript: audio.transcript, bytes: Buffer.from(audio.data, "base64").length, usage: whole.usage },
    streamed,
    later: later.choices[0].message.content,
    pieces,
    refused,
  }),
);
