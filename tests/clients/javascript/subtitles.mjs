// Subtitles by the installed npm package, of the cases in a file: node subtitles.mjs CASES
import { readFileSync } from "node:fs";
import { srt, vtt } from "vivavoce-client/subtitles";

const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify(cases.map(({ words, text, turns, audio_s }) => [srt, vtt].map((write) => write(words, text, turns, audio_s ?? Infinity)))));
