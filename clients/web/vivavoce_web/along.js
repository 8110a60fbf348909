// @ts-check
/** The text that is spoken, with the word that is heard marked, and its subtitles. It shows itself with the first word. */

import { button, element, save } from "./page.js";
import { srt, vtt } from "./subtitles.js";

/** A word stays marked in a short silence behind it. */
const AFTER_S = 0.25;

const controls = {
  panel: element("along"),
  text: element("along-text"),
  srt: button("save-srt"),
  vtt: button("save-vtt"),
};

/**
 * @typedef {import("./client.js").SpokenWord} SpokenWord
 * @typedef {import("./client.js").SpokenTurn} SpokenTurn
 */

/** Called with the time of a word, in seconds, that was clicked. A keyboard has the position of the player for that. */
export const along = { onpick: (/** @type {number} */ _seconds) => {} };

/** @type {string[]} The characters of the utterance, because places of words count characters. */
let chars = [];
/** @type {SpokenWord[]} */
let words = [];
/** @type {{ span: HTMLElement, start: number, end: number }[]} Those whose times are known, in order. */
let timed = [];
/** @type {SpokenTurn[]} */
let turns = [];
/** The text behind the last word. */
const rest = new Text();
/** @type {HTMLElement | null} */
let marked = null;
/** Position that is heard, and where what is kept of the speech begins. */
let heardS = 0;
let keptFromS = 0;
/** Length of the audio, once all of it has arrived. */
let wholeS = Infinity;
/** While the speech is held in a silence, the word in front of it is marked: a reader finds the place again. */
let isHeld = false;

/** Forgets the utterance. */
export function clearAlong() {
  [chars, words, timed, turns, marked] = [[], [], [], [], null];
  heardS = keptFromS = 0;
  [wholeS, isHeld] = [Infinity, false];
  controls.text.replaceChildren(rest);
  controls.panel.hidden = true;
}

/** Notes text that was sent to be spoken. @param {string} text */
export function addText(text) {
  for (const char of text) chars.push(char);
  showRest();
}

/** Notes words whose times have become known. @param {SpokenWord[]} added */
export function addWords(added) {
  for (const word of added) {
    const end = words[words.length - 1]?.text_end ?? 0;
    const span = document.createElement("span");
    span.textContent = word.word;
    rest.before(chars.slice(end, word.text_start).join(""), span);
    words.push(word);
    if (word.start !== null && word.end !== null) timed.push({ span, start: word.start, end: word.end });
  }
  showRest();
  controls.panel.hidden = words.length === 0;
  mark();
}

/** Notes the end of the audio and the turns of a dialogue, for the subtitles. @param {number} seconds @param {SpokenTurn[]} told */
export function endAlong(seconds, told) {
  [wholeS, turns] = [seconds, told];
}

/**
 * Marks the word that is heard.
 * @param {number} seconds position
 * @param {number} fromS position of the first sample that is kept
 * @param {boolean} held true while the speech is paused
 */
export function follow(seconds, fromS, held) {
  [heardS, keptFromS, isHeld] = [seconds, fromS, held];
  mark();
}

function showRest() {
  rest.data = chars.slice(words[words.length - 1]?.text_end ?? 0).join("");
}

/** The word that is heard; null in a silence that goes on, and where times are unknown. @returns {HTMLElement | null} */
function heardSpan() {
  let [at, behind] = [0, timed.length];
  while (at < behind) {
    const middle = (at + behind) >> 1;
    if (timed[middle].start <= heardS) at = middle + 1;
    else behind = middle;
  }
  const last = timed[at - 1];
  return last && (isHeld || heardS < last.end + AFTER_S) ? last.span : null;
}

function mark() {
  const span = heardSpan();
  if (span === marked) return;
  marked?.classList.remove("now");
  span?.classList.add("now");
  marked = span;
  if (span) keepInView(span);
}

/** Scrolls the text alone, and at once: a page that moves by itself would be in a reader's way. @param {HTMLElement} span */
function keepInView({ offsetTop, offsetHeight }) {
  const { scrollTop, clientHeight } = controls.text;
  if (offsetTop < scrollTop || offsetTop + offsetHeight > scrollTop + clientHeight) controls.text.scrollTop = offsetTop - clientHeight / 4;
}

/** The words in the time of the file that is saved, which has what is kept of the speech. */
function keptWords() {
  const moved = words.map((word) => {
    const [start, end] = [word.start, word.end].map((time) => (time === null ? null : time - keptFromS));
    return { ...word, start, end };
  });
  const first = moved.findIndex(({ start }) => start !== null && start >= 0);
  return keptFromS ? moved.slice(Math.max(0, first)) : moved;
}

/** @param {typeof srt} write @param {string} type @param {string} name */
function saveSubtitles(write, type, name) {
  const moved = turns.map((turn) => ({ ...turn, start: turn.start - keptFromS, end: turn.end - keptFromS }));
  save(new Blob([write(keptWords(), chars.join(""), moved, wholeS - keptFromS)], { type }), name);
}

controls.srt.onclick = () => saveSubtitles(srt, "application/x-subrip", "vivavoce.srt");
controls.vtt.onclick = () => saveSubtitles(vtt, "text/vtt", "vivavoce.vtt");
controls.text.onclick = (/** @type {MouseEvent} */ { target }) => {
  const picked = timed.find(({ span }) => span === target);
  if (picked) along.onpick(picked.start);
};
clearAlong();
