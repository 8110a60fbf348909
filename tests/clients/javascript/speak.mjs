// The installed npm package against a server. usage: node speak.mjs URL [ws]
import { VivavoceClient } from "vivavoce-client";
import { Player } from "vivavoce-client/player";

const [url, mode] = process.argv.slice(2);
if (mode === "ws") {
  globalThis.nativeWebSocket = globalThis.WebSocket; // the stand-in for the package ws takes it
  delete globalThis.WebSocket;
}
const client = new VivavoceClient(url);
let session;
try {
  session = await client.live({ voice: "heart", seed: 5 });
} catch (error) {
  console.log(JSON.stringify({ code: error.code }));
  process.exit();
}

/** Speaks fragments; resolves to their PCM. */
function hear(...fragments) {
  return new Promise((resolve, reject) => {
    const pieces = [];
    session.onaudio = (bytes) => pieces.push(Buffer.from(bytes));
    session.ondone = (end) => resolve({ pcm: Buffer.concat(pieces).toString("base64"), ...end });
    session.onerror = reject;
    for (const text of fragments) session.say(text).catch(reject);
    session.end();
  });
}

const first = await hear("Hello", "", " there");
session.configure({ voice: "heart", seed: 6 });
const second = await hear("Hi!");
let refused = null;
try {
  await client.speak("Hi", { voice: "nobody" });
} catch (error) {
  refused = { name: error.name, code: error.code, param: error.param };
}
const closed = new Promise((resolve) => (session.onclose = resolve));
session.close();
const code = await closed;
const late = await session.say("Too late").catch((error) => error.code);
const voices = (await client.voices()).map(({ id }) => id);
console.log(JSON.stringify({ first, second, refused, code, late, voices, open: session.isOpen, player: typeof Player.open }));
