// @ts-check
/** The storing of a voice under a name, so that every client of the server can use it. */

import { busy, client } from "./page.js";

/** As the server has it. */
const NAME = /^[a-z0-9][a-z0-9_-]{0,63}$/;

/**
 * Makes a button that stores a voice.
 * @param {{ name: HTMLInputElement, button: HTMLButtonElement, said: HTMLElement }} controls
 * @param {() => Promise<Omit<import("./client.js").NewVoice, "name">>} voiceOf throws an error for a voice that cannot be stored
 * @param {(id: string) => Promise<void>} stored
 */
export function storing({ name, button, said }, voiceOf, stored) {
  button.onclick = () =>
    busy(button, async () => {
      said.textContent = "";
      const wanted = name.value.trim().toLowerCase();
      if (!NAME.test(wanted)) {
        name.focus();
        throw new Error("Give the voice a name of 1 to 64 letters a-z, digits, _ and -, which begins with a letter or a digit.");
      }
      const { id, warnings = [] } = await client().addVoice({ name: wanted, ...(await voiceOf()) });
      name.value = "";
      said.textContent = [`Stored as ${id}.`, ...warnings].join(" ");
      await stored(id);
    });
}
