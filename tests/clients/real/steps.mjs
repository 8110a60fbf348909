// The steps of a session in JavaScript, as steps.py beside it takes them. A script names them and adds its client.
import { readFileSync, readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const DOCUMENTS = new URL("../../../docs/", import.meta.url);
const ADDRESS = "localhost:8000";
const SESSION_S = Number(process.env.CLIENT_SESSION_S ?? 150);
const BREAKS = 4;
const ANSWER_S = 30;
const SETTLE_S = 0.5;
const FIRST_TEXT = "Good morning to you all. The train to the sea leaves at noon.";
const LONG_TEXT = "One sentence follows the other here. ".repeat(40);
const LATER_TEXT = "Here is another turn. It comes after a pause.";

/** The audio of a turn, as the client's user gets it. */
export class Sound {
  seconds = 0;
  #squares = 0;
  #samples = 0;
  #half = Buffer.alloc(0);
  #tellHalfASecond;
  halfASecond = new Promise((resolve) => (this.#tellHalfASecond = resolve));

  /** Takes 16-bit samples of one channel. Half a sample waits for its other half. */
  add(pcm, rateHz) {
    const bytes = Buffer.concat([this.#half, pcm]);
    const count = bytes.length >> 1;
    for (let index = 0; index < count; index++) this.#squares += bytes.readInt16LE(2 * index) ** 2;
    this.#half = bytes.subarray(2 * count);
    this.#samples += count;
    this.seconds += count / rateHz;
    if (this.seconds >= 0.5) this.#tellHalfASecond();
  }

  /** Root of the mean square, 0 to 1. */
  get level() {
    return this.#samples ? Math.sqrt(this.#squares / this.#samples) / 32768 : 0;
  }
}

/** Runs the code block ```js NAME of the documents against this server. Its imports are those of the calling script. */
export async function settings(name, url, script, imported, wanted) {
  const pages = readdirSync(DOCUMENTS).filter((page) => page.endsWith(".md"));
  const text = pages.map((page) => readFileSync(new URL(page, DOCUMENTS), "utf8")).join("");
  const blocks = [...text.matchAll(/^```js (\S+)\n([^]*?)^```/gm)].filter((block) => block[1] === name);
  if (blocks.length !== 1) throw new Error(`${blocks.length} blocks are named ${name}`);
  const lines = blocks[0][2].replaceAll(ADDRESS, url.split("//")[1]).split("\n");
  const source = readFileSync(new URL(script), "utf8");
  for (const line of lines.filter(isImport)) {
    if (!source.includes(line)) throw new Error(`${script} imports otherwise: ${line}`);
  }
  const code = lines.filter((line) => !isImport(line)).join("\n");
  const AsyncFunction = (async () => {}).constructor;
  return AsyncFunction(...Object.keys(imported), `${code}\nreturn ${wanted};`)(...Object.values(imported));
}

const isImport = (line) => line.startsWith("import ");

const report = (step, seen = {}) => console.log(JSON.stringify({ step, ...seen }));

/**
 * Takes a client through a session. `speak(text, sound, signal)` speaks a text to its end, or until the signal aborts;
 * it may throw then. A client that hands over whole files adds its sound at the end, and is interrupted in between.
 */
export async function follow(speak, { errors = [], streams = true } = {}) {
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const goAhead = async () => {
    if ((await lines.next()).done) throw new Error("the test has ended");
  };
  report("ready");
  await goAhead();
  const begunMs = performance.now();
  await turn(speak, FIRST_TEXT);
  await interruption(speak, streams, goAhead);
  await turn(speak, LATER_TEXT);
  for (let number = 1; number <= BREAKS; number++) {
    await sleep(Math.max(0, begunMs + (1000 * SESSION_S * number) / BREAKS - performance.now()));
    await turn(speak, LATER_TEXT);
  }
  report("end", { lasted_s: (performance.now() - begunMs) / 1000, errors });
  process.exit(0);
}

async function turn(speak, text) {
  const sound = new Sound();
  await speak(text, sound, new AbortController().signal);
  report("turn", { text, seconds: sound.seconds, level: sound.level, began_early: null });
}

async function interruption(speak, streams, goAhead) {
  const sound = new Sound();
  const controller = new AbortController();
  const speaking = speak(LONG_TEXT, sound, controller.signal).catch((error) => {
    if (!controller.signal.aborted) throw error;
  });
  const deadline = sleep(1000 * (streams ? ANSWER_S : SETTLE_S));
  await Promise.race([deadline, sound.halfASecond, speaking]);
  if (streams && sound.seconds < 0.5) throw new Error(`nothing to interrupt: ${sound.seconds} s of audio came`);
  const beforeS = sound.seconds;
  controller.abort();
  await speaking;
  const atOnceS = sound.seconds;
  report("interrupted", { before_s: beforeS });
  await goAhead();
  await sleep(1000 * SETTLE_S);
  report("silent", { text: LONG_TEXT, late_s: sound.seconds - atOnceS });
}
