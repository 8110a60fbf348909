// @ts-check
/** The settings: models, voices and the other options of a request. */

import { VivavoceClient } from "./client.js";
import { clone, controls as cloning } from "./clone.js";
import { element, fill, input, page, select, tell } from "./page.js";
import { Preview } from "./preview.js";
import { showCode } from "./snippet.js";

export const controls = {
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
};

const baseUrl = new URL(".", document.baseURI);
const preview = new Preview((text, signal) => client().text(text, readingOptions(), signal));

/** @type {import("./client.js").Model[]} */
let models = [];
/** @type {import("./client.js").Voice[]} */
let voices = [];

export function client() {
  return new VivavoceClient(baseUrl, { apiKey: page.key.value });
}

/** @returns {import("./client.js").Model | undefined} */
function model() {
  return models.find(({ id }) => id === controls.model.value);
}

/** The options that decide which words are said. @returns {import("./client.js").SpeechOptions} */
function readingOptions() {
  /** @type {import("./client.js").SpeechOptions} */
  const chosen = {};
  if (models.length > 1) chosen.model = controls.model.value;
  if (controls.language.value && controls.language.value !== "auto") chosen.language = controls.language.value;
  if (page.asWritten.checked) chosen.normalize = false;
  return chosen;
}

/** Options of the API that differ from its defaults. */
export function options() {
  const chosen = readingOptions();
  if (clone.reference && model()?.clones) {
    chosen.ref_audio = clone.reference.audio;
    if (cloning.text.value.trim()) chosen.ref_text = cloning.text.value.trim();
    else chosen.x_vector_only_mode = true;
  } else if (controls.voice.value) {
    chosen.voice = controls.voice.value;
  }
  if (model()?.takes_instructions && controls.instructions.value.trim()) chosen.instructions = controls.instructions.value.trim();
  if (controls.speed.valueAsNumber !== 1) chosen.speed = controls.speed.valueAsNumber;
  if (controls.seed.value) chosen.seed = controls.seed.valueAsNumber;
  return chosen;
}

/** Shows the request as code, and the text that will be said. */
export function showRequest() {
  const shown = { ...options(), response_format: controls.format.value };
  showCode(baseUrl.href, page.text.value, shown, page.key.value !== "");
  controls.speedValue.textContent = `${controls.speed.valueAsNumber.toFixed(2)}×`;
  preview.update(page.text.value, readingOptions());
}

function showModel() {
  const current = model();
  fill(controls.voice, voices.filter((voice) => voice.model === controls.model.value).map(({ id, name }) => ({ value: id, label: name })));
  const languages = current?.languages ?? [];
  const named = languages.map((language) => ({ value: language, label: language[0].toUpperCase() + language.slice(1) }));
  fill(controls.language, languages.includes("auto") ? named : [{ value: "auto", label: "Auto" }, ...named]);
  controls.instructionsField.hidden = !current?.takes_instructions;
  cloning.panel.hidden = !current?.clones;
  showRequest();
}

export async function load() {
  try {
    [models, voices] = await Promise.all([client().models(), client().voices()]);
  } catch (error) {
    page.server.textContent = "";
    tell(error);
    return;
  }
  tell(null);
  page.server.textContent = models.length === 1 ? models[0].id : `${models.length} models`;
  controls.modelField.hidden = models.length < 2;
  fill(controls.model, models.map(({ id }) => ({ value: id, label: id })));
  showModel();
}

controls.model.onchange = showModel;
for (const control of [page.asWritten, controls.voice, controls.language, controls.speed, controls.seed, controls.instructions, controls.format, cloning.text]) {
  control.oninput = showRequest;
}
clone.onchange = () => {
  controls.voice.disabled = clone.reference !== null;
  showRequest();
};
