// What a browser makes of files: node files.mjs URL CHROMIUM NAME... prints {NAME: what} as JSON.
import { openPage } from "./browser.mjs";

const [url, executablePath, ...names] = process.argv.slice(2);

/** Runs in the page. Decodes a file with Web Audio, at 24 kHz, and plays it with <audio> to its end. */
async function read(name) {
  const context = new OfflineAudioContext(1, 1, 24000);
  let decoded;
  try {
    const buffer = await context.decodeAudioData(await (await fetch(name)).arrayBuffer());
    decoded = Array.from(buffer.getChannelData(0));
  } catch (error) {
    decoded = String(error);
  }
  const audio = new Audio(name);
  audio.muted = true;
  const happens = (...events) =>
    new Promise((resolve) => events.forEach((event) => audio.addEventListener(event, () => resolve(event), { once: true })));
  const known = happens("loadedmetadata", "error");
  const end = happens("ended", "error");
  const shown = (seconds) => (Number.isFinite(seconds) ? seconds : String(seconds));
  if ((await known) === "error") return { decoded, played: audio.error.message };
  const duration = shown(audio.duration);
  await audio.play();
  return { decoded, duration, played: await end, until: audio.currentTime, duration_at_end: shown(audio.duration) };
}

const { browser, page } = await openPage(url, executablePath);
try {
  await page.goto(url);
  const results = {};
  for (const name of names) results[name] = await page.evaluate(read, name);
  console.log(JSON.stringify(results));
} finally {
  await browser.close();
}
