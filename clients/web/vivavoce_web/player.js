// @ts-check
/** Plays 16-bit mono PCM as it arrives, through an AudioWorklet with a jitter buffer. */

import { floatsOf } from "./audio.js";

/** Longer than the first piece, a frame of 80 ms: playback that starts with one frame alone often has a gap. */
const TARGET_S = 0.1;
const MAX_TARGET_S = 1.6;

/**
 * @typedef {{ queued: number, played: number, underruns: number, playing: boolean, drained: boolean }} PlayerReport
 *   all in samples
 */

export class Player {
  /** @type {(report: PlayerReport) => void} Many times a second while the page lives. */
  onreport = () => {};

  #context;
  #node;
  /** @type {number | null} The odd byte at the end of a piece: the first half of a sample. */
  #half = null;

  /** @param {AudioContext} context @param {AudioWorkletNode} node */
  constructor(context, node) {
    this.#context = context;
    this.#node = node;
    node.port.onmessage = ({ data }) => this.onreport(data);
    node.connect(context.destination);
  }

  /** Browsers let a page make sound only after a click or a key. @param {number} sampleRate */
  static async open(sampleRate) {
    const context = new AudioContext({ sampleRate, latencyHint: "interactive" });
    await context.audioWorklet.addModule(new URL("./worklet.js", import.meta.url));
    const processorOptions = { targetSamples: TARGET_S * sampleRate, maxTargetSamples: MAX_TARGET_S * sampleRate };
    const node = new AudioWorkletNode(context, "vivavoce-pcm", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions,
    });
    return new Player(context, node);
  }

  get sampleRate() {
    return this.#context.sampleRate;
  }

  async resume() {
    await this.#context.resume();
  }

  /** @param {ArrayBuffer} bytes @returns {Float32Array} the samples that these bytes complete */
  push(bytes) {
    const { samples, half } = floatsOf(bytes, this.#half);
    this.#half = half;
    if (samples.length) this.#node.port.postMessage({ type: "push", samples });
    return samples;
  }

  /** Ends the utterance: plays the buffered audio to its end, even if it is short. */
  end() {
    this.#node.port.postMessage({ type: "end" });
  }

  /** Silences the player at once. */
  clear() {
    this.#half = null;
    this.#node.port.postMessage({ type: "clear" });
  }

  async close() {
    this.#node.disconnect();
    await this.#context.close();
  }
}
