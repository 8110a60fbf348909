// @ts-check
/** An example of a dialogue for the text field: voice tags with two voices of the model. */

import { button, page } from "./page.js";

const control = button("dialogue");

/** @type {string[]} the two voices of the example */
let speakers = [];
/** The example that was shown last. */
let shown = page.text.defaultValue;

/** Offers the example, if a model has two voices. The chosen one speaks first. @param {string[]} voices @param {string} chosen */
export function offerDialogue(voices, chosen) {
  const first = voices.includes(chosen) ? chosen : voices[0];
  speakers = [first, ...voices.filter((voice) => voice !== first)].slice(0, 2);
  control.hidden = speakers.length < 2;
}

/** Shows the example in place of another one, or behind a text that the visitor has written. */
control.onclick = () => {
  const [one, two] = speakers.map((name) => `[voice:${name}]`);
  const example = `${one} Did you hear that? ${two} I did. [pause:500ms] Who was it? ${one} It was you: two voices, and one text.`;
  const written = page.text.value.trimEnd();
  page.text.value = !written || written === shown.trimEnd() ? example : `${written}\n${example}`;
  shown = example;
  page.text.dispatchEvent(new Event("input"));
  page.text.focus();
};
