// The Player of the installed npm package, over an output that the test plays.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Player } from "vivavoce-client/player";

const RATE = 100;
const BLOCK = 2 ** 16;

/** A player, and its output: what was pushed since the last clear. `play` reports a number of samples as played. */
function opened() {
  const context = { sampleRate: RATE, suspended: false };
  context.resume = async () => void (context.suspended = false);
  context.suspend = async () => void (context.suspended = true);
  const output = { samples: [], ended: false, run: 0, reports: [] };
  output.push = (samples) => output.samples.push(...samples);
  output.end = () => (output.ended = true);
  output.clear = (run) => Object.assign(output, { samples: [], ended: false, run });
  output.play = (played, rest = {}) => output.onreport({ run: output.run, played, underruns: 0, playing: true, drained: false, ...rest });
  const player = new Player(context, { gain: { value: 1 } }, output);
  player.onreport = (report) => output.reports.push(report);
  return { player, output, context };
}

/** @param {number} from @param {number} count */
const ramp = (from, count) => Int16Array.from({ length: count }, (_, index) => from + index).buffer;
const heard = ({ samples }) => samples.map((sample) => sample * 32768);

test("what was played is played again from any place, sample by sample", async () => {
  const { player, output } = opened();
  player.push(ramp(1, 40).slice(0, 33));
  player.push(ramp(1, 40).slice(33));
  player.end();
  assert.deepEqual([heard(output).length, output.ended], [40, true]);
  output.play(40, { drained: true, playing: false });
  assert.equal(player.running, false);
  player.seek(10.4);
  assert.deepEqual([player.position, output.samples.length], [10, 0], "a seek after the end waits for play()");
  await player.play();
  assert.deepEqual(heard(output), Array.from({ length: 30 }, (_, index) => index + 11));
  output.play(30, { drained: true, playing: false });
  assert.equal(player.position, 40);
  await player.play();
  assert.deepEqual([heard(output).length, output.ended, player.position], [40, true, 0]);
});

test("pause holds the output while more arrives, and a seek reaches what has arrived", async () => {
  const { player, output, context } = opened();
  player.push(ramp(0, 20));
  output.play(5);
  await player.pause();
  assert.deepEqual([context.suspended, player.running], [true, false]);
  player.push(ramp(20, 20));
  assert.deepEqual([player.arrived, player.position], [40, 5]);
  player.seek(1000);
  assert.deepEqual([player.position, output.samples.length], [40, 0]);
  player.push(ramp(40, 3));
  await player.play();
  assert.deepEqual([heard(output), context.suspended], [[40, 41, 42], false]);
});

test("stop silences at once and keeps what has arrived; clear forgets it; reports from before are ignored", async () => {
  const { player, output } = opened();
  player.push(ramp(0, 20));
  output.play(8, { underruns: 1 });
  const late = { run: output.run, played: 12, underruns: 1, playing: true, drained: true };
  player.stop();
  output.onreport(late);
  assert.deepEqual([player.position, player.running, output.samples.length], [8, false, 0]);
  await player.play();
  assert.deepEqual([heard(output)[0], output.ended], [8, true]);
  output.play(2);
  assert.equal(output.reports.at(-1).underruns, 1, "gaps are those of the whole utterance");
  player.clear();
  output.play(0);
  assert.deepEqual([player.arrived, player.position, output.reports.at(-1).underruns], [0, 0, 0]);
});

test("the output holds ten seconds, and 30 minutes of what was heard are kept, with all that was not", async () => {
  const { player, output } = opened();
  const count = 5 * BLOCK;
  player.push(ramp(0, count));
  assert.equal(output.samples.length, 10 * RATE);
  assert.deepEqual([player.forgotten, player.arrived], [0, count], "nothing was heard yet");
  let played = 0;
  while (played < output.samples.length) output.play((played = Math.min(played + 300, output.samples.length)));
  assert.equal(output.samples.length, count);
  assert.equal(player.forgotten, 3 * BLOCK, "1800 s of 100 samples are more than two blocks of 65536");
  const wav = new DataView(await player.wav().arrayBuffer());
  assert.equal(wav.byteLength, 44 + 2 * (count - 3 * BLOCK));
  assert.equal(wav.getInt16(44, true), new Int16Array(ramp(3 * BLOCK, 1))[0]);
});
