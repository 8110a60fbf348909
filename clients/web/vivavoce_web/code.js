// @ts-check
/** A request as code, in several languages. A key is never part of it: the code reads it from the environment. */

const KEY = "VIVAVOCE_API_KEY";
const REFERENCE_NOTE = "<base64 of your recording>";
/** OpenAI's clients must send a voice. The server passes this one over if the request has a recording or designs its voice. */
const ANY_VOICE = "alloy";
/** The fields that OpenAI's Python client knows; the others are its extra_body. */
const OPENAI_FIELDS = ["model", "voice", "input", "instructions", "response_format", "speed"];

/** @typedef {"curl" | "python" | "javascript"} Language */
/** @typedef {(baseUrl: string, text: string, options: Record<string, unknown>, withKey: boolean) => string} Code */

/** @type {Code} */
function curlOf(baseUrl, text, options, withKey) {
  const body = JSON.stringify(fieldsOf(text, options), null, 2);
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $${KEY}"` : "";
  return (
    `curl -s ${quotedForShell(`${baseUrl}v1/audio/speech`)}${key} \\\n  -H 'Content-Type: application/json' \\\n` +
    `  -d ${quotedForShell(body)} \\\n  -o ${fileOf(options)}`
  );
}

/** @type {Code} */
function pythonOf(baseUrl, text, options, withKey) {
  const fields = Object.entries({ voice: ANY_VOICE, ...fieldsOf(text, options) });
  const own = fields.filter(([name]) => OPENAI_FIELDS.includes(name));
  const others = fields.filter(([name]) => !OPENAI_FIELDS.includes(name));
  const extra = others.map(([name, value]) => `${JSON.stringify(name)}: ${pythonLiteral(value)}`).join(", ");
  const named = own.map(([name, value]) => `    ${name}=${pythonLiteral(value)},\n`).join("");
  const key = withKey ? `os.environ["${KEY}"]` : `"none"`;
  return (
    `${withKey ? "import os\n\n" : ""}from openai import OpenAI\n\n` +
    `client = OpenAI(base_url=${JSON.stringify(`${baseUrl}v1`)}, api_key=${key})\n` +
    `with client.audio.speech.with_streaming_response.create(\n${named}` +
    `${extra ? `    extra_body={${extra}},\n` : ""}) as speech:\n    speech.stream_to_file("${fileOf(options)}")`
  );
}

/** @type {Code} */
function javascriptOf(baseUrl, text, options, withKey) {
  const fields = Object.entries({ voice: ANY_VOICE, ...fieldsOf(text, options) });
  const named = fields.map(([name, value]) => `  ${name}: ${JSON.stringify(value)},\n`).join("");
  const key = withKey ? `process.env.${KEY}` : `"none"`;
  return (
    `import { writeFile } from "node:fs/promises";\n\nimport OpenAI from "openai";\n\n` +
    `const client = new OpenAI({ baseURL: ${JSON.stringify(`${baseUrl}v1`)}, apiKey: ${key} });\n` +
    `const speech = await client.audio.speech.create({\n${named}});\n` +
    `await writeFile("${fileOf(options)}", Buffer.from(await speech.arrayBuffer()));`
  );
}

/** @param {string} text @param {Record<string, unknown>} options @returns {Record<string, unknown>} */
function fieldsOf(text, options) {
  return { input: text, ...options, ...("ref_audio" in options ? { ref_audio: REFERENCE_NOTE } : {}) };
}

/** @param {Record<string, unknown>} options */
function fileOf(options) {
  return `speech.${options.response_format}`;
}

/** @param {string} text */
function quotedForShell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** JSON is Python too, once the two words that differ are replaced. @param {unknown} value */
function pythonLiteral(value) {
  return typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
}

/** @type {Record<Language, Code>} */
export const CODES = { curl: curlOf, python: pythonOf, javascript: javascriptOf };
