// @ts-check
/** The page's controls of speaking, by name, and what every part of the page needs. */

import { VivavoceClient, VivavoceError } from "./client.js";

/** Time that a browser may take to begin a download. */
const URL_LIFE_MS = 60_000;

/** @template {HTMLElement} T @param {string} id @param {new () => T} kind @returns {T} */
export function find(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return element;
}

export const button = (/** @type {string} */ id) => find(id, HTMLButtonElement);
export const input = (/** @type {string} */ id) => find(id, HTMLInputElement);
export const select = (/** @type {string} */ id) => find(id, HTMLSelectElement);
export const element = (/** @type {string} */ id) => find(id, HTMLElement);

export const page = {
  text: find("text", HTMLTextAreaElement),
  reading: { panel: element("reading"), text: element("reading-text"), warning: element("reading-warning") },
  typing: input("typing"),
  speak: button("speak"),
  stop: button("stop"),
  hint: element("hint"),
  error: element("error"),
  errorText: element("error-text"),
  state: element("state"),
  server: element("server"),
  waveform: find("waveform", HTMLCanvasElement),
  figures: {
    ttfa: element("ttfa"),
    buffer: element("buffer"),
    rtf: element("rtf"),
    spoken: element("spoken"),
    gaps: element("gaps"),
  },
  download: button("download"),
  keyField: find("key-field", HTMLDetailsElement),
  key: input("key"),
};

export const baseUrl = new URL(".", document.baseURI);

export function client() {
  return new VivavoceClient(baseUrl, { apiKey: page.key.value });
}

/** @param {HTMLSelectElement} list @param {{ value: string, label: string }[]} choices */
export function fill(list, choices) {
  const chosen = list.value;
  list.replaceChildren(...choices.map(({ value, label }) => new Option(label, value)));
  if (choices.some(({ value }) => value === chosen)) list.value = chosen;
}

/** Describes an error in words. @param {unknown} error */
export function wordsOf(error) {
  if (!(error instanceof Error)) return String(error);
  if (error instanceof DOMException && error.name === "NotAllowedError") {
    return "The browser does not let this page use the microphone. Allow it in the address bar, or choose a file.";
  }
  if (error instanceof DOMException && error.name === "NotFoundError") return "There is no microphone here. Choose a file instead.";
  if (error instanceof DOMException && error.name === "EncodingError") return "The browser cannot read this file as audio.";
  return error.message;
}

/** Shows an error in words, or removes it for null. @param {unknown} error */
export function tell(error) {
  page.error.hidden = error === null;
  page.errorText.textContent = error === null ? "" : wordsOf(error);
  if (error !== null) page.error.scrollIntoView({ block: "nearest" });
  if (error instanceof VivavoceError && error.code === "invalid_api_key") {
    page.keyField.open = true;
    page.key.focus();
  }
}

/** Runs the work of a control and shows its error. @param {() => unknown} work @param {() => unknown} [failed] */
export async function attempt(work, failed = () => {}) {
  try {
    await work();
  } catch (error) {
    tell(error);
    await failed();
  }
}

/** @param {HTMLButtonElement} control @param {() => unknown} work */
export async function busy(control, work) {
  control.disabled = true;
  tell(null);
  await attempt(work);
  control.disabled = false;
}

/** Gives the visitor a file. @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), URL_LIFE_MS);
}

/** A value of the last visit, or null. @param {() => Storage} storage @param {string} name */
export function kept(storage, name) {
  try {
    return storage().getItem(name);
  } catch {
    return null; // A browser that keeps no data for the page throws.
  }
}

/** Keeps a value, if the browser does. @param {() => Storage} storage @param {string} name @param {string} value */
export function keep(storage, name, value) {
  try {
    storage().setItem(name, value);
  } catch {
    // The value holds for this visit alone.
  }
}

button("error-close").onclick = () => tell(null);
