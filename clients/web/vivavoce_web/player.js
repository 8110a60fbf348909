// @ts-check
/** Plays 16-bit mono PCM as it arrives, and keeps it: it can be paused, heard again from any place, and saved. */

import { wavOf } from "./audio.js";
import { openOutput } from "./outputs.js";
import { Tape } from "./tape.js";

/** Longer than the first piece, a frame of 80 ms: playback that starts with one frame alone often has a gap. */
const TARGET_S = 0.1;
const MAX_TARGET_S = 1.6;
/** Speech that the output holds beyond the sample it plays. The rest waits here, in half of the memory. */
const AHEAD_S = 10;
/** Speech that is kept after it was heard: 86 MB at 24 kHz. Speech that was not heard yet is kept however long it is. */
export const KEPT_S = 1800;

/**
 * @typedef {object} PlayerReport
 * @property {number} queued samples that arrived and are still to be played
 * @property {number} played position: samples from the beginning of the utterance to the one that is heard
 * @property {number} underruns times that the speech stopped because nothing more had arrived
 * @property {boolean} playing
 * @property {boolean} drained true once, when the last sample of an utterance has been played
 */

export class Player {
  /** @type {(report: PlayerReport) => void} Many times a second while the page lives. */
  onreport = () => {};

  #context;
  #gain;
  #output;
  #tape;
  /** Counts the output's clears, so that reports from before one are told apart. */
  #run = 0;
  /** Positions: where the output began, up to where it was fed, and what is heard. */
  #base = 0;
  #fed = 0;
  #position = 0;
  /** Underruns before the output began. */
  #underrunsBefore = 0;
  #underruns = 0;
  #paused = false;
  /** True after stop(), until play() or clear(). */
  #stopped = false;
  /** True once all of the utterance was heard, until play(), clear() or more of it. */
  #heardOut = false;
  /** True once all of the utterance has arrived. */
  #complete = false;
  /** True once the output has all of the utterance. */
  #outputComplete = false;

  /** @param {AudioContext} context @param {GainNode} gain @param {import("./outputs.js").Output} output */
  constructor(context, gain, output) {
    this.#context = context;
    this.#gain = gain;
    this.#output = output;
    this.#tape = new Tape(KEPT_S * context.sampleRate);
    output.onreport = (report) => this.#follow(report);
  }

  /** Browsers let a page make sound only after a click or a key. @param {number} sampleRate */
  static async open(sampleRate) {
    const context = new AudioContext({ sampleRate, latencyHint: "interactive" });
    const gain = context.createGain();
    gain.connect(context.destination);
    const buffer = { targetSamples: TARGET_S * sampleRate, maxTargetSamples: MAX_TARGET_S * sampleRate };
    return new Player(context, gain, await openOutput(context, gain, buffer));
  }

  get sampleRate() {
    return this.#context.sampleRate;
  }

  /** Number of samples that have arrived: the position after the last one. */
  get arrived() {
    return this.#tape.end;
  }

  /** Number of samples that were forgotten: the position of the first that is kept. */
  get forgotten() {
    return this.#tape.start;
  }

  /** Position of the sample that is heard. */
  get position() {
    return this.#position;
  }

  /** False after pause() and stop(), and once all of an utterance was heard: play() goes on. */
  get running() {
    return !this.#paused && !this.#isHeld;
  }

  get #isHeld() {
    return this.#stopped || this.#heardOut;
  }

  /** True after pause(), until the speech goes on. */
  get paused() {
    return this.#paused;
  }

  /** Between 0 and 1. */
  get volume() {
    return this.#gain.gain.value;
  }

  set volume(volume) {
    this.#gain.gain.value = volume;
  }

  /** Lets sound out: what was pushed, or is pushed from now on. */
  async resume() {
    this.#paused = false;
    await this.#context.resume();
  }

  /** Holds the speech where it is. More of it may arrive. */
  async pause() {
    this.#paused = true;
    await this.#context.suspend();
  }

  /** Goes on after pause() and stop(). Begins again if all of the utterance was heard. */
  async play() {
    this.#stopped = this.#heardOut = false;
    if (this.#complete && this.#position === this.arrived) this.#restart(this.forgotten);
    else this.#feed();
    await this.resume();
  }

  /** Goes to a position, or to the nearest that there is. @param {number} position in samples */
  seek(position) {
    this.#restart(Math.max(this.forgotten, Math.min(this.arrived, Math.round(position))));
    this.onreport(this.#report(false, false));
  }

  /** @param {ArrayBuffer} bytes @returns {Float32Array} the samples that these bytes complete */
  push(bytes) {
    this.#complete = this.#outputComplete = this.#heardOut = false;
    const samples = this.#tape.add(bytes);
    this.#feed();
    return samples;
  }

  /** Ends the utterance: plays the buffered audio to its end, even if it is short. */
  end() {
    this.#complete = true;
    this.#feed();
  }

  /** Ends the utterance and silences it at once. What has arrived is kept for play() and wav(). */
  stop() {
    this.#complete = this.#stopped = true;
    this.#restart(this.#position);
    this.onreport(this.#report(false, false));
  }

  /** Silences the player at once, and forgets the utterance. */
  clear() {
    this.#tape.clear();
    this.#complete = this.#stopped = this.#heardOut = false;
    this.#underruns = this.#underrunsBefore = 0;
    this.#restart(0);
  }

  /** @returns {Blob} all that has arrived and is kept, sample by sample, as a WAV file */
  wav() {
    return wavOf(this.#tape.pcm(), this.sampleRate);
  }

  async close() {
    this.#output.close();
    await this.#context.close();
  }

  /** @param {number} position */
  #restart(position) {
    this.#underrunsBefore += this.#underruns;
    this.#underruns = 0;
    this.#base = this.#fed = this.#position = position;
    this.#outputComplete = false;
    this.#output.clear(++this.#run);
    this.#feed();
  }

  #feed() {
    if (this.#isHeld) return;
    const ahead = AHEAD_S * this.sampleRate;
    const until = Math.min(this.arrived, this.#position + ahead);
    // Half of the length at once, because many small pieces would cost the output more.
    while (this.#fed < until && (until === this.arrived || this.#fed - this.#position < ahead / 2)) {
      const samples = this.#tape.read(this.#fed, until);
      this.#fed += samples.length;
      this.#output.push(samples);
    }
    if (this.#complete && !this.#outputComplete && this.#fed === this.arrived) {
      this.#outputComplete = true;
      this.#output.end();
    }
  }

  /** @param {import("./outputs.js").OutputReport} report */
  #follow({ run, played, underruns, playing, drained }) {
    if (run !== this.#run) return;
    this.#position = this.#base + played;
    this.#underruns = underruns;
    this.#heardOut ||= drained;
    this.#tape.forget(this.#position);
    this.#feed();
    this.onreport(this.#report(playing, drained));
  }

  /** @param {boolean} playing @param {boolean} drained @returns {PlayerReport} */
  #report(playing, drained) {
    const underruns = this.#underrunsBefore + this.#underruns;
    return { queued: this.arrived - this.#position, played: this.#position, underruns, playing, drained };
  }
}
