// `OpenAIRealtimeWS` of OpenAI's npm package, on one connection for all turns. It dials with TLS alone.
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

import { follow, settings } from "../steps.mjs";

const RATE_HZ = 24000;
const [url] = process.argv.slice(2);
const imported = { OpenAI, OpenAIRealtimeWS };
const connection = await settings("openai_npm/realtime", url, import.meta.url, imported, "connection");
const errors = [];
let sound;
connection.on("error", (error) => errors.push(String(error)));
connection.on("response.output_audio.delta", (event) => sound.add(Buffer.from(event.delta, "base64"), RATE_HZ));
await new Promise((resolve) => connection.on("session.created", resolve));

await follow(
  async (text, listening, signal) => {
    sound = listening;
    const ended = new Promise((resolve) => {
      const end = (event) => {
        connection.off("response.done", end);
        resolve(event.response);
      };
      connection.on("response.done", end);
    });
    const content = [{ type: "input_text", text }];
    connection.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
    connection.send({ type: "response.create" });
    signal.addEventListener("abort", () => connection.send({ type: "response.cancel" }));
    const { status } = await ended;
    if (status !== (signal.aborted ? "cancelled" : "completed")) errors.push(status);
  },
  { errors },
);
