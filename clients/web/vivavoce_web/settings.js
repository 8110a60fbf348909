// @ts-check
/** The settings: models, voices and the other options of a request. */

import { chat, showChat } from "./chat.js";
import { clone, controls as cloning } from "./clone.js";
import { mix } from "./mix.js";
import { normalizeOf, normalizing, showStages } from "./normalize.js";
import { baseUrl, client, element, fill, input, page, select, tell } from "./page.js";
import { Preview } from "./preview.js";
import { showCode } from "./snippet.js";
import { chooseVoice, chosenVoice, choosing, showVoices } from "./voices.js";

export const controls = {
  modelField: element("model-field"),
  model: select("model"),
  language: select("language"),
  speed: input("speed"),
  speedValue: element("speed-value"),
  seed: input("seed"),
  instructionsField: element("instructions-field"),
  instructions: input("instructions"),
  format: select("format"),
};

const preview = new Preview((text, signal) => client().text(text, readingOptions(), signal));

/** @type {import("./client.js").Model[]} */
let models = [];
/** @type {import("./client.js").Voice[]} */
let voices = [];

/** @returns {import("./client.js").Model | undefined} */
function model() {
  return models.find(({ id }) => id === controls.model.value);
}

/** True if the model answers conversations, and speaks no other text. */
function isChat() {
  return model()?.task === "Chat";
}

/** The model's name for the server, which needs none if it has one model. @returns {{ model?: string }} */
function modelOption() {
  return models.length > 1 ? { model: controls.model.value } : {};
}

/** True if the model can tell when its words are spoken. */
export function tellsWordTimes() {
  return model()?.word_times ?? false;
}

/** The options that decide which words are said. @returns {import("./client.js").SpeechOptions} */
function readingOptions() {
  /** @type {import("./client.js").SpeechOptions} */
  const chosen = modelOption();
  if (controls.language.value && controls.language.value !== "auto") chosen.language = controls.language.value;
  const normalize = normalizeOf();
  if (normalize !== null) chosen.normalize = normalize;
  return chosen;
}

/** The options that choose the voice. @returns {import("./client.js").SpeechOptions} */
function voiceOptions() {
  const chosen = chosenVoice();
  if (chosen.kind === "voice") return { voice: chosen.id };
  if (chosen.kind === "mix") return { voice: mix.text() };
  if (chosen.kind === "none" || !clone.reference) return {};
  const words = cloning.text.value.trim();
  return { ref_audio: clone.reference.audio, ...(words ? { ref_text: words } : { x_vector_only_mode: true }) };
}

/** Options of the API that differ from its defaults. Throws an error if a recording is chosen and there is none. */
export function options() {
  if (chosenVoice().kind === "recording" && !clone.reference) throw new Error("Record a voice or choose a file, or choose another voice.");
  return optionsSoFar();
}

function optionsSoFar() {
  const chosen = { ...readingOptions(), ...voiceOptions() };
  if (model()?.takes_instructions && controls.instructions.value.trim()) chosen.instructions = controls.instructions.value.trim();
  if (controls.speed.valueAsNumber !== 1) chosen.speed = controls.speed.valueAsNumber;
  if (controls.seed.value) chosen.seed = controls.seed.valueAsNumber;
  return chosen;
}

/** Shows the request as code, and the text that will be said. */
export function showRequest() {
  controls.speedValue.textContent = `${controls.speed.valueAsNumber.toFixed(2)}×`;
  if (isChat()) return;
  const shown = { model: controls.model.value, ...optionsSoFar(), response_format: controls.format.value };
  showCode(baseUrl.href, page.text.value, shown, page.key.value !== "");
  preview.update(page.text.value, readingOptions());
}

function showModel() {
  const current = model();
  const chats = isChat();
  showChat(chats);
  element("stage").hidden = element("code").hidden = chats; // a model that chats speaks no other text
  const offered = voices.filter((voice) => voice.model === controls.model.value);
  mix.show(offered);
  showVoices(offered, { mixes: mix.isPossible(), clones: current?.clones ?? false, severalLanguages: (current?.languages.length ?? 0) > 2 });
  const languages = current?.languages ?? [];
  const named = languages.map((language) => ({ value: language, label: language[0].toUpperCase() + language.slice(1) }));
  fill(controls.language, languages.includes("auto") ? named : [{ value: "auto", label: "Auto" }, ...named]);
  controls.instructionsField.hidden = !current?.takes_instructions;
  showStages(current?.text.stages ?? []);
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

/** Shows a voice that has just been stored. @param {string} id */
async function stored(id) {
  voices = await client().voices();
  showModel();
  chooseVoice(id);
}

controls.model.onchange = showModel;
for (const control of [controls.language, controls.speed, controls.seed, controls.instructions, controls.format, cloning.text]) {
  control.oninput = showRequest;
}
choosing.model = modelOption;
choosing.language = () => controls.language.value;
choosing.ondelete = load;
mix.model = clone.model = chat.model = modelOption;
chat.options = () => {
  const { voice, speed, seed } = optionsSoFar();
  return { voice, speed, seed };
};
mix.onstore = clone.onstore = stored;
choosing.onchange = mix.onchange = clone.onchange = normalizing.onchange = showRequest;
