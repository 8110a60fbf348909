// A program in TypeScript, against the installed package's types.
import { LiveSession, textSaid, VivavoceClient, VivavoceError, type SpokenWord, type UtteranceEnd } from "vivavoce-client";
import { Player, type PlayerReport } from "vivavoce-client/player";
import { srt, vtt } from "vivavoce-client/subtitles";

export async function speak(player: Player): Promise<number> {
  const client = new VivavoceClient("http://localhost:8000", { apiKey: "sk" });
  const session: LiveSession = await client.live({ voice: "heart", split: "sentence" });
  session.onaudio = (bytes) => player.push(bytes);
  session.ondone = (end: UtteranceEnd) => textSaid(end, end.duration_ms satisfies number) satisfies string;
  session.onerror = (error: VivavoceError) => error.code?.length;
  player.onreport = (report: PlayerReport) => report.queued;
  session.onwords = (words: SpokenWord[]) => words.map(({ start }) => start satisfies number | null);
  await session.say("Hello.");
  // @ts-expect-error: text only
  await session.say(5);
  // @ts-expect-error: there is no such split
  await client.live({ split: "word" });
  return (await client.voices()).length;
}

export async function subtitles(): Promise<string> {
  const client = new VivavoceClient("http://localhost:8000");
  const talk = [{ voice: "heart", text: "Hi!" }, { voice: "michael", text: "Hello." }];
  for await (const event of client.events(talk, { response_format: "pcm", turn_pause_s: 0.3 })) {
    if (event.kind === "audio") event.bytes satisfies Uint8Array;
    else if (event.kind === "done") return srt(event.words, "Hi!Hello.", event.turns) + vtt(event.words);
    // @ts-expect-error: only the end has the turns
    else event.turns;
  }
  return "";
}
