// Live sessions of the installed npm package, over scripted connections.
import assert from "node:assert/strict";
import { test } from "node:test";
import { textSaid, VivavoceClient } from "vivavoce-client";

const CREATED = { type: "session.created" };
const START = { type: "audio.start", utterance_index: 0, format: "pcm", sample_rate: 24000 };
const DONE = { type: "audio.done", utterance_index: 0, duration_ms: 80, total_bytes: 2, cancelled: false };
const AUDIO = new Uint8Array([1, 2]).buffer;
const refusal = (code) => ({ type: "error", error: { message: `it is ${code}`, type: "t", param: "voice", code } });

/** Sockets that follow their scripts, one for each connection. A step is [message types that it waits for, answers]. */
function scripted(...scripts) {
  const world = { sockets: [], pauses: [], errors: [], heard: 0, done: 0, closed: [] };
  class WebSocket {
    sent = [];
    constructor() {
      this.script = scripts.shift();
      world.sockets.push(this);
      setTimeout(() => (this.script === undefined ? this.shut(1006) : this.onopen()));
    }
    send(text) {
      this.sent.push(JSON.parse(text));
      const [kind, ...answers] = this.script[0] ?? [];
      if (kind !== this.sent.at(-1).type) return;
      this.script.shift();
      setTimeout(() => answers.forEach((answer) => this.give(answer)));
    }
    give(answer) {
      if (typeof answer === "number") this.shut(answer);
      else this.onmessage?.({ data: answer instanceof ArrayBuffer ? answer : JSON.stringify(answer) });
    }
    shut(code) {
      this.onclose?.({ code, reason: "" });
    }
    close() {
      setTimeout(() => this.shut(1005));
    }
    get texts() {
      return this.sent.filter(({ type }) => type === "input.text").map(({ text }) => text);
    }
  }
  const sleep = async (pauseMs) => void world.pauses.push(pauseMs);
  world.client = new VivavoceClient("http://server/path/", { WebSocket, sleep, apiKey: "k" });
  world.live = async (options = { voice: "heart" }) => {
    const session = await world.client.live(options);
    session.onaudio = () => world.heard++;
    session.ondone = () => world.done++;
    session.onerror = (error) => world.errors.push(error.code);
    session.onclose = (code) => world.closed.push(code);
    return session;
  };
  return world;
}

async function until(condition) {
  for (let turn = 0; turn < 1000 && !condition(); turn++) await new Promise((resolve) => setTimeout(resolve));
  assert.ok(condition(), "it did not happen");
}

const settle = () => new Promise((resolve) => setTimeout(resolve, 20));
const OPEN = ["session.config", CREATED];

test("a first connection that nothing answers is given up soon", async () => {
  const world = scripted();
  await assert.rejects(world.live(), { code: "no_connection" });
  assert.deepEqual(world.pauses, [250, 500]);
});

test("a connection that was open is tried with growing pauses, then given up", async () => {
  const world = scripted([OPEN, ["input.text", 1006]]);
  const session = await world.live();
  session.say("Hi");
  await until(() => world.errors.length === 1);
  assert.deepEqual([world.errors, world.pauses], [["no_connection"], [250, 250, 500, 1000, 2000, 4000]]);
});

test("a full server is waited for from the first connection on", async () => {
  const full = ["session.config", refusal("not_serving"), 1013];
  const world = scripted([full], [full], [full], [full], [OPEN]);
  assert.ok((await world.live()).isOpen);
  assert.deepEqual(world.pauses, [250, 500, 1000, 2000]);
});

test("the end of an utterance tells what was said", () => {
  const parts = [{ text: "One.", end_ms: 400 }, { text: " [pause:1s]", end_ms: 1400 }, { text: " Two.", end_ms: 1800 }];
  const texts = [399, 400, 1500, Infinity].map((playedMs) => textSaid({ parts }, playedMs));
  assert.deepEqual(texts, ["", "One.", "One. [pause:1s]", "One. [pause:1s] Two."]);
  assert.equal(textSaid({ parts }), "One. [pause:1s] Two.");
});

test("a full server is tried again, refused options are not", async () => {
  const full = scripted([["session.config", refusal("not_serving"), 1013]], [OPEN]);
  assert.ok((await full.live()).isOpen);
  assert.deepEqual(full.pauses, [250]);
  const refused = scripted([["session.config", refusal("voice_not_found")]], [OPEN]);
  await assert.rejects(refused.live(), { code: "voice_not_found", param: "voice" });
  assert.equal(refused.sockets.length, 1);
});

test("text that was not heard is sent again from its start", async () => {
  const world = scripted([OPEN, ["input.done", START, 1006]], [OPEN, ["input.done", START, AUDIO, DONE]]);
  const session = await world.live();
  session.say("Hel");
  session.say("lo");
  session.end();
  await until(() => world.done === 1);
  assert.deepEqual(world.sockets[1].sent, [
    { type: "session.config", voice: "heart", api_key: "k" },
    { type: "input.text", text: "Hel" },
    { type: "input.text", text: "lo" },
    { type: "input.done" },
  ]);
  assert.deepEqual([world.heard, world.errors, world.pauses], [1, [], [250]]);
});

test("text that comes while the connection is away waits for it", async () => {
  const world = scripted([OPEN, ["input.text", 1006]], [OPEN, ["input.done", START, AUDIO, DONE]]);
  const session = await world.live();
  session.say("Hel");
  await until(() => world.pauses.length === 1);
  session.say("lo");
  session.end();
  await until(() => world.done === 1);
  assert.deepEqual(world.sockets[1].texts, ["Hel", "lo"]);
});

test("what was heard is not said again, and the next text opens a connection", async () => {
  const world = scripted([OPEN, ["input.text", START, AUDIO, 1006]], [OPEN, ["input.done", START, AUDIO, DONE]]);
  const session = await world.live();
  session.say("Hel");
  await until(() => world.errors.length === 1);
  assert.deepEqual(world.errors, ["stream_broken"]);
  session.say("lo"); // the rest of the broken utterance
  session.end();
  await settle();
  assert.equal(world.sockets.length, 1);
  session.say("Next");
  session.end();
  await until(() => world.done === 1);
  assert.deepEqual(world.sockets[1].texts, ["Next"]);
});

test("an utterance that waits behind a heard one is sent again with its own options", async () => {
  const world = scripted([OPEN], [OPEN, ["input.done", START, AUDIO, DONE]]);
  const session = await world.live();
  session.say("First");
  session.end();
  session.configure({ voice: "michael" });
  session.say("Second");
  session.end();
  [START, AUDIO, 1006].forEach((answer) => world.sockets[0].give(answer));
  await until(() => world.done === 1);
  assert.deepEqual(world.errors, ["stream_broken"]);
  assert.deepEqual(world.sockets[1].sent[0], { type: "session.config", voice: "michael", api_key: "k" });
  assert.deepEqual(world.sockets[1].texts, ["Second"]);
});

test("a server that always drops is given up, a policy at once", async () => {
  const drops = () => [OPEN, ["input.text", 1006]];
  const world = scripted(drops(), drops(), drops(), drops(), drops(), drops());
  await (await world.live()).say("Hi");
  await until(() => world.errors.length === 1);
  assert.deepEqual([world.errors, world.pauses], [["stream_broken"], [250, 500, 1000, 2000, 4000]]);
  const policy = scripted([OPEN, ["input.text", 1008]]);
  await (await policy.live()).say("Hi");
  await until(() => policy.errors.length === 1);
  assert.deepEqual([policy.errors, policy.pauses], [["stream_broken"], []]);
});

test("an idle loss is silent, and the next text connects", async () => {
  const world = scripted([OPEN, ["input.done", START, AUDIO, DONE, 1006]], [OPEN, ["input.done", START, AUDIO, DONE]]);
  const session = await world.live();
  for (const count of [1, 2]) {
    session.say("Hi");
    session.end();
    await until(() => world.done === count);
    await settle();
    assert.equal(world.sockets.length, count);
  }
  assert.deepEqual([world.errors, world.sockets[1].texts, session.isOpen], [[], ["Hi"], true]);
});

test("a refused or cancelled utterance is not sent again", async () => {
  const refused = scripted([OPEN, ["input.done", refusal("queue_full"), 1006]], [OPEN]);
  const session = await refused.live();
  session.say("Hi");
  session.end();
  await until(() => refused.errors.length === 1);
  await settle();
  assert.deepEqual([refused.errors, refused.sockets.length], [["queue_full"], 1]);
  const cancelled = scripted([OPEN, ["input.cancel", 1006]], [OPEN]);
  const other = await cancelled.live();
  other.say("Hi");
  other.cancel(true);
  await settle();
  assert.deepEqual([cancelled.errors, cancelled.sockets.length], [[], 1]);
});

test("an utterance that is cancelled while nothing answers has no error", async () => {
  const world = scripted([OPEN, ["input.text", 1006]]);
  const session = await world.live();
  session.say("Hi");
  await until(() => world.pauses.length === 2);
  session.cancel(true);
  await until(() => world.pauses.length === 6);
  await settle();
  assert.deepEqual(world.errors, []);
});

test("sentences that the session cannot tell apart are not sent again", async () => {
  const world = scripted([OPEN, ["input.done", START, AUDIO, DONE, 1006]], [OPEN]);
  const session = await world.live({ split: "sentence" });
  session.say("One. Two.");
  session.end();
  await until(() => world.errors.length === 1);
  await settle();
  assert.deepEqual([world.errors, world.sockets.length], [["stream_broken"], 1]);
});

test("after close or drop, text and options reject and nothing connects", async () => {
  for (const end of ["close", "drop"]) {
    const world = scripted([OPEN, ["session.close", 1000]], [OPEN]);
    const session = await world.live();
    session[end]();
    await assert.rejects(session.say("Hi"), { name: "VivavoceError", code: "session_closed" });
    await assert.rejects(session.configure({}), { code: "session_closed" });
    await until(() => world.closed.length === 1);
    await assert.rejects(session.say("Hi"), { code: "session_closed" });
    assert.deepEqual([world.errors, world.sockets.length, session.isOpen], [[], 1, false]);
  }
});

test("a connection lost while closing still speaks the text", async () => {
  const world = scripted([OPEN, ["session.close", 1006]], [OPEN, ["session.close", START, AUDIO, DONE, 1000]]);
  const session = await world.live();
  session.say("Hi");
  session.close();
  await until(() => world.closed.length === 1);
  assert.deepEqual([world.errors, world.heard, world.closed, world.sockets[1].texts], [[], 1, [1000], ["Hi"]]);
});

test("a server that stops is left for a new connection, without an error", async () => {
  const world = scripted([OPEN, ["input.done", refusal("not_serving"), 1013]], [OPEN, ["input.done", START, AUDIO, DONE]]);
  const session = await world.live();
  session.say("Hi");
  session.end();
  await until(() => world.done === 1);
  assert.deepEqual([world.errors, world.sockets[1].texts], [[], ["Hi"]]);
});

test("the pauses start again after speech was heard", async () => {
  const drops = () => [OPEN, ["input.text", 1006]];
  const heard = () => [OPEN, ["input.done", START, AUDIO, DONE, 1006]];
  const world = scripted(drops(), drops(), heard(), drops(), heard());
  const session = await world.live();
  for (const count of [1, 2]) {
    session.say("Hi");
    session.end();
    await until(() => world.done === count);
    await settle();
  }
  assert.deepEqual(world.pauses, [250, 500, 250]);
});

test("what was spoken after a refused utterance is not sent again", async () => {
  const world = scripted([OPEN], [OPEN]);
  const session = await world.live();
  for (const text of ["Refused", "Spoken"]) {
    session.say(text);
    session.end();
  }
  [refusal("queue_full"), START, AUDIO, DONE, 1006].forEach((answer) => world.sockets[0].give(answer));
  await settle();
  assert.deepEqual([world.errors, world.done, world.sockets.length], [["queue_full"], 1, 1]);
});

test("options that waited when the speech was cancelled still hold", async () => {
  const world = scripted([OPEN]);
  const session = await world.live();
  session.say("Hi");
  session.configure({ voice: "michael" });
  session.cancel(true);
  const [cancel, config] = world.sockets[0].sent.slice(-2);
  assert.deepEqual([cancel, config], [{ type: "input.cancel" }, { type: "session.config", voice: "michael" }]);
});

test("a long text is sent in messages that the server takes, and the server's limits can be read", async () => {
  const limits = { max_utterance_chars: 65536 };
  const world = scripted([["session.config", { ...CREATED, limits }]]);
  const session = await world.live();
  const text = `${"\u0001".repeat(50_000)}end`;
  await session.say(text);
  const [socket] = world.sockets;
  assert.equal(socket.texts.join(""), text);
  const most = Math.max(...socket.sent.map((message) => Buffer.byteLength(JSON.stringify(message))));
  assert.ok(most < 131_072, `a message has ${most} bytes`);
  assert.deepEqual(session.limits, limits);
});

test("words come with the audio, and not those of an utterance that was cancelled", async () => {
  const words = (word) => ({ type: "audio.words", utterance_index: 0, words: [{ word, start: 0.1, end: null, text_start: 0, text_end: 2 }] });
  const world = scripted([OPEN, ["input.done", START, AUDIO, words("Hi")], ["input.cancel", words("no"), DONE], ["input.done", START, words("Ho"), DONE]]);
  const session = await world.live({ voice: "heart", word_timestamps: true });
  const seen = [];
  session.onwords = (some) => seen.push(...some.map(({ word }) => word));
  session.say("Hi");
  session.end();
  await until(() => seen.length === 1);
  session.cancel(true);
  await until(() => world.done === 1);
  session.say("Ho");
  session.end();
  await until(() => world.done === 2);
  assert.deepEqual(seen, ["Hi", "Ho"]);
  assert.deepEqual(world.sockets[0].sent[0].word_timestamps, true);
});
