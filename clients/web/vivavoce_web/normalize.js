// @ts-check
/** The choice of what is done to the written text before it is spoken: what the model needs, all, nothing, or some stages. */

import { attempt, client, find, select } from "./page.js";

const controls = {
  choice: select("normalize"),
  stages: find("stages", HTMLFieldSetElement),
};

/** @type {string[]} The stages that the model needs. */
let needed = [];

export const normalizing = {
  /** Called after another choice was made. */
  onchange: () => {},
};

/** The request's field `normalize`; null leaves it out. @returns {boolean | string[] | null} */
export function normalizeOf() {
  switch (controls.choice.value) {
    case "all":
      return true;
    case "none":
      return false;
    case "stages":
      return boxes().filter(({ checked }) => checked).map(({ value }) => value);
    default:
      return null;
  }
}

/** @returns {HTMLInputElement[]} */
function boxes() {
  return [...controls.stages.querySelectorAll("input")];
}

/** Ticks the stages that a model needs. @param {string[]} stages */
export function showStages(stages) {
  needed = stages;
  for (const box of boxes()) box.checked = needed.includes(box.value);
}

/** Makes a box for every stage. The server names them: they are those of a text that is read with all of them. */
async function makeBoxes() {
  const { stages } = await client().text("Hello.", { normalize: true });
  controls.stages.append(
    ...stages.map((stage) => {
      const box = document.createElement("input");
      Object.assign(box, { type: "checkbox", value: stage, checked: needed.includes(stage) });
      const label = document.createElement("label");
      label.className = "check";
      label.append(box, ` ${stage.replaceAll("_", " ")}`);
      return label;
    }),
  );
}

controls.choice.onchange = () =>
  attempt(async () => {
    const some = controls.choice.value === "stages";
    if (some && !boxes().length) await makeBoxes();
    controls.stages.hidden = !some;
    normalizing.onchange();
  });
controls.stages.onchange = () => normalizing.onchange();
