// @ts-check
/** The recording whose voice is cloned: a file, or the microphone. */

import { dataUrlOf, referenceOf } from "./audio.js";
import { watchLevel } from "./level.js";
import { attempt, busy, button, element, find, input, tell } from "./page.js";
import { isSecure, whyInsecure } from "./secure.js";
import { storing } from "./storing.js";

const MAX_REFERENCE_S = 30;
/** A shorter recording is taken, with a warning. */
const GOOD_REFERENCE_S = 3;
const CONSENT = "The person at the playground has confirmed: the speaker of this recording agrees that this voice is stored and used.";

export const controls = {
  state: element("clone-state"),
  file: input("clone-file"),
  record: button("record"),
  why: element("record-why"),
  meter: element("record-meter"),
  level: find("record-level", HTMLMeterElement),
  time: element("record-time"),
  clear: button("clone-clear"),
  preview: find("clone-preview", HTMLAudioElement),
  text: input("clone-text"),
  consent: input("clone-consent"),
  store: { name: input("clone-name"), button: button("clone-store"), said: element("clone-stored") },
};

export const clone = {
  /** @type {{ wav: Blob, audio: string, seconds: number } | null} */
  reference: null,
  /** Called after the recording was changed. */
  onchange: () => {},
  /** Called after the voice was stored. @type {(id: string) => Promise<void>} */
  onstore: async () => {},
  /** @type {() => { model?: string }} */
  model: () => ({}),
};

/** @param {Blob} file */
async function takeReference(file) {
  const { wav, seconds } = await referenceOf(file, MAX_REFERENCE_S);
  clone.reference = { wav, audio: await dataUrlOf(wav), seconds };
  if (controls.preview.src) URL.revokeObjectURL(controls.preview.src);
  controls.preview.src = URL.createObjectURL(wav);
  showReference();
}

function showReference() {
  const seconds = clone.reference?.seconds ?? 0;
  const short = seconds < GOOD_REFERENCE_S ? `, which is short: from ${GOOD_REFERENCE_S} s on the voice is more alike` : "";
  controls.state.textContent = clone.reference ? `${seconds.toFixed(1)} s in use${short}` : "No recording yet";
  controls.clear.hidden = controls.preview.hidden = clone.reference === null;
  controls.store.button.disabled = clone.reference === null;
  clone.onchange();
}

/** @type {MediaRecorder | null} */
let recorder = null;
/** True while the browser asks for the microphone. A second press would record a second time, without an end. */
let asking = false;

async function record() {
  if (recorder) {
    recorder.stop();
    return;
  }
  if (asking) return;
  tell(null);
  asking = true;
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true }).finally(() => (asking = false));
  const taken = new MediaRecorder(microphone);
  recorder = taken;
  controls.record.textContent = "Stop recording";
  controls.record.classList.add("recording");
  controls.state.textContent = "Recording";
  controls.meter.hidden = false;
  const unwatch = watchLevel(microphone, showLevel);
  const end = setTimeout(() => taken.stop(), MAX_REFERENCE_S * 1000);
  taken.ondataavailable = ({ data }) => attempt(() => takeReference(data));
  taken.onstop = () => {
    clearTimeout(end);
    unwatch();
    recorder = null;
    microphone.getTracks().forEach((track) => track.stop());
    controls.meter.hidden = true;
    controls.record.textContent = "Record";
    controls.record.classList.remove("recording");
    showReference();
  };
  taken.start();
}

/** @param {number} level @param {number} seconds */
function showLevel(level, seconds) {
  controls.level.value = level;
  controls.time.textContent = `${seconds.toFixed(1)} s of ${MAX_REFERENCE_S} s`;
}

controls.file.onchange = () => {
  const [file] = controls.file.files ?? [];
  if (file) busy(controls.record, () => takeReference(file));
};
controls.record.onclick = () => attempt(record);
controls.clear.onclick = () => {
  clone.reference = null;
  controls.file.value = "";
  showReference();
};
if (!isSecure || !navigator.mediaDevices) {
  controls.record.hidden = true;
  controls.why.hidden = false;
  controls.why.textContent = isSecure ? "Recording is off, because this browser has no microphone." : whyInsecure("Recording");
}
showReference();
storing(
  controls.store,
  async () => {
    if (!clone.reference) throw new Error("There is no recording to store.");
    if (!controls.consent.checked) {
      controls.consent.focus();
      throw new Error("A voice is stored only if its speaker agrees. Tick the box if that is so.");
    }
    const words = controls.text.value.trim();
    return { recording: clone.reference.wav, consent: CONSENT, ...(words ? { ref_text: words } : {}), ...clone.model() };
  },
  async (id) => {
    controls.consent.checked = false;
    await clone.onstore(id);
  },
);
