// A program in TypeScript, against the installed package's types.
import { LiveSession, textSaid, VivavoceClient, VivavoceError, type UtteranceEnd } from "vivavoce-client";
import { Player, type PlayerReport } from "vivavoce-client/player";

export async function speak(player: Player): Promise<number> {
  const client = new VivavoceClient("http://localhost:8000", { apiKey: "sk" });
  const session: LiveSession = await client.live({ voice: "heart", split: "sentence" });
  session.onaudio = (bytes) => player.push(bytes);
  session.ondone = (end: UtteranceEnd) => textSaid(end, end.duration_ms satisfies number) satisfies string;
  session.onerror = (error: VivavoceError) => error.code?.length;
  player.onreport = (report: PlayerReport) => report.queued;
  await session.say("Hello.");
  // @ts-expect-error: text only
  await session.say(5);
  // @ts-expect-error: there is no such split
  await client.live({ split: "word" });
  return (await client.voices()).length;
}
