// @ts-check
/** The level of a microphone, while it is recorded. */

const QUIETEST_DB = -60;

/**
 * Calls `show` with each picture of the screen, until the function that it returns is called.
 * @param {MediaStream} microphone
 * @param {(level: number, seconds: number) => void} show level from 0, silence, to 1, full scale; time since the start
 * @returns {() => void}
 */
export function watchLevel(microphone, show) {
  const context = new AudioContext();
  const analyser = context.createAnalyser();
  context.createMediaStreamSource(microphone).connect(analyser);
  const samples = new Float32Array(analyser.fftSize);
  const startMs = performance.now();
  let frame = requestAnimationFrame(measure);

  function measure() {
    analyser.getFloatTimeDomainData(samples);
    const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
    const level = power ? 1 - (10 * Math.log10(power)) / QUIETEST_DB : 0;
    show(Math.min(1, Math.max(0, level)), (performance.now() - startMs) / 1000);
    frame = requestAnimationFrame(measure);
  }

  return () => {
    cancelAnimationFrame(frame);
    context.close();
  };
}
