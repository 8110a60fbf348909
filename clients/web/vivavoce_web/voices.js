// @ts-check
/** The voices as cards: radio buttons, each with a button beside it that plays a sample. */

import { busy, client, element, find, input } from "./page.js";
import { toggleSample } from "./sample.js";

/** With more voices than these there is a field that filters them. */
const MANY = 12;
const CHOICES = "input[type=radio]:not(:disabled)";

/** @typedef {import("./client.js").Voice} Voice */
/** @typedef {{ kind: "voice", id: string } | { kind: "mix" } | { kind: "recording" } | { kind: "none" }} Chosen */

const controls = {
  group: find("voices", HTMLFieldSetElement),
  filter: input("voice-filter"),
  none: element("voice-none"),
  list: element("voice-list"),
  mixCard: element("mix-card"),
  mix: input("voice-mix"),
  mixPanel: element("mix"),
  recordingCard: element("recording-card"),
  recording: input("voice-recording"),
  recordingPanel: element("clone"),
};

export const choosing = {
  /** Called after another voice was chosen. */
  onchange: () => {},
  /** Called after a stored voice was deleted. */
  ondelete: async () => {},
  /** @type {() => { model?: string }} */
  model: () => ({}),
  /** The chosen language of the speech, or "auto". */
  language: () => "auto",
};

/** @returns {HTMLInputElement[]} the radio buttons of the server's voices */
function radios() {
  return [...controls.list.querySelectorAll("input")];
}

/** @returns {Chosen} */
export function chosenVoice() {
  if (controls.mix.checked) return { kind: "mix" };
  if (controls.recording.checked) return { kind: "recording" };
  const radio = radios().find(({ checked }) => checked);
  return radio ? { kind: "voice", id: radio.value } : { kind: "none" };
}

/** @param {string} id */
export function chooseVoice(id) {
  const radio = radios().find(({ value }) => value === id);
  if (radio) radio.checked = true;
  changed();
  radio?.focus();
}

/**
 * Shows the voices of a model. The chosen one stays, if it is among them.
 * @param {Voice[]} voices
 * @param {{ mixes: boolean, clones: boolean, severalLanguages: boolean }} can
 */
export function showVoices(voices, can) {
  const before = chosenVoice();
  const cards = voices.map((voice, at) => cardOf(voice, at, can.severalLanguages));
  controls.list.replaceChildren(...cards);
  controls.filter.parentElement?.toggleAttribute("hidden", voices.length <= MANY);
  controls.list.classList.toggle("many", voices.length > MANY);
  controls.filter.value = "";
  controls.mixCard.hidden = !can.mixes;
  controls.recordingCard.hidden = !can.clones;
  controls.group.hidden = !voices.length && !can.clones;
  if (!can.mixes) controls.mix.checked = false;
  if (!can.clones) controls.recording.checked = false;
  const wanted = before.kind === "voice" ? before.id : "";
  if (chosenVoice().kind === "none") {
    const radio = radios().find(({ value }) => value === wanted) ?? radios()[0];
    if (radio) radio.checked = true;
    else controls.recording.checked = can.clones;
  }
  filter();
  changed();
}

function changed() {
  const { kind } = chosenVoice();
  controls.mixPanel.hidden = kind !== "mix";
  controls.recordingPanel.hidden = kind !== "recording";
  choosing.onchange();
}

/** Hides the cards without the words of the filter. */
function filter() {
  const words = controls.filter.value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const card of controls.list.children) {
    if (!(card instanceof HTMLElement)) continue;
    const text = (card.querySelector("label")?.textContent ?? "").toLowerCase();
    card.hidden = !words.every((word) => text.includes(word));
    if (!card.hidden) shown++;
  }
  controls.none.hidden = shown > 0 || !controls.list.children.length;
}

/** @param {Voice} voice @param {number} at @param {boolean} withLanguage */
function cardOf(voice, at, withLanguage) {
  const card = part("div", "voice");
  const radio = document.createElement("input");
  Object.assign(radio, { type: "radio", name: "voice", value: voice.id, id: `voice-${at}` });
  const label = document.createElement("label");
  label.htmlFor = radio.id;
  const kind = voice.created_at === null || voice.created_at === undefined ? null : "stored";
  const language = withLanguage ? voice.language && capital(voice.language) : null;
  const about = [voice.accent, voice.sex, language, kind].filter(Boolean).join(" · ");
  label.append(part("span", "name", titleOf(voice)));
  if (about) label.append(" ", part("span", "about", about));
  if (voice.description) label.append(" ", part("span", "description", voice.description));
  const play = document.createElement("button");
  Object.assign(play, { type: "button", className: "icon play" });
  play.setAttribute("aria-label", `Play a sample of ${voice.name}`);
  play.onclick = () => toggleSample(play, voice, { ...choosing.model(), voice: voice.id }, choosing.language());
  card.append(radio, label, ...(kind ? [deleteOf(voice)] : []), play);
  return card;
}

/** @param {Voice} voice */
function deleteOf(voice) {
  const remove = document.createElement("button");
  Object.assign(remove, { type: "button", className: "icon", textContent: "×" });
  remove.setAttribute("aria-label", `Delete ${voice.name}`);
  remove.onclick = () => {
    if (!confirm(`Delete the stored voice ${voice.name}? Nobody can speak with it afterwards.`)) return;
    busy(remove, async () => {
      await client().deleteVoice(voice.id);
      await choosing.ondelete();
      radios()[0]?.focus();
    });
  };
  return remove;
}

/** @param {"div" | "span"} tag @param {string} className @param {string} [text] */
function part(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** @param {string} word */
function capital(word) {
  return word.charAt(0).toUpperCase() + word.slice(1);
}

/** The name as people write it: Ono Anna for ono_anna. @param {Voice} voice */
export function titleOf({ name }) {
  return name.split("_").map(capital).join(" ");
}

controls.group.addEventListener("change", ({ target }) => {
  if (target instanceof HTMLInputElement && target.matches(CHOICES)) changed();
});
controls.filter.oninput = filter;
