// @ts-check
/**
 * Two ways from samples to loudspeakers. An AudioWorklet plays on the browser's audio thread. Browsers withhold it from pages
 * over plain http from another machine: there, scheduled AudioBufferSourceNodes play.
 *
 * Both begin once `targetSamples` wait. Each time an output runs dry before the end of the utterance, it doubles the target,
 * so that a slow line stutters once or twice instead of all the time.
 */

/** Time between a decision and the first sample that it schedules. The audio thread may already be that far ahead. */
const LEAD_S = 0.02;
const REPORT_EVERY_MS = 40;

/**
 * @typedef {{ targetSamples: number, maxTargetSamples: number }} JitterBuffer
 *
 * @typedef {object} OutputReport
 * @property {number} run of the clear() before
 * @property {number} played samples since then
 * @property {number} underruns since then
 * @property {boolean} playing
 * @property {boolean} drained true once per utterance, when all of it has been played
 *
 * @typedef {object} Output
 * @property {(report: OutputReport) => void} onreport
 * @property {(samples: Float32Array<ArrayBuffer>) => void} push the output owns the samples
 * @property {() => void} end what was pushed is all: it is played even if it is short
 * @property {(run: number) => void} clear silences at once; reports that follow have this number
 * @property {() => void} close
 */

/** @param {AudioContext} context @param {AudioNode} target @param {JitterBuffer} buffer @returns {Promise<Output>} */
export async function openOutput(context, target, buffer) {
  if (!context.audioWorklet) return new BufferOutput(context, target, buffer);
  await context.audioWorklet.addModule(new URL("./worklet.js", import.meta.url));
  return new WorkletOutput(context, target, buffer);
}

/** @implements {Output} */
class WorkletOutput {
  /** @type {(report: OutputReport) => void} */
  onreport = () => {};
  #node;

  /** @param {AudioContext} context @param {AudioNode} target @param {JitterBuffer} buffer */
  constructor(context, target, buffer) {
    this.#node = new AudioWorkletNode(context, "vivavoce-pcm", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: buffer,
    });
    this.#node.port.onmessage = ({ data }) => this.onreport(data);
    this.#node.connect(target);
  }

  /** @param {Float32Array<ArrayBuffer>} samples */
  push(samples) {
    this.#node.port.postMessage({ type: "push", samples }, [samples.buffer]);
  }

  end() {
    this.#node.port.postMessage({ type: "end" });
  }

  /** @param {number} run */
  clear(run) {
    this.#node.port.postMessage({ type: "clear", run });
  }

  close() {
    this.#node.disconnect();
  }
}

/**
 * Times are counted in frames of the context's clock, so that each buffer begins at the very sample after the one before.
 * @implements {Output}
 */
class BufferOutput {
  /** @type {(report: OutputReport) => void} */
  onreport = () => {};
  #context;
  #target;
  #firstTarget;
  #maxTarget;
  #ticking;
  /** @type {Set<AudioBufferSourceNode>} */
  #scheduledNodes = new Set();
  /** @type {Float32Array<ArrayBuffer>[]} */
  #waiting = [];
  #waitingSamples = 0;
  #scheduledSamples = 0;
  /** The frame of the first sample that is scheduled next. */
  #nextFrame = 0;
  #startSamples = 0;
  #run = 0;
  #underruns = 0;
  #playing = false;
  #ended = false;

  /** @param {AudioContext} context @param {AudioNode} target @param {JitterBuffer} buffer */
  constructor(context, target, { targetSamples, maxTargetSamples }) {
    this.#context = context;
    this.#target = target;
    this.#firstTarget = this.#startSamples = targetSamples;
    this.#maxTarget = maxTargetSamples;
    this.#ticking = setInterval(() => this.#tick(), REPORT_EVERY_MS);
  }

  /** @param {Float32Array<ArrayBuffer>} samples */
  push(samples) {
    this.#ended = false;
    this.#waiting.push(samples);
    this.#waitingSamples += samples.length;
    this.#play();
  }

  end() {
    this.#ended = true;
    this.#play();
  }

  /** @param {number} run */
  clear(run) {
    for (const node of this.#scheduledNodes) {
      node.stop();
      node.disconnect();
    }
    this.#scheduledNodes.clear();
    this.#waiting = [];
    this.#waitingSamples = this.#scheduledSamples = this.#nextFrame = this.#underruns = 0;
    this.#startSamples = this.#firstTarget;
    this.#playing = this.#ended = false;
    this.#run = run;
    this.#report();
  }

  close() {
    clearInterval(this.#ticking);
    this.clear(this.#run);
  }

  get #nowFrame() {
    return Math.round(this.#context.currentTime * this.#context.sampleRate);
  }

  #tick() {
    const isDry = this.#nowFrame >= this.#nextFrame;
    if (isDry && this.#ended && !this.#waiting.length) {
      this.#playing = this.#ended = false;
      this.#report(true);
      return;
    }
    if (this.#playing && isDry) this.#runDry();
    this.#play();
    this.#report();
  }

  #runDry() {
    this.#playing = false;
    this.#underruns += 1;
    this.#startSamples = Math.min(this.#maxTarget, this.#startSamples * 2);
  }

  /** Schedules all samples that wait, if enough do. */
  #play() {
    const soonest = this.#nowFrame + Math.ceil(LEAD_S * this.#context.sampleRate);
    if (this.#playing && this.#waiting.length && this.#nextFrame < soonest) this.#runDry();
    if (!this.#playing) {
      if (!this.#waiting.length || (!this.#ended && this.#waitingSamples < this.#startSamples)) return;
      this.#playing = true;
      this.#nextFrame = Math.max(this.#nextFrame, soonest);
    }
    for (const samples of this.#waiting) this.#schedule(samples);
    this.#waiting = [];
    this.#waitingSamples = 0;
  }

  /** @param {Float32Array<ArrayBuffer>} samples */
  #schedule(samples) {
    const rate = this.#context.sampleRate;
    const buffer = new AudioBuffer({ length: samples.length, sampleRate: rate });
    buffer.copyToChannel(samples, 0);
    const node = new AudioBufferSourceNode(this.#context, { buffer });
    node.connect(this.#target);
    node.onended = () => {
      this.#scheduledNodes.delete(node);
      node.disconnect();
    };
    node.start(this.#nextFrame / rate);
    this.#scheduledNodes.add(node);
    this.#nextFrame += samples.length;
    this.#scheduledSamples += samples.length;
  }

  #report(drained = false) {
    const ahead = Math.min(this.#scheduledSamples, Math.max(0, this.#nextFrame - this.#nowFrame));
    const played = this.#scheduledSamples - ahead;
    this.onreport({ run: this.#run, played, underruns: this.#underruns, playing: this.#playing, drained });
  }
}
