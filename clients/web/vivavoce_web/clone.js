// @ts-check
/** The recording whose voice is cloned: a file, or the microphone. */

import { dataUrlOf, referenceOf } from "./audio.js";
import { attempt, busy, button, element, find, input } from "./page.js";

const MAX_REFERENCE_S = 30;

export const controls = {
  panel: find("clone", HTMLDetailsElement),
  state: element("clone-state"),
  file: input("clone-file"),
  record: button("record"),
  clear: button("clone-clear"),
  preview: find("clone-preview", HTMLAudioElement),
  text: input("clone-text"),
};

export const clone = {
  /** @type {{ audio: string, seconds: number } | null} */
  reference: null,
  /** Called after the recording was changed. */
  onchange: () => {},
};

/** @param {Blob} file */
async function takeReference(file) {
  const { wav, seconds } = await referenceOf(file, MAX_REFERENCE_S);
  clone.reference = { audio: await dataUrlOf(wav), seconds };
  if (controls.preview.src) URL.revokeObjectURL(controls.preview.src);
  controls.preview.src = URL.createObjectURL(wav);
  showReference();
}

function showReference() {
  controls.state.textContent = clone.reference ? `(${clone.reference.seconds.toFixed(1)} s in use)` : "";
  controls.clear.hidden = controls.preview.hidden = clone.reference === null;
  clone.onchange();
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
  controls.record.textContent = "Stop recording";
  controls.record.classList.add("recording");
  taken.ondataavailable = ({ data }) => attempt(() => takeReference(data));
  taken.onstop = () => {
    recorder = null;
    microphone.getTracks().forEach((track) => track.stop());
    controls.record.textContent = "Record";
    controls.record.classList.remove("recording");
  };
  taken.start();
  setTimeout(() => taken.state === "recording" && taken.stop(), MAX_REFERENCE_S * 1000);
}

controls.file.onchange = () => {
  const [file] = controls.file.files ?? [];
  if (file) busy(controls.record, () => takeReference(file));
};
controls.record.onclick = () => attempt(record);
controls.record.hidden = !navigator.mediaDevices;
controls.clear.onclick = () => {
  clone.reference = null;
  controls.file.value = "";
  showReference();
};
