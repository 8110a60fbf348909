// @ts-check
/** The stage: passes text to a live session, and its audio to loudspeakers, picture and figures. */

import { addText, addWords, along, clearAlong, endAlong, follow } from "./along.js";
import { LiveSession } from "./client.js";
import { attempt, client, page, tell } from "./page.js";
import { Player } from "./player.js";
import { options, showRequest, tellsWordTimes } from "./settings.js";
import { showPosition, volume, wire } from "./transport.js";
import { Waveform } from "./waveform.js";

const SAMPLE_RATE = 24000;
const SEED_LIMIT = 2 ** 31;

const waveform = new Waveform(page.waveform);

/** @type {LiveSession | null} */
let session = null;
/** @type {Promise<LiveSession> | null} */
let connecting = null;
/** @type {Promise<Player> | null} */
let opening = null;
/** @type {Player | null} */
let player = null;
/** Current options of the session. */
let configured = "";
/** Drawn for each utterance, so that a download repeats what was heard. */
let drawnSeed = 0;
/** The part of the text field that has been sent while typing. */
let typed = "";

/** The current utterance, from its first text to its last sample. */
const heard = { running: false, made: false, failed: false, inText: false, askedMs: 0, firstMs: 0, samples: 0, lastMs: 0 };

/** The first call must come from a click or a key, because browsers keep pages silent until then. */
function loudspeaker() {
  opening ??= Player.open(SAMPLE_RATE).then((opened) => {
    player = opened;
    opened.onreport = (now) => report(opened, now);
    opened.volume = volume();
    return opened;
  });
  return opening;
}

/** Returns the session with the options of the controls. Opens one if there is none. */
async function live() {
  const times = tellsWordTimes() ? { word_timestamps: true } : {};
  const wanted = { ...seededOptions(), ...times, response_format: "pcm", sample_rate: SAMPLE_RATE };
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
  const speaker = await loudspeaker();
  session.onaudio = (bytes) => receive(speaker, bytes);
  session.onwords = addWords;
  session.ondone = ({ cancelled, duration_ms, segments }) => {
    heard.made = true;
    endAlong(duration_ms / 1000, segments ?? []);
    if (!cancelled) speaker.end();
  };
  session.onerror = (error) => {
    // One fault may have several errors, and those that follow are about what is left.
    if (!heard.failed) tell(error);
    heard.failed = true;
    silence();
  };
  return session;
}

/** Begins a new utterance and silences the one before. */
async function begin() {
  tell(null);
  drawnSeed = Math.floor(Math.random() * SEED_LIMIT);
  if (heard.running) session?.cancel(!heard.made);
  player?.clear();
  const fresh = { running: true, made: false, failed: false, inText: true, askedMs: performance.now(), firstMs: 0, samples: 0 };
  Object.assign(heard, fresh);
  waveform.clear(SAMPLE_RATE);
  clearAlong();
  page.stop.disabled = false;
  page.state.textContent = "Speaking";
  for (const figure of Object.values(page.figures)) figure.textContent = "–";
  await (await loudspeaker()).resume();
}

/** @param {Player} speaker @param {ArrayBuffer} bytes */
function receive(speaker, bytes) {
  heard.lastMs = performance.now();
  if (!heard.firstMs) {
    heard.firstMs = heard.lastMs;
    page.figures.ttfa.textContent = `${Math.round(heard.firstMs - heard.askedMs)} ms`;
  }
  const samples = speaker.push(bytes);
  // While playing is paused, no report comes.
  if (!speaker.running) showPosition(speaker);
  waveform.add(samples);
  heard.samples += samples.length;
  const audioS = heard.samples / SAMPLE_RATE;
  // While text is typed, the typist sets the pace, so the time says nothing about the server.
  if (audioS && !page.typing.checked) {
    page.figures.rtf.textContent = ((heard.lastMs - heard.askedMs) / 1000 / audioS).toFixed(2);
  }
}

/** @param {Player} speaker @param {import("./player.js").PlayerReport} now */
function report(speaker, { queued, played, underruns, drained }) {
  waveform.played(played);
  followAlong(speaker);
  showPosition(speaker);
  if (drained) page.state.textContent = "Done";
  page.stop.disabled = !heard.running && !speaker.running;
  if (!heard.running) return;
  page.figures.buffer.textContent = `${Math.round((queued / SAMPLE_RATE) * 1000)} ms`;
  page.figures.spoken.textContent = `${(played / SAMPLE_RATE).toFixed(1)} s`;
  page.figures.gaps.textContent = page.typing.checked && !heard.made ? "–" : String(underruns);
  if (drained) finished();
}

/** @param {Player} speaker */
function followAlong(speaker) {
  follow(speaker.position / SAMPLE_RATE, speaker.forgotten / SAMPLE_RATE, speaker.paused);
}

function finished() {
  Object.assign(heard, { running: false, inText: false });
  page.stop.disabled = true;
}

/** Ends the utterance: no more of it will arrive. */
function silence() {
  if (!heard.running) return;
  finished();
  page.state.textContent = "Stopped";
  player?.stop();
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
  if (session) checkLength(text, session);
  await begin();
  const open = await live();
  if (!heard.running) return;
  checkLength(text, open);
  say(open, text);
  open.end();
  heard.inText = false;
  typed = text;
}

/** @param {LiveSession} open @param {string} text */
function say(open, text) {
  open.say(text);
  addText(text);
}

/** @param {string} text @param {LiveSession} open */
function checkLength(text, { limits }) {
  const most = limits.max_utterance_chars ?? Infinity;
  const long = [...text].length;
  if (long <= most) return;
  const [has, may] = [long, most].map((count) => count.toLocaleString("en"));
  throw new Error(`The text has ${has} characters. At most ${may} are spoken at once: speak it in parts.`);
}

/** Silences the page at once. What has arrived can still be played. */
function stop() {
  if (page.stop.disabled) return;
  if (heard.running) {
    session?.cancel(!heard.made);
    typed = page.text.value;
  }
  // Work that waits for its turn, for a connection for example, was asked for before.
  turn++;
  finished();
  page.state.textContent = "Stopped";
  player?.stop();
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
  const open = await live();
  if (heard.running) say(open, words);
}

async function endTyped() {
  const rest = page.text.value.slice(typed.length);
  typed = page.text.value;
  const open = await live();
  if (!heard.running) return;
  if (rest) say(open, rest);
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

/** The last work in order, and a number that a stop changes. */
let last = Promise.resolve();
let turn = 0;

/** Runs work of the stage in order, because keys come faster than a connection opens. @param {() => unknown} work */
function inTurn(work) {
  const asked = turn;
  last = last.then(() => (asked === turn ? attempt(work, silence) : undefined));
}

wire(loudspeaker, (speaker) => {
  page.state.textContent = !speaker.running ? "Paused" : heard.running ? "Speaking" : "Playing";
  followAlong(speaker);
  showPosition(speaker);
});
along.onpick = (seconds) => player?.seek(seconds * SAMPLE_RATE);
waveform.onpick = (/** @type {number} */ samples) => player?.seek(samples);

page.speak.onclick = () => inTurn(speak);
page.stop.onclick = stop;
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
  if (event.key === "Escape") stop();
});
page.typing.onchange = () => {
  page.hint.hidden = !page.typing.checked;
  typed = page.text.value;
  page.text.focus();
};
