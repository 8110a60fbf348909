// @ts-check
/** Speech kept as it came, in 16-bit samples, so that it can be heard again and saved. Positions count from its first sample. */

import { floatsOf } from "./audio.js";

const BLOCK_SAMPLES = 2 ** 16;
const FULL_SCALE = 32768;

export class Tape {
  /** Position after the last sample. */
  end = 0;
  #keptSamples;
  /** @type {Int16Array<ArrayBuffer>[]} All are full but the last. */
  #blocks = [];
  /** Number of blocks that were forgotten. */
  #forgotten = 0;
  /** @type {number | null} The odd byte at the end of a piece: the first half of a sample. */
  #half = null;

  /** @param {number} keptSamples number of samples that are kept after they were heard; more are kept only unheard */
  constructor(keptSamples) {
    this.#keptSamples = keptSamples;
  }

  /** Position of the first sample that is kept. */
  get start() {
    return this.#forgotten * BLOCK_SAMPLES;
  }

  clear() {
    this.end = this.#forgotten = 0;
    this.#blocks = [];
    this.#half = null;
  }

  /** @param {ArrayBuffer} bytes little-endian, of any length @returns {Float32Array} the samples that these bytes complete */
  add(bytes) {
    const { samples, half } = floatsOf(bytes, this.#half);
    this.#half = half;
    for (const sample of samples) {
      const at = this.end++ % BLOCK_SAMPLES;
      if (at === 0) this.#blocks.push(new Int16Array(BLOCK_SAMPLES));
      this.#blocks[this.#blocks.length - 1][at] = sample * FULL_SCALE;
    }
    return samples;
  }

  /**
   * Returns at least one sample if there is one, and fewer than asked for at the end of a block.
   * @param {number} from
   * @param {number} until
   * @returns {Float32Array<ArrayBuffer>} in [-1, 1]
   */
  read(from, until) {
    const block = this.#blocks[Math.floor(from / BLOCK_SAMPLES) - this.#forgotten];
    const at = from % BLOCK_SAMPLES;
    const last = Math.min(at + until - from, BLOCK_SAMPLES);
    return Float32Array.from(block.subarray(at, last), (sample) => sample / FULL_SCALE);
  }

  /** Forgets what is more than the kept length. @param {number} heard position; what follows is never forgotten */
  forget(heard) {
    while (this.end - this.start > this.#keptSamples && this.start + BLOCK_SAMPLES <= heard) {
      this.#blocks.shift();
      this.#forgotten++;
    }
  }

  /** @returns {ArrayBuffer[]} all that is kept, as little-endian bytes (the order of every machine with a browser) */
  pcm() {
    const inLast = this.end % BLOCK_SAMPLES || BLOCK_SAMPLES;
    return this.#blocks.map((block, index) => (index < this.#blocks.length - 1 ? block.buffer : block.slice(0, inLast).buffer));
  }
}
