// Drives the playground in a real browser and prints what was seen and heard as JSON: node playground.mjs URL BROWSER STEPS…
// A step is the name of a function below.
import { openPage, run } from "./browser.mjs";
import { playerSteps } from "./player_steps.mjs";

const [url, executablePath, shots, ...steps] = process.argv.slice(2);
const opened = await openPage(url, executablePath);
const { page } = opened;

/** Collects what reaches the loudspeakers, in the page. Its buffer is long, so that a busy machine loses nothing. */
function listen() {
  const heard = (window.heard = { samples: [], rate: 0 });
  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode && target.context instanceof AudioContext) {
      heard.context = target.context;
      heard.rate = target.context.sampleRate;
      const ear = target.context.createScriptProcessor(16384, 1, 1);
      ear.onaudioprocess = ({ inputBuffer }) => heard.samples.push(...inputBuffer.getChannelData(0));
      connect.call(this, ear);
      connect.call(ear, target);
    }
    return connect.call(this, target, ...rest);
  };
}

/** Length and loudness of all sound since the last call, silence around it cut off. */
const sound = () =>
  page.evaluate(() => {
    const { samples, rate } = window.heard;
    const isHeard = (sample) => Math.abs(sample) > 1e-6;
    const first = samples.findIndex(isHeard);
    const last = samples.findLastIndex(isHeard);
    const spoken = first < 0 ? [] : samples.slice(first, last + 1);
    window.heard.samples = [];
    const power = spoken.reduce((sum, sample) => sum + sample * sample, 0);
    return { seconds: spoken.length / rate, rms: spoken.length ? Math.sqrt(power / spoken.length) : 0 };
  });

const state = (text) => page.waitForFunction((wanted) => document.getElementById("state").textContent === wanted, text);
const textOf = (id) => page.locator(`#${id}`).textContent();
/** The figures, once sound has come out of the capturing node, which is a little behind. */
const settle = () => page.waitForTimeout(1400);

const STEPS = {
  async load() {
    await page.goto(url);
    await page.waitForFunction(() => document.querySelectorAll("#voice-list input").length > 0);
    const options = (id) => page.locator(`#${id} option`).allTextContents();
    return {
      voices: await page.locator("#voice-list .name").allTextContents(),
      languages: await options("language"),
      server: await textOf("server"),
      clone: await page.locator("#voice-recording").isVisible(),
      instructions: await page.locator("#instructions").isVisible(),
    };
  },
  async speak() {
    await page.fill("#text", "Hello there, browser.");
    await page.fill("#seed", "7");
    await page.click("#speak");
    await state("Done");
    await settle();
    const figures = {};
    for (const id of ["ttfa", "buffer", "rtf", "spoken", "gaps"]) figures[id] = await textOf(id);
    return { ...(await sound()), figures };
  },
  /** A conversation: the page shows no text to speak, answers are heard and read, and one is interrupted. */
  async chat() {
    await page.goto(url);
    await page.waitForSelector("#chat:not([hidden])");
    const turns = () => page.locator("#chat-turns li").allTextContents();
    const said = (text) => page.waitForFunction((wanted) => document.getElementById("chat-state").textContent === wanted, text);
    const panels = { stage: await page.locator("#stage").isVisible(), code: await page.locator("#code").isVisible() };
    await page.fill("#chat-text", "Hello there.");
    await page.press("#chat-text", "Enter");
    await said("Done");
    await settle();
    const first = { turns: await turns(), ...(await sound()) };
    await page.fill("#chat-text", "word ".repeat(60));
    await page.click("#chat-send");
    await said("Speaking");
    await page.keyboard.press("Escape");
    await said("Stopped");
    const stopped = await page.locator("#chat-stop").isDisabled();
    await page.fill("#chat-text", "Again?");
    await page.click("#chat-send");
    await said("Done");
    const last = await turns();
    await page.click("#chat-clear");
    return { panels, first, stopped, last: last.slice(-2), cleared: await turns() };
  },
  async again() {
    await page.fill("#text", "Once more!");
    await page.press("#text", "Control+Enter");
    await state("Done");
    await settle();
    return sound();
  },
  async interrupt() {
    await page.fill("#text", "word ".repeat(80));
    await page.click("#speak");
    await page.waitForFunction(() => parseFloat(document.getElementById("spoken").textContent) > 0.3);
    await page.keyboard.press("Escape");
    await state("Stopped");
    await settle();
    await sound();
    await settle();
    const after = await sound();
    return { after, stopDisabled: await page.locator("#stop").isDisabled(), error: await page.locator("#error").isVisible() };
  },
  async typing() {
    await page.fill("#text", "");
    await page.check("#typing");
    // Speech is a word behind the text. The words that come at once outlast the keys that follow.
    await page.fill("#text", "One two three four five s");
    await page.waitForFunction(() => parseFloat(document.getElementById("spoken").textContent) > 0);
    await page.type("#text", "ix", { delay: 15 });
    await page.press("#text", "Enter");
    await state("Done");
    await settle();
    await page.uncheck("#typing");
    return sound();
  },
  async reading() {
    const shown = async (text) => {
      await page.fill("#text", text);
      await page.locator("#reading").waitFor();
      await page.waitForFunction((written) => window.readOf === written, text);
      return { said: await textOf("reading-text"), changed: await page.locator("#reading mark").allTextContents() };
    };
    const hidden = () => page.locator("#reading").waitFor({ state: "hidden" });
    await page.evaluate(() => {
      // Notes the text whose reading the page has asked for last and received.
      const { fetch } = window;
      window.fetch = async (url, init) => {
        const response = await fetch(url, init);
        const body = typeof init?.body === "string" ? JSON.parse(init.body) : {};
        if (body.return === "text") response.clone().text().then(() => setTimeout(() => (window.readOf = body.input)));
        return response;
      };
    });
    const bold = await shown("This is **bold** and [pause:500ms] plain.");
    const two = await shown("**One** is *two* is [three](https://example.com/x).");
    await page.focus("#text");
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => document.activeElement.id);
    await page.selectOption("#normalize", "none");
    await hidden();
    const code = await textOf("snippet");
    await page.selectOption("#normalize", "");
    await page.locator("#reading").waitFor();
    await page.fill("#text", "Only plain words.");
    await hidden();
    await page.fill("#text", "...");
    await page.locator("#reading-warning").waitFor();
    const refused = await textOf("reading-warning");
    const described = await page.locator("#text").getAttribute("aria-describedby");
    await page.fill("#text", "");
    await page.locator("#reading-warning").waitFor({ state: "hidden" });
    return { bold, two, focused, code, refused, described, silent: await sound() };
  },
  async keyboard() {
    await page.focus("#text");
    const reached = [];
    for (let presses = 0; presses < 28; presses++) {
      reached.push(await page.evaluate(() => document.activeElement.id || document.activeElement.tagName));
      await page.keyboard.press("Tab");
    }
    return [...new Set(reached)];
  },
  async blank() {
    await page.fill("#text", "  ");
    await page.click("#speak");
    await page.locator("#error").waitFor();
    return textOf("error");
  },
  async code() {
    await page.fill("#text", `It's "quoted".`);
    await page.selectOption("#format", "mp3");
    const curl = await textOf("snippet");
    await page.click("#show-python");
    const python = await textOf("snippet");
    await page.click("#show-javascript");
    return { curl, python, javascript: await textOf("snippet") };
  },
  async download() {
    const files = {};
    await page.fill("#text", "Hello there, you.");
    for (const format of ["wav", "mp3", "opus"]) {
      await page.selectOption("#format", format);
      const [file] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
      await file.saveAs(`${shots}/${file.suggestedFilename()}`);
      files[format] = file.suggestedFilename();
    }
    return files;
  },
  async clone() {
    await page.check("#voice-recording");
    await page.click("#record");
    await page.locator("#record.recording").waitFor();
    await page.waitForTimeout(700);
    await page.click("#record");
    await page.locator("#clone-clear").waitFor();
    const recorded = await textOf("clone-state");
    await page.setInputFiles("#clone-file", `${shots}/vivavoce.wav`);
    await page.waitForFunction((before) => document.getElementById("clone-state").textContent !== before, recorded);
    const uploaded = await textOf("clone-state");
    await sound();
    await page.fill("#text", "In your voice.");
    await page.click("#speak");
    await state("Done");
    await settle();
    const spoken = await sound();
    await page.click("#clone-clear");
    await page.check("#voice-0");
    return { recorded, uploaded, spoken };
  },
  async wrongKey() {
    await page.goto(url);
    await page.locator("#error").waitFor();
    const error = await textOf("error");
    await page.fill("#key", "ключ");
    await page.press("#key", "Tab");
    await page.waitForFunction((before) => document.getElementById("error").textContent !== before, error);
    const foreign = await textOf("error");
    await page.fill("#key", " sk-right ");
    await page.press("#key", "Tab");
    await page.waitForFunction(() => document.querySelectorAll("#voice-list input").length > 0);
    await page.fill("#text", "Hello!");
    await page.click("#speak");
    await state("Done");
    await settle();
    return { error, foreign, ...(await sound()) };
  },
  async shoot() {
    await page.fill("#text", "Hello! I speak while you are still reading this sentence.");
    await page.fill("#seed", "");
    await page.click("#speak");
    await page.waitForFunction(() => parseFloat(document.getElementById("spoken").textContent) > 1.2);
    const overflow = {};
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme });
      for (const width of [390, 1280]) {
        await page.setViewportSize({ width, height: 900 });
        await page.screenshot({ path: `${shots}/${scheme}-${width}.png`, fullPage: true });
        overflow[`${scheme}-${width}`] = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      }
    }
    return overflow;
  },
};

await page.addInitScript(listen);
await run(opened, { ...STEPS, ...playerSteps(page, { url, sound, state, textOf, settle, shots }) }, steps);
