// @ts-check
/** The current request as code. */

import { attempt, button, element } from "./page.js";
import { copyText } from "./secure.js";

const controls = {
  curl: button("show-curl"),
  python: button("show-python"),
  copy: button("copy"),
  code: element("snippet"),
};

/** @type {"curl" | "python"} */
let codeLanguage = "curl";
/** @type {[baseUrl: string, text: string, options: Record<string, unknown>, withKey: boolean]} */
let shownRequest = ["", "", {}, false];

/** @param {typeof shownRequest} request */
export function showCode(...request) {
  shownRequest = request;
  controls.code.textContent = codeOf(codeLanguage, ...request);
}

const REFERENCE_NOTE = "<base64 of your recording>";

/**
 * @param {"curl" | "python"} language
 * @param {string} baseUrl
 * @param {string} text
 * @param {Record<string, unknown>} options
 * @param {boolean} withKey
 */
function codeOf(language, baseUrl, text, options, withKey) {
  const shown = "ref_audio" in options ? { ...options, ref_audio: REFERENCE_NOTE } : options;
  const file = `speech.${shown.response_format}`;
  return language === "curl" ? curlOf(baseUrl, text, shown, file, withKey) : pythonOf(baseUrl, text, shown, file, withKey);
}

/** @param {string} baseUrl @param {string} text @param {Record<string, unknown>} options @param {string} file @param {boolean} withKey */
function curlOf(baseUrl, text, options, file, withKey) {
  const body = JSON.stringify({ input: text, ...options }, null, 2).replaceAll("'", "'\\''");
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $VIVAVOCE_API_KEY"` : "";
  return `curl -s ${baseUrl}v1/audio/speech${key} \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}' \\\n  -o ${file}`;
}

/** @param {string} baseUrl @param {string} text @param {Record<string, unknown>} options @param {string} file @param {boolean} withKey */
function pythonOf(baseUrl, text, options, file, withKey) {
  // JSON is Python too, once the two words that differ are replaced.
  const literal = (/** @type {unknown} */ value) =>
    typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
  const named = Object.entries(options).map(([name, value]) => `        ${name}=${literal(value)},\n`);
  const key = withKey ? `, api_key=os.environ["VIVAVOCE_API_KEY"]` : "";
  return (
    `${withKey ? "import os\n" : ""}from pathlib import Path\n\nfrom vivavoce_client import Client\n\n` +
    `with Client(${JSON.stringify(baseUrl.replace(/\/$/, ""))}${key}) as client:\n` +
    `    speech = client.speak(\n        ${literal(text)},\n${named.join("")}    )\n` +
    `Path(${JSON.stringify(file)}).write_bytes(speech)`
  );
}

for (const [tab, language] of /** @type {const} */ ([[controls.curl, "curl"], [controls.python, "python"]])) {
  tab.onclick = () => {
    codeLanguage = language;
    controls.curl.setAttribute("aria-pressed", String(language === "curl"));
    controls.python.setAttribute("aria-pressed", String(language === "python"));
    showCode(...shownRequest);
  };
}

controls.copy.onclick = () =>
  attempt(async () => {
    await copyText(controls.code.textContent ?? "");
    controls.copy.textContent = "Copied";
    setTimeout(() => (controls.copy.textContent = "Copy"), 1500);
  });
