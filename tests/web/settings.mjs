// Drives the playground's settings and prints what was seen as JSON: node settings.mjs URL BROWSER FOLDER STEPS…
// A step is the name of a function below.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { openPage, run } from "./browser.mjs";

const [url, executablePath, , ...steps] = process.argv.slice(2);
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const SIZES = { desktop: { width: 1280, height: 800 }, phone: { width: 360, height: 740 } };

const opened = await openPage(url, executablePath);
const { page } = opened;
const textOf = (id) => page.locator(`#${id}`).textContent();
const visible = (id) => page.locator(`#${id}`).isVisible();
const chosen = () => page.evaluate(() => document.querySelector("input[name=voice]:checked").id);
const state = (text) => page.waitForFunction((wanted) => document.getElementById("state").textContent === wanted, text);
const slide = (at, value) => page.locator("#mix-parts input").nth(at).fill(String(value));
const shownCards = () => page.locator("#voice-list .voice:visible .name").allTextContents();

/** Collects what is played, and what is asked of the server. */
function listen() {
  const heard = (window.heard = { played: [], ended: 0 });
  const { play } = HTMLMediaElement.prototype;
  HTMLMediaElement.prototype.play = function () {
    heard.played.push(this.src);
    this.addEventListener("ended", () => heard.ended++);
    return play.call(this);
  };
}

/** What axe finds, in both colour schemes and sizes, and how far the page is wider than the screen. */
async function examine() {
  const found = [];
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const [name, size] of Object.entries(SIZES)) {
      await page.setViewportSize(size);
      const { violations, wider } = await page.evaluate(async () => ({
        violations: (await axe.run()).violations,
        wider: document.documentElement.scrollWidth - innerWidth,
      }));
      found.push(...violations.map(({ id, nodes }) => `${colorScheme} ${name} ${id} ${nodes[0].html}`));
      if (wider > 0) found.push(`${colorScheme} ${name} is ${wider} px too wide`);
    }
  }
  return found;
}

const STEPS = {
  async load() {
    await page.goto(url);
    await page.waitForFunction(() => document.getElementById("server").textContent !== "connecting …");
  },
  async cards() {
    const texts = await page.locator("#voice-list label").allTextContents();
    await page.focus("#voice-0");
    await page.keyboard.press("ArrowDown");
    const below = await chosen();
    const code = await textOf("snippet");
    await page.keyboard.press("ArrowUp");
    return { texts, below, code, above: await chosen(), filter: await visible("voice-filter") };
  },
  async sample() {
    const asked = [];
    page.on("request", (request) => request.url().endsWith("/speech") && asked.push(request.postDataJSON()));
    const play = page.getByRole("button", { name: "Play a sample of michael" });
    const ends = (count) => page.waitForFunction((wanted) => window.heard.ended === wanted, count);
    await play.click();
    const pressed = await play.getAttribute("aria-pressed");
    await ends(1);
    const pressedAfter = await play.getAttribute("aria-pressed");
    await play.click();
    await ends(2);
    await play.click();
    await page.keyboard.press("Escape");
    const stopped = await play.getAttribute("aria-pressed");
    const addresses = new Set(await page.evaluate(() => window.heard.played));
    return { asked, pressed, pressedAfter, stopped, addresses: addresses.size, chosen: await chosen() };
  },
  async filter() {
    await page.fill("#voice-filter", "british FEMALE");
    const british = await shownCards();
    await page.fill("#voice-filter", "nobody");
    const none = { cards: await shownCards(), said: await textOf("voice-none"), seen: await visible("voice-none") };
    await page.fill("#voice-filter", "");
    return { british, none, all: (await shownCards()).length };
  },
  async mix() {
    await page.check("#voice-mix");
    const names = await page.locator("#mix-parts select").evaluateAll((lists) => lists.map((list) => list.value));
    await slide(0, 30);
    await slide(1, 90);
    const shares = await page.locator("#mix-parts output").allTextContents();
    const two = await textOf("snippet");
    await page.click("#mix-add");
    await page.click("#mix-add");
    const most = await visible("mix-add");
    const four = await page.locator("#mix-parts select").evaluateAll((lists) => lists.map((list) => list.value));
    await page.locator("#mix-parts button").last().click();
    await page.locator("#mix-parts button").last().click();
    const removable = await page.locator("#mix-parts button:visible").count();
    return { names, shares, two, four, most, removable };
  },
  async storeMix() {
    await page.click("#mix-store");
    const nameless = await textOf("error");
    await page.fill("#mix-name", "Warm");
    await page.click("#mix-store");
    await page.waitForFunction(() => document.getElementById("mix-stored").textContent !== "");
    await page.waitForFunction(() => document.querySelector("input[name=voice]:checked").value === "warm");
    return { nameless, said: await textOf("mix-stored"), code: await textOf("snippet"), error: await visible("error") };
  },
  async speakMix() {
    await page.fill("#seed", "3");
    await page.fill("#text", "Hi!");
    await page.click("#speak");
    await state("Done");
    return visible("error");
  },
  async deleteMix() {
    const asked = [];
    const answer = (keep) => page.once("dialog", (dialog) => (asked.push(dialog.message()), keep ? dialog.dismiss() : dialog.accept()));
    const remove = page.getByRole("button", { name: "Delete warm" });
    answer(true);
    await remove.click();
    const kept = await remove.count();
    answer(false);
    await remove.click();
    await remove.waitFor({ state: "detached" });
    return { asked, kept, chosen: await chosen(), focused: await page.evaluate(() => document.activeElement.id) };
  },
  async record() {
    await page.check("#voice-recording");
    const before = { state: await textOf("clone-state"), store: await page.locator("#clone-store").isDisabled() };
    await page.click("#speak");
    await page.locator("#error").waitFor();
    before.refused = await textOf("error");
    await page.click("#record");
    // The browser's own microphone beeps once a second.
    await page.waitForFunction(() => document.getElementById("record-level").value > 0.3);
    await page.waitForFunction(() => parseFloat(document.getElementById("record-time").textContent) > 3.2);
    const time = await textOf("record-time");
    await page.click("#record");
    await page.locator("#clone-preview").waitFor();
    return { before, time, state: await textOf("clone-state"), meter: await visible("record-meter") };
  },
  async storeClone() {
    await page.fill("#clone-text", "Beep.");
    await page.fill("#clone-name", "ada");
    await page.click("#clone-store");
    const refused = await textOf("error");
    await page.check("#clone-consent");
    await page.click("#clone-store");
    await page.waitForFunction(() => document.querySelector("input[name=voice]:checked").value === "ada");
    return { refused, said: await textOf("clone-stored"), code: await textOf("snippet") };
  },
  async longRecording() {
    await page.clock.install();
    await page.check("#voice-recording");
    await page.click("#record");
    await page.waitForFunction(() => document.getElementById("record").textContent === "Stop recording");
    await page.clock.runFor(29_000);
    const before = await textOf("record");
    await page.clock.runFor(1_500);
    await page.locator("#clone-preview").waitFor();
    return { before, after: await textOf("record") };
  },
  async insecure() {
    await page.check("#voice-recording");
    return { secure: await page.evaluate(() => isSecureContext), record: await visible("record"), why: await textOf("record-why") };
  },
  async normalize() {
    const codes = {};
    for (const choice of ["", "all", "none"]) {
      await page.selectOption("#normalize", choice);
      codes[choice] = await textOf("snippet");
    }
    await page.selectOption("#normalize", "stages");
    await page.getByLabel("phone numbers").waitFor();
    const stages = await page.locator("#stages input").evaluateAll((boxes) => boxes.map(({ value, checked }) => [value, checked]));
    for (const [stage, ticked] of stages) if (ticked && stage !== "markup") await page.uncheck(`#stages [value=${stage}]`);
    await page.check("#stages [value=units]");
    const some = await textOf("snippet");
    await page.selectOption("#normalize", "");
    return { codes, stages, some, hidden: !(await visible("stages")) };
  },
  async code() {
    await page.fill("#key", "sk-secret");
    await page.press("#key", "Tab");
    await page.waitForFunction(() => document.querySelectorAll("#voice-list input").length > 0);
    await page.check("#voice-1");
    await page.fill("#text", `It's "so" – \`$HOME\` \\n\nµ 😀 !`);
    await page.selectOption("#normalize", "none");
    await page.fill("#seed", "5");
    await page.fill("#instructions", "Calm, isn't it?");
    await page.locator("#speed").fill("1.5");
    const codes = {};
    for (const language of ["curl", "python", "javascript"]) {
      await page.click(`#show-${language}`);
      codes[language] = await textOf("snippet");
    }
    return codes;
  },
  async axe() {
    await page.evaluate(AXE);
    const found = { idle: await examine() };
    await page.fill("#text", "Hello.");
    await page.click("#speak");
    await state("Done");
    found.spoken = await examine();
    await page.fill("#text", "  ");
    await page.click("#speak");
    await page.locator("#error").waitFor();
    found.error = await examine();
    await page.check("#voice-mix");
    await page.click("#mix-add");
    await page.selectOption("#normalize", "stages");
    await page.getByLabel("phone numbers").waitFor();
    found.mix = await examine();
    await page.check("#voice-recording");
    await page.click("#record");
    await page.locator("#record-meter").waitFor();
    found.recording = await examine();
    await page.click("#record");
    await page.locator("#clone-preview").waitFor();
    await page.click("#key-field summary");
    found.clone = await examine();
    return found;
  },
  async withoutStorage() {
    await page.addInitScript(() => {
      for (const name of ["localStorage", "sessionStorage"]) {
        Object.defineProperty(window, name, {
          get() {
            throw new DOMException("Denied", "SecurityError");
          },
        });
      }
    });
    await STEPS.load();
    return { server: await textOf("server"), cards: await page.locator("#voice-list input").count() };
  },
  async sampleRefused() {
    await page.evaluate(() => {
      HTMLMediaElement.prototype.play = () => Promise.reject(new DOMException("No press", "NotAllowedError"));
    });
    const play = page.getByRole("button", { name: "Play a sample of heart" });
    await play.click();
    await page.locator("#error").waitFor();
    return { error: await textOf("error"), pressed: await play.getAttribute("aria-pressed") };
  },
  async recordTwice() {
    await page.check("#voice-recording");
    return page.evaluate(async () => {
      const devices = navigator.mediaDevices;
      const { getUserMedia } = devices;
      let asked = 0;
      devices.getUserMedia = (wanted) => (asked++, getUserMedia.call(devices, wanted));
      const record = document.getElementById("record");
      record.click();
      record.click();
      while (record.textContent === "Record") await new Promise((resolve) => setTimeout(resolve, 20));
      return asked;
    });
  },
  async onAPhone() {
    await page.setViewportSize(SIZES.phone);
    await page.fill("#text", "word ".repeat(12000));
    await page.check("#voice-mix");
    const heightOf = (selector) => page.locator(selector).evaluate((element) => element.clientHeight);
    const widths = await page.locator("#mix-parts select, #mix-parts").evaluateAll((all) => all.map(({ clientWidth }) => clientWidth));
    return { code: await heightOf("pre"), mix: widths[0], lists: widths.slice(1) };
  },
  async forcedColors() {
    await page.emulateMedia({ forcedColors: "active" });
    return page.evaluate(() => {
      const colours = (selector, pseudo) => {
        const { color, backgroundColor } = getComputedStyle(document.querySelector(selector), pseudo);
        return { color, backgroundColor };
      };
      const ground = colours("#show-python").backgroundColor;
      const signs = [colours("#play", "::before"), colours(".voice .play", "::before"), colours("#show-curl")];
      return signs.map(({ backgroundColor }) => backgroundColor !== ground);
    });
  },
  async design() {
    const voices = await visible("voices");
    await page.click("#show-python");
    return { voices, code: await textOf("snippet") };
  },
};

await page.addInitScript(listen);
await run(opened, STEPS, steps);
