// @ts-nocheck (an AudioWorklet's globals are no part of the DOM's types)
/**
 * Plays pushed samples on the audio thread: the first of the two outputs of outputs.js, which describes the jitter buffer.
 */

const REPORT_EVERY_BLOCKS = 8;

class PcmPlayer extends AudioWorkletProcessor {
  constructor(options) {
    super();
    const { targetSamples, maxTargetSamples } = options.processorOptions;
    this.firstTarget = targetSamples;
    this.maxTarget = maxTargetSamples;
    this.blocks = 0;
    this.clear(0);
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  clear(run) {
    this.run = run;
    this.queue = [];
    this.offset = 0;
    this.queued = 0;
    this.played = 0;
    this.underruns = 0;
    this.target = this.firstTarget;
    this.playing = false;
    this.ended = false;
  }

  receive(message) {
    switch (message.type) {
      case "push":
        this.ended = false;
        this.queue.push(message.samples);
        this.queued += message.samples.length;
        break;
      case "end":
        this.ended = true;
        break;
      case "clear":
        this.clear(message.run);
        this.report();
    }
  }

  report(drained = false) {
    const { run, played, underruns, playing } = this;
    this.port.postMessage({ run, played, underruns, playing, drained });
  }

  process(inputs, [[output]]) {
    if (!this.playing && this.queued && (this.ended || this.queued >= this.target)) this.playing = true;
    if (this.playing) {
      const written = this.fill(output);
      this.played += written;
      if (written < output.length) this.runDry();
    } else if (this.ended && !this.queued) {
      this.runDry();
    }
    if (++this.blocks % REPORT_EVERY_BLOCKS === 0) this.report();
    return true;
  }

  fill(output) {
    let written = 0;
    while (written < output.length && this.queue.length) {
      const head = this.queue[0];
      const count = Math.min(head.length - this.offset, output.length - written);
      output.set(head.subarray(this.offset, this.offset + count), written);
      written += count;
      this.offset += count;
      if (this.offset === head.length) {
        this.queue.shift();
        this.offset = 0;
      }
    }
    this.queued -= written;
    return written;
  }

  runDry() {
    this.playing = false;
    if (this.ended) {
      this.ended = false;
      this.report(true);
    } else {
      this.underruns += 1;
      this.target = Math.min(this.maxTarget, this.target * 2);
      this.report();
    }
  }
}

registerProcessor("vivavoce-pcm", PcmPlayer);
