// @ts-check
/** The current request as code. */

import { CODES } from "./code.js";
import { attempt, button, element } from "./page.js";
import { copyText } from "./secure.js";

const controls = {
  copy: button("copy"),
  code: element("snippet"),
};
const tabs = { curl: button("show-curl"), python: button("show-python"), javascript: button("show-javascript") };

/** @type {import("./code.js").Language} */
let language = "curl";
/** @type {Parameters<import("./code.js").Code>} */
let shownRequest = ["http://localhost/", "", {}, false];

/** @param {typeof shownRequest} request */
export function showCode(...request) {
  shownRequest = request;
  controls.code.textContent = CODES[language](...request);
}

for (const [name, tab] of Object.entries(tabs)) {
  tab.onclick = () => {
    language = /** @type {import("./code.js").Language} */ (name);
    for (const each of Object.values(tabs)) each.setAttribute("aria-pressed", String(each === tab));
    showCode(...shownRequest);
  };
}

controls.copy.onclick = () =>
  attempt(async () => {
    await copyText(controls.code.textContent ?? "");
    controls.copy.textContent = "Copied";
    setTimeout(() => (controls.copy.textContent = "Copy"), 1500);
  });
