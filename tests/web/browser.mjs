// A page in a real browser, for the drivers of the playground's tests.
import { chromium } from "playwright-core";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--use-fake-device-for-media-stream",
  "--use-fake-ui-for-media-stream",
  // A page from this host is as one from another machine: the browser does not trust plain http.
  "--host-resolver-rules=MAP another-machine.test 127.0.0.1",
];

/** Opens a page, and collects what it complains of: errors in its console, and requests to other hosts than `url`. */
export async function openPage(url, executablePath) {
  const browser = await chromium.launch({ executablePath, headless: true, args: FLAGS });
  const context = await browser.newContext({ acceptDownloads: true, permissions: ["microphone"] });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const complaints = [];
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !/^(blob|data):/.test(request.url())) complaints.push(`asks for ${request.url()}`);
  });
  return { browser, page, complaints };
}

/** Runs steps by their names and prints their results, and the complaints, as JSON. */
export async function run(opened, all, names) {
  const { browser, page, complaints } = opened;
  const results = {};
  try {
    for (const name of names) results[name] = await all[name]();
  } catch (error) {
    // The playground's own words; other pages have none of these.
    const shown = ["state", "error", "spoken", "buffer"].map(async (id) => [id, await page.locator(`#${id}`).allTextContents()]);
    console.error({ error, complaints, done: Object.keys(results), shown: await Promise.all(shown) });
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify({ results, complaints }));
}
