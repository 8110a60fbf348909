// Steps of playground.mjs that play, pause, seek and save.
import { readFile } from "node:fs/promises";

const WAV_HEADER_BYTES = 44;

/** @param {import("playwright-core").Page} page */
export function playerSteps(page, { url, sound, state, textOf, settle, shots }) {
  /** Audio and messages of the page's sockets since the last `forget`. */
  const wire = { audio: [], sent: 0 };
  page.on("websocket", (socket) => {
    socket.on("framereceived", ({ payload }) => typeof payload !== "string" && wire.audio.push(payload));
    socket.on("framesent", () => wire.sent++);
  });
  const forget = () => Object.assign(wire, { audio: [], sent: 0 });
  const pcm = () => Buffer.concat(wire.audio);
  const open = async () => {
    await page.goto(url);
    await page.waitForFunction(() => !/^(connecting.*)?$/.test(document.getElementById("server").textContent));
  };
  const say = async (text) => {
    forget();
    await page.fill("#text", text);
    await page.click("#speak");
  };
  const spoken = (seconds) =>
    page.waitForFunction((wanted) => parseFloat(document.getElementById("spoken").textContent) > wanted, seconds);
  const arrived = (seconds) => page.waitForFunction((wanted) => document.getElementById("seek").max >= wanted, seconds);
  const saved = async () => {
    const [file] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
    await file.saveAs(`${shots}/saved.wav`);
    return readFile(`${shots}/saved.wav`);
  };

  return {
    /** Speaks, and compares what the server sent with what was heard and saved. */
    async playAll() {
      await open();
      await say("Each sample of it, without a gap.");
      await state("Done");
      await settle();
      const file = await saved();
      return {
        secure: await page.evaluate(() => isSecureContext),
        worklet: await page.evaluate(() => "audioWorklet" in AudioContext.prototype),
        samples: pcm().length / 2,
        gaps: await textOf("gaps"),
        sound: await sound(),
        saved: file.subarray(WAV_HEADER_BYTES).equals(pcm()),
        dataBytes: file.readUInt32LE(40),
        name: await textOf("play-name"),
        time: await textOf("time"),
      };
    },
    /** Pauses, seeks, goes on, plays again and stops. Needs a page on which nothing has been spoken. */
    async transport() {
      await open();
      const before = await page.locator("#play, #seek, #save").evaluateAll((all) => all.every((control) => control.disabled));
      await say("word ".repeat(12).trim());
      await spoken(0.5);
      await page.click("#play");
      await state("Paused");
      await arrived(4.7);
      const silent = await page.evaluate(() => window.heard.context.state);
      const paused = { silent, name: await textOf("play-name"), stop: await page.locator("#stop").isEnabled() };
      await page.click("#play");
      await state("Done");
      await settle();
      const heard = await sound();
      const value = () => page.locator("#seek").getAttribute("aria-valuetext");
      await page.locator("#seek").fill("2");
      const places = [await value()];
      for (const key of ["ArrowRight", "ArrowLeft", "PageDown", "PageUp", "ArrowDown", "ArrowDown"]) {
        await page.press("#seek", key);
        places.push(await value());
      }
      await page.locator("#seek").fill("3");
      await settle();
      await sound();
      await page.click("#play");
      await state("Done");
      await settle();
      const rest = await sound();
      const asked = wire.sent;
      await page.click("#play");
      await state("Playing");
      await state("Done");
      await settle();
      const again = { ...(await sound()), asked: wire.sent - asked };
      await page.click("#play");
      await state("Playing");
      await page.click("#stop");
      await state("Stopped");
      await settle();
      await sound();
      await settle();
      const stopped = { ...(await sound()), stop: await page.locator("#stop").isEnabled(), name: await textOf("play-name") };
      return { before, paused, heard, places, rest, again, stopped, gaps: await textOf("gaps") };
    },
    /** Stops in the midst of an utterance: what had arrived is kept. */
    async stopped() {
      await open();
      await say("word ".repeat(80));
      await spoken(0.3);
      await page.click("#stop");
      await state("Stopped");
      const file = await saved();
      const kept = file.subarray(WAV_HEADER_BYTES);
      await page.locator("#seek").fill("0");
      await settle();
      await sound();
      await page.click("#play");
      await state("Playing");
      // A pause holds back what the capturing node has not filled a block with: sound has come out of it first.
      await page.waitForFunction(() => window.heard.samples.filter((sample) => sample !== 0).length > window.heard.rate / 4);
      await page.click("#play");
      await state("Paused");
      return { kept: kept.length / 2, sent: kept.equals(pcm().subarray(0, kept.length)), ...(await sound()) };
    },
    /** Stops before the first connection is open. */
    async early() {
      await open();
      await page.fill("#text", "Never heard.");
      forget();
      await page.evaluate(async () => {
        document.getElementById("speak").click();
        await new Promise((resolve) => setTimeout(resolve));
        document.getElementById("stop").click();
      });
      await page.waitForFunction(() => document.getElementById("stop").disabled);
      await settle();
      const early = { state: await textOf("state"), audio: pcm().length, ...(await sound()) };
      await say("Heard.");
      await state("Done");
      await settle();
      return { early, next: await sound() };
    },
    /** Renders the scheduled buffers of a page without AudioWorklet: true if each sample follows the one before. */
    async rendered() {
      await open();
      return page.evaluate(async () => {
        const { openOutput } = await import("./playground/outputs.js");
        const lengths = [1920, 1, 7, 1920, 333, 65_536, 24_000];
        const count = lengths.reduce((sum, length) => sum + length);
        const wanted = Float32Array.from({ length: count }, (_, index) => Math.sin(index) / 2);
        const context = new OfflineAudioContext(1, count + 4800, 24_000);
        const output = await openOutput(context, context.destination, { targetSamples: 2400, maxTargetSamples: 4800 });
        let at = 0;
        for (const length of lengths) output.push(wanted.slice(at, (at += length)));
        output.end();
        const samples = (await context.startRendering()).getChannelData(0);
        const first = samples.findIndex((sample) => Math.abs(sample) > 1e-6) - 1;
        const differ = wanted.findIndex((sample, index) => Math.abs(sample - samples[first + index]) > 1e-6);
        return { name: output.constructor.name, differ, leadSamples: first };
      });
    },
    async volume() {
      await open();
      await page.locator("#volume").fill("50");
      await say("Half as loud.");
      await state("Done");
      await settle();
      const half = await sound();
      await open();
      const kept = await page.locator("#volume").inputValue();
      return { half, kept, told: await page.locator("#volume").getAttribute("aria-valuetext") };
    },
    /** The copied code, pasted into the text field. */
    async copied() {
      await open();
      await page.fill("#text", "To be copied.");
      await page.click("#copy");
      await page.locator("#copy", { hasText: "Copied" }).waitFor();
      const code = await textOf("snippet");
      await page.fill("#text", "");
      await page.focus("#text");
      await page.keyboard.press("Control+V");
      return { same: (await page.locator("#text").inputValue()) === code };
    },
    async tooLong() {
      await open();
      await say("Kept.");
      await state("Done");
      await say("word ".repeat(15_000));
      await page.locator("#error").waitFor();
      const later = await textOf("error-text");
      const kept = await textOf("time");
      await open();
      await say("word ".repeat(15_000));
      await page.locator("#error").waitFor();
      const first = { error: await textOf("error-text"), audio: pcm().length };
      await page.click("#error-close");
      const closed = await page.locator("#error").isHidden();
      // Longer than the text of one request may be, and spoken all the same.
      await say("[word](https://example.com/long) ".repeat(150));
      await spoken(0.3);
      await page.waitForTimeout(600);
      const warned = await page.locator("#reading-warning").isVisible();
      await page.click("#stop");
      return { later, kept, first, closed, warned };
    },
    /** Reads along: each word that was marked, with the position at that moment, playing, sought, paused and again. */
    async readAlong() {
      await open();
      const hidden = await page.locator("#along").isHidden();
      await page.evaluate(() => {
        window.marked = [];
        const text = document.getElementById("along-text");
        const seek = document.getElementById("seek");
        const note = () => {
          const now = text.querySelectorAll(".now");
          const word = [...now].map((span) => span.textContent).join("+");
          if (word !== window.marked.at(-1)?.word) window.marked.push({ word, at: Number(seek.value) });
        };
        new MutationObserver(note).observe(text, { subtree: true, childList: true, attributes: true });
      });
      const marked = () => page.evaluate(() => window.marked.splice(0));
      const now = () => page.locator("#along .now").allTextContents();
      const text = "One 😀 “two”, three & four.\nFive!";
      await page.locator("#volume").fill("50");
      await say(text);
      await state("Done");
      const first = await marked();
      const shown = await textOf("along-text");
      await page.click("#play");
      await state("Playing");
      await state("Done");
      const again = await marked();
      await page.locator("#seek").fill("1.3");
      const sought = await now();
      await page.locator("#along-text span").nth(3).click();
      const picked = { now: await now(), at: Number(await page.locator("#seek").inputValue()) };
      await page.click("#play");
      await page.click("#play");
      await state("Paused");
      await page.locator("#seek").fill(await page.locator("#seek").getAttribute("max"));
      const paused = await now();
      await page.locator("#volume").fill("100");
      const live = await page.locator("#along, #along *").evaluateAll((all) => all.filter((each) => each.ariaLive || each.role === "status").length);
      await page.setViewportSize({ width: 360, height: 640 });
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      const heights = await page.locator("#along button").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().height));
      await page.screenshot({ path: `${shots}/along.png`, fullPage: true });
      return { hidden, first, shown, again, sought, picked, paused, live, overflow, heights };
    },
    /** Speaks the example of a dialogue, which stands behind a text of the visitor. */
    async dialogue() {
      await open();
      const value = () => page.locator("#text").inputValue();
      await page.click("#dialogue");
      const first = await value();
      await page.check("#voice-1");
      await page.click("#dialogue");
      const other = await value();
      await page.fill("#text", "Mine.");
      await page.click("#dialogue");
      const behind = await value();
      await say("Hi. [voice:heart] Ho.");
      await state("Done");
      const [file] = await Promise.all([page.waitForEvent("download"), page.click("#save-vtt")]);
      await file.saveAs(`${shots}/dialogue.vtt`);
      return { first, other, behind, vtt: await readFile(`${shots}/dialogue.vtt`, "utf8") };
    },
    /** Saves the subtitles, and lets the browser read those in WebVTT. */
    async subtitles() {
      await open();
      await say("Hello, a < b & c! And so on.");
      await state("Done");
      const files = {};
      for (const kind of ["srt", "vtt"]) {
        const [file] = await Promise.all([page.waitForEvent("download"), page.click(`#save-${kind}`)]);
        await file.saveAs(`${shots}/${file.suggestedFilename()}`);
        files[kind] = await readFile(`${shots}/${file.suggestedFilename()}`, "utf8");
      }
      const cues = await page.evaluate(async (content) => {
        const video = document.createElement("video");
        const track = document.createElement("track");
        track.src = URL.createObjectURL(new Blob([content], { type: "text/vtt" }));
        video.append(track);
        track.track.mode = "hidden";
        await new Promise((resolve, reject) => Object.assign(track, { onload: resolve, onerror: reject }));
        return [...track.track.cues].map((cue) => ({ start: cue.startTime, end: cue.endTime, text: cue.getCueAsHTML().textContent }));
      }, files.vtt);
      return { ...files, cues };
    },
    /** Speaks with a model that knows no times of words. */
    async withoutWords() {
      await open();
      await say("No times.");
      await state("Done");
      return { hidden: await page.locator("#along").isHidden(), error: await page.locator("#error").isVisible() };
    },
    /** On a phone: the error of a control at the end of the page is in view, and nothing is too small or too wide. */
    async phone() {
      await page.setViewportSize({ width: 360, height: 640 });
      await open();
      await say("On a phone.");
      await state("Done");
      await page.fill("#text", " ");
      await page.locator("#download").scrollIntoViewIfNeeded();
      await page.click("#download");
      await page.locator("#error").waitFor();
      const box = await page.locator("#error").boundingBox();
      const small = await page.locator(".stage button, .stage input, .stage textarea").evaluateAll((all) =>
        all
          .map((control) => ({ control, target: control.type === "checkbox" ? control.closest("label") : control }))
          .filter(({ target }) => target.getBoundingClientRect().height > 0)
          .filter(({ target }) => target.getBoundingClientRect().height < 44)
          .map(({ control }) => control.id),
      );
      await page.screenshot({ path: `${shots}/phone-error.png` });
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      return { error: await textOf("error-text"), top: box.y, bottom: box.y + box.height, small, overflow };
    },
  };
}
