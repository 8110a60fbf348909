// @ts-check
/** Samples of the voices: one short sentence each, spoken once with a fixed seed and then kept by the page. */

import { attempt, client, page } from "./page.js";
import { volume } from "./transport.js";

const SEED = 1;
/** @type {Record<string, string>} */
const SENTENCES = {
  english: "Hello! This is how I sound.",
  chinese: "你好！这就是我的声音。",
  french: "Bonjour ! Voici ma voix.",
  german: "Hallo! So klinge ich.",
  italian: "Ciao! Questa è la mia voce.",
  japanese: "こんにちは。これが私の声です。",
  korean: "안녕하세요! 제 목소리예요.",
  portuguese: "Olá! Esta é a minha voz.",
  russian: "Привет! Вот мой голос.",
  spanish: "¡Hola! Esta es mi voz.",
};

/** @typedef {import("./client.js").Voice} Voice */

/** @type {Map<string, Promise<string>>} Request → address of its audio. */
const kept = new Map();
/** @type {{ audio: HTMLAudioElement, button: HTMLButtonElement } | null} */
let playing = null;

/**
 * Plays the sample of a voice, or ends it if it is playing.
 * @param {HTMLButtonElement} button
 * @param {Voice} voice
 * @param {import("./client.js").SpeechOptions} options
 * @param {string} language the chosen one, or "auto" for the voice's own
 */
export async function toggleSample(button, voice, options, language) {
  const same = playing?.button === button;
  endSample();
  if (same) return;
  page.stop.click();
  const audio = new Audio();
  audio.volume = volume();
  playing = { audio, button };
  button.classList.add("playing");
  button.setAttribute("aria-pressed", "true");
  audio.onended = () => playing?.audio === audio && endSample();
  await attempt(
    async () => {
      audio.src = await addressOf(voice, options, language);
      if (playing?.audio === audio) await audio.play().catch(refusal);
    },
    () => playing?.audio === audio && endSample(),
  );
}

/** Safari plays only soon after a press, and the first sample takes time to make. It is there at the next press. @param {unknown} error */
function refusal(error) {
  // Another press, which ends the sample, aborts play().
  if (error instanceof DOMException && error.name === "AbortError") return;
  const isEarly = error instanceof DOMException && error.name === "NotAllowedError";
  throw isEarly ? new Error("The sample is ready: press its button again to hear it.") : error;
}

function endSample() {
  if (!playing) return;
  playing.audio.pause();
  playing.button.classList.remove("playing");
  playing.button.removeAttribute("aria-pressed");
  playing = null;
}

/** @param {Voice} voice @param {import("./client.js").SpeechOptions} options @param {string} chosen */
function addressOf(voice, options, chosen) {
  const own = voice.language ?? voice.languages.find((language) => language in SENTENCES) ?? "english";
  const language = chosen in SENTENCES ? chosen : own;
  const text = SENTENCES[language] ?? SENTENCES.english;
  const spoken = { ...options, ...(voice.languages.includes(language) ? { language } : {}), seed: SEED };
  const key = JSON.stringify([voice.id, voice.created_at, text, spoken]);
  const found = kept.get(key);
  if (found) return found;
  const made = client()
    .speak(text, { ...spoken, response_format: "mp3" })
    .then((response) => response.blob())
    .then((blob) => URL.createObjectURL(blob));
  kept.set(key, made);
  made.catch(() => kept.delete(key));
  return made;
}

page.speak.addEventListener("click", endSample);
addEventListener("keydown", ({ key }) => {
  if (key === "Escape") endSample();
});
