// @ts-check
/** The download of an utterance as a file. */

import { wavOf } from "./audio.js";
import { busy, client, page, save } from "./page.js";
import { controls } from "./settings.js";
import { seededOptions } from "./stage.js";

/** @type {Record<string, string>} WAV files are made here from PCM, because a streamed one cannot state its length. */
const FORMAT_OF_FILE = { wav: "pcm" };

/** Downloads the utterance as a file, from a session of its own. The same seed repeats what was heard. */
async function download() {
  const text = page.text.value;
  if (!text.trim()) throw new Error("There is no text to speak.");
  const format = controls.format.value;
  const wanted = { ...seededOptions(), response_format: FORMAT_OF_FILE[format] ?? format };
  const own = await client().live(wanted);
  /** @type {ArrayBuffer[]} */
  const pieces = [];
  let rate = 0;
  await new Promise((resolve, reject) => {
    own.onstart = ({ sample_rate }) => (rate = sample_rate);
    own.onaudio = (bytes) => pieces.push(bytes);
    own.ondone = resolve;
    own.onerror = reject;
    own.say(text);
    own.end();
  });
  own.drop();
  save(format === "wav" ? wavOf(pieces, rate) : new Blob(pieces), `vivavoce.${format}`);
}

page.download.onclick = () => busy(page.download, download);
