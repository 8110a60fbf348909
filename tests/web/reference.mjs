// Drives the pages of the API and prints what was seen as JSON: node reference.mjs URL BROWSER FOLDER STEPS…
// A step is the name of a function below.
import { openPage, run } from "./browser.mjs";

const [url, executablePath, , ...steps] = process.argv.slice(2);
const opened = await openPage(url, executablePath);
const { page } = opened;
page.setDefaultTimeout(90_000); // Redoc lays everything out at once: 15 s on a busy machine

/** Calls GET /v1/models by the page's own button. Returns the status and the address that the page shows. */
async function tryModels() {
  const operation = page.locator("#operations-Models-list_models_v1_models_get");
  if (!(await operation.locator(".try-out__btn").isVisible())) await operation.locator(".opblock-summary").click();
  if (await operation.locator(".try-out__btn:not(.cancel)").isVisible()) await operation.locator(".try-out__btn").click();
  const answered = page.waitForResponse((response) => response.url().endsWith("v1/models"));
  await operation.locator(".execute").click();
  const answer = await answered;
  return { status: answer.status(), url: answer.url() };
}

const STEPS = {
  async swagger() {
    await page.goto(`${url}docs`);
    await page.waitForSelector(".opblock");
    return {
      operations: await page.locator(".opblock").count(),
      tags: await page.locator(".opblock-tag a span").allTextContents(),
      authorize: await page.locator(".btn.authorize").isVisible(),
    };
  },
  tryModels,
  async authorize() {
    const before = await tryModels();
    await page.locator(".btn.authorize").click();
    const dialog = page.locator(".auth-container").filter({ hasText: "as OpenAI's clients send it" });
    await dialog.locator("input").fill("sk-right");
    await dialog.locator("button.authorize").click();
    await page.locator(".modal-ux .btn-done").first().click();
    return { before: before.status, after: (await tryModels()).status };
  },
  async redoc() {
    await page.goto(`${url}redoc`);
    await page.locator("h2", { hasText: "Speak several texts" }).waitFor();
    const logo = page.locator('img[alt="redocly logo"]');
    return {
      operations: await page.locator('[data-section-id*="/operation/"]').count(),
      logo: await logo.evaluate(async (image) => (await image.decode(), image.naturalWidth > 0)),
    };
  },
  /** Pages of the docs site. */
  async site() {
    const titles = [];
    for (const name of ["", "docs/moving_from_openai/", "api/"]) {
      await page.goto(`${url}${name}`);
      await page.waitForLoadState("networkidle");
      titles.push(await page.locator("h1").first().textContent());
    }
    await page.goto(`${url}api/redoc.html`);
    await page.locator("h2", { hasText: "Speak several texts" }).waitFor();
    await page.goto(`${url}api/asyncapi.html`);
    await page.locator("asyncapi-viewer").locator("text=session.config").first().waitFor();
    return titles.map((title) => title.replace("¶", ""));
  },
  async sockets() {
    await page.goto(`${url}asyncapi`);
    const viewer = page.locator("asyncapi-viewer");
    await viewer.locator("text=session.config").first().waitFor();
    const text = await viewer.evaluate((element) => element.shadowRoot.textContent);
    return ["/v1/audio/speech/stream", "/v1/realtime", "stream-input", "input.cancel"].filter((part) => text.includes(part));
  },
};

await run(opened, STEPS, steps);
