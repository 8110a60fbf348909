// @ts-check
/** The conversation with a model that chats: type or record, hear and read the answer, interrupt it. */

import { dataUrlOf, referenceOf } from "./audio.js";
import { attempt, button, client, element, find, tell } from "./page.js";
import { Player } from "./player.js";
import { isSecure, whyInsecure } from "./secure.js";
import { volume } from "./transport.js";

const SAMPLE_RATE = 24000;
const MAX_SOUND_S = 60;

/** @typedef {import("./client.js").ChatMessage} ChatMessage */

const controls = {
  section: element("chat"),
  turns: element("chat-turns"),
  text: find("chat-text", HTMLTextAreaElement),
  send: button("chat-send"),
  record: button("chat-record"),
  why: element("chat-why"),
  stop: button("chat-stop"),
  clear: button("chat-clear"),
  state: element("chat-state"),
};

/** What the page's settings say of the answers. */
export const chat = {
  /** @type {() => { model?: string }} */
  model: () => ({}),
  /** @type {() => { voice?: string, speed?: number, seed?: number }} */
  options: () => ({}),
};

/** @type {ChatMessage[]} */
let messages = [];
/** The answer that is being made. @type {AbortController | null} */
let running = null;
/** Settled once the last answer is among the messages, also one that was interrupted. */
let last = Promise.resolve();
/** @type {Promise<Player> | null} */
let opening = null;
/** @type {MediaRecorder | null} */
let recorder = null;
/** True while the browser asks for the microphone. */
let asking = false;

/** Shows the conversation, or hides it. @param {boolean} chats true if the chosen model does */
export function showChat(chats) {
  controls.section.hidden = !chats;
  if (!chats) interrupt();
}

/** The first call must come from a click or a key, because browsers keep pages silent until then. */
function loudspeaker() {
  opening ??= Player.open(SAMPLE_RATE).then((player) => {
    player.onreport = ({ drained }) => {
      if (drained && !running) say("Done");
    };
    return player;
  });
  return opening;
}

/** @param {string} text */
function say(text) {
  controls.state.textContent = text;
}

/** Adds a turn to the page. @param {"user" | "assistant"} role @param {string} text @returns {HTMLElement} */
function addTurn(role, text) {
  const turn = document.createElement("li");
  turn.className = role;
  turn.textContent = text;
  turn.dir = "auto";
  controls.turns.append(turn);
  turn.scrollIntoView({ block: "nearest" });
  return turn;
}

/** Asks a question, which interrupts an answer. @param {ChatMessage["content"]} content @param {string} shown */
async function ask(content, shown) {
  interrupt();
  tell(null);
  const player = await loudspeaker();
  player.clear();
  player.volume = volume();
  await player.resume();
  await last.catch(() => {}); // its error has been told
  addTurn("user", shown);
  messages.push({ role: "user", content });
  last = answer(player);
  await last;
}

/** @param {Player} player */
async function answer(player) {
  const mine = (running = new AbortController());
  const { voice = "alloy", speed, seed } = chat.options();
  const asked = {
    ...chat.model(),
    ...(seed === undefined ? {} : { seed }),
    modalities: /** @type {("text" | "audio")[]} */ (["text", "audio"]),
    audio: { voice, format: "pcm16", ...(speed === undefined ? {} : { speed }) },
  };
  const turn = addTurn("assistant", "");
  controls.stop.disabled = false;
  say("Thinking");
  let said = "";
  try {
    for await (const event of client().chat(messages, asked, mine.signal)) {
      if (mine.signal.aborted) return;
      if (event.kind === "text") turn.textContent = said += event.text;
      if (event.kind === "unspoken") turn.append(unspoken(event.text));
      if (event.kind === "audio") {
        say("Speaking");
        player.push(/** @type {ArrayBuffer} */ (event.bytes.buffer));
      }
    }
    player.end();
  } catch (error) {
    if (!mine.signal.aborted) throw error;
  } finally {
    // What was said is what the model is told that it said, also after an interruption.
    if (said) messages.push({ role: "assistant", content: said });
    else turn.remove();
    if (running === mine) finished();
  }
}

/** The rest of an answer, which was not spoken. @param {string} text */
function unspoken(text) {
  const rest = document.createElement("span");
  rest.className = "unspoken";
  rest.title = "Not spoken";
  rest.textContent = text;
  return rest;
}

function finished() {
  running = null;
  controls.stop.disabled = true;
}

/** Ends the answer at once: thinker and voice stop on the server too. */
function interrupt() {
  if (!running) return;
  running.abort();
  finished();
  say("Stopped");
  opening?.then((player) => player.stop());
}

async function sendText() {
  const text = controls.text.value.trim();
  if (!text) return;
  controls.text.value = "";
  await ask(text, text);
}

async function record() {
  if (recorder) {
    recorder.stop();
    return;
  }
  if (asking) return;
  interrupt();
  tell(null);
  asking = true;
  await loudspeaker(); // this is the click that lets the page sound
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true }).finally(() => (asking = false));
  const taken = (recorder = new MediaRecorder(microphone));
  controls.record.textContent = "Send what I said";
  controls.record.classList.add("recording");
  say("Listening");
  const end = setTimeout(() => taken.stop(), MAX_SOUND_S * 1000);
  taken.ondataavailable = ({ data }) => attempt(() => sendSound(data));
  taken.onstop = () => {
    clearTimeout(end);
    recorder = null;
    microphone.getTracks().forEach((track) => track.stop());
    controls.record.textContent = "Talk";
    controls.record.classList.remove("recording");
  };
  taken.start();
}

/** @param {Blob} recording */
async function sendSound(recording) {
  const { wav, seconds } = await referenceOf(recording, MAX_SOUND_S);
  const [, data] = (await dataUrlOf(wav)).split(",");
  await ask([{ type: "input_audio", input_audio: { data, format: "wav" } }], `(${seconds.toFixed(1)} s of sound)`);
}

function clear() {
  interrupt();
  messages = [];
  controls.turns.replaceChildren();
  say("");
  opening?.then((player) => player.clear());
}

controls.send.onclick = () => attempt(sendText);
controls.record.onclick = () => attempt(record);
controls.stop.onclick = interrupt;
controls.clear.onclick = clear;
/** @param {KeyboardEvent} event */
controls.text.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  attempt(sendText);
};
addEventListener("keydown", (event) => {
  if (event.key === "Escape") interrupt();
});
if (!isSecure || !navigator.mediaDevices) {
  controls.record.hidden = true;
  controls.why.hidden = false;
  controls.why.textContent = isSecure ? "Talking is off, because this browser has no microphone." : whyInsecure("Talking");
}
