// @ts-check
/** The stage: passes text to a live session, and its audio to loudspeakers, picture and figures. */

import { LiveSession } from "./client.js";
import { attempt, page, tell } from "./page.js";
import { Player } from "./player.js";
import { client, options, showRequest } from "./settings.js";
import { Waveform } from "./waveform.js";

const SAMPLE_RATE = 24000;
const SEED_LIMIT = 2 ** 31;

const waveform = new Waveform(page.waveform);

/** @type {LiveSession | null} */
let session = null;
/** @type {Promise<LiveSession> | null} */
let connecting = null;
/** @type {Promise<Player> | null} */
let player = null;
/** Current options of the session. */
let configured = "";
/** Drawn for each utterance, so that a download repeats what was heard. */
let drawnSeed = 0;
/** The part of the text field that has been sent while typing. */
let typed = "";

/** The current utterance, from its first text to its last sample. */
const heard = { running: false, made: false, inText: false, askedMs: 0, firstMs: 0, samples: 0, lastMs: 0 };

/** The first call must come from a click or a key, because browsers keep pages silent until then. */
async function loudspeaker() {
  player ??= Player.open(SAMPLE_RATE).then((opened) => {
    opened.onreport = report;
    return opened;
  });
  const opened = await player;
  await opened.resume();
  return opened;
}

/** Returns the session with the options of the controls. Opens one if there is none. */
async function live() {
  const wanted = { ...seededOptions(), response_format: "pcm", sample_rate: SAMPLE_RATE };
  const text = JSON.stringify(wanted);
  if (session?.isOpen) {
    if (text !== configured) session.configure(wanted);
    configured = text;
    return session;
  }
  connecting ??= client().live(wanted);
  try {
    session = await connecting;
  } finally {
    connecting = null;
  }
  configured = text;
  const opened = await loudspeaker();
  session.onaudio = (bytes) => receive(opened, bytes);
  session.ondone = ({ cancelled }) => {
    heard.made = true;
    if (!cancelled) opened.end();
  };
  session.onerror = (error) => {
    tell(error);
    silence();
  };
  return session;
}

/** Begins a new utterance and silences the one before. */
async function begin() {
  tell(null);
  drawnSeed = Math.floor(Math.random() * SEED_LIMIT);
  const speaker = await loudspeaker();
  if (heard.running) interrupt(speaker);
  Object.assign(heard, { running: true, made: false, inText: true, askedMs: performance.now(), firstMs: 0, samples: 0 });
  waveform.clear(SAMPLE_RATE);
  page.stop.disabled = false;
  page.state.textContent = "Speaking";
  for (const figure of Object.values(page.figures)) figure.textContent = "–";
}

/** @param {Player} speaker @param {ArrayBuffer} bytes */
function receive(speaker, bytes) {
  heard.lastMs = performance.now();
  if (!heard.firstMs) {
    heard.firstMs = heard.lastMs;
    page.figures.ttfa.textContent = `${Math.round(heard.firstMs - heard.askedMs)} ms`;
  }
  const samples = speaker.push(bytes);
  waveform.add(samples);
  heard.samples += samples.length;
  const audioS = heard.samples / SAMPLE_RATE;
  // While text is typed, the typist sets the pace, so the time says nothing about the server.
  if (audioS && !page.typing.checked) {
    page.figures.rtf.textContent = ((heard.lastMs - heard.askedMs) / 1000 / audioS).toFixed(2);
  }
}

/** @param {import("./player.js").PlayerReport} report */
function report({ queued, played, underruns, drained }) {
  if (!heard.running) return;
  waveform.played(played);
  page.figures.buffer.textContent = `${Math.round((queued / SAMPLE_RATE) * 1000)} ms`;
  page.figures.spoken.textContent = `${(played / SAMPLE_RATE).toFixed(1)} s`;
  page.figures.gaps.textContent = page.typing.checked && !heard.made ? "–" : String(underruns);
  if (drained) finished();
}

function finished() {
  Object.assign(heard, { running: false, inText: false });
  page.stop.disabled = true;
  page.state.textContent = "Done";
}

/** @param {Player} speaker */
function interrupt(speaker) {
  session?.cancel(!heard.made);
  speaker.clear();
}

/** Ends the utterance: no more of it will arrive. */
async function silence() {
  if (!heard.running) return;
  finished();
  (await loudspeaker()).clear();
}

async function speak() {
  const text = page.text.value;
  if (page.typing.checked && heard.inText) {
    await endTyped();
    return;
  }
  if (!text.trim()) {
    tell("There is no text to speak.");
    page.text.focus();
    return;
  }
  await begin();
  const open = await live();
  open.say(text);
  open.end();
  heard.inText = false;
  typed = text;
}

async function stop() {
  if (!heard.running) return;
  interrupt(await loudspeaker());
  finished();
  page.state.textContent = "Stopped";
  typed = page.text.value;
}

/** Sends the words that are followed by a space. The last word may still be corrected. */
async function type() {
  if (!page.typing.checked) return;
  const value = page.text.value;
  if (!value.startsWith(typed)) {
    // Text that has been spoken was changed. Only text after its end is new.
    typed = value;
    return;
  }
  const ready = value.slice(0, value.search(/\s\S*$/) + 1);
  if (ready.length <= typed.length || (!heard.inText && !value.slice(typed.length).trim())) return;
  const words = ready.slice(typed.length);
  typed = ready;
  if (!heard.inText) await begin();
  (await live()).say(words);
}

async function endTyped() {
  const rest = page.text.value.slice(typed.length);
  typed = page.text.value;
  const open = await live();
  if (rest) open.say(rest);
  open.end();
  heard.inText = false;
}

/** The options of the controls, with the seed of what was heard last. */
export function seededOptions() {
  drawnSeed ||= Math.floor(Math.random() * SEED_LIMIT);
  return { ...options(), seed: options().seed ?? drawnSeed };
}

/** Opens a new session for the next text. */
export function dropSession() {
  session?.drop();
}

let last = Promise.resolve();

/** Runs work of the stage in order, because keys come faster than a connection opens. @param {() => unknown} work */
function inTurn(work) {
  last = last.then(() => attempt(work, silence));
}

page.speak.onclick = () => inTurn(speak);
page.stop.onclick = () => inTurn(stop);
page.text.oninput = () => {
  showRequest();
  inTurn(type);
};
page.text.onkeydown = (event) => {
  const ends = page.typing.checked && !event.shiftKey && !event.isComposing;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey || ends)) {
    event.preventDefault();
    inTurn(speak);
  }
};
addEventListener("keydown", (event) => {
  if (event.key === "Escape") inTurn(stop);
});
page.typing.onchange = () => {
  page.hint.hidden = !page.typing.checked;
  typed = page.text.value;
  page.text.focus();
};
