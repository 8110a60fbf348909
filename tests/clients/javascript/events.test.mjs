// Speech with word times over HTTP, by the installed npm package, from scripted answers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { VivavoceClient } from "vivavoce-client";

const HELLO = { word: "Hé", start: 0.1, end: 0.4, text_start: 0, text_end: 2 };
const TURN = { index: 0, voice: "heart", start: 0, end: 1 };
const line = (event, end = "\r\n") => `event: ${event.type}${end}data: ${JSON.stringify(event)}${end}${end}`;
const DELTA = line({ type: "speech.audio.delta", audio: btoa("\x01\xff") });
const WORDS = line({ type: "speech.audio.words", words: [HELLO] }, "\n");
const DONE = line({ type: "speech.audio.done", usage: {}, words: [HELLO], segments: [TURN] });

/** A client whose server answers with this body, cut into pieces of a size. */
function scripted(body, { size = Infinity, kind = "text/event-stream; charset=utf-8", breaks = false } = {}) {
  const world = { asked: [], cancelled: false };
  const bytes = new TextEncoder().encode(body);
  let at = 0;
  const stream = new ReadableStream({
    pull(controller) {
      if (at < bytes.length) controller.enqueue(bytes.slice(at, (at += Math.min(size, bytes.length))));
      else if (breaks) controller.error(new TypeError("terminated"));
      else controller.close();
    },
    cancel() {
      world.cancelled = true;
    },
  }, { highWaterMark: 0 });
  const fetch = async (_, init) => {
    world.asked.push(JSON.parse(init.body));
    return new Response(stream, { headers: { "content-type": kind } });
  };
  world.events = (text, options = {}) => new VivavoceClient("http://server/", { fetch }).events(text, options);
  return world;
}

async function all(events) {
  const seen = [];
  for await (const event of events) seen.push(event);
  return seen;
}

test("audio and words come in their order, for any cuts of the body", async () => {
  for (const size of [1, 5, Infinity]) {
    const world = scripted(`: keep-alive\n\n${DELTA}${WORDS}${line({ type: "speech.audio.of_the_future" })}${DELTA}${DONE}`, { size });
    const audio = { kind: "audio", bytes: new Uint8Array([1, 255]) };
    const done = { kind: "done", words: [HELLO], turns: [TURN], seconds: null };
    assert.deepEqual(await all(world.events("Hé")), [audio, { kind: "words", words: [HELLO] }, audio, done]);
  }
});

test("what is asked of the server", async () => {
  const world = scripted(DONE);
  await all(world.events("Hé", { voice: "heart" }));
  const times = { word_timestamps: true, stream_format: "sse" };
  assert.deepEqual(world.asked, [{ voice: "heart", input: "Hé", ...times }]);
  const talk = scripted(DONE);
  await all(talk.events([{ voice: "heart", text: "Hé" }], { turn_pause_s: 0.5 }));
  assert.deepEqual(talk.asked, [{ turn_pause_s: 0.5, segments: [{ voice: "heart", text: "Hé" }], ...times }]);
});

test("speech that fails, breaks off or has no events is an error", async () => {
  const error = { message: "it broke", type: "server_error", param: null, code: "internal_error" };
  await assert.rejects(all(scripted(DELTA + line({ type: "speech.audio.error", error })).events("Hé")), { code: "internal_error" });
  await assert.rejects(all(scripted(DELTA).events("Hé")), { code: "stream_broken" });
  await assert.rejects(all(scripted(DELTA, { breaks: true }).events("Hé")), { code: "stream_broken", name: "VivavoceError" });
  await assert.rejects(all(scripted("", { kind: "audio/mpeg" }).events("Hé")), { code: "no_events" });
});

test("leaving the loop cancels the speech", async () => {
  const world = scripted(DELTA + DELTA + DONE, { size: 8 });
  for await (const event of world.events("Hé")) {
    assert.equal(event.kind, "audio");
    break;
  }
  assert.ok(world.cancelled);
});
