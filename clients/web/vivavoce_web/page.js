// @ts-check
/** The page's controls, by name, and the code for the current request. */

/** @template {HTMLElement} T @param {string} id @param {new () => T} kind @returns {T} */
function find(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return element;
}

const button = (/** @type {string} */ id) => find(id, HTMLButtonElement);
const input = (/** @type {string} */ id) => find(id, HTMLInputElement);
const select = (/** @type {string} */ id) => find(id, HTMLSelectElement);
const element = (/** @type {string} */ id) => find(id, HTMLElement);

export const page = {
  text: find("text", HTMLTextAreaElement),
  reading: { panel: element("reading"), text: element("reading-text"), warning: element("reading-warning") },
  typing: input("typing"),
  asWritten: input("as-written"),
  speak: button("speak"),
  stop: button("stop"),
  hint: element("hint"),
  error: element("error"),
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
  modelField: element("model-field"),
  model: select("model"),
  voice: select("voice"),
  language: select("language"),
  speed: input("speed"),
  speedValue: element("speed-value"),
  seed: input("seed"),
  instructionsField: element("instructions-field"),
  instructions: input("instructions"),
  format: select("format"),
  download: button("download"),
  keyField: find("key-field", HTMLDetailsElement),
  key: input("key"),
  clone: {
    panel: find("clone", HTMLDetailsElement),
    state: element("clone-state"),
    file: input("clone-file"),
    record: button("record"),
    clear: button("clone-clear"),
    preview: find("clone-preview", HTMLAudioElement),
    text: input("clone-text"),
  },
  curl: button("show-curl"),
  python: button("show-python"),
  copy: button("copy"),
  snippet: element("snippet"),
};

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

const REFERENCE_NOTE = "<base64 of your recording>";

/**
 * @param {"curl" | "python"} language
 * @param {string} baseUrl
 * @param {string} text
 * @param {Record<string, unknown>} options
 * @param {boolean} withKey
 */
export function codeOf(language, baseUrl, text, options, withKey) {
  const shown = "ref_audio" in options ? { ...options, ref_audio: REFERENCE_NOTE } : options;
  const file = `speech.${shown.response_format}`;
  return language === "curl" ? curlOf(baseUrl, text, shown, file, withKey) : pythonOf(baseUrl, text, shown, file, withKey);
}

/** @param {string} baseUrl @param {string} text @param {Record<string, unknown>} options @param {string} file @param {boolean} withKey */
function curlOf(baseUrl, text, options, file, withKey) {
  const body = JSON.stringify({ input: text, ...options }, null, 2).replaceAll("'", "'\\''");
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $VIVAVOCE_API_KEY"` : "";
  return `curl -s ${baseUrl}v1/audio/speech${key} \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}' \\\n  -o ${file}`;
}

/** @param {string} baseUrl @param {string} text @param {Record<string, unknown>} options @param {string} file @param {boolean} withKey */
function pythonOf(baseUrl, text, options, file, withKey) {
  // JSON is Python too, once the two words that differ are replaced.
  const literal = (/** @type {unknown} */ value) =>
    typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
  const named = Object.entries(options).map(([name, value]) => `        ${name}=${literal(value)},\n`);
  const key = withKey ? `, api_key=os.environ["VIVAVOCE_API_KEY"]` : "";
  return (
    `${withKey ? "import os\n" : ""}from pathlib import Path\n\nfrom vivavoce_client import Client\n\n` +
    `with Client(${JSON.stringify(baseUrl.replace(/\/$/, ""))}${key}) as client:\n` +
    `    speech = client.speak(\n        ${literal(text)},\n${named.join("")}    )\n` +
    `Path(${JSON.stringify(file)}).write_bytes(speech)`
  );
}
