// @ts-check
/** The mix of two to four voices: a slider for the share of each. */

import { button, element, fill, input } from "./page.js";
import { storing } from "./storing.js";
import { titleOf } from "./voices.js";

const MOST = 4;
const FEWEST = 2;
/** A voice whose name has one of these cannot be written in a mix. */
const NOTATION = /[+()]/;

const controls = {
  parts: element("mix-parts"),
  add: button("mix-add"),
  store: { name: input("mix-name"), button: button("mix-store"), said: element("mix-stored") },
};

/** @typedef {{ row: HTMLElement, voice: HTMLSelectElement, share: HTMLInputElement, percent: HTMLOutputElement, remove: HTMLButtonElement }} Part */

/** @type {Part[]} */
let parts = [];
/** @type {{ value: string, label: string }[]} */
let choices = [];
let made = 0;

export const mix = {
  /** Called after the mix was changed. */
  onchange: () => {},
  /** Called after the mix was stored. @type {(id: string) => Promise<void>} */
  onstore: async () => {},
  /** @type {() => { model?: string }} */
  model: () => ({}),
  isPossible: () => choices.length >= FEWEST,
  /** The mix as the API writes it: heart(60)+michael(40). */
  text: () => parts.map(({ voice }, at) => `${voice.value}(${percents()[at]})`).join("+"),

  /** Offers the voices of a model. @param {import("./client.js").Voice[]} voices */
  show(voices) {
    choices = voices.filter(({ id }) => !NOTATION.test(id)).map((voice) => ({ value: voice.id, label: titleOf(voice) }));
    for (const { voice } of parts) fill(voice, choices);
    while (parts.length < FEWEST && mix.isPossible()) add();
    describe();
  },
};

/** The shares in percent, at least 1 each. */
function percents() {
  const total = parts.reduce((sum, { share }) => sum + share.valueAsNumber, 0);
  return parts.map(({ share }) => Math.max(1, Math.round((100 * share.valueAsNumber) / total)));
}

function add() {
  const number = ++made;
  const row = document.createElement("div");
  row.className = "part";
  const voice = document.createElement("select");
  const share = document.createElement("input");
  Object.assign(share, { type: "range", min: "1", max: "100", value: "50", id: `share-${number}` });
  const percent = document.createElement("output");
  percent.htmlFor.add(share.id);
  const remove = document.createElement("button");
  Object.assign(remove, { type: "button", className: "icon", textContent: "×" });
  fill(voice, choices);
  const used = parts.map((part) => part.voice.value);
  voice.value = choices.find(({ value }) => !used.includes(value))?.value ?? choices[0].value;
  voice.oninput = share.oninput = changed;
  remove.onclick = () => {
    row.remove();
    parts = parts.filter((part) => part.row !== row);
    changed();
    (parts.at(-1)?.voice ?? controls.add).focus();
  };
  row.append(voice, share, percent, remove);
  controls.parts.append(row);
  parts.push({ row, voice, share, percent, remove });
}

/** Names the controls by their places, and shows the shares. */
function describe() {
  percents().forEach((percent, at) => {
    const part = parts[at];
    part.voice.setAttribute("aria-label", `Voice ${at + 1} of the mix`);
    part.share.setAttribute("aria-label", `Share of ${part.voice.value}`);
    part.share.setAttribute("aria-valuetext", `${percent} %`);
    part.percent.textContent = `${percent} %`;
    part.remove.setAttribute("aria-label", `Remove ${part.voice.value} from the mix`);
    part.remove.hidden = parts.length <= FEWEST;
  });
  controls.add.hidden = parts.length >= Math.min(MOST, choices.length);
}

function changed() {
  describe();
  mix.onchange();
}

controls.add.onclick = () => {
  add();
  changed();
  parts.at(-1)?.voice.focus();
};
storing(
  controls.store,
  async () => ({ mix: mix.text(), consent: `Mixed from voices of this server: ${mix.text()}`, ...mix.model() }),
  (id) => mix.onstore(id),
);
