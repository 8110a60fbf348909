// @ts-check
/** Draws speech as bars: the played part, the buffered part, and the position of playback. */

const BAR_S = 0.02;
const BAR_PX = 3;
const GAP_PX = 1;
/** Position of playback, as a share of the width, once the speech is longer than the picture. */
const EAR_AT = 0.7;

export class Waveform {
  #canvas;
  /** @type {number[]} loudest sample of each bar */
  #bars = [];
  #open = 0;
  #openSamples = 0;
  #barSamples = 1;
  #playedBars = 0;
  #asked = false;
  #firstShown = 0;
  /** @type {(samples: number) => void} Called with the position in the speech that was clicked. */
  onpick = () => {};

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#ask()).observe(canvas);
    canvas.onclick = ({ offsetX }) => {
      const bar = this.#firstShown + offsetX / (BAR_PX + GAP_PX);
      if (bar < this.#bars.length) this.onpick(bar * this.#barSamples);
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#ask());
  }

  /** @param {number} sampleRate */
  clear(sampleRate) {
    this.#bars = [];
    this.#open = this.#openSamples = this.#playedBars = 0;
    this.#barSamples = Math.round(sampleRate * BAR_S);
    this.#ask();
  }

  /** @param {Float32Array} samples */
  add(samples) {
    for (const sample of samples) {
      this.#open = Math.max(this.#open, Math.abs(sample));
      if (++this.#openSamples === this.#barSamples) {
        this.#bars.push(this.#open);
        this.#open = this.#openSamples = 0;
      }
    }
    this.#ask();
  }

  /** @param {number} samples number of samples played */
  played(samples) {
    this.#playedBars = samples / this.#barSamples;
    this.#ask();
  }

  #ask() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#draw();
    });
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const scale = devicePixelRatio;
    this.#canvas.width = width * scale;
    this.#canvas.height = height * scale;
    const pen = this.#canvas.getContext("2d");
    if (!pen) return;
    pen.scale(scale, scale);
    const style = getComputedStyle(this.#canvas);
    const [accent, wave] = ["--accent", "--wave"].map((name) => style.getPropertyValue(name));
    const fits = Math.floor(width / (BAR_PX + GAP_PX));
    const first = Math.max(0, Math.min(this.#bars.length - fits, Math.round(this.#playedBars - fits * EAR_AT)));
    this.#firstShown = first;
    pen.fillStyle = wave;
    pen.fillRect(0, height / 2 - 0.5, width, 1);
    for (let index = first; index < Math.min(this.#bars.length, first + fits); index++) {
      // The square root makes quiet sounds visible, which are most of speech.
      const tall = Math.max(2, Math.sqrt(this.#bars[index]) * (height - 12));
      pen.fillStyle = index < this.#playedBars ? accent : wave;
      pen.beginPath();
      pen.roundRect((index - first) * (BAR_PX + GAP_PX), (height - tall) / 2, BAR_PX, tall, 1.5);
      pen.fill();
    }
  }
}
