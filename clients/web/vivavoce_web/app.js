// @ts-check
/** The playground. Passes the controls to a live session, and its audio to loudspeakers, picture and figures. */

import { dataUrlOf, referenceOf, wavOf } from "./audio.js";
import { LiveSession, VivavoceClient, VivavoceError } from "./client.js";
import { codeOf, fill, page, wordsOf } from "./page.js";
import { Player } from "./player.js";
import { Preview } from "./preview.js";
import { Waveform } from "./waveform.js";

const SAMPLE_RATE = 24000;
const MAX_REFERENCE_S = 30;
const SEED_LIMIT = 2 ** 31;
/** @type {Record<string, string>} WAV files are made here from PCM, because a streamed one cannot state its length. */
const FORMAT_OF_FILE = { wav: "pcm" };

const baseUrl = new URL(".", document.baseURI);
const waveform = new Waveform(page.waveform);
const preview = new Preview((text, signal) => client().text(text, readingOptions(), signal));

/** @type {import("./client.js").Model[]} */
let models = [];
/** @type {import("./client.js").Voice[]} */
let voices = [];
/** @type {LiveSession | null} */
let session = null;
/** @type {Promise<LiveSession> | null} */
let connecting = null;
/** @type {Promise<Player> | null} */
let player = null;
/** @type {{ audio: string, seconds: number } | null} */
let reference = null;
/** @type {"curl" | "python"} */
let codeLanguage = "curl";
/** Current options of the session. */
let configured = "";
/** Drawn for each utterance, so that a download repeats what was heard. */
let drawnSeed = 0;
/** The part of the text field that has been sent while typing. */
let typed = "";

/** The current utterance, from its first text to its last sample. */
const heard = { running: false, made: false, inText: false, askedMs: 0, firstMs: 0, samples: 0, lastMs: 0 };

// ---- controls -------------------------------------------------------------------------------------------------

function client() {
  return new VivavoceClient(baseUrl, { apiKey: page.key.value });
}

/** @returns {import("./client.js").Model | undefined} */
function model() {
  return models.find(({ id }) => id === page.model.value);
}

/** The options that decide which words are said. @returns {import("./client.js").SpeechOptions} */
function readingOptions() {
  /** @type {import("./client.js").SpeechOptions} */
  const chosen = {};
  if (models.length > 1) chosen.model = page.model.value;
  if (page.language.value && page.language.value !== "auto") chosen.language = page.language.value;
  if (page.asWritten.checked) chosen.normalize = false;
  return chosen;
}

/** Options of the API that differ from its defaults. */
function options() {
  const chosen = readingOptions();
  if (reference && model()?.clones) {
    chosen.ref_audio = reference.audio;
    if (page.clone.text.value.trim()) chosen.ref_text = page.clone.text.value.trim();
    else chosen.x_vector_only_mode = true;
  } else if (page.voice.value) {
    chosen.voice = page.voice.value;
  }
  if (model()?.takes_instructions && page.instructions.value.trim()) chosen.instructions = page.instructions.value.trim();
  if (page.speed.valueAsNumber !== 1) chosen.speed = page.speed.valueAsNumber;
  if (page.seed.value) chosen.seed = page.seed.valueAsNumber;
  return chosen;
}

/** Shows the request as code, and the text that will be said. */
function showRequest() {
  const shown = { ...options(), response_format: page.format.value };
  page.snippet.textContent = codeOf(codeLanguage, baseUrl.href, page.text.value, shown, page.key.value !== "");
  page.speedValue.textContent = `${page.speed.valueAsNumber.toFixed(2)}×`;
  preview.update(page.text.value, readingOptions());
}

function showModel() {
  const current = model();
  fill(page.voice, voices.filter((voice) => voice.model === page.model.value).map(({ id, name }) => ({ value: id, label: name })));
  const languages = current?.languages ?? [];
  const named = languages.map((language) => ({ value: language, label: language[0].toUpperCase() + language.slice(1) }));
  fill(page.language, languages.includes("auto") ? named : [{ value: "auto", label: "Auto" }, ...named]);
  page.instructionsField.hidden = !current?.takes_instructions;
  page.clone.panel.hidden = !current?.clones;
  showRequest();
}

async function load() {
  try {
    [models, voices] = await Promise.all([client().models(), client().voices()]);
  } catch (error) {
    page.server.textContent = "";
    tell(error);
    return;
  }
  tell(null);
  page.server.textContent = models.length === 1 ? models[0].id : `${models.length} models`;
  page.modelField.hidden = models.length < 2;
  fill(page.model, models.map(({ id }) => ({ value: id, label: id })));
  showModel();
}

/** Shows an error in words, or removes it for null. @param {unknown} error */
function tell(error) {
  page.error.hidden = error === null;
  page.error.textContent = error === null ? "" : wordsOf(error);
  if (error instanceof VivavoceError && error.code === "invalid_api_key") {
    page.keyField.open = true;
    page.key.focus();
  }
}

// ---- speaking -------------------------------------------------------------------------------------------------

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
  const wanted = { ...options(), seed: options().seed ?? drawnSeed, response_format: "pcm", sample_rate: SAMPLE_RATE };
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

// ---- speaking while typing ------------------------------------------------------------------------------------

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

// ---- files ----------------------------------------------------------------------------------------------------

/** Downloads the utterance as a file, from a session of its own. The same seed repeats what was heard. */
async function download() {
  const text = page.text.value;
  if (!text.trim()) throw new Error("There is no text to speak.");
  const format = page.format.value;
  drawnSeed ||= Math.floor(Math.random() * SEED_LIMIT);
  const wanted = { ...options(), seed: options().seed ?? drawnSeed, response_format: FORMAT_OF_FILE[format] ?? format };
  const own = await client().live(wanted);
  /** @type {ArrayBuffer[]} */
  const pieces = [];
  let rate = SAMPLE_RATE;
  await new Promise((resolve, reject) => {
    own.onstart = ({ sample_rate }) => (rate = sample_rate);
    own.onaudio = (bytes) => pieces.push(bytes);
    own.ondone = resolve;
    own.onerror = reject;
    own.say(text);
    own.end();
  });
  own.drop();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(format === "wav" ? wavOf(pieces, rate) : new Blob(pieces));
  link.download = `vivavoce.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// ---- cloning --------------------------------------------------------------------------------------------------

/** @param {Blob} file */
async function takeReference(file) {
  const { wav, seconds } = await referenceOf(file, MAX_REFERENCE_S);
  reference = { audio: await dataUrlOf(wav), seconds };
  if (page.clone.preview.src) URL.revokeObjectURL(page.clone.preview.src);
  page.clone.preview.src = URL.createObjectURL(wav);
  showReference();
}

function showReference() {
  page.clone.state.textContent = reference ? `(${reference.seconds.toFixed(1)} s in use)` : "";
  page.clone.clear.hidden = page.clone.preview.hidden = reference === null;
  page.voice.disabled = reference !== null;
  showRequest();
}

/** @type {MediaRecorder | null} */
let recorder = null;

async function record() {
  if (recorder) {
    recorder.stop();
    return;
  }
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
  const taken = new MediaRecorder(microphone);
  recorder = taken;
  page.clone.record.textContent = "Stop recording";
  page.clone.record.classList.add("recording");
  taken.ondataavailable = ({ data }) => attempt(() => takeReference(data));
  taken.onstop = () => {
    recorder = null;
    microphone.getTracks().forEach((track) => track.stop());
    page.clone.record.textContent = "Record";
    page.clone.record.classList.remove("recording");
  };
  taken.start();
  setTimeout(() => taken.state === "recording" && taken.stop(), MAX_REFERENCE_S * 1000);
}

// ---- wiring ---------------------------------------------------------------------------------------------------

/** Runs the work of a control and shows its error. @param {() => unknown} work @param {() => unknown} [failed] */
async function attempt(work, failed = () => {}) {
  try {
    await work();
  } catch (error) {
    tell(error);
    await failed();
  }
}

let last = Promise.resolve();

/** Runs work of the stage in order, because keys come faster than a connection opens. @param {() => unknown} work */
function inTurn(work) {
  last = last.then(() => attempt(work, silence));
}

/** @param {HTMLButtonElement} button @param {() => unknown} work */
async function busy(button, work) {
  button.disabled = true;
  tell(null);
  await attempt(work);
  button.disabled = false;
}

page.speak.onclick = () => inTurn(speak);
page.stop.onclick = () => inTurn(stop);
page.download.onclick = () => busy(page.download, download);
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
page.model.onchange = showModel;
for (const control of [page.asWritten, page.voice, page.language, page.speed, page.seed, page.instructions, page.format, page.clone.text]) {
  control.oninput = showRequest;
}
page.key.onchange = () => {
  sessionStorage.setItem("key", page.key.value);
  session?.drop();
  load();
};
page.clone.file.onchange = () => {
  const [file] = page.clone.file.files ?? [];
  if (file) busy(page.clone.record, () => takeReference(file));
};
page.clone.record.onclick = () => attempt(record);
page.clone.record.hidden = !navigator.mediaDevices;
page.clone.clear.onclick = () => {
  reference = null;
  page.clone.file.value = "";
  showReference();
};
for (const [tab, language] of /** @type {const} */ ([[page.curl, "curl"], [page.python, "python"]])) {
  tab.onclick = () => {
    codeLanguage = language;
    page.curl.setAttribute("aria-pressed", String(language === "curl"));
    page.python.setAttribute("aria-pressed", String(language === "python"));
    showRequest();
  };
}
page.copy.onclick = () =>
  attempt(async () => {
    await navigator.clipboard.writeText(page.snippet.textContent ?? "");
    page.copy.textContent = "Copied";
    setTimeout(() => (page.copy.textContent = "Copy"), 1500);
  });

page.key.value = sessionStorage.getItem("key") ?? "";
load();
